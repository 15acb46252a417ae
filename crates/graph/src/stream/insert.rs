//! Adding the rows of a call to the graph.

use super::call::{CallContext, PartFailure, call_bytes};
use super::engine::StreamEngine;
use super::pending_rows::PendingRows;
use super::rollback::Checkpoint;
use crate::edge::{EdgeRecord, EvictionFloor, Stamp};
use crate::memory::{AllocationFailed, probe, reserve};
use crate::patterns::Trigger;
use crate::settings::{Mode, Settings};
use crate::store::REMOVED_TOGETHER;
use crate::threads::KeepAwake;

/// Rows that are added together: enough to justify waking another thread.
const ROWS_ADDED: usize = 4096;
/// Rows that causal mode adds at once if it computes no features.
pub(crate) const LEARNT_AT_ONCE: usize = 1 << 16;

/// One part of a call's rows, after its addition to the graph.
#[derive(Clone, Copy, Debug)]
struct AddedPart<'a, T> {
    /// The rows' numbers in the call.
    rows: &'a [u32],
    records: &'a [EdgeRecord<T>],
    /// The sequence number of the first of them.
    number: u64,
    /// The sequence number of the call's first edge.
    call_first: u64,
}

impl<T: Stamp> StreamEngine<T> {
    /// Adds the call's rows and notes them as triggers. Returns the state before them. Without
    /// memory for all of them, it adds none.
    pub(crate) fn insert(
        &mut self,
        call: &CallContext<'_>,
    ) -> Result<Checkpoint<T>, AllocationFailed> {
        let checkpoint = self.checkpoint();
        let mut added = std::mem::take(&mut self.batch.added);
        let inserted = self.try_insert(call, &mut added);
        if inserted.is_err() {
            self.take_back(checkpoint);
            self.graph.release_idle(added.iter().flat_map(|one| [one.source, one.target]));
        }
        self.batch.added = added;
        inserted.map(|()| checkpoint)
    }

    fn try_insert(
        &mut self,
        call: &CallContext<'_>,
        added: &mut Vec<EdgeRecord<T>>,
    ) -> Result<(), AllocationFailed> {
        let CallContext { settings, pool, edges, order, .. } = *call;
        self.batch.triggers.clear();
        reserve(&mut self.batch.triggers, order.len())?;
        // Edges may have been removed since the last call.
        self.evictions.next = None;
        let call_first = self.graph.next();
        let base = self.graph.base();
        for rows in order.chunks(ROWS_ADDED) {
            let edge = |at: usize| {
                let row = rows[at] as usize;
                // The caller has ensured that stamps cover all times.
                let time = T::since(base, edges.times[row]).unwrap_or_default();
                (edges.sources[row], edges.targets[row], time)
            };
            self.graph.intern(rows.len(), edge, added, pool)?;
            let number = self.graph.insert(added, pool)?;
            self.columns.push(edges, rows)?;
            self.note(call, AddedPart { rows, records: added, number, call_first })?;
        }
        if settings.mode == Mode::Batch {
            // Eviction must not allocate.
            let removals = order.len().clamp(1, REMOVED_TOGETHER);
            reserve(&mut self.evictions.removals, removals)?;
        }
        // The searches that follow cannot report a failed allocation.
        probe(call_bytes(settings, order.len()))
    }

    /// Notes added rows as triggers. In causal mode each of them evicts.
    fn note(
        &mut self,
        call: &CallContext<'_>,
        part: AddedPart<'_, T>,
    ) -> Result<(), AllocationFailed> {
        let settings = call.settings;
        let (horizon, most) = (settings.horizon(), settings.edges_max.unwrap_or(usize::MAX));
        let is_causal = settings.mode == Mode::Causal;
        // If no edge is late and only age evicts, one eviction covers the whole part.
        let is_plain = is_causal && self.evictions.is_plain(part.records, most);
        let mut oldest = self.oldest(horizon);
        let numbered = (part.number..).zip(part.records).zip(part.rows);
        for ((number, &EdgeRecord { source, target, time }), &row) in numbered {
            let floor = self.floor(part.call_first, oldest);
            self.batch.triggers.push(Trigger { source, target, time, floor });
            if !is_causal {
                continue;
            }
            let now = Some(call.edges.times[row as usize]);
            if now > self.now {
                self.now = now;
                oldest = self.oldest(horizon);
            }
            self.evictions.add(time, number);
            if !is_plain {
                self.evictions.evict(&self.graph, number + 1, oldest, most)?;
            }
        }
        if is_plain {
            self.evictions.evict_aged(&self.graph, oldest)?;
        }
        Ok(())
    }

    /// The eviction floor of a trigger: the last evicted edge, or `oldest` if that is later.
    fn floor(&self, call_first: u64, oldest: T) -> EvictionFloor<T> {
        match self.evictions.floor {
            Some((evicted, number)) if evicted >= oldest => {
                let place = i128::from(number) + 1 - i128::from(call_first);
                let place = place.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as i32;
                EvictionFloor { time: evicted, place: Some(place) }
            }
            _ => EvictionFloor { time: oldest, place: None },
        }
    }

    /// Adds rows without computing features. The error has the number of rows that were added.
    pub(crate) fn learn(&mut self, call: &CallContext<'_>) -> Result<(), (usize, PartFailure)> {
        let CallContext { settings, pool, order, .. } = *call;
        let _awake = KeepAwake::during(pool, order.len());
        // Eviction between parts limits the memory to that of the window.
        let step = if settings.mode == Mode::Causal { LEARNT_AT_ONCE } else { order.len().max(1) };
        for (number, part) in order.chunks(step).enumerate() {
            if call.is_interrupted() {
                return Err((number * step, PartFailure::Interrupted));
            }
            let inserted = self.insert(&CallContext { order: part, ..*call });
            inserted.map_err(|full| (number * step, full.into()))?;
            if self.rollback.is_none() {
                self.evict(settings, pool);
            }
        }
        if order.is_empty() && self.graph.is_draining() {
            self.batch.triggers.clear();
            self.evict(settings, pool);
        }
        if !order.is_empty() && self.rollback.is_none() {
            // The list is as long as the call, and no search needs it.
            self.batch.triggers = Vec::new();
        }
        Ok(())
    }

    /// Adds rows whose features are computed later. The error has the number of added rows.
    pub(crate) fn learn_pending(
        &mut self,
        call: &CallContext<'_>,
    ) -> Result<(), (usize, PartFailure)> {
        // In parts, with removal of sealed edges between them.
        for (number, part) in call.order.chunks(LEARNT_AT_ONCE).enumerate() {
            let first = self.graph.next();
            let mut pending = self.pending.take().unwrap_or_else(|| PendingRows::new(first));
            let reserved = pending.reserve(part.len());
            let added = reserved.and_then(|()| self.insert(&CallContext { order: part, ..*call }));
            if added.is_ok() {
                pending.extend(&self.batch.triggers, first);
            }
            self.pending = Some(pending).filter(|pending| !pending.is_empty());
            added.map_err(|full| (number * LEARNT_AT_ONCE, full.into()))?;
            if self.rollback.is_none() {
                self.evict(call.settings, None);
            }
        }
        Ok(())
    }

    /// Leaves the pending rows in the graph without features.
    pub(crate) fn drop_pending(&mut self, settings: &Settings) {
        if self.pending.take().is_some() {
            self.batch.triggers.clear();
            if self.rollback.is_none() {
                self.evict(settings, None);
            }
        }
    }
}
