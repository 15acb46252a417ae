//! Appends of rows: the bytes are written first, then sealed under the next free version.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_arrow::{BatchData, SchemaNode};
use farrow_store::ObjectId;

use super::labels::{self, ChunkNode, VERSIONS_MAX};
use super::layout::{Clash, Partition, ROWS_MAX};
use super::place::{Place, SealedObject};
use super::statistics::{ChunkCount, SMALL_BYTES_MAX};
use super::{HugeTable, RACE_PIECE, SeenTable, sweep, wait_for_name};
use crate::clock::{deadline_after, millis};
use crate::cluster::placement::{PlacementNeed, PlacementRule};
use crate::cluster::request_link::ROOM_PAUSE;
use crate::error::Error;
use crate::interrupt::{pause, suspend};
use crate::key::ObjectKey;
use crate::lock::lock;
use crate::options::ObjectOptions;
use crate::value::Value;

/// Options of an append.
#[derive(Debug, Clone, Copy)]
pub struct AppendOptions<'a> {
    /// The first row; `None`: behind the last existing row.
    pub position: Option<u64>,
    /// The node in whose memory the rows are placed, or `"nearest"` or `"most-free"`, as in
    /// [`Client::put_on`](crate::Client::put_on); `None`: this client's.
    pub node: Option<&'a str>,
    /// How long to wait for memory and for concurrent appends.
    pub timeout: Duration,
    /// Whether to count statistics of the rows, by which readers skip chunks.
    pub statistics: bool,
}

impl Default for AppendOptions<'_> {
    /// At the end, in the memory of the client's node, within ten seconds, with statistics.
    fn default() -> Self {
        let timeout = Duration::from_secs(10);
        Self { position: None, node: None, timeout, statistics: true }
    }
}

impl HugeTable {
    /// Appends the rows of a record batch or a table, and returns their location. Buffers in the
    /// pool of that node's memory stay in place; the rest is copied, once.
    ///
    /// # Errors
    ///
    /// [`Error::RowsTaken`] if some of the rows exist; [`Error::InvalidArgument`] for no rows,
    /// another schema, with the first difference, rows that break the order or the partitions of
    /// the table, with the values, and rows beyond `i64`; [`Error::NodeLost`] names
    /// a node that has chunks, or should receive this one; [`Error::Timeout`] when concurrent
    /// appends win every race; [`Error::NotFound`] when the table was dropped; and the errors of
    /// [`Client::put`](crate::Client::put) about memory.
    pub fn append(
        &self,
        value: &Value<'_>,
        options: &AppendOptions<'_>,
    ) -> Result<Partition, Error> {
        let (schema, batches) = rows_of(value)?;
        let rows = batches.iter().map(|batch| batch.rows as u64).sum();
        self.check_schema(schema)?;
        // Check before copying anything.
        self.next(options.position, rows)?;
        let Some(rule) = options.node.and_then(PlacementRule::parse) else {
            return self.append_to(value, options, options.timeout)?;
        };
        let need = PlacementNeed { bytes: value.bytes(), is_mapped: false };
        self.client.place_by(rule, need, options.timeout, |attempt| {
            let options = AppendOptions { node: attempt.node, ..*options };
            self.append_to(value, &options, attempt.wait)
        })?
    }

