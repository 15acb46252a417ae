//! The order in which causal mode evicts edges.

use crate::edge::{EdgeRecord, EdgeRemoval, Stamp};
use crate::memory::{AllocationFailed, reserve};
use crate::store::DynamicGraph;
use std::collections::BTreeSet;

/// Edges that causal mode will evict: by time, which is the order of arrival except for late edges.
#[derive(Debug)]
pub(crate) struct EvictionQueue<T> {
    pub late: BTreeSet<(T, u64)>,
    /// Edges before this one are evicted, except for late ones.
    pub cursor: u64,
    /// Edges before this one have been prefetched.
    pub touched: u64,
    pub newest: T,
    pub alive: usize,
    /// Evicted edges that remain in the graph while triggers of the batch see them.
    pub removals: Vec<EdgeRemoval<T>>,
    /// The late ones among them.
    pub late_evicted: Vec<(T, u64)>,
    /// All edges up to this time and sequence number are evicted.
    pub floor: Option<(T, u64)>,
    /// The edge at the cursor. Removing any edge invalidates it.
    pub next: Option<EdgeRecord<T>>,
}

/// The state of the queue before rows that may be rolled back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueCheckpoint<T> {
    cursor: u64,
    newest: T,
    alive: usize,
    removals: usize,
    late_evicted: usize,
    floor: Option<(T, u64)>,
}

impl<T: Stamp> Default for EvictionQueue<T> {
    fn default() -> EvictionQueue<T> {
        EvictionQueue {
            late: BTreeSet::new(),
            cursor: 0,
            touched: 0,
            newest: T::default(),
            alive: 0,
            removals: Vec::new(),
            late_evicted: Vec::new(),
            floor: None,
            next: None,
        }
    }
}

impl<T: Stamp> EvictionQueue<T> {
    pub(crate) fn checkpoint(&self) -> QueueCheckpoint<T> {
        let EvictionQueue { cursor, newest, alive, floor, .. } = *self;
        let (removals, late_evicted) = (self.removals.len(), self.late_evicted.len());
        QueueCheckpoint { cursor, newest, alive, removals, late_evicted, floor }
    }

    /// Removes edges from sequence number `first` on, and undoes evictions since the checkpoint.
    pub(crate) fn rewind(&mut self, checkpoint: QueueCheckpoint<T>, first: u64) {
        let QueueCheckpoint { cursor, newest, alive, removals, late_evicted, floor } = checkpoint;
        self.late.extend(self.late_evicted.drain(late_evicted..));
        self.late.retain(|(_, number)| *number < first);
        self.removals.truncate(removals);
        (self.cursor, self.newest, self.alive, self.floor) = (cursor, newest, alive, floor);
        self.next = None;
    }

    /// The same queue with other stamps. Edges evicted before pending rows are still in the graph,
    /// so their removals stay due.
    pub(crate) fn restamp<S: Stamp>(self, shift: impl Fn(T) -> S) -> EvictionQueue<S> {
        let keyed = |(time, number): (T, u64)| (shift(time), number);
        let removals = self.removals.into_iter().map(|EdgeRemoval { record, seq }| {
            let record = record.restamp(&shift);
            EdgeRemoval { record, seq }
        });
        EvictionQueue {
            late: self.late.into_iter().map(keyed).collect(),
            cursor: self.cursor,
            touched: 0,
            newest: shift(self.newest),
            alive: self.alive,
            removals: removals.collect(),
            late_evicted: self.late_evicted.into_iter().map(keyed).collect(),
            floor: self.floor.map(keyed),
            next: None,
        }
    }

    /// Changes the small numbers of accounts.
    pub(crate) fn rename(&mut self, renamed: impl Fn(u32) -> u32) {
        self.next = None;
        for EdgeRemoval { record, .. } in &mut self.removals {
            (record.source, record.target) = (renamed(record.source), renamed(record.target));
        }
    }

