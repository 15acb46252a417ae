//! A stream through a graph whose older days lie wherever the caller puts them, batch by batch
//! against the clock.

use crate::stream::Dump;
use farrow_graph::{GraphError, GraphFeatures, Mode, PatternSettings, Segment, Settings};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A segment covers a day.
const DAY: u64 = 86_400;
/// Rows that are learned at once.
const LEARNED: usize = 1 << 16;

/// What is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Two accounts joined through several others.
    ScatterGather,
    /// Payments in a circle, one after the other.
    TempCycle,
}

/// What is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Task {
    /// What is searched.
    pub pattern: Pattern,
    /// Its window.
    pub hours: u64,
    /// Rows of one call.
    pub batch: usize,
    /// Rows in all, at most.
    pub rows: usize,
    /// The clock stops after the batch in which this is over.
    pub seconds: f64,
    /// Whether rows of one call see each other.
    pub is_causal: bool,
    /// The first day that is measured, by number; None: the last one with at least a mean day's
    /// rows.
    pub day: Option<u64>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Seconds of each batch.
    pub times: Vec<f64>,
    /// Seconds of each batch that this thread had a core: what others on the machine take is not in
    /// them, nor what is waited for.
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

/// How long this thread had a core so far, to the nanosecond: what `/proc` says of it is as old as
/// the last tick of the clock, 4 ms where it ticks 250 times a second.
fn on_core() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned() as u32)
}

impl Outcome {
    /// Seconds of the first batches.
    pub fn seconds(&self, batches: usize) -> f64 {
        self.times.iter().take(batches).sum()
    }

    /// Seconds of all batches that the thread had a core.
    pub fn busy_seconds(&self) -> f64 {
        self.busy.iter().sum()
    }

    /// Rows of the first batches.
    pub fn count(&self, batches: usize) -> usize {
        self.rows.iter().take(batches).sum()
    }

    /// How much longer this took than another run, over the batches that both did.
    pub fn over(&self, other: &Outcome) -> f64 {
        let common = self.times.len().min(other.times.len());
        self.seconds(common) / other.seconds(common)
    }

    /// Whether both found the same in the batches that both did.
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

    /// The first row that is measured: the second one of a day, since only with its first is the
    /// day before over.
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

    /// A graph that has learned the rows before the measured ones, its full days where `place` puts
    /// them; it is given each day's segment with its number. None: a graph without segments.
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
        // Whole days, from before the window on: what is older would be evicted again.
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

    /// Runs the measured rows, `batches` of them at most.
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