    /// Appends rows in the memory of one node, which may take the time `wait` to make room. The outer
    /// error: the table certainly does not have the rows, and another node may take them.
    fn append_to(
        &self,
        value: &Value<'_>,
        options: &AppendOptions<'_>,
        wait: Duration,
    ) -> Result<Result<Partition, Error>, Error> {
        let started = Instant::now();
        let deadline = deadline_after(options.timeout);
        let (schema, batches) = rows_of(value)?;
        let rows = batches.iter().map(|batch| batch.rows as u64).sum();
        let place = Place::to_append(&self.client, options.node)?;
        let node = self.join(&place, deadline)?;
        let count = ChunkCount::new(schema, batches, self.wanted_statistics(options)?);
        let zero = labels::chunk_metadata(0, rows, count.placeholder())?;
        let unnamed = ObjectOptions { metadata: Some(&zero), wait, ..ObjectOptions::default() };
        let mut draft = match place.is_by_net() {
            true => count.beside(|| place.draft(value, &unnamed, None)),
            false => count.within(|after| place.draft(value, &unnamed, after)),
        }?;
        let statistics = count.finish();
        let keys = match self.order.is_empty() {
            true => None,
            false => {
                let found = statistics.as_deref();
                let found = found.and_then(|text| self.decode_statistics(text, rows));
                Some(self.new_keys(found.as_ref())?)
            }
        };
        let mut races = 0_u64;
        loop {
            let (version, position) = self.next(options.position, rows)?;
            // The winner of a version has seen all earlier ones, and compared with them.
            keys.iter().try_for_each(|keys| self.check_order(keys, version, position))?;
            let metadata = labels::chunk_metadata(position, rows, statistics.clone())?;
            let name = labels::chunk_name(&self.name, self.id, version);
            let sealed = match draft.seal(&name, &metadata) {
                // The rows may be there.
                Err(error @ (Error::NodeLost { .. } | Error::NodeUnreachable(_))) => {
                    return Ok(Err(error));
                }
                sealed => sealed?,
            };
            if let Some(sealed) = sealed {
                let node = Arc::clone(&node);
                let (bytes, id) = (sealed.bytes, sealed.id);
                return Ok(self.keep_appended(&place, &sealed, deadline).map(|()| Partition {
                    version,
                    position,
                    rows,
                    node,
                    bytes,
                    id,
                }));
            }
            races += 1;
            if Instant::now() >= deadline {
                let table = &self.name;
                let what = format!("a version of huge table {table:?}, taken {races} times");
                return Err(Error::Timeout { what, waited_ms: millis(started.elapsed()) });
            }
            wait_for_name(&self.client, &name, RACE_PIECE, deadline)?;
            self.adopt(&name, deadline)?;
        }
    }

    /// As [`Self::keep`], for a chunk: its rows are in the table, also if the node of the root does
    /// not answer any more. The next append pins it.
    fn keep_appended(
        &self,
        place: &Place<'_>,
        sealed: &SealedObject,
        deadline: Instant,
    ) -> Result<(), Error> {
        match self.keep(place, sealed) {
            Ok(true) => Ok(()),
            // Its node was drained, and is not any more.
            Ok(false) => self.join(place, deadline).map(drop),
            Err(error @ Error::NotFound { .. }) => Err(error),
            Err(error) => {
                tracing::warn!(%error, table = self.name, "a part is not pinned");
                Ok(())
            }
        }
    }

    /// Makes the node that has a chunk a member, if it is none: the node was removed while the
    /// client that appended there died.
    fn adopt(&self, name: &str, deadline: Instant) -> Result<(), Error> {
        if !self.client.nodes().is_any_draining()? && !self.is_member_removed()? {
            return Ok(());
        }
        for place in Place::all(&self.client)? {
            if place.find_one(name)?.is_some() {
                return self.join(&place, deadline).map(drop);
            }
        }
        Ok(())
    }

    /// Whether nodes were removed from those that may have chunks.
    fn is_member_removed(&self) -> Result<bool, Error> {
        let _quiet = suspend();
        self.client.nodes().own().check()?;
        let members = &lock(&self.state).members;
        Ok(members.records > members.nodes.len() as u64)
    }

    /// The least room for statistics of a small chunk; `None`: no statistics.
    fn wanted_statistics(&self, options: &AppendOptions<'_>) -> Result<Option<usize>, Error> {
        match (self.order.is_empty(), options.statistics) {
            (true, is_wanted) => Ok(is_wanted.then_some(SMALL_BYTES_MAX)),
            // Room for all fields that are reserved for a large chunk.
            (false, true) => Ok(Some(labels::STATISTICS_BYTES_MAX)),
            (false, false) => Err(Error::InvalidArgument(format!(
                "rows without statistics for huge table {:?}, which is sorted or partitioned",
                self.name
            ))),
        }
    }

