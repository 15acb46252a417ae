//! What causal mode evicts next.

use crate::edge::{Record, Removal, Stamp};
use crate::memory::{OutOfMemory, reserve};
use crate::store::DynamicGraph;
use std::collections::BTreeSet;

/// Causal mode evicts by time: in order of arrival but for the edges that came late.
#[derive(Debug)]
pub(crate) struct EvictionQueue<T> {
    pub late: BTreeSet<(T, u64)>,
    /// Edges before this one that did not come late have been evicted.
    pub cursor: u64,
    /// Edges before this one have been touched.
    pub touched: u64,
    pub newest: T,
    pub alive: usize,
    /// Evicted, and still in the graph for the triggers of the batch.
    pub removals: Vec<Removal<T>>,
    /// Those of them that had come late.
    pub late_evicted: Vec<(T, u64)>,
    /// All edges up to this time and arrival are evicted.
    pub floor: Option<(T, u64)>,
    /// The edge at the cursor, while no edge is taken out.
    pub next: Option<Record<T>>,
}

/// Where a queue was before edges came that are to go again.
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

    /// Takes back edges from number `first` on, and that others were evicted since.
    pub(crate) fn rewind(&mut self, checkpoint: QueueCheckpoint<T>, first: u64) {
        let QueueCheckpoint { cursor, newest, alive, removals, late_evicted, floor } = checkpoint;
        self.late.extend(self.late_evicted.drain(late_evicted..));
        self.late.retain(|(_, number)| *number < first);
        self.removals.truncate(removals);
        (self.cursor, self.newest, self.alive, self.floor) = (cursor, newest, alive, floor);
        self.next = None;
    }

    /// The same queue with other stamps; nothing of a call is left in it.
    pub(crate) fn restamp<S: Stamp>(self, shift: impl Fn(T) -> S) -> EvictionQueue<S> {
        EvictionQueue {
            late: self.late.iter().map(|&(time, number)| (shift(time), number)).collect(),
            cursor: self.cursor,
            newest: shift(self.newest),
            alive: self.alive,
            floor: self.floor.map(|(time, number)| (shift(time), number)),
            ..EvictionQueue::default()
        }
    }

    /// What is gone has been taken out of the graph.
    pub(crate) fn settle(&mut self) {
        self.next = None;
        self.removals.clear();
        self.late_evicted.clear();
    }

    /// Gives back what a call needed, after `settle`.
    pub(crate) fn release_call(&mut self) {
        self.removals = Vec::new();
        self.late_evicted = Vec::new();
    }

    /// What is kept of edges that may still come to be evicted late.
    pub(crate) fn bytes(&self) -> usize {
        // Trees are half empty.
        2 * self.late.len() * size_of::<(T, u64)>()
    }

    /// What is kept of a call for the next one.
    pub(crate) fn call_bytes(&self) -> usize {
        self.late_evicted.capacity() * size_of::<(T, u64)>()
            + self.removals.capacity() * size_of::<Removal<T>>()
    }

    pub(crate) fn add(&mut self, time: T, number: u64) {
        if time < self.newest {
            self.late.insert((time, number));
        }
        self.newest = self.newest.max(time);
        self.alive += 1;
    }

    /// Whether these edges come in order of time, as all before them that are there, and leave no
    /// more than `most`.
    pub(crate) fn is_plain(&self, added: &[Record<T>], most: usize) -> bool {
        let is_next = added.first().is_none_or(|one| one.time >= self.newest);
        let is_room = self.alive.saturating_add(added.len()) <= most;
        self.late.is_empty() && is_room && is_next && added.is_sorted_by_key(|one| one.time)
    }

    /// Sees to it that the edge at the cursor is the oldest that did not come late.
    fn advance(&mut self, graph: &DynamicGraph<T>, end: u64) {
        while self.next.is_none() && self.cursor < end {
            if self.cursor >= self.touched {
                self.touched = graph.touch_from(self.cursor);
            }
            // One that came late may be evicted and still in the graph.
            let record = graph.record(self.cursor).filter(|record| {
                let key = (record.time, self.cursor);
                !(self.late.contains(&key) || Some(key) <= self.floor)
            });
            self.next = record;
            self.cursor += u64::from(record.is_none());
        }
    }

    /// Evicts what is older than `oldest`, where nothing came late.
    pub(crate) fn evict_aged(
        &mut self,
        graph: &DynamicGraph<T>,
        oldest: T,
    ) -> Result<(), OutOfMemory> {
        self.next = None;
        // What was evicted by then may still be in the graph.
        let before = self.floor;
        for (number, record) in graph.records_from(self.cursor) {
            let key = Some((record.time, number));
            if record.time >= oldest {
                break;
            }
            if key > before {
                reserve(&mut self.removals, 1)?;
                self.removals.push(Removal { record, seq: number as u32 });
                self.alive -= 1;
                self.floor = key;
            }
            self.cursor = number + 1;
        }
        Ok(())
    }

    /// Evicts what is older than `oldest`, and more until `most` are left, of edges before number
    /// `end`.
    pub(crate) fn evict(
        &mut self,
        graph: &DynamicGraph<T>,
        end: u64,
        oldest: T,
        most: usize,
    ) -> Result<(), OutOfMemory> {
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
            self.removals.extend(evicted.map(|record| Removal { record, seq: key.1 as u32 }));
            self.floor = self.floor.max(Some(key));
        }
        Ok(())
    }
}
