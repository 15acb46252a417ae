//! Searches for the versions of a table, and for the nodes that may have chunks.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::labels;
use super::layout::Partition;
use super::place::{FoundObject, Place};
use super::{HugeTable, SeenTable};
use crate::error::Error;

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
    asked_to: u64,
    /// Most chunks are on the same node as their predecessor.
    latest: usize,
}

impl HugeTable {
    /// Looks for versions added since the last call.
    pub(super) fn discover(&self, state: &mut SeenTable) -> Result<(), Error> {
        self.discover_members(state)?;
        let mut places = Vec::with_capacity(state.members.len());
        for member in &state.members {
            let place = Place::new(&self.client, member.region, &member.node)?;
            places.push((place, Arc::<str>::from(member.node.as_str())));
        }
        let mut search =
            Search { table: self, places, reported: BTreeMap::new(), asked_to: 0, latest: 0 };
        // Before the search: a chunk sealed meanwhile is no gap.
        let newest = match state.is_checked {
            true => 0,
            false => search.newest()?,
        };
        loop {
            let version = state.layout.version() + 1;
            let name = labels::chunk_name(&self.name, self.root, version);
            let Some((node, found)) = search.version(version, &name)? else { break };
            let (position, rows) = labels::read_chunk(&name, &found.metadata)?;
            let FoundObject { id, bytes, .. } = found;
            let chunk = Partition { version, position, rows, node, bytes, id };
            state.layout.add(chunk).map_err(|clash| self.damaged(version, &clash))?;
        }
        let version = state.layout.version();
        if version < newest {
            return Err(self.gone(version + 1));
        }
        state.is_checked = true;
        Ok(())
    }

    /// Reads the nodes that may have chunks from the memory of the root's node.
    pub(super) fn discover_members(&self, state: &mut SeenTable) -> Result<Place<'_>, Error> {
        let home = self.home()?;
        if !home.has(self.root)? {
            let what = format!("huge table {:?}: it was dropped", self.name);
            return Err(Error::NotFound { what });
        }
        self.last_members(&home, state)?;
        Ok(home)
    }

    /// As [`Self::discover_members`], of a table whose root may be deleted.
    pub(super) fn last_members(
        &self,
        home: &Place<'_>,
        state: &mut SeenTable,
    ) -> Result<(), Error> {
        let many = if home.is_by_net() { MEMBERS_AHEAD } else { 1 };
        loop {
            let first = state.members.len() as u64 + 1;
            let numbers = first..first + many;
            let name = |number| labels::member_name(&self.name, self.root, number);
            let names: Vec<String> = numbers.map(name).collect();
            for (name, found) in names.iter().zip(home.find(&names)?) {
                let Some(found) = found else { return Ok(()) };
                state.members.push(labels::read_member(name, &found.metadata)?);
            }
        }
    }
}

impl Search<'_> {
    /// A version of the table, and the name of its node.
    fn version(
        &mut self,
        version: u64,
        name: &str,
    ) -> Result<Option<(Arc<str>, FoundObject)>, Error> {
        if !self.reported.contains_key(&version) && version >= self.asked_to {
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
        self.asked_to = versions.end;
        let HugeTable { name, root, .. } = self.table;
        let name = |version| labels::chunk_name(name, *root, version);
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
        let prefix = labels::prefix(&self.table.name, self.table.root);
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