    /// The next version, and the position that new rows would have, if these rows do not exist yet.
    fn next(&self, position: Option<u64>, rows: u64) -> Result<(u64, u64), Error> {
        let _quiet = suspend();
        // In a forked child the thread that has the lock may not exist.
        self.client.nodes().own().check()?;
        let mut state = lock(&self.state);
        self.discover(&mut state)?;
        let position = position.unwrap_or_else(|| state.layout.end());
        state.layout.check(position, rows).map_err(|clash| self.refused(position, rows, clash))?;
        let version = state.layout.version() + 1;
        if version > VERSIONS_MAX {
            let what = format!("versions of huge table {:?}", self.name);
            return Err(Error::TooMany { what, max: VERSIONS_MAX });
        }
        // The client that sealed the last chunk may have died before it pinned it. Pinned here, all
        // chunks but the newest are pinned at any time.
        let last = state.layout.last().map(|chunk| chunk.id);
        self.pin(&mut state, last)?;
        Ok((version, position))
    }

    /// Pins a sealed object, or deletes it if the table was dropped meanwhile. Returns whether its
    /// node may have chunks.
    fn keep(&self, place: &Place<'_>, sealed: &SealedObject) -> Result<bool, Error> {
        let _quiet = suspend();
        let mut state = lock(&self.state);
        if let Err(error) = self.discover_members(&mut state) {
            if !matches!(error, Error::NotFound { .. }) {
                return Err(error);
            }
            // `drop_table` deletes the root first and then looks for chunks: one of the two sees
            // this object.
            let mut places = vec![place.clone()];
            places.extend(self.home(&state).ok());
            sweep::all(&places, &labels::prefix(&self.name, self.id))?;
            return Err(error);
        }
        if sealed.is_pinned {
            state.pinned.insert(sealed.id);
        }
        if let Err(error) = self.pin(&mut state, Some(sealed.id)) {
            // The object exists; the next append pins it.
            tracing::warn!(%error, table = self.name, "a part is not pinned");
        }
        Ok(state.members.find(place.region()).is_some())
    }

