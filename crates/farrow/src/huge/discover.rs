//! Searches for the versions of a table, and for the nodes that may have chunks.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::labels;
use super::layout::Partition;
use super::place::{FoundObject, Place};
use super::{HugeTable, RACE_PAUSE, SeenTable};
use crate::clock::{deadline_after, millis};
use crate::error::Error;
use crate::interrupt::{pause, suspend};
use crate::lock::lock;

/// Versions that a node is asked for at a time. Several versions cost as much as one.
const VERSIONS_AHEAD: u64 = 32;

/// Members that a node is asked for at a time.
const MEMBERS_AHEAD: u64 = 8;

/// The nodes that may have chunks.
struct Search<'a> {
    table: &'a HugeTable,
    places: Vec<(Place<'a>, Arc<str>)>,
    /// Chunks that nodes reported which are asked by messages: version, place and chunk.
    reported: BTreeMap<u64, (usize, FoundObject)>,
    /// The version behind the last one for which these nodes were asked.
    requested_to: u64,
    /// Most chunks are on the same node as their predecessor.
    latest: usize,
}

impl HugeTable {
    /// Looks for versions added since the last call.
    pub(super) fn discover(&self, state: &mut SeenTable) -> Result<(), Error> {
        let mut newest = 0;
        self.look_despite_moves(|| {
            let before = state.layout.version();
            newest = self.discover_once(state)?.max(newest);
            Ok(ControlFlow::Continue(state.layout.version() == before))
        })?;
        let version = state.layout.version();
        if version < newest {
            return Err(self.removed_version(version + 1));
        }
        state.is_checked = true;
        self.find_moved(state)
    }

    /// Looks for the new places of chunks of nodes that drain, or were removed after they drained.
    fn find_moved(&self, state: &mut SeenTable) -> Result<(), Error> {
        let members = self.client.nodes().members()?;
        let is_draining = |region: u64| {
            members.is_any_draining()
                && members.nodes.iter().any(|one| one.is_draining && one.region_uid == region)
        };
        let records = state.members.records;
        if state.placed_as_of == records && !members.is_any_draining() {
            return Ok(());
        }
        let chunks = state.layout.chunks_where(|chunk| {
            let region = chunk.id.region().0;
            is_draining(region) || state.members.find(region).is_none()
        });
        for chunks in chunks.chunks(VERSIONS_AHEAD as usize) {
            self.find_moved_of(state, chunks)?;
        }
        state.placed_as_of = records;
        Ok(())
    }

    fn find_moved_of(&self, state: &mut SeenTable, chunks: &[Partition]) -> Result<(), Error> {
        let mut by_node: BTreeMap<u64, Vec<&Partition>> = BTreeMap::new();
        for chunk in chunks {
            by_node.entry(chunk.id.region().0).or_default().push(chunk);
        }
        for (region, chunks) in by_node {
            let node = chunks.first().map_or("", |chunk| &chunk.node);
            let found = match state.members.find(region) {
                Some(_) => {
                    let name = |chunk: &&Partition| self.chunk_name(chunk.version);
                    let names: Vec<String> = chunks.iter().map(name).collect();
                    Place::new(&self.client, region, node)?.find(&names)?
                }
                None => vec![None; chunks.len()],
            };
            let moved = chunks.iter().zip(found).filter(|(_, found)| found.is_none());
            let mut moved: Vec<&Partition> = moved.map(|(chunk, _)| *chunk).collect();
            if moved.is_empty() {
                continue;
            }
            // In order, one search asks for many of them at a time.
            moved.sort_unstable_by_key(|chunk| chunk.version);
            let mut search = Search::new(self, state)?;
            for chunk in moved {
                match search.version(chunk.version, &self.chunk_name(chunk.version))? {
                    Some(found) => self.note_place(state, chunk, found).map(drop)?,
                    // It moves just now.
                    None => self.relocate_in(state, chunk).map(drop)?,
                }
            }
        }
        Ok(())
    }

    fn chunk_name(&self, version: u64) -> String {
        labels::chunk_name(&self.name, self.id, version)
    }

