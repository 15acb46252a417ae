//! What the home lends to clients: a place in the table, hold blocks, ranges of the heap, names.

use farrow_memory::{Length, Proximity, Span};

use super::{Home, Reclaimed};
use crate::books::clients::{ClientRecord, ClientSlot, Joined, Newcomer};
use crate::books::grants::{run_of, span_of};
use crate::books::names::own_name;
use crate::books::space::Run;
use crate::error::StoreError;
use crate::failpoint;
use crate::format::ids::{NamespaceId, Target};
use crate::format::options::{BLOCK_BYTES, HUGE_GRANT_BYTES};

impl Home {
    /// Take in a client, into the default namespace. `start_time` tells its process from a later one with the same pid.
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

    /// As [`Home::client_join`], into a namespace, in which it stays, and from any node.
    ///
    /// # Errors
    /// As [`Home::client_join`]; [`StoreError::Inconsistent`] for a namespace that is not there.
    pub fn client_join_as(&mut self, newcomer: &Newcomer) -> Result<Joined, StoreError> {
        let namespace = newcomer.namespace;
        if self.namespaces.get(namespace).is_none() {
            return Err(StoreError::Inconsistent(format!("no namespace {}", namespace.0)));
        }
        let joined = self.clients.join(newcomer)?;
        self.accounts.open(joined.client, newcomer.pid, namespace);
        Ok(joined)
    }

    /// Whether the client that comes back after a restart of the home is the one that joined. Its
    /// grants and holds are as they were; names in creation must be reserved again.
    ///
    /// # Errors
    /// [`StoreError::NoSuchClient`] if it is not.
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

    /// Let a client go that has ended or let go of everything: its holds, its grants and the names
    /// it reserved come back, and with the holds whatever waited for them. Objects that it sealed
    /// by itself stay.
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
        }
        failpoint!("client.leave.done");
        self.clients.end_leave(client)?;
        let reclaimed = self.reclaim()?;
        Ok(Reclaimed { granted: Length(granted), hold_blocks, ..reclaimed })
    }

    /// Clients that have joined.
    pub fn clients(&self) -> impl Iterator<Item = &ClientRecord> {
        self.clients.records()
    }

    /// One client.
    ///
    /// # Errors
    /// [`StoreError::NoSuchClient`].
    pub fn client(&self, client: ClientSlot) -> Result<&ClientRecord, StoreError> {
        self.clients.get(client)
    }

    /// Assign one more hold block, all zero, that the client maps writable.
    ///
    /// # Errors
    /// [`StoreError::HoldBlocksExhausted`] with the limit.
    pub fn hold_block(&mut self, client: ClientSlot) -> Result<Span, StoreError> {
        self.present(client)?;
        self.holds.assign(client.0)
    }

    /// The hold blocks of a client, for one that comes back.
    #[must_use]
    pub fn hold_blocks_of(&self, client: ClientSlot) -> Vec<Span> {
        self.holds.spans_of(client.0)
    }

    /// Give a client a range of its own: `want` bytes if there is such a range, else the longest
    /// there is, but no less than `min`. Whole pages. From 2 MiB on it starts at a multiple of
    /// 2 MiB if such a range is free.
    ///
    /// # Errors
    /// [`StoreError::OutOfMemory`] with what is free, [`StoreError::TooManyGrants`].
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

    /// Take back parts of grants that the client does not use: multiples of 128 bytes, disjoint.
    ///
    /// # Errors
    /// [`StoreError::NotYours`], [`StoreError::BadSpan`], [`StoreError::TooManyGrants`] if what is
    /// left would be in too many pieces. Nothing is taken then.
    pub fn release(&mut self, client: ClientSlot, spans: &[Span]) -> Result<(), StoreError> {
        self.present(client)?;
        let runs = self.disjoint_runs(spans)?;
        let carving = self.grants.plan(client.0, &runs)?;
        self.grants.carve(client.0, &carving)?;
        failpoint!("release.carved");
        for run in runs {
            self.free_run(run)?;
        }
        Ok(())
    }

    /// What a client has been granted and has neither sealed nor given back, in order.
    #[must_use]
    pub fn grants_of(&self, client: ClientSlot) -> Vec<Span> {
        self.grants.of(client.0).map(span_of).collect()
    }

    /// Keep a full name for an object that a client is about to create in its namespace.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`], [`StoreError::NameInvalid`].
    pub fn reserve(&mut self, client: ClientSlot, name: &str) -> Result<(), StoreError> {
        self.present(client)?;
        self.check_name_for_client(client, name)?;
        if self.slot_of_name(name)?.is_some() {
            return Err(StoreError::NameTaken { name: own_name(name).to_owned() });
        }
        // A client could reserve without end; as many names as objects are enough.
        let max = self.layout().objects_max;
        if self.reserved.len() >= max as usize {
            return Err(StoreError::TooManyObjects { max });
        }
        if !self.reserved.insert(name, client) {
            return Err(StoreError::NameTaken { name: own_name(name).to_owned() });
        }
        Ok(())
    }

    /// Memory that the names take that a client has reserved.
    #[must_use]
    pub fn reserved_bytes(&self, client: ClientSlot) -> usize {
        self.reserved.bytes_of(client)
    }

    /// Whether an object has this full name, in memory or out of it.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn has_name(&self, name: &str) -> Result<bool, StoreError> {
        self.slot_of_name(name).map(|slot| slot.is_some())
    }

    /// Full names that clients reserved.
    pub fn reserved_names(&self) -> impl Iterator<Item = &str> {
        self.reserved.iter().map(|(name, _)| name)
    }

    /// Whether a client reserved this full name.
    #[must_use]
    pub fn is_reserved(&self, name: &str) -> bool {
        self.reserved.get(name).is_some()
    }

    /// Let go of all names that a client reserved which has ended, and whose children may still read.
    pub fn unreserve_all(&mut self, client: ClientSlot) {
        self.reserved.retain_of(client, |_| false);
    }

    /// Let go of a name that the client reserved. One that it did not is left alone.
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

    /// Sort spans of a request, and see that they are blocks that do not overlap.
    pub(super) fn disjoint_runs(&self, spans: &[Span]) -> Result<Vec<Run>, StoreError> {
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

    pub(super) fn take_space(&mut self, min: Length, want: Length) -> Option<Run> {
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
