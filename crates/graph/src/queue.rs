//! What causal mode evicts next.

use crate::graph::{Dynamic, Stamp};
use crate::memory::{Full, reserve};
use std::collections::BTreeSet;

/// Room for evicted edges that stays for the next call.
const GONE_KEPT: usize = 4096;

/// Causal mode evicts by time: in order of arrival but for the edges that came late.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    pub late: BTreeSet<(T, u64)>,
    /// Edges before this one that did not come late have been evicted.
    pub cursor: u64,
    /// Edges before this one have been touched.
    pub touched: u64,
    pub newest: T,
    pub alive: usize,
    /// Evicted, and still in the graph for the triggers of the batch.
    pub gone: Vec<u64>,
    /// Those of them that had come late.
    pub late_gone: Vec<(T, u64)>,
    /// All edges up to this time and arrival are evicted.
    pub floor: Option<(T, u64)>,
}

/// Where a queue was before edges came that are to go again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueMark<T> {
    cursor: u64,
    newest: T,
    alive: usize,
    gone: usize,
    late_gone: usize,
    floor: Option<(T, u64)>,
}

impl<T: Stamp> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue {
            late: BTreeSet::new(),
            cursor: 0,
            touched: 0,
            newest: T::default(),
            alive: 0,
            gone: Vec::new(),
            late_gone: Vec::new(),
            floor: None,
        }
    }
}

impl<T: Stamp> Queue<T> {
    pub(crate) fn mark(&self) -> QueueMark<T> {
        let Queue { cursor, newest, alive, floor, .. } = *self;
        let (gone, late_gone) = (self.gone.len(), self.late_gone.len());
        QueueMark { cursor, newest, alive, gone, late_gone, floor }
    }

    /// Takes back edges from number `first` on, and that others were evicted since.
    pub(crate) fn rewind(&mut self, mark: QueueMark<T>, first: u64) {
        let QueueMark { cursor, newest, alive, gone, late_gone, floor } = mark;
        self.late.extend(self.late_gone.drain(late_gone..));
        self.late.retain(|(_, number)| *number < first);
        self.gone.truncate(gone);
        (self.cursor, self.newest, self.alive, self.floor) = (cursor, newest, alive, floor);
    }

    /// What is gone has been taken out of the graph.
    pub(crate) fn settle(&mut self) {
        self.gone.clear();
        self.late_gone.clear();
        self.gone.shrink_to(GONE_KEPT);
        self.late_gone.shrink_to(GONE_KEPT);
    }

    pub(crate) fn bytes(&self) -> usize {
        // Trees are half empty.
        (2 * self.late.len() + self.late_gone.capacity()) * size_of::<(T, u64)>()
            + self.gone.capacity() * size_of::<u64>()
    }

    pub(crate) fn add(&mut self, time: T, number: u64) {
        if time < self.newest {
            self.late.insert((time, number));
        }
        self.newest = self.newest.max(time);
        self.alive += 1;
    }

    /// The oldest edge by time, then by arrival.
    fn oldest(&mut self, graph: &Dynamic<T>) -> Option<(T, u64)> {
        let punctual = loop {
            if self.cursor >= graph.next() {
                break None;
            }
            if self.cursor >= self.touched {
                self.touched = graph.touch_from(self.cursor);
            }
            let record = graph.record(self.cursor);
            match record.map(|record| (record.time, self.cursor)) {
                // One that came late may be evicted and still in the graph.
                Some(key) if !self.late.contains(&key) && Some(key) > self.floor => {
                    break Some(key);
                }
                _ => self.cursor += 1,
            }
        };
        match (punctual, self.late.first().copied()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Evicts what is older than `oldest`, and more until `most` are left.
    pub(crate) fn evict(&mut self, graph: &Dynamic<T>, oldest: T, most: usize) -> Result<(), Full> {
        while let Some(key) = self.oldest(graph) {
            if key.0 >= oldest && self.alive <= most {
                break;
            }
            reserve(&mut self.gone, 1)?;
            reserve(&mut self.late_gone, 1)?;
            if self.late.remove(&key) {
                self.late_gone.push(key);
            } else {
                self.cursor = key.1 + 1;
            }
            self.alive -= 1;
            self.gone.push(key.1);
            self.floor = self.floor.max(Some(key));
        }
        Ok(())
    }
}
