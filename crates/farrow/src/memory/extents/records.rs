//! Which ranges are granted to a client, and which of them are free here. A lock is around them;
//! nothing here sends a message.

use std::collections::BTreeMap;

use farrow_memory::{Span, page_bytes};
use farrow_store::{Run, SpaceAllocator};

use super::ranges::{alignment_for, run_span, span_run, split};
use super::seals::{EndedSeal, PendingSeal};
use crate::error::Error;
use crate::memory::node::FIRST_CONNECTION;

/// The first grant. Later ones double up to the maximum: a client that writes little takes little,
/// and a client that writes much asks seldom.
const GRANT_BYTES_FIRST: u64 = 256 << 10;

/// The largest grant beyond need, and the most free bytes that a client retains for its next
/// allocations.
pub(super) const AHEAD_BYTES_MAX: u64 = 64 << 20;

/// Free ranges that a client retains. With two, a load of a Parquet file gave half of its temporary
/// buffers back to the node and requested them again.
const RETAINED_RUNS_MAX: usize = 16;

/// For allocations of this size or more nothing is granted ahead: the message costs less than the
/// first touch of their pages, and the surplus would fragment the heap.
const EXACT_BYTES_MIN: u64 = 256 << 10;

#[derive(Debug)]
pub(super) struct ExtentsState {
    pub(super) free: SpaceAllocator,
    /// All ranges that are granted and not sealed by the node, from start to end, merged. Objects
    /// sealed by this client itself remain part of it.
    pub(super) granted: BTreeMap<u64, u64>,
    /// Ranges with a seal request, by start. A range that is granted again meanwhile was sealed and
    /// then deleted: it leaves this list, and a late answer to its seal changes nothing.
    pub(super) pending_seals: BTreeMap<u64, PendingSeal>,
    /// Requests that have left that list, to be disposed of without the lock.
    pub(super) ended: Vec<EndedSeal>,
    /// Number of seal requests so far.
    pub(super) seals: u64,
    /// The connection for which `granted` was last compared with the node's records.
    pub(super) connection: u64,
    pub(super) grant_bytes: u64,
}

/// The ranges of a grant, and the connection that granted them.
#[derive(Debug, Clone)]
pub(crate) struct Granted {
    pub(crate) ranges: Vec<Span>,
    pub(crate) connection: u64,
}

impl ExtentsState {
    pub(super) fn new(heap: Span) -> Result<Self, Error> {
        let page = page_bytes();
        let all = Run { start: heap.offset.0, end: heap.offset.0.saturating_add(heap.length.0) };
        let free = SpaceAllocator::with_occupied(all, page, page, [all])
            .map_err(|error| Error::Protocol(format!("the heap of the node: {error}")))?;
        Ok(Self {
            free,
            granted: BTreeMap::new(),
            pending_seals: BTreeMap::new(),
            ended: Vec::new(),
            seals: 0,
            connection: FIRST_CONNECTION,
            grant_bytes: GRANT_BYTES_FIRST,
        })
    }

    /// Takes pages that are free here.
    pub(super) fn take(&mut self, whole: u64) -> Option<Span> {
        self.free.allocate(whole, alignment_for(whole)).map(run_span)
    }

    /// The size of the grant to request for `whole` bytes.
    pub(super) fn want(&mut self, whole: u64, ahead_bytes: u64) -> u64 {
        if whole >= EXACT_BYTES_MIN {
            return whole;
        }
        self.want_ahead(whole, ahead_bytes)
    }

    pub(super) fn want_ahead(&mut self, whole: u64, ahead_bytes: u64) -> u64 {
        let want = self.grant_bytes.min(ahead_bytes).max(whole);
        self.grant_bytes = (self.grant_bytes * 2).min(AHEAD_BYTES_MAX);
        want
    }

    /// Records a grant. False: the records were compared with the node's since, and the comparison
    /// returned the ranges.
    pub(super) fn accept(&mut self, granted: &Granted) -> bool {
        let is_valid = granted.connection == self.connection;
        if is_valid {
            granted.ranges.iter().for_each(|range| self.insert_granted(*range));
        }
        is_valid
    }

    /// Removes ranges from the records. Returns the connection on which to release them.
    pub(super) fn let_go(&mut self, spans: &[Span]) -> u64 {
        spans.iter().for_each(|span| self.remove_granted(*span));
        self.connection
    }

    /// Takes the first `whole` bytes of a new grant; the rest becomes free.
    pub(super) fn hand_out(&mut self, granted: Span, whole: u64) -> Span {
        let (head, tail) = split(granted, whole);
        if let Some(tail) = tail {
            let _ = self.free.free(span_run(tail));
        }
        head
    }

    pub(super) fn insert_granted(&mut self, span: Span) {
        // A range that was sealed, and deleted since, may be granted again.
        self.remove_granted(span);
        self.end_seals(span);
        let Run { mut start, mut end } = span_run(span);
        if let Some((before, stop)) = self.granted.range(..start).next_back()
            && *stop == start
        {
            start = *before;
        }
        if let Some(stop) = self.granted.remove(&end) {
            end = stop;
        }
        self.granted.insert(start, end);
    }

    pub(super) fn remove_granted(&mut self, span: Span) {
        let Run { start, end } = span_run(span);
        let touched: Vec<(u64, u64)> = self
            .granted
            .range(..end)
            .rev()
            .take_while(|(_, stop)| **stop > start)
            .map(|(from, stop)| (*from, *stop))
            .collect();
        for (from, stop) in touched {
            self.granted.remove(&from);
            if from < start {
                self.granted.insert(from, start);
            }
            if stop > end {
                self.granted.insert(end, stop);
            }
        }
    }

    /// Takes out all free ranges.
    pub(super) fn take_all_free(&mut self) -> Vec<Span> {
        let mut runs: Vec<Span> = self.free.runs().map(run_span).collect();
        runs.retain(|run| self.free.claim(span_run(*run)));
        runs
    }

    /// Takes out free ranges beyond those worth retaining. The longest that fit are retained, and
    /// only a few: each one fragments the heap.
    pub(super) fn surplus(&mut self, retained: u64) -> Vec<Span> {
        let mut runs: Vec<Span> = self.free.runs().map(run_span).collect();
        runs.sort_unstable_by_key(|run| std::cmp::Reverse(run.length));
        let (mut count, mut bytes) = (0, 0);
        runs.retain(|run| {
            let is_retained = count < RETAINED_RUNS_MAX && bytes + run.length.0 <= retained;
            if is_retained {
                (count, bytes) = (count + 1, bytes + run.length.0);
            }
            !is_retained
        });
        runs.retain(|run| self.free.claim(span_run(*run)));
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(start: u64, end: u64) -> Span {
        run_span(Run { start, end })
    }

    #[test]
    fn granted_ranges_merge_and_are_cut() {
        let heap = of(0, 64 * page_bytes());
        let mut state = ExtentsState::new(heap).unwrap();
        state.insert_granted(of(0, 10));
        state.insert_granted(of(20, 30));
        state.insert_granted(of(10, 20));
        assert_eq!(state.granted, BTreeMap::from([(0, 30)]));
        state.remove_granted(of(5, 8));
        state.remove_granted(of(25, 30));
        assert_eq!(state.granted, BTreeMap::from([(0, 5), (8, 25)]));
        state.remove_granted(of(0, 30));
        assert!(state.granted.is_empty());
    }
}
