//! Runs a stream through a graph whose older days are placed by the caller, and times each batch.

use crate::stream::Dump;
use farrow_graph::{GraphError, GraphFeatures, Mode, PatternSettings, Segment, Settings};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A segment covers a day.
const DAY: u64 = 86_400;
/// Rows of one call that only learns.
const LEARNED: usize = 1 << 16;

/// The pattern to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SearchedPattern {
    /// Two accounts joined through several others.
    ScatterGather,
    /// Payments in a circle, one after the other.
    TempCycle,
    /// Payments in a circle of at most ten accounts, in any order: the thesis' second algorithm.
    LcCycle,
}

/// A measured task.
#[derive(Clone, Debug, Serialize)]
pub struct Task {
    /// The pattern.
    pub pattern: SearchedPattern,
    /// Its window.
    pub hours: u64,
    /// Rows of one call.
    pub batch: usize,
    /// Most rows in all.
    pub rows: usize,
    /// Time limit; the measurement ends after the current batch.
    pub seconds: f64,
    /// Whether rows of one call see each other.
    pub is_causal: bool,
    /// Number of the first measured day; None: the last one with at least a mean day's rows.
    pub day: Option<u64>,
    /// Limit on the edges of one search; None: no limit.
    pub work_max: Option<u64>,
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct RunResults {
    /// Seconds of each batch.
    pub times: Vec<f64>,
    /// CPU seconds of this thread in each batch, without waits and other programs.
    pub busy: Vec<f64>,
    /// Rows of each batch.
    pub rows: Vec<usize>,
    /// A hash of the features of each batch.
    pub hashes: Vec<u64>,
    /// Searches of each batch that ended at the task's limit.
    pub cut_short: Vec<u64>,
    /// Edges in segments when the clock started.
    pub sealed: usize,
    /// Edges when the clock started.
    pub edges: usize,
}

/// CPU time of this thread so far, in nanoseconds. `/proc` is updated only at clock ticks, every 4
/// ms at 250 Hz.
fn on_core() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned() as u32)
}

impl RunResults {
    /// Seconds of the first batches.
    pub fn seconds(&self, batches: usize) -> f64 {
        self.times.iter().take(batches).sum()
    }

    /// CPU seconds of all batches.
    pub fn busy_seconds(&self) -> f64 {
        self.busy.iter().sum()
    }

    /// Rows of the first batches.
    pub fn count(&self, batches: usize) -> usize {
        self.rows.iter().take(batches).sum()
    }

    /// The ratio of this run's time to another's, over common batches.
    pub fn over(&self, other: &RunResults) -> f64 {
        let common = self.times.len().min(other.times.len());
        self.seconds(common) / other.seconds(common)
    }

    /// Whether both have equal results in the common batches in which no search ended at the limit.
    /// The placement of edges determines their order, and so the patterns that a search finds
    /// before the limit.
    pub fn agrees(&self, other: &RunResults) -> bool {
        let cut = self.cut_short.iter().zip(&other.cut_short).map(|(one, two)| one + two);
        let hashes = self.hashes.iter().zip(&other.hashes);
        hashes.zip(cut).all(|((one, two), cut)| cut > 0 || one == two)
    }
}

impl Task {
    /// Settings of the graph; with segments or without.
    pub fn settings(&self, has_segments: bool) -> Settings {
        let window = self.hours * 3600;
        let bins_to = |last: u64| Some(PatternSettings { window, bins: (2..=last).collect() });
        let mode = if self.is_causal { Mode::Causal } else { Mode::Batch };
        let segment = has_segments.then_some(DAY);
        let work_max = self.work_max.unwrap_or(u64::MAX);
        let time_window = Some(window);
        let settings = Settings { mode, segment, time_window, work_max, ..Settings::default() };
        let length_max = settings.cycle_length_max as u64;
        match self.pattern {
            SearchedPattern::ScatterGather => Settings { scatter_gather: bins_to(30), ..settings },
            SearchedPattern::TempCycle => Settings { temporal_cycle: bins_to(30), ..settings },
            SearchedPattern::LcCycle => Settings { simple_cycle: bins_to(length_max), ..settings },
        }
    }

    /// The first measured row: the second row of a day, because its first row completes the day
    /// before.
    pub fn start(&self, dump: &Dump) -> usize {
        let times = dump.times();
        let Some(&first) = times.first() else { return 0 };
        let begins = |day: u64| {
            let time = first.div_euclid(DAY as i64).saturating_add_unsigned(day) * DAY as i64;
            times.partition_point(|&one| one < time)
        };
        let span = times.last().map_or(0, |last| last.abs_diff(first));
        let days = span / DAY + 1;
        let mean = times.len() as u64 / days;
        let is_full = |day: &u64| (begins(day + 1) - begins(*day)) as u64 >= mean;
        begins(self.day.or_else(|| (0..days).rev().find(is_full)).unwrap_or(0)) + 1
    }

