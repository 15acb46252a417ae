//! Counts of patterns.

use crate::kind::PatternKind;

/// The counts of one worker: a column for each bin, a row for each edge of the batch with a
/// pattern. Most edges complete none.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    width: usize,
    /// For each position in the batch, the number of its row, counted from 1, or 0.
    rows: Vec<u32>,
    counts: Vec<u32>,
    /// Searches that ended at their budget, by kind.
    pub cut_short: [u64; PatternKind::COUNT],
    /// The patterns themselves, if the caller requested them.
    pub collector: Option<MatchCollector>,
}

/// A pattern that a search found, with enough data to find its edges.
///
/// Matches compare by the callers' account numbers, because small numbers depend on the accounts
/// that the graph has forgotten.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PatternMatch {
    /// The trigger's position in the batch.
    pub place: u32,
    pub kind: PatternKind,
    /// Star: its centre. Scatter-gather: the account that scatters, the one that gathers, then the
    /// middle accounts in order of their numbers. Cycle: the accounts from the trigger's target
    /// around to its source.
    pub accounts: Vec<i64>,
    pub size: u32,
}

#[derive(Debug, Default)]
pub(crate) struct MatchCollector {
    /// The first matches in order, and some more until the next `trim`.
    pub found: Vec<PatternMatch>,
    pub most: usize,
    /// Matches beyond the limit.
    pub dropped: u64,
    /// Matches after this trigger and kind are not collected.
    limit: Option<(u32, PatternKind)>,
}

impl MatchCollector {
    pub(crate) fn new(most: usize) -> MatchCollector {
        MatchCollector { most, ..MatchCollector::default() }
    }

    /// Sorts, and retains the first matches. Workers and kinds find them in any order.
    pub(crate) fn trim(&mut self) {
        self.found.sort_unstable();
        self.dropped += self.found.len().saturating_sub(self.most) as u64;
        self.found.truncate(self.most);
        if self.found.len() == self.most {
            self.limit = self.found.last().map(|last| (last.place, last.kind));
        }
    }
}

impl Credits {
    pub(crate) fn reset(&mut self, rows: usize, width: usize) {
        self.width = width;
        self.rows.clear();
        self.rows.resize(rows, 0);
        self.counts.clear();
        self.cut_short = [0; PatternKind::COUNT];
        self.collector = None;
    }

    pub(crate) fn bytes(&self) -> usize {
        (self.rows.capacity() + self.counts.capacity()) * size_of::<u32>()
    }

    /// Counts one pattern for the edge at `place`.
    pub(crate) fn add(&mut self, place: usize, column: usize) {
        self.add_many(place, column, 1);
    }

    pub(crate) fn add_many(&mut self, place: usize, column: usize, patterns: u32) {
        if let Some(count) = self.row_mut(place).and_then(|row| row.get_mut(column)) {
            *count = count.saturating_add(patterns);
        }
    }

    fn row_mut(&mut self, place: usize) -> Option<&mut [u32]> {
        let row = self.rows.get_mut(place)?;
        if *row == 0 {
            self.counts.resize(self.counts.len() + self.width, 0);
            *row = self.counts.len().checked_div(self.width)? as u32;
        }
        let row = *row as usize - 1;
        self.counts.get_mut(row * self.width..(row + 1) * self.width)
    }

    /// The counts of an edge; None if all are 0.
    pub(crate) fn row(&self, place: usize) -> Option<&[u32]> {
        let row = self.rows.get(place)?.checked_sub(1)? as usize;
        self.counts.get(row * self.width..(row + 1) * self.width)
    }

    /// Collects a match.
    pub(crate) fn found(
        &mut self,
        place: u32,
        kind: PatternKind,
        size: usize,
        accounts: impl FnOnce() -> Vec<i64>,
    ) {
        let Some(collector) = &mut self.collector else { return };
        if collector.most == 0 || collector.limit.is_some_and(|limit| (place, kind) > limit) {
            collector.dropped += 1;
            return;
        }
        collector.found.push(PatternMatch { place, kind, accounts: accounts(), size: size as u32 });
        if collector.found.len() / 2 >= collector.most.max(512) {
            collector.trim();
        }
    }

    pub(crate) fn merge(&mut self, other: &mut Credits) {
        for place in 0..other.rows.len() {
            let Some(more) = other.row(place) else { continue };
            for (count, more) in self.row_mut(place).into_iter().flatten().zip(more) {
                *count = count.saturating_add(*more);
            }
        }
        for (count, more) in self.cut_short.iter_mut().zip(other.cut_short) {
            *count += more;
        }
        if let (Some(mine), Some(other)) = (&mut self.collector, &mut other.collector) {
            mine.found.append(&mut other.found);
            mine.dropped += other.dropped;
        }
    }
}