    /// Adds a node to those that may have chunks, and returns its name.
    pub(super) fn join(&self, place: &Place<'_>, deadline: Instant) -> Result<Arc<str>, Error> {
        let region = place.region();
        loop {
            let quiet = suspend();
            // In a forked child the thread that has the lock may not exist.
            self.client.nodes().own().check()?;
            let mut state = lock(&self.state);
            let home = self.discover_members(&mut state)?;
            if let Some((number, member)) = state.members.find(region) {
                let (number, node) = (*number, Arc::from(member.node.as_str()));
                let entry = match number {
                    0 => None,
                    number => {
                        let entry = labels::member_name(&self.name, self.id, number);
                        home.find_one(&entry)?.map(|entry| entry.id)
                    }
                };
                let root = state.root;
                self.pin(&mut state, Some(root))?;
                self.pin(&mut state, entry)?;
                return Ok(node);
            }
            let number = state.members.records + 1;
            drop((state, quiet));
            let member = ChunkNode { region, node: self.client.nodes().name_of(region)? };
            match self.record(&home, number, (&member, false), deadline) {
                Ok(()) => {}
                // The root is about to move to another node.
                Err(Error::NodeDraining { node }) if node != member.node => {
                    if Instant::now() >= deadline {
                        return Err(Error::NodeDraining { node });
                    }
                    pause(ROOM_PAUSE)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the next record of a member, unless another client writes one of this number, or the root
    /// has moved meanwhile: the caller looks again.
    pub(super) fn record(
        &self,
        home: &Place<'_>,
        number: u64,
        (member, is_removed): (&ChunkNode, bool),
        deadline: Instant,
    ) -> Result<(), Error> {
        if !self.is_sole_root(home, deadline)? {
            return pause(ROOM_PAUSE);
        }
        let name = labels::member_name(&self.name, self.id, number);
        let metadata = labels::member_metadata(member, is_removed)?;
        let wait = deadline.saturating_duration_since(Instant::now());
        let options = ObjectOptions { metadata: Some(&metadata), wait, ..ObjectOptions::default() };
        let mut draft = home.draft(&Value::Bytes(b"1"), &options, None)?;
        match draft.seal(&name, &metadata)? {
            Some(sealed) => self.keep(home, &sealed).map(drop),
            None if Instant::now() >= deadline => {
                let what = format!("a place for {:?} in {:?}", member.node, self.name);
                Err(Error::Timeout { what, waited_ms: 0 })
            }
            None => {
                self.drop_stray(home, &name)?;
                wait_for_name(&self.client, &name, RACE_PIECE, deadline)
            }
        }
    }

    /// Deletes a record at another node than the root's: the root moved while it was written, and
    /// its client died.
    fn drop_stray(&self, home: &Place<'_>, name: &str) -> Result<(), Error> {
        for place in Place::all(&self.client)? {
            if place.region() == home.region() {
                continue;
            }
            let found = place.find_one(name)?;
            // The root that was found may be a copy that its source has given up: then the table goes
            // on at the other node, with its records.
            if found.is_some() && self.has_root(&place)? {
                continue;
            }
            let root = lock(&self.state).root;
            if let Some(found) = found
                && root.region().0 == home.region()
                && home.has(root)?
            {
                match place.delete(&[found.id]) {
                    Ok(()) | Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Waits until no other node has a root of the table; false if this one has none any more. A root
    /// that moves is at two nodes until its old node has removed it, and a client that reads the old
    /// one sees no later record.
    fn is_sole_root(&self, home: &Place<'_>, deadline: Instant) -> Result<bool, Error> {
        loop {
            let mut places = Place::all(&self.client)?.into_iter();
            let other = places.find_map(|place| {
                let is_other = place.region() != home.region() && self.may_have_root(&place);
                is_other.then(|| place.region())
            });
            let Some(region) = other else { return Ok(true) };
            if Instant::now() >= deadline {
                let node = self.client.nodes().name_of(region)?;
                let what =
                    format!("node {node:?} to remove the root of {:?}, which moved", self.name);
                return Err(Error::Timeout { what, waited_ms: 0 });
            }
            // It moved since it was found here.
            if matches!(self.has_root(home), Ok(false)) {
                return Ok(false);
            }
            pause(ROOM_PAUSE)?;
        }
    }

    /// Whether a node may have a root of this table. Roots move away from draining nodes only, so
    /// no other node is asked by a message.
    fn may_have_root(&self, place: &Place<'_>) -> bool {
        if place.is_by_net_to_stay() {
            return false;
        }
        match self.has_root(place) {
            Ok(has_root) => has_root,
            // What this client may not read, or is no root, is not the root of its table.
            Err(
                Error::NotPermitted(_)
                | Error::PermissionDenied(_)
                | Error::NoNamespace(_)
                | Error::InvalidDescriptor(_),
            ) => false,
            Err(_) => true,
        }
    }

    /// Whether a node has a root of this table.
    fn has_root(&self, place: &Place<'_>) -> Result<bool, Error> {
        match place.find_one(&self.name)? {
            Some(root) => Ok(labels::read_root(&self.name, root.id, &root.metadata)?.0 == self.id),
            None => Ok(false),
        }
    }

    /// Pins an object: a table that lost a part to eviction would be unusable.
    fn pin(&self, state: &mut SeenTable, id: Option<ObjectId>) -> Result<(), Error> {
        let Some(id) = id.filter(|id| !state.pinned.contains(id)) else {
            return Ok(());
        };
        self.client.pin(&[ObjectKey::Id(id)])?;
        state.pinned.insert(id);
        Ok(())
    }

    fn refused(&self, position: u64, rows: u64, clash: Clash) -> Error {
        let table = self.name.clone();
        let last = position.saturating_add(rows).saturating_sub(1);
        match clash {
            Clash::Taken(by) => Error::RowsTaken {
                table,
                first: position,
                last,
                taken_first: by.position,
                taken_last: by.end().saturating_sub(1),
                version: by.version,
            },
            Clash::Empty => Error::InvalidArgument(format!("no rows for huge table {table:?}")),
            Clash::TooFar => Error::InvalidArgument(format!(
                "{rows} rows at {position} of huge table {table:?}: it has {ROWS_MAX} at most"
            )),
            clash @ Clash::Version { .. } => self.damaged(0, &clash),
        }
    }
}

/// The schema of the rows, and their batches.
fn rows_of<'a>(value: &Value<'a>) -> Result<(&'a SchemaNode, &'a [BatchData]), Error> {
    value.batches().ok_or_else(|| {
        Error::InvalidArgument("a huge table takes record batches and tables".into())
    })
}
