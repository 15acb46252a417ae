//! Where patterns are counted.

use super::Kind;

/// Counts of one worker: a row for each edge of the batch, a column for each bin.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    width: usize,
    counts: Vec<u32>,
    /// Triggers that ran out of their work, by kind.
    pub cut_short: [u64; Kind::COUNT],
    /// Patterns themselves, where somebody wants to see them.
    pub evidence: Option<Evidence>,
}

/// A pattern as it was found: enough to find its edges again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub kind: Kind,
    /// The trigger's place in the batch.
    pub place: u32,
    pub size: u32,
    /// Stars: the centre. Scatter-gather: the account that scatters, the one that gathers, then
    /// those between. Cycles: from the trigger's target round to its source.
    pub accounts: Vec<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub found: Vec<Found>,
    pub most: usize,
    /// Patterns that were not kept because there were too many.
    pub dropped: u64,
}

impl Credits {
    pub(crate) fn reset(&mut self, rows: usize, width: usize) {
        self.width = width;
        self.counts.clear();
        self.counts.resize(rows * width, 0);
        self.cut_short = [0; Kind::COUNT];
        self.evidence = None;
    }

    /// Counts one pattern for the edge at `place`.
    pub(crate) fn add(&mut self, place: usize, column: usize) {
        self.add_many(place, column, 1);
    }

    pub(crate) fn add_many(&mut self, place: usize, column: usize, patterns: u32) {
        if let Some(count) = self.counts.get_mut(place * self.width + column) {
            *count = count.saturating_add(patterns);
        }
    }

    pub(crate) fn row(&self, place: usize) -> &[u32] {
        self.counts.get(place * self.width..(place + 1) * self.width).unwrap_or_default()
    }

    pub(crate) fn found(&mut self, found: impl FnOnce() -> Found) {
        let Some(evidence) = &mut self.evidence else { return };
        if evidence.found.len() < evidence.most {
            evidence.found.push(found());
        } else {
            evidence.dropped += 1;
        }
    }

    pub(crate) fn merge(&mut self, other: &mut Credits) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        for (count, more) in self.cut_short.iter_mut().zip(other.cut_short) {
            *count += more;
        }
        if let (Some(mine), Some(other)) = (&mut self.evidence, &mut other.evidence) {
            mine.found.append(&mut other.found);
            mine.dropped += other.dropped;
        }
    }
}
