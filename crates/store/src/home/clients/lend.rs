//! Resources that the home assigns to clients: a client record, hold blocks, grants, names.

use farrow_memory::{Length, Proximity, Span};

use crate::alloc::space::Run;
use crate::error::StoreError;
use crate::failpoint;
use crate::format::full_name::own_name;
use crate::format::ids::{NamespaceId, Target};
use crate::format::options::{BLOCK_BYTES, HUGE_GRANT_BYTES};
use crate::home::{Home, Reclaimed};
use crate::tables::clients::{ClientRecord, ClientSlot, Joined, Newcomer};
use crate::tables::grants::{Carving, run_of, span_of};

/// A grant beyond need takes a hole that has this part of it, or more, before a longer range is cut.
const HOLE_PART_OF_GRANT: u64 = 2;

/// Deleted objects that are freed together, as at the end of a client: no other client is answered
/// meanwhile.
pub const RECLAIMED_MAX: usize = 1024;

impl Home {
    /// Add a client to the default namespace. `start_time` distinguishes its process from a later
    /// one with the same pid.
    ///
    /// # Errors
    /// [`StoreError::TooManyClients`] with the limit.
    pub fn client_join(
        &mut self,
        pid: u32,
        start_time: u64,
        uid: u32,
    ) -> Result<Joined, StoreError> {
        let (namespace, remote_client) = (NamespaceId::DEFAULT, None);
        self.client_join_as(&Newcomer { pid, start_time, uid, namespace, remote_client })
    }

    /// Like [`Home::client_join`], for any node and into a namespace, in which the client stays.
    ///
    /// # Errors
    /// As [`Home::client_join`]; [`StoreError::Inconsistent`] if the namespace does not exist.
    pub fn client_join_as(&mut self, newcomer: &Newcomer) -> Result<Joined, StoreError> {
        let namespace = newcomer.namespace;
        if self.namespaces.get(namespace).is_none() {
            return Err(StoreError::Inconsistent(format!("no namespace {}", namespace.0)));
        }
        let joined = self.clients.join(newcomer)?;
        self.accounts.open(joined.client, newcomer.pid, namespace);
        Ok(joined)
    }

    /// Check that a client that reconnects after a restart of the home is the one that joined. Its
    /// grants and holds are unchanged; it must reserve names of objects in creation again.
    ///
    /// # Errors
    /// [`StoreError::NoSuchClient`] if it is another one.
    pub fn client_resume(
        &mut self,
        client: ClientSlot,
        nonce: u64,
        pid: u32,
    ) -> Result<(), StoreError> {
        let record = self.present(client)?;
        if (record.nonce, record.pid) != (nonce, pid) {
            return Err(StoreError::NoSuchClient { slot: client.0 });
        }
        Ok(())
    }

    /// Remove a client that has ended or released everything: its holds, grants and reserved names
    /// are released, and objects that waited for its holds are freed: at most [`RECLAIMED_MAX`], the
    /// rest by the next [`Home::reclaim`]. Objects that it sealed itself stay.
    ///
    /// # Errors
    /// [`StoreError::NoSuchClient`].
    pub fn client_leave(&mut self, client: ClientSlot) -> Result<Reclaimed, StoreError> {
        self.present(client)?;
        self.clients.begin_leave(client)?;
        failpoint!("client.leave.state");
        self.locals.area.set_proximity(client.0, Proximity::Remote);
        let hold_blocks = self.holds.take_all(client.0)?;
        let granted = self.locals_leave(client)?;
        self.reserved.retain_of(client, |_| false);
        self.forget_retained(client);
        if let Some(account) = self.accounts.close(client) {
            self.blocks.disown(account);
            self.spilled.disown(account);
        }
        failpoint!("client.leave.done");
        self.clients.end_leave(client)?;
        let reclaimed = self.reclaim_some(RECLAIMED_MAX)?;
        Ok(Reclaimed { granted: Length(granted), hold_blocks, ..reclaimed })
    }

    /// Clients that have joined.
    pub fn clients(&self) -> impl Iterator<Item = &ClientRecord> {
        self.clients.records()
    }

