//! Memory reserved for a load that knows its size before it builds anything.
//!
//! The node finds all of the memory or none, and evicts other objects at once. So a load that
//! cannot fit is refused before any object is evicted for it, and an admitted load needs no more
//! memory later.

use std::time::Duration;

use farrow_memory::{Offset, Span, page_bytes};
use farrow_store::{Run, SpaceAllocator};

use crate::error::Error;
use crate::extents::{run_span, span_run};
use crate::room::{Demand, is_short};
use crate::session::Session;

/// If no single range is long enough, this many parts are requested, then twice as many.
const PARTS_MIN: u64 = 2;
/// The largest number of parts.
const PARTS_MAX: u64 = 32;

/// The reserved memory, and its free part.
#[derive(Debug)]
pub(super) struct Expected {
    ranges: Vec<Run>,
    free: SpaceAllocator,
}

impl Expected {
    /// Reserves memory for buffers of these sizes, or for one size in any number of parts: all or
    /// none.
    pub(super) fn take(session: &Session, sizes: &[u64]) -> Result<Self, Error> {
        let demand = Demand::new(1, std::iter::empty(), Duration::ZERO);
        let extents = session.pool.extents();
        let is_short =
            |found: &Result<Vec<Span>, Error>| found.as_ref().err().is_some_and(is_short);
        let mut found = extents.take_or_make(session, sizes, &demand);
        let mut parts = PARTS_MIN;
        while let [bytes] = *sizes
            && is_short(&found)
            && parts <= PARTS_MAX
        {
            let halves = vec![bytes.div_ceil(parts); parts as usize];
            // If this fails too, report the first error: that not all of the memory is there.
            found = extents.make(session, &halves, &demand).or(found);
            parts *= 2;
        }
        let mut ranges: Vec<Run> = found?.into_iter().map(span_run).collect();
        ranges.sort_unstable();
        let page = page_bytes();
        let start = ranges.first().map_or(0, |run| run.start);
        let end = ranges.last().map_or(0, |run| run.end);
        let gaps = ranges.windows(2).filter_map(|pair| match *pair {
            [one, next] if one.end < next.start => Some(Run { start: one.end, end: next.start }),
            _ => None,
        });
        let gaps: Vec<Run> = gaps.collect();
        let free = SpaceAllocator::with_occupied(Run { start, end }, page, page, gaps)
            .map_err(|error| Error::Protocol(format!("what the node granted: {error}")))?;
        Ok(Self { ranges, free })
    }

    /// Takes pages of the reserved memory.
    pub(super) fn allocate(&mut self, bytes: u64) -> Option<Span> {
        self.free.allocate(bytes, 1).map(run_span)
    }

    /// Takes the pages right behind `end`, if they are free here.
    pub(super) fn extend(&mut self, end: Offset, bytes: u64) -> bool {
        let stop = end.0.checked_add(bytes);
        stop.is_some_and(|stop| self.free.claim(Run { start: end.0, end: stop }))
    }

    /// Takes back pages. False if they are not part of the reserved memory.
    pub(super) fn give(&mut self, span: Span) -> bool {
        let run = span_run(span);
        let is_in = |all: &Run| all.start <= run.start && run.end <= all.end;
        self.ranges.iter().any(is_in) && self.free.free(run).is_ok()
    }

    /// Returns the unused pages.
    pub(super) fn end(self, session: &Session) {
        let extents = session.pool.extents();
        self.free.runs().for_each(|run| extents.give(session, run_span(run)));
    }
}
