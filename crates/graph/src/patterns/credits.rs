//! Where patterns are counted.

use crate::kind::Kind;

/// Counts of one worker: a column for each bin, a row for each edge of the batch that has any. Most
/// edges of a batch complete nothing.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    width: usize,
    /// By place in the batch: the row's number from 1 on, 0 without one.
    rows: Vec<u32>,
    counts: Vec<u32>,
    /// Triggers that ran out of their work, by kind.
    pub cut_short: [u64; Kind::COUNT],
    /// Patterns themselves, where somebody wants to see them.
    pub collector: Option<MatchCollector>,
}

/// A pattern as it was found: enough to find its edges again.
///
/// Their order depends on the stream alone: accounts are the caller's, not the graph's, which
/// depend on what was forgotten when.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PatternMatch {
    /// The trigger's place in the batch.
    pub place: u32,
    pub kind: Kind,
    /// Stars: the centre. Scatter-gather: the account that scatters, the one that gathers, then
    /// those between, in order of their numbers. Cycles: from the trigger's target round to its
    /// source.
    pub accounts: Vec<i64>,
    pub size: u32,
}

#[derive(Debug, Default)]
pub(crate) struct MatchCollector {
    /// The first ones in order, and some more until the next `trim`.
    pub found: Vec<PatternMatch>,
    pub most: usize,
    /// Patterns that were not kept because there were too many.
    pub dropped: u64,
    /// Nothing behind this trigger and kind will be kept.
    limit: Option<(u32, Kind)>,
}

impl MatchCollector {
    pub(crate) fn new(most: usize) -> MatchCollector {
        MatchCollector { most, ..MatchCollector::default() }
    }

    /// Sorts and keeps the first ones: workers and kinds find in an order of their own.
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
        self.cut_short = [0; Kind::COUNT];
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

    /// The counts of an edge; none where all are 0.
    pub(crate) fn row(&self, place: usize) -> Option<&[u32]> {
        let row = self.rows.get(place)?.checked_sub(1)? as usize;
        self.counts.get(row * self.width..(row + 1) * self.width)
    }

    /// Notes a pattern itself.
    pub(crate) fn found(
        &mut self,
        place: u32,
        kind: Kind,
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