    /// Calls `look` until it breaks off, or misses nothing that moved meanwhile. It returns whether
    /// it found nothing new. A chunk is at its new node before it leaves the old one, so each
    /// draining node can cause one miss more. Where others append all the time, the looks after the
    /// timeout are the last ones, whatever they find.
    fn look_despite_moves(
        &self,
        mut look: impl FnMut() -> Result<ControlFlow<(), bool>, Error>,
    ) -> Result<(), Error> {
        let nodes = self.client.nodes();
        let deadline = deadline_after(self.client.session().timeout);
        let mut version = nodes.own().reader.members_version()?;
        let mut misses = 0;
        loop {
            misses = match look()? {
                ControlFlow::Break(()) => return Ok(()),
                ControlFlow::Continue(true) => misses + 1,
                ControlFlow::Continue(false) if Instant::now() < deadline => 0,
                ControlFlow::Continue(false) => misses + 1,
            };
            let now = nodes.own().reader.members_version()?;
            let draining = if now == 0 { 0 } else { nodes.members()?.draining.len() };
            // A drain that began or ended meanwhile has changed the list.
            let has_changed = std::mem::replace(&mut version, now) != now;
            if !has_changed && (draining == 0 || misses > draining) {
                return Ok(());
            }
        }
    }

    /// One look. Returns the highest version that was seen anywhere, if that was searched for.
    fn discover_once(&self, state: &mut SeenTable) -> Result<u64, Error> {
        let mut search = Search::new(self, state)?;
        // Before the search: a chunk sealed meanwhile is no gap.
        let newest = match state.is_checked {
            true => 0,
            false => search.newest()?,
        };
        loop {
            let version = state.layout.version() + 1;
            let name = self.chunk_name(version);
            let Some((node, found)) = search.version(version, &name)? else { break };
            let (position, rows) = labels::read_chunk(&name, &found.metadata)?;
            let FoundObject { id, bytes, .. } = found;
            let chunk = Partition { version, position, rows, node, bytes, id };
            state.layout.add(chunk).map_err(|clash| self.damaged(version, &clash))?;
        }
        Ok(newest)
    }

    /// The place of a chunk that is not where it was seen: it has moved, or is deleted.
    pub(super) fn relocate(&self, chunk: &Partition) -> Result<Partition, Error> {
        let _quiet = suspend();
        // In a forked child the thread that has the lock may not exist.
        self.client.nodes().own().check()?;
        self.relocate_in(&mut lock(&self.state), chunk)
    }

    fn relocate_in(&self, state: &mut SeenTable, chunk: &Partition) -> Result<Partition, Error> {
        let name = self.chunk_name(chunk.version);
        let mut found = None;
        self.look_despite_moves(|| {
            found = Search::new(self, state)?.version(chunk.version, &name)?;
            Ok(match found {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(true),
            })
        })?;
        let found = found.ok_or_else(|| self.removed_version(chunk.version))?;
        self.note_place(state, chunk, found)
    }

    /// Notes where a chunk is now.
    fn note_place(
        &self,
        state: &mut SeenTable,
        chunk: &Partition,
        (node, found): (Arc<str>, FoundObject),
    ) -> Result<Partition, Error> {
        let name = self.chunk_name(chunk.version);
        if labels::read_chunk(&name, &found.metadata)? != (chunk.position, chunk.rows) {
            return Err(self.removed_version(chunk.version));
        }
        let now = Partition { node, id: found.id, ..chunk.clone() };
        state.layout.relocate(now.version, Arc::clone(&now.node), now.id);
        Ok(now)
    }

