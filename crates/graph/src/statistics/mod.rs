//! Statistics of an account's edges (specification, E).

mod double_double;
mod moments;
mod sliding_window;
use crate::edge::{EdgeEntry, Side, Vertex};

pub(crate) use sliding_window::{EdgeValues, LENGTH_MIN, NoValues, SlidingWindow};

use crate::accounts::{AccountHash, AccountTable};
use crate::edge::{Adjacency, Stamp};
use crate::settings::{Measure, StatisticsSettings};
use hashbrown::HashMap;
use moments::Moments;

/// Batch mode treats a variance below this share of the squared mean as 0 (specification, E5).
pub(crate) const BATCH_CUTOFF: f64 = 1e-5;
/// A variance below this share of the squared mean is only rounding error: a few units in the last
/// place.
pub(crate) const NOISE_CUTOFF: f64 = 1e-29;

/// The position in [`Measure::ALL`] of the minimum, which needs all values.
const MIN: usize = 5;
/// The position in [`Measure::ALL`] of the maximum, which needs all values.
const MAX: usize = 6;
/// The position in [`Measure::ALL`] of the median, which needs all values.
const MEDIAN: usize = 7;

/// Up to this many edges are compared pairwise to count neighbours.
const FEW: usize = 12;

/// The smallest number of windows above which stale ones are removed.
const RUNNING_MIN: usize = if cfg!(debug_assertions) { 2 } else { 64 };

#[derive(Debug)]
pub(crate) struct StatisticsScratch<T> {
    entries: Vec<EdgeEntry<T>>,
    neighbours: AccountTable<()>,
    values: Vec<f64>,
    /// The values that the moments count.
    recent: Vec<f64>,
    figures: Vec<[f64; 8]>,
    running: HashMap<(u32, bool), SlidingWindow<T>, AccountHash>,
    /// Above this many windows, stale ones are removed.
    running_max: usize,
}

impl<T> Default for StatisticsScratch<T> {
    fn default() -> StatisticsScratch<T> {
        StatisticsScratch {
            entries: Vec::new(),
            neighbours: AccountTable::default(),
            values: Vec::new(),
            recent: Vec::new(),
            figures: Vec::new(),
            running: HashMap::default(),
            running_max: RUNNING_MIN,
        }
    }
}

/// The state of the statistics between calls.
#[derive(Debug)]
pub(crate) struct StatisticsState<T> {
    pub scratch: StatisticsScratch<T>,
    pub described: DescribedAccounts,
}

impl<T> Default for StatisticsState<T> {
    fn default() -> StatisticsState<T> {
        let (scratch, described) = (StatisticsScratch::default(), DescribedAccounts::default());
        StatisticsState { scratch, described }
    }
}

/// The cells of accounts that a call has already computed.
#[derive(Debug, Default)]
pub(crate) struct DescribedAccounts {
    /// The position of each account's first cell.
    starts: HashMap<i64, usize, AccountHash>,
    cells: Vec<f64>,
}

impl DescribedAccounts {
    pub(crate) fn clear(&mut self) {
        self.starts.clear();
        self.cells.clear();
    }

    /// The `width` cells of an account, if they are known.
    pub(crate) fn get(&self, key: i64, width: usize) -> Option<&[f64]> {
        let &start = self.starts.get(&key)?;
        self.cells.get(start..start + width)
    }

    pub(crate) fn insert(&mut self, key: i64, cells: &[f64]) {
        self.starts.insert(key, self.cells.len());
        self.cells.extend_from_slice(cells);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.starts.allocation_size() + self.cells.capacity() * size_of::<f64>()
    }
}

/// The measures to compute, and the mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasurePlan<'a> {
    statistics: &'a StatisticsSettings,
    is_causal: bool,
    /// A bit for each measure, in the order of [`Measure::ALL`].
    measures: u16,
}