    /// Whether another client can join.
    #[must_use]
    pub fn has_client_place(&self) -> bool {
        self.clients.has_place()
    }

    /// One client.
    ///
    /// # Errors
    /// [`StoreError::NoSuchClient`].
    pub fn client(&self, client: ClientSlot) -> Result<&ClientRecord, StoreError> {
        self.clients.get(client)
    }

    /// Assign another hold block, all zero, that the client maps writable.
    ///
    /// # Errors
    /// [`StoreError::HoldBlocksExhausted`] with the limit.
    pub fn hold_block(&mut self, client: ClientSlot) -> Result<Span, StoreError> {
        self.present(client)?;
        self.holds.assign(client.0)
    }

    /// Free hold blocks beyond one for each client that may still join.
    #[must_use]
    pub fn spare_hold_blocks(&self) -> u32 {
        let absent =
            self.layout().clients_max.saturating_sub(self.clients.records().count() as u32);
        self.holds.free().saturating_sub(absent)
    }

    /// The hold blocks of a client, for a client that reconnects.
    #[must_use]
    pub fn hold_blocks_of(&self, client: ClientSlot) -> Vec<Span> {
        self.holds.spans_of(client.0)
    }

    /// Grant a client a range of `min` bytes or more. If `want` is more, the range is the longest free
    /// one that is shorter than `want` and has half of it, otherwise `want` bytes of a longer one,
    /// otherwise the longest of all. The length is whole pages. From 2 MiB on, the range starts at
    /// a multiple of 2 MiB if such a range is free.
    ///
    /// # Errors
    /// [`StoreError::OutOfMemory`] with the free bytes, [`StoreError::TooManyGrants`].
    pub fn grant(
        &mut self,
        client: ClientSlot,
        min: Length,
        want: Length,
    ) -> Result<Span, StoreError> {
        self.present(client)?;
        self.grants.check_records(1)?;
        let run = self.take_space(min, want.max(min)).ok_or_else(|| self.out_of_memory(min))?;
        if let Err(error) = self.grants.add(client.0, run) {
            self.free_run(run)?;
            return Err(error);
        }
        Ok(span_of(run))
    }

    /// Take back unused parts of a client's grants: multiples of 128 bytes, disjoint.
    ///
    /// # Errors
    /// [`StoreError::NotYours`] and [`StoreError::BadSpan`], and nothing is taken;
    /// [`StoreError::TooManyGrants`] if the rest would be in too many pieces: then the spans that need
    /// no more grants are taken.
    pub fn release(&mut self, client: ClientSlot, spans: &[Span]) -> Result<(), StoreError> {
        self.present(client)?;
        let runs = self.disjoint_runs(spans)?;
        match self.grants.plan(client.0, &runs) {
            Ok(carving) => self.take_back(client, &carving, &runs),
            Err(StoreError::TooManyGrants { .. }) => self.release_apart(client, runs),
            Err(error) => Err(error),
        }
    }

    fn take_back(
        &mut self,
        client: ClientSlot,
        carving: &Carving,
        runs: &[Run],
    ) -> Result<(), StoreError> {
        self.grants.carve(client.0, carving)?;
        failpoint!("release.carved");
        runs.iter().try_for_each(|run| self.free_run(*run))
    }

    /// Takes back what the free grant records allow. A run inside a grant needs one more record, and
    /// the end of a whole grant frees one, so runs are tried until none can be taken.
    fn release_apart(&mut self, client: ClientSlot, mut runs: Vec<Run>) -> Result<(), StoreError> {
        loop {
            let mut left = Vec::new();
            for run in &runs {
                match self.grants.plan(client.0, &[*run]) {
                    Ok(carving) => self.take_back(client, &carving, &[*run])?,
                    Err(StoreError::TooManyGrants { .. }) => left.push(*run),
                    Err(error) => return Err(error),
                }
            }
            match left.len() {
                0 => return Ok(()),
                same if same == runs.len() => {
                    return Err(StoreError::TooManyGrants { max: self.layout().grants_max });
                }
                _ => runs = left,
            }
        }
    }

