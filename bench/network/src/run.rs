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
pub enum Pattern {
    /// Two accounts joined through several others.
    ScatterGather,
    /// Payments in a circle, one after the other.
    TempCycle,
}

/// A measured task.
#[derive(Clone, Debug, Serialize)]
pub struct Task {
    /// The pattern.
    pub pattern: Pattern,
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
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Seconds of each batch.
    pub times: Vec<f64>,
    /// CPU seconds of this thread in each batch, without waits and other programs.
    pub busy: Vec<f64>,
    /// Rows of each batch.
    pub rows: Vec<usize>,
    /// A hash of the features of each batch.
    pub hashes: Vec<u64>,
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

impl Outcome {
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
    pub fn over(&self, other: &Outcome) -> f64 {
        let common = self.times.len().min(other.times.len());
        self.seconds(common) / other.seconds(common)
    }

    /// Whether both have equal results in common batches.
    pub fn agrees(&self, other: &Outcome) -> bool {
        self.hashes.iter().zip(&other.hashes).all(|(one, two)| one == two)
    }
}

impl Task {
    /// Settings of the graph; with segments or without.
    pub fn settings(&self, has_segments: bool) -> Settings {
        let window = self.hours * 3600;
        let bins = Some(PatternSettings { window, bins: (2..31).collect() });
        let mode = if self.is_causal { Mode::Causal } else { Mode::Batch };
        let segment = has_segments.then_some(DAY);
        let settings = Settings { mode, segment, time_window: Some(window), ..Settings::default() };
        match self.pattern {
            Pattern::ScatterGather => Settings { scatter_gather: bins, ..settings },
            Pattern::TempCycle => Settings { temporal_cycle: bins, ..settings },
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
    ) -> Result<Outcome, GraphError> {
        let stats = features.stats();
        let mut outcome =
            Outcome { sealed: stats.sealed, edges: stats.edges, ..Outcome::default() };
        let start = self.start(dump);
        let end = start.saturating_add(self.rows).min(dump.rows());
        let limit = Duration::from_secs_f64(self.seconds.clamp(0.0, 1e6));
        let began = Instant::now();
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
            if began.elapsed() > limit {
                break;
            }
        }
        Ok(outcome)
    }
}