impl<'a> MeasurePlan<'a> {
    pub(crate) fn new(statistics: &'a StatisticsSettings, is_causal: bool) -> MeasurePlan<'a> {
        let all = Measure::ALL.iter().enumerate();
        let wanted = all.filter(|(_, measure)| statistics.measures.contains(measure));
        MeasurePlan {
            statistics,
            is_causal,
            measures: wanted.fold(0, |bits, (at, _)| bits | 1 << at),
        }
    }

    fn cutoff(&self) -> f64 {
        if self.is_causal { NOISE_CUTOFF } else { BATCH_CUTOFF }
    }

    fn wants_median(&self) -> bool {
        self.measures & 1 << MEDIAN != 0
    }

    /// Whether a measure needs all values.
    fn wants_values(&self) -> bool {
        self.measures & (1 << MIN | 1 << MAX | 1 << MEDIAN) != 0
    }

    fn is_running(&self) -> bool {
        self.is_causal && !self.wants_values()
    }

    /// Writes the chosen measures in their order.
    fn write(&self, degree: usize, fan: usize, columns: &[[f64; 8]], out: &mut [f64]) {
        let ratio = if fan == 0 { 0.0 } else { degree as f64 / fan as f64 };
        let own = [fan as f64, degree as f64, ratio];
        let own = own.into_iter().enumerate();
        let figures = columns.iter().flat_map(|figures| (3..).zip(*figures));
        let wanted = own.chain(figures).filter(|(at, _)| self.measures & 1 << at != 0);
        for (cell, (_, figure)) in out.iter_mut().zip(wanted) {
            *cell = figure;
        }
    }
}

/// The moments at their positions among the figures of a column.
fn placed([mean, sum, variance, skewness, kurtosis]: [f64; 5]) -> [f64; 8] {
    [mean, sum, 0.0, 0.0, 0.0, variance, skewness, kurtosis]
}

impl<T: Stamp> StatisticsScratch<T> {
    /// Writes the statistics of one side of an account to `out`, which has
    /// [`StatisticsSettings::width`] cells.
    pub(crate) fn measure<G: Adjacency<T>>(
        &mut self,
        graph: &G,
        values: &impl EdgeValues<T>,
        wanted: MeasurePlan<'_>,
        vertex: Vertex<T>,
        out: &mut [f64],
    ) {
        let Vertex { account, window, view, .. } = vertex;
        let is_running = wanted.is_running() && graph.is_ordered();
        let most = if is_running { LENGTH_MIN - 1 } else { usize::MAX };
        self.entries.clear();
        if !graph.gather(vertex, most, &mut self.entries) {
            return self.carry_on(graph, values, wanted, vertex, out);
        }
        let StatisticsScratch { entries, neighbours, .. } = self;
        let distinct = count_distinct(entries, neighbours);
        let edges = entries.len();
        let is_inside =
            |one: &EdgeEntry<T>| window.0 <= one.time && one.time <= window.1 && view.sees(*one);
        entries.extend(graph.loops(account).filter(is_inside));
        if entries.is_empty() {
            out.fill(0.0);
            return;
        }
        // If edges arrived in order, all of a list are recent if the oldest is.
        let (list, loops) = entries.split_at(edges);
        let is_recent = wanted.is_causal
            || graph.is_ordered()
                && list.first().is_none_or(|one| values.is_recent(*one))
                && loops.first().is_none_or(|one| values.is_recent(*one));
        let is_looped = entries.last().is_some_and(|one| one.other == account);
        let (degree, fan) = (entries.len(), distinct + usize::from(is_looped));
        let columns = wanted.statistics.columns.len();
        let mut figures = std::mem::take(&mut self.figures);
        figures.clear();
        figures.extend((0..columns).map(|column| self.column(values, column, wanted, is_recent)));
        wanted.write(degree, fan, &figures, out);
        self.figures = figures;
    }