    /// Reads the nodes that may have chunks from the memory of the root's node.
    pub(super) fn discover_members(&self, state: &mut SeenTable) -> Result<Place<'_>, Error> {
        let deadline = deadline_after(self.client.session().timeout);
        loop {
            let home = match self.home(state) {
                // Records are removed after their root: with the root all of them were there.
                Ok(home) => match self.last_members(&home, state)? {
                    true => return Ok(home),
                    false => None,
                },
                // It may have left after it was drained.
                Err(error @ (Error::NodeLost { .. } | Error::NodeUnreachable(_))) => Some(error),
                Err(error) => return Err(error),
            };
            if !self.find_root(state, home)? && Instant::now() >= deadline {
                let what = format!("the root of huge table {:?}, which moves", self.name);
                let waited_ms = millis(self.client.session().timeout);
                return Err(Error::Timeout { what, waited_ms });
            }
        }
    }

    /// Looks for the root at another node. `lost` is the error of the last one. False: look again.
    fn find_root(&self, state: &mut SeenTable, lost: Option<Error>) -> Result<bool, Error> {
        let what = format!("huge table {:?}: it was dropped", self.name);
        let dropped = Error::NotFound { what };
        let root = match self.client.get(&self.name.as_str().into(), Duration::ZERO) {
            Ok(root) => root,
            Err(Error::NotFound { .. }) => return Err(lost.unwrap_or(dropped)),
            Err(error) => return Err(lost.unwrap_or(error)),
        };
        let id = root.id();
        let metadata = match self.client.metadata(&id.into()) {
            Ok(metadata) if id != state.root => metadata,
            // It moves on, or its node is about to be back.
            Ok(_) | Err(Error::NotFound { .. }) => return pause(RACE_PAUSE).map(|()| false),
            Err(error) => return Err(error),
        };
        if labels::check_root(&self.name, &metadata).is_err() {
            return Err(lost.unwrap_or(dropped));
        }
        let (table, members) = labels::read_root(&self.name, id, &metadata)?;
        if table != self.id {
            return Err(lost.unwrap_or(dropped));
        }
        state.root_node = self.client.nodes().name_of(id.region().0)?;
        (state.root, state.members) = (id, members);
        Ok(true)
    }

    /// As [`Self::discover_members`], of a table whose root may be deleted. Returns whether it is
    /// there.
    pub(super) fn last_members(
        &self,
        home: &Place<'_>,
        state: &mut SeenTable,
    ) -> Result<bool, Error> {
        let many = if home.is_by_net() { MEMBERS_AHEAD } else { 1 };
        loop {
            let first = state.members.records + 1;
            let numbers = first..first.saturating_add(many);
            let name = |number| labels::member_name(&self.name, self.id, number);
            let names: Vec<String> = numbers.map(name).collect();
            let (has_root, found) = home.find_beside(state.root, &names)?;
            for (name, found) in names.iter().zip(found) {
                let Some(found) = found else { return Ok(has_root) };
                let (node, is_removed) = labels::read_member(name, &found.metadata)?;
                state.members.add(node, is_removed);
            }
        }
    }
}

impl<'a> Search<'a> {
    /// A search at all nodes that may have chunks now.
    fn new(table: &'a HugeTable, state: &mut SeenTable) -> Result<Self, Error> {
        table.discover_members(state)?;
        let mut places = Vec::with_capacity(state.members.nodes.len());
        for (_, member) in &state.members.nodes {
            let place = Place::new(&table.client, member.region, &member.node)?;
            places.push((place, Arc::<str>::from(member.node.as_str())));
        }
        Ok(Self { table, places, reported: BTreeMap::new(), requested_to: 0, latest: 0 })
    }

    /// A version of the table, and the name of its node.
    fn version(
        &mut self,
        version: u64,
        name: &str,
    ) -> Result<Option<(Arc<str>, FoundObject)>, Error> {
        if !self.reported.contains_key(&version) && version >= self.requested_to {
            self.ask_from(version)?;
        }
        if let Some((place, found)) = self.reported.remove(&version) {
            return Ok(self.places.get(place).map(|(_, node)| (Arc::clone(node), found)));
        }
        let count = self.places.len();
        for number in (0..count).map(|number| (number + self.latest) % count) {
            let Some((place, node)) = self.places.get(number) else { continue };
            if place.is_by_net() {
                continue;
            }
            if let Some(found) = place.find_one(name)? {
                self.latest = number;
                return Ok(Some((Arc::clone(node), found)));
            }
        }
        Ok(None)
    }

    /// Asks the nodes that are not mapped for the next versions.
    fn ask_from(&mut self, first: u64) -> Result<(), Error> {
        let versions = first..first.saturating_add(VERSIONS_AHEAD);
        self.requested_to = versions.end;
        let HugeTable { name, id, .. } = self.table;
        let name = |version| labels::chunk_name(name, *id, version);
        let names: Vec<String> = versions.clone().map(name).collect();
        for (number, (place, _)) in self.places.iter().enumerate() {
            if !place.is_by_net() {
                continue;
            }
            for (version, found) in versions.clone().zip(place.find(&names)?) {
                if let Some(found) = found {
                    self.reported.insert(version, (number, found));
                }
            }
        }
        Ok(())
    }

    /// The highest version that has a chunk, even if earlier ones are missing.
    fn newest(&mut self) -> Result<u64, Error> {
        let prefix = labels::prefix(&self.table.name, self.table.id);
        let mut newest = 0;
        for (number, (place, _)) in self.places.iter().enumerate() {
            for (name, found) in place.list(&prefix)? {
                let Some(version) = labels::version_of(&prefix, &name) else { continue };
                newest = newest.max(version);
                // Listed without its metadata while it is out of memory.
                if place.is_by_net() && labels::read_chunk(&name, &found.metadata).is_ok() {
                    self.reported.insert(version, (number, found));
                }
            }
        }
        Ok(newest)
    }
}
