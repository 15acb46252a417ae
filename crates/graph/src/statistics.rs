//! Statistics of an account's edges (specification, E).

use crate::graph::{Adjacency, Entry, Lens, Side, Stamp};
use crate::settings::{Measure, Statistics};
use hashbrown::HashSet;

/// Below this share of the squared mean batch mode takes a variance for 0 (specification, E5).
const BATCH_CUTOFF: f64 = 1e-5;
/// Below this one, a few units in the last place of the mean, a variance is rounding alone.
const NOISE_CUTOFF: f64 = 1e-29;

/// How the values of edges are found.
pub(crate) trait Values<T>: Sync {
    /// The value of an edge in one of the measured columns.
    fn value(&self, column: usize, entry: Entry<T>) -> f64;

    /// Whether the moments still count this edge (specification, E3).
    fn is_recent(&self, entry: Entry<T>) -> bool;
}

#[derive(Debug, Default)]
pub(crate) struct Scratch<T> {
    entries: Vec<Entry<T>>,
    neighbours: HashSet<u32, crate::graph::Spread>,
    values: Vec<f64>,
    recent: Vec<f64>,
}

/// One side of one account, as a trigger sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vertex<T> {
    pub account: u32,
    pub side: Side,
    pub window: (T, T),
    pub lens: Lens<T>,
}

impl<T: Stamp> Vertex<T> {
    /// Writes its statistics; `out` has room for [`Statistics::width`] values.
    pub(crate) fn measure<G: Adjacency<T>>(
        self,
        graph: &G,
        values: &impl Values<T>,
        statistics: &Statistics,
        scratch: &mut Scratch<T>,
        is_causal: bool,
        out: &mut [f64],
    ) {
        let Vertex { account, side, window, lens } = self;
        let Scratch { entries, neighbours, .. } = scratch;
        entries.clear();
        entries.extend(graph.ascending(account, side, window, lens));
        neighbours.clear();
        neighbours.extend(entries.iter().map(|one| one.other));
        let loops = graph.loops(account).iter().copied();
        let seen =
            loops.filter(|one| window.0 <= one.time && one.time <= window.1 && lens.sees(*one));
        entries.extend(seen);
        let is_looped = entries.last().is_some_and(|one| one.other == account);
        let (degree, fan) = (entries.len(), neighbours.len() + usize::from(is_looped));
        let mut out = out.iter_mut();
        let mut put = |value: f64| {
            if let Some(cell) = out.next() {
                *cell = value;
            }
        };
        let has = |measure| statistics.measures.contains(&measure);
        for measure in [Measure::Fan, Measure::Degree, Measure::Ratio] {
            if has(measure) {
                put(match measure {
                    Measure::Fan => fan as f64,
                    Measure::Degree => degree as f64,
                    _ if fan == 0 => 0.0,
                    _ => degree as f64 / fan as f64,
                });
            }
        }
        for column in 0..statistics.columns.len() {
            let figures = scratch.column(values, column, statistics, is_causal);
            for (measure, figure) in Measure::ALL[3..].iter().zip(figures) {
                if has(*measure) {
                    put(figure);
                }
            }
        }
    }
}

impl<T: Stamp> Scratch<T> {
    /// Mean, sum, min, max, median, variance, skewness, kurtosis.
    fn column(
        &mut self,
        source: &impl Values<T>,
        column: usize,
        statistics: &Statistics,
        is_causal: bool,
    ) -> [f64; 8] {
        let Scratch { entries, values, recent, .. } = self;
        let mut figures = [0.0; 8];
        values.clear();
        recent.clear();
        for &entry in entries.iter() {
            let value = source.value(column, entry);
            values.push(value);
            if is_causal || source.is_recent(entry) {
                recent.push(value);
            }
        }
        if values.is_empty() {
            return figures;
        }
        let cutoff = if is_causal { NOISE_CUTOFF } else { BATCH_CUTOFF };
        moments(recent, cutoff, &mut figures);
        figures[2] = values.iter().copied().fold(f64::INFINITY, f64::min);
        figures[3] = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if statistics.measures.contains(&Measure::Median) {
            figures[4] = median(values);
        }
        figures
    }
}

/// Two passes: exact to rounding, whatever came before.
fn moments(values: &[f64], cutoff: f64, figures: &mut [f64; 8]) {
    if values.is_empty() {
        return;
    }
    let count = values.len() as f64;
    let sum: f64 = values.iter().sum();
    let mean = sum / count;
    let [mut m2, mut m3, mut m4] = [0.0; 3];
    for value in values {
        let difference = value - mean;
        let square = difference * difference;
        m2 += square;
        m3 += square * difference;
        m4 += square * square;
    }
    let [m2, m3, m4] = [m2 / count, m3 / count, m4 / count];
    figures[0] = mean;
    figures[1] = sum;
    if m2 > 0.0 && m2 >= cutoff * mean * mean {
        figures[5] = m2;
        figures[6] = m3 / (m2 * m2.sqrt());
        figures[7] = m4 / (m2 * m2);
    }
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
    use super::{median, moments};

    #[test]
    fn figures_of_a_few_values() {
        let mut figures = [0.0; 8];
        moments(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0], 0.0, &mut figures);
        assert_eq!((figures[0], figures[1], figures[5]), (5.0, 40.0, 4.0));
        assert!((figures[6] - 5.25 / 8.0).abs() < 1e-12, "{figures:?}");
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn seconds_of_an_epoch_have_a_variance_unless_it_is_cut_off() {
        let times = [1.66e9, 1.66e9 + 60.0];
        let mut figures = [0.0; 8];
        moments(&times, super::BATCH_CUTOFF, &mut figures);
        assert_eq!(figures[5], 0.0);
        moments(&times, super::NOISE_CUTOFF, &mut figures);
        assert_eq!(figures[5], 900.0);
    }
}