    fn carry_on<G: Adjacency<T>>(
        &mut self,
        graph: &G,
        values: &impl EdgeValues<T>,
        wanted: MeasurePlan<'_>,
        vertex: Vertex<T>,
        out: &mut [f64],
    ) {
        let columns = wanted.statistics.columns.len();
        let place = self.running.entry((vertex.account, vertex.side == Side::Out));
        let running =
            place.or_insert_with(|| SlidingWindow::new(graph.key(vertex.account), columns));
        if !running.is_of(graph, vertex) {
            *running = SlidingWindow::new(graph.key(vertex.account), columns);
        }
        running.advance(graph, values, vertex, true);
        let cutoff = wanted.cutoff();
        self.figures.clear();
        let moments = running.moments.iter();
        self.figures.extend(moments.map(|moments| placed(moments.figures(cutoff))));
        wanted.write(running.degree(), running.fan(), &self.figures, out);
    }

    /// Drops windows whose last edge no later trigger sees; drops all if edges are out of order.
    pub(crate) fn forget(&mut self, oldest: T, is_ordered: bool) {
        if !is_ordered {
            self.running.clear();
        }
        if self.running.len() > self.running_max {
            self.running.retain(|_, one| one.newest().is_some_and(|newest| newest >= oldest));
            self.running_max = (2 * self.running.len()).max(RUNNING_MIN);
        }
    }

    /// Mean, sum, min, max, median, variance, skewness, kurtosis. `is_recent`: whether the moments
    /// count all values.
    fn column(
        &mut self,
        source: &impl EdgeValues<T>,
        column: usize,
        wanted: MeasurePlan<'_>,
        is_recent: bool,
    ) -> [f64; 8] {
        let StatisticsScratch { entries, values, recent, .. } = self;
        if let [entry] = entries.as_slice()
            && is_recent
        {
            let value = source.value(column, *entry);
            if value.is_finite() {
                return [value, value, value, value, value, 0.0, 0.0, 0.0];
            }
        }
        values.clear();
        let mut figures = if wanted.is_causal {
            // The same sums as in a sliding window, so that the results are equal.
            let mut moments = Moments::default();
            for &entry in entries.iter() {
                let value = source.value(column, entry);
                if wanted.wants_values() {
                    values.push(value);
                }
                moments.add(value);
            }
            placed(moments.figures(wanted.cutoff()))
        } else {
            source.values(column, entries, values);
            let counted = if is_recent {
                &*values
            } else {
                recent.clear();
                let pairs = entries.iter().zip(values.iter());
                let pairs = pairs.filter(|(one, _)| source.is_recent(**one));
                recent.extend(pairs.map(|(_, value)| value));
                &*recent
            };
            placed(moments::figures_of(counted, wanted.cutoff()))
        };
        if wanted.wants_values() && !values.is_empty() {
            figures[2] = values.iter().copied().fold(f64::INFINITY, f64::min);
            figures[3] = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if wanted.wants_median() {
                figures[4] = median(values);
            }
        }
        figures
    }

    pub(crate) fn bytes(&self) -> usize {
        self.running.values().map(SlidingWindow::bytes).sum::<usize>()
            + self.running.allocation_size()
            + self.neighbours.bytes()
            + self.entries.capacity() * size_of::<EdgeEntry<T>>()
            + (self.values.capacity() + self.recent.capacity()) * size_of::<f64>()
    }
}

/// The number of distinct accounts at the other ends.
fn count_distinct<T>(entries: &[EdgeEntry<T>], seen: &mut AccountTable<()>) -> usize {
    if entries.len() <= FEW {
        let is_first = |&(at, one): &(usize, &EdgeEntry<T>)| {
            entries[..at].iter().all(|before| before.other != one.other)
        };
        return entries.iter().enumerate().filter(is_first).count();
    }
    seen.clear_for(entries.len());
    for one in entries {
        seen.entry(one.other);
    }
    seen.len()
}

fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    let is_even = values.len().is_multiple_of(2);
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    if !is_even {
        return upper;
    }
    let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Half of each: the sum of two large values may be infinite.
    if lower == upper { upper } else { lower / 2.0 + upper / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_two() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