    /// A graph that has learned the rows before the measured ones. `place` receives each full day's
    /// segment with its number, and places it. None: a graph without segments.
    ///
    /// # Errors
    /// Those of the graph and of `place`.
    pub fn learned<E: From<GraphError>>(
        &self,
        dump: &Dump,
        mut place: Option<impl FnMut(u32, Segment) -> Result<Arc<Segment>, E>>,
    ) -> Result<GraphFeatures, E> {
        let mut features = GraphFeatures::new(self.settings(place.is_some()))?;
        let start = self.start(dump);
        // Whole days, from before the window on: older rows would be evicted again.
        let reach = (self.hours * 3600).saturating_add(2 * DAY);
        let oldest = dump.times().get(start).map_or(0, |time| time.saturating_sub_unsigned(reach));
        let first = dump.times().partition_point(|&time| time < oldest).min(start);
        let mut number = 0;
        for from in (first..start).step_by(LEARNED) {
            features.learn(&dump.part(from, (from + LEARNED).min(start)))?;
            let Some(place) = &mut place else { continue };
            while let Some(frozen) = features.freeze() {
                features.attach(place(number, frozen.plan()?.build()?)?)?;
                number += 1;
            }
        }
        Ok(features)
    }

    /// Runs the measured rows, at most `batches` batches.
    ///
    /// # Errors
    /// Those of the graph.
    pub fn measure(
        &self,
        dump: &Dump,
        mut features: GraphFeatures,
        batches: usize,
    ) -> Result<RunResults, GraphError> {
        let stats = features.stats();
        let mut outcome =
            RunResults { sealed: stats.sealed, edges: stats.edges, ..RunResults::default() };
        let start = self.start(dump);
        let end = start.saturating_add(self.rows).min(dump.rows());
        let limit = Duration::from_secs_f64(self.seconds.clamp(0.0, 1e6));
        let began = Instant::now();
        let mut cut_before = stats.cut_short.iter().sum::<u64>();
        for from in (start..end).step_by(self.batch.max(1)).take(batches) {
            let to = (from + self.batch.max(1)).min(end);
            let (clock, before) = (Instant::now(), on_core());
            let cells = features.transform(&dump.part(from, to))?;
            let seconds = clock.elapsed().as_secs_f64();
            outcome.times.push(seconds);
            outcome.busy.push(on_core().saturating_sub(before).as_secs_f64());
            outcome.rows.push(to - from);
            let mut hash = DefaultHasher::new();
            cells.iter().for_each(|cell| cell.to_bits().hash(&mut hash));
            outcome.hashes.push(hash.finish());
            let cut = features.stats().cut_short.iter().sum::<u64>();
            outcome.cut_short.push(cut - std::mem::replace(&mut cut_before, cut));
            if began.elapsed() > limit {
                break;
            }
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::{RunResults, SearchedPattern, Task};
    use farrow_graph::{Edges, GraphFeatures};

    /// Two ways read edges in another order, so they differ where a search ended early.
    #[test]
    fn batches_with_searches_that_ended_early_are_not_compared() {
        let one =
            RunResults { hashes: vec![1, 2, 3], cut_short: vec![0, 0, 0], ..RunResults::default() };
        let cut = |hashes, cut_short| RunResults { hashes, cut_short, ..RunResults::default() };
        assert!(one.agrees(&cut(vec![1, 2], vec![0, 0])));
        assert!(one.agrees(&cut(vec![1, 9, 3], vec![0, 4, 0])));
        assert!(cut(vec![1, 9, 3], vec![0, 4, 0]).agrees(&one));
        assert!(!one.agrees(&cut(vec![1, 2, 9], vec![0, 4, 0])));
    }

    /// A ring of ten accounts is a simple cycle in every window that has it, a ring of eleven is
    /// none; in order of time both are temporal cycles.
    #[test]
    fn simple_cycles_have_at_most_ten_accounts() {
        for (length, simple) in [(10, 1.0), (11, 0.0)] {
            for (pattern, want) in
                [(SearchedPattern::LcCycle, simple), (SearchedPattern::TempCycle, 1.0)]
            {
                let task = Task {
                    pattern,
                    hours: 1,
                    batch: 1,
                    rows: 1,
                    seconds: 1.0,
                    is_causal: true,
                    day: None,
                    work_max: None,
                };
                let accounts: Vec<i64> = (0..length).collect();
                let next: Vec<i64> = (1..=length).map(|one| one % length).collect();
                let edges = Edges {
                    ids: &accounts,
                    sources: &accounts,
                    targets: &next,
                    times: &accounts,
                    columns: &[],
                };
                let mut features = GraphFeatures::new(task.settings(false)).unwrap();
                let cells = features.transform(&edges).unwrap();
                assert!((cells.iter().sum::<f64>() - want).abs() < 0.5, "{pattern:?}, {length}");
            }
        }
    }
}