    /// The memory granted to a client that it has neither sealed nor given back, in order.
    #[must_use]
    pub fn grants_of(&self, client: ClientSlot) -> Vec<Span> {
        self.grants.of(client.0).map(span_of).collect()
    }

    /// Reserve a full name for an object that a client is about to create in its namespace.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`], [`StoreError::NameInvalid`], [`StoreError::TooManyObjects`].
    pub fn reserve(&mut self, client: ClientSlot, name: &str) -> Result<(), StoreError> {
        self.present(client)?;
        self.check_name_for_client(client, name)?;
        if self.slot_of_name(name)?.is_some() {
            return Err(StoreError::NameTaken { name: own_name(name).to_owned() });
        }
        // Limits the reservations of clients: as many names as objects are enough.
        let max = self.layout().objects_max;
        if self.reserved.len() >= max as usize {
            return Err(StoreError::TooManyObjects { max });
        }
        if !self.reserved.insert(name, client) {
            return Err(StoreError::NameTaken { name: own_name(name).to_owned() });
        }
        Ok(())
    }

    /// Memory that the names reserved by a client take.
    #[must_use]
    pub fn reserved_bytes(&self, client: ClientSlot) -> usize {
        self.reserved.bytes_of(client)
    }

    /// Whether an object in memory or spilled has this full name.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn has_name(&self, name: &str) -> Result<bool, StoreError> {
        self.slot_of_name(name).map(|slot| slot.is_some())
    }

    /// Full names that clients have reserved.
    pub fn reserved_names(&self) -> impl Iterator<Item = &str> {
        self.reserved.iter().map(|(name, _)| name)
    }

    /// Whether a client has reserved this full name.
    #[must_use]
    pub fn is_reserved(&self, name: &str) -> bool {
        self.reserved.get(name).is_some()
    }

    /// Release all names reserved by a client that has ended but whose child processes may still
    /// read.
    pub fn unreserve_all(&mut self, client: ClientSlot) {
        self.reserved.retain_of(client, |_| false);
    }

    /// Release a name that the client reserved. Names of other clients are unchanged.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if this client did not reserve it.
    pub fn unreserve(&mut self, client: ClientSlot, name: &str) -> Result<(), StoreError> {
        if self.reserved.get(name) != Some(client) {
            return Err(StoreError::NotFound { what: Target::Name(name).to_string() });
        }
        self.reserved.remove(name);
        Ok(())
    }

    /// Sort the spans of a request, and check that they are blocks that do not overlap.
    pub(in crate::home) fn disjoint_runs(&self, spans: &[Span]) -> Result<Vec<Run>, StoreError> {
        let mut runs = Vec::with_capacity(spans.len());
        for span in spans {
            let bad = |reason| StoreError::BadSpan { span: *span, reason };
            if span.is_empty() || !span.is_aligned(BLOCK_BYTES) {
                return Err(bad("it is empty or not a multiple of 128 B"));
            }
            if !self.layout().heap.contains(*span) {
                return Err(bad("it leaves the heap"));
            }
            runs.push(run_of(*span).ok_or_else(|| bad("it leaves 64 bits"))?);
        }
        runs.sort_unstable();
        for pair in runs.windows(2) {
            if let [first, second] = *pair
                && second.start < first.end
            {
                let reason = "it overlaps another of the same request";
                return Err(StoreError::BadSpan { span: span_of(second), reason });
            }
        }
        Ok(runs)
    }

    pub(in crate::home) fn take_space(&mut self, min: Length, want: Length) -> Option<Run> {
        // A hole that objects left has been written before, unlike the end of the heap, and is of
        // little use for anything else.
        let hole_min = min.0.max(want.0 / HOLE_PART_OF_GRANT);
        if let Some(hole) = self.space.allocate_longest(hole_min, want.0) {
            return Some(hole);
        }
        let alignment = |length: u64| {
            if length >= HUGE_GRANT_BYTES { HUGE_GRANT_BYTES } else { 1 }
        };
        if let Some(run) = self.space.allocate(want.0, alignment(want.0)) {
            return Some(run);
        }
        let largest = self.space.largest();
        if largest == 0 || largest < min.0 {
            return None;
        }
        self.space.allocate(largest, alignment(largest))
    }
}