    /// Clears the evicted edges after the graph has removed them.
    pub(crate) fn settle(&mut self) {
        self.next = None;
        self.removals.clear();
        self.late_evicted.clear();
    }

    /// Frees the memory of a call, after `settle`.
    pub(crate) fn release_call(&mut self) {
        self.removals = Vec::new();
        self.late_evicted = Vec::new();
    }

    /// Memory of the late edges.
    pub(crate) fn bytes(&self) -> usize {
        // Tree nodes are half empty.
        2 * self.late.len() * size_of::<(T, u64)>()
    }

    /// Memory of calls that is retained for the next one.
    pub(crate) fn call_bytes(&self) -> usize {
        self.late_evicted.capacity() * size_of::<(T, u64)>()
            + self.removals.capacity() * size_of::<EdgeRemoval<T>>()
    }

    pub(crate) fn add(&mut self, time: T, number: u64) {
        if time < self.newest {
            self.late.insert((time, number));
        }
        self.newest = self.newest.max(time);
        self.alive += 1;
    }

    /// Whether these edges and all earlier ones arrived in order of time, and are at most `most`.
    pub(crate) fn is_plain(&self, added: &[EdgeRecord<T>], most: usize) -> bool {
        let is_next = added.first().is_none_or(|one| one.time >= self.newest);
        let is_room = self.alive.saturating_add(added.len()) <= most;
        self.late.is_empty() && is_room && is_next && added.is_sorted_by_key(|one| one.time)
    }

    /// Moves the cursor to the oldest edge that is not late.
    fn advance(&mut self, graph: &DynamicGraph<T>, end: u64) {
        while self.next.is_none() && self.cursor < end {
            if self.cursor >= self.touched {
                self.touched = graph.touch_from(self.cursor);
            }
            // A late edge may be evicted and still in the graph.
            let record = graph.record(self.cursor).filter(|record| {
                let key = (record.time, self.cursor);
                !(self.late.contains(&key) || Some(key) <= self.floor)
            });
            self.next = record;
            self.cursor += u64::from(record.is_none());
        }
    }

    /// Evicts edges older than `oldest`, if none is late.
    pub(crate) fn evict_aged(
        &mut self,
        graph: &DynamicGraph<T>,
        oldest: T,
    ) -> Result<(), AllocationFailed> {
        self.next = None;
        // An edge that was evicted earlier may still be in the graph.
        let before = self.floor;
        for (number, record) in graph.records_from(self.cursor) {
            let key = Some((record.time, number));
            if record.time >= oldest {
                break;
            }
            if key > before {
                reserve(&mut self.removals, 1)?;
                self.removals.push(EdgeRemoval { record, seq: number as u32 });
                self.alive -= 1;
                self.floor = key;
            }
            self.cursor = number + 1;
        }
        Ok(())
    }

    /// Evicts edges before sequence number `end`: those older than `oldest`, and more until `most`
    /// are left.
    pub(crate) fn evict(
        &mut self,
        graph: &DynamicGraph<T>,
        end: u64,
        oldest: T,
        most: usize,
    ) -> Result<(), AllocationFailed> {
        loop {
            self.advance(graph, end);
            let punctual = self.next.map(|record| (record.time, self.cursor));
            // The oldest by time, then by arrival.
            let late = self.late.first().copied();
            let Some(key) = punctual.into_iter().chain(late).min() else { break };
            if key.0 >= oldest && self.alive <= most {
                break;
            }
            reserve(&mut self.removals, 1)?;
            reserve(&mut self.late_evicted, 1)?;
            let evicted = if self.late.remove(&key) {
                self.late_evicted.push(key);
                graph.record(key.1)
            } else {
                self.cursor = key.1 + 1;
                self.next.take()
            };
            self.alive -= 1;
            self.removals.extend(evicted.map(|record| EdgeRemoval { record, seq: key.1 as u32 }));
            self.floor = self.floor.max(Some(key));
        }
        Ok(())
    }
}
