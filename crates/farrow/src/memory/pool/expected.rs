//! Memory reserved for a load that knows its size before it builds anything.
//!
//! The node finds all of the memory or none, and evicts other objects at once. So a load that
//! cannot fit is refused before any object is evicted for it, and an admitted load needs no more
//! memory later.

use std::time::Duration;

use farrow_memory::{Offset, Span, page_bytes};
use farrow_store::{Run, SpaceAllocator};

use crate::error::Error;
use crate::memory::extents::{Extents, run_span, span_run};
use crate::memory::node::NodeAccess;
use crate::memory::room::{Demand, is_short};

/// If no single range is long enough, this many parts are requested, then twice as many.
const PARTS_MIN: u64 = 2;
/// The largest number of parts.
const PARTS_MAX: u64 = 32;

/// The reserved memory, and its free part.
#[derive(Debug)]
pub(crate) struct Expected {
    ranges: Vec<Run>,
    free: SpaceAllocator,
}

impl Expected {
    /// Reserves memory for buffers of these sizes, or for one size in any number of parts: all or
    /// none.
    pub(crate) fn take(
        node: &dyn NodeAccess,
        extents: &Extents,
        sizes: &[u64],
    ) -> Result<Self, Error> {
        let demand = Demand::new(1, std::iter::empty(), Duration::ZERO);
        let mut found = extents.take_or_make(node, sizes, &demand);
        if let [bytes] = *sizes {
            found = in_parts(bytes, found, |parts| extents.make(node, parts, &demand));
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
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<Span> {
        self.free.allocate(bytes, 1).map(run_span)
    }

    /// Takes the pages right behind `end`, if they are free here.
    pub(crate) fn extend(&mut self, end: Offset, bytes: u64) -> bool {
        let stop = end.0.checked_add(bytes);
        stop.is_some_and(|stop| self.free.claim(Run { start: end.0, end: stop }))
    }

    /// Takes back pages. False if they are not part of the reserved memory.
    pub(crate) fn give(&mut self, span: Span) -> bool {
        let run = span_run(span);
        let is_in = |all: &Run| all.start <= run.start && run.end <= all.end;
        self.ranges.iter().any(is_in) && self.free.free(run).is_ok()
    }

    /// Returns the unused pages.
    pub(crate) fn end(self, node: &dyn NodeAccess, extents: &Extents) {
        self.free.runs().for_each(|run| extents.give(node, run_span(run)));
    }
}

/// Where there is no range of `bytes`, has ever smaller parts of it made.
fn in_parts(
    bytes: u64,
    whole: Result<Vec<Span>, Error>,
    mut make: impl FnMut(&[u64]) -> Result<Vec<Span>, Error>,
) -> Result<Vec<Span>, Error> {
    let mut found = whole;
    let mut parts = PARTS_MIN;
    while found.as_ref().is_err_and(is_short) && parts <= PARTS_MAX {
        let sizes = vec![bytes.div_ceil(parts); parts as usize];
        found = match make(&sizes) {
            // The error at the end says that not all of it exists.
            Err(error) if is_too_much(&error) => found,
            made => made,
        };
        parts *= 2;
    }
    found
}

/// Whether there is no room for parts. Rounded up to pages they may exceed a quota that the whole
/// does not.
fn is_too_much(error: &Error) -> bool {
    is_short(error) || matches!(error, Error::QuotaExceeded(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::OutOfMemory;

    fn short(requested: u64) -> Error {
        Error::OutOfMemory(OutOfMemory { requested, free: 0, largest: 0, waiting: 0, waited_ms: 0 })
    }

    #[test]
    fn an_interrupt_ends_the_search_for_parts() {
        let mut attempts = 0;
        let found = in_parts(100, Err(short(100)), |_| {
            attempts += 1;
            Err(if attempts == 2 { Error::Interrupted } else { short(1) })
        });
        assert!(matches!(found, Err(Error::Interrupted)), "{found:?}");
        assert_eq!(attempts, 2);
    }

    #[test]
    fn a_search_for_parts_that_finds_none_reports_the_whole() {
        let mut sizes = Vec::new();
        let found = in_parts(100, Err(short(100)), |parts| {
            sizes.push((parts.len(), parts[0]));
            Err(short(1))
        });
        assert!(
            matches!(found, Err(Error::OutOfMemory(OutOfMemory { requested: 100, .. }))),
            "{found:?}"
        );
        assert_eq!(sizes, [(2, 50), (4, 25), (8, 13), (16, 7), (32, 4)]);
    }
}
