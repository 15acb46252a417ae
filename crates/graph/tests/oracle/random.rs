//! Random settings and random streams, the same ones for the same seed.

use super::StreamRows;
use super::check::{CheckedStream, StreamCall, threads};
use farrow_graph::{Column, Measure, Mode, PatternSettings, Settings, StatisticsSettings};

/// A window that reaches beyond the base of narrow stamps, 2^30 before the first time.
pub const WIDE: u64 = 1 << 31;

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct StreamRandom(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Small,
    Medium,
    Large,
}

/// The order of times in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeOrder {
    Sorted,
    /// One row in ten is late.
    Late,
    Any,
}

impl StreamRandom {
    pub fn new(seed: u64) -> StreamRandom {
        StreamRandom(seed.wrapping_mul(0xd134_2543_de82_ef95))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number from `from` to below `to`.
    pub fn range(&mut self, from: i64, to: i64) -> i64 {
        from + (self.next() % (to - from).max(1).cast_unsigned()).cast_signed()
    }

    pub fn size(&mut self, from: usize, to: usize) -> usize {
        self.range(from as i64, to as i64) as usize
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn is(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A roughly normal number.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    pub fn pick<V: Copy>(&mut self, from: &[V]) -> V {
        from[self.size(0, from.len())]
    }

    pub fn shuffle<V>(&mut self, values: &mut [V]) {
        for at in (1..values.len()).rev() {
            values.swap(at, self.size(0, at + 1));
        }
    }

    fn bins(&mut self) -> Vec<u64> {
        let mut bins: Vec<u64> = (0..self.range(1, 6)).map(|_| self.range(1, 9) as u64).collect();
        bins.sort_unstable();
        bins.dedup();
        bins
    }

    fn pattern(&mut self, window_max: i64) -> Option<PatternSettings> {
        let bins =
            PatternSettings { window: self.range(1, window_max + 1) as u64, bins: self.bins() };
        self.is(0.5).then_some(bins)
    }

    fn statistics(&mut self) -> Option<StatisticsSettings> {
        let mut measures = Measure::ALL.to_vec();
        self.shuffle(&mut measures);
        measures.truncate(self.size(1, 12));
        let mut columns = vec![Column::Time, Column::Given, Column::Given];
        self.shuffle(&mut columns);
        columns.truncate(self.size(0, 4));
        let window = self.range(1, 40) as u64;
        self.is(0.5).then_some(StatisticsSettings { window, measures, columns })
    }

    pub fn settings(&mut self, mode: Mode, size: Size) -> Settings {
        let is_small = size == Size::Small;
        let cycles = if is_small { 30 } else { 6 };
        let mut settings = Settings {
            mode,
            fan: self.pattern(30),
            degree: self.pattern(30),
            scatter_gather: self.pattern(30),
            temporal_cycle: self.pattern(cycles),
            simple_cycle: self.pattern(cycles),
            cycle_length_max: self.size(2, if is_small { 7 } else { 5 }),
            gather_scatter: self.pattern(30),
            statistics: self.statistics(),
            threads: if self.is(0.8) { 1 } else { self.size(2, 4) },
            ..Settings::default()
        };
        let window = Some(self.range(1, 50) as u64);
        if self.is(0.6) || settings.check().is_err() {
            settings.time_window = window;
        }
        if self.is(0.25) {
            settings.edges_max = Some(self.size(1, 20));
        }
        if mode == Mode::Batch && size != Size::Large && self.is(0.15) {
            // Longer than any stream: all windows begin at the graph's base time.
            for star in [&mut settings.fan, &mut settings.gather_scatter].into_iter().flatten() {
                star.window = WIDE;
            }
        }
        settings
    }

    /// The rows of a stream; each row has a unique id.
    pub fn rows(&mut self, mode: Mode, size: Size, given: usize) -> StreamRows {
        let (accounts, rows, span) = match size {
            Size::Small => (7, 30, 50),
            Size::Medium => (60, 500, 200),
            Size::Large => (300, 3000, 600),
        };
        let (accounts, rows, span) =
            (self.range(2, accounts + 1), self.range(1, rows + 1), self.range(1, span));
        let mut result = StreamRows {
            ids: self.ids(rows),
            times: self.times(mode, rows, span),
            ..StreamRows::default()
        };
        let (is_skewed, has_loops) = (self.is(0.5), self.is(0.5));
        for _ in 0..rows {
            let [source, mut target] = [0, 1].map(|_| {
                let share = if is_skewed { 0.125 / self.unit() - 0.125 } else { self.unit() };
                ((share * accounts as f64) as i64).min(accounts - 1)
            });
            if source == target && !has_loops {
                target = (source + 1) % accounts;
            }
            result.sources.push(source);
            result.targets.push(target);
        }
        if self.is(0.3) {
            for account in result.sources.iter_mut().chain(&mut result.targets) {
                *account =
                    (*account * 7919 + 1_000_000_000 * (*account % 2)) * 1_000_003 - (1 << 40);
            }
        }
        let amount = |random: &mut StreamRandom| (random.normal() * 2.0 + 5.0).exp().round();
        let columns: Vec<Vec<f64>> = vec![
            (0..rows).map(|_| amount(self)).collect(),
            (0..rows).map(|_| self.normal()).collect(),
        ];
        result.columns = columns.into_iter().take(given).collect();
        result
    }

    fn ids(&mut self, rows: i64) -> Vec<i64> {
        let mut ids: Vec<i64> = (0..rows).collect();
        if self.is(0.3) {
            self.shuffle(&mut ids);
            ids.iter_mut().for_each(|id| *id += i64::MAX - 5000);
        }
        ids
    }

    fn times(&mut self, mode: Mode, rows: i64, span: i64) -> Vec<i64> {
        let firsts = match mode {
            Mode::Batch => [1, 1, 1000, 1_660_000_000, 1],
            Mode::Causal => [1, -25, i64::MIN, 1_660_000_000, i64::MAX - span],
        };
        let first = self.pick(&firsts);
        let mut times: Vec<i64> = (0..rows).map(|_| first + self.range(0, span)).collect();
        match self.pick(&[TimeOrder::Sorted, TimeOrder::Sorted, TimeOrder::Late, TimeOrder::Any]) {
            TimeOrder::Sorted => times.sort_unstable(),
            TimeOrder::Late => {
                times.sort_unstable();
                for time in &mut times {
                    if self.is(0.1) {
                        *time = time.saturating_sub(self.range(0, 30)).max(first);
                    }
                }
            }
            TimeOrder::Any => {}
        }
        times
    }

    /// Divides rows into calls.
    pub fn cut(&mut self, rows: &StreamRows, most: usize) -> Vec<StreamRows> {
        let (mut parts, mut from) = (Vec::new(), 0);
        while from < rows.len() {
            let step = if self.is(0.1) { 1 } else { self.size(1, most + 1) };
            let to = (from + step).min(rows.len());
            parts.push(rows.part(from..to));
            from = to;
        }
        parts
    }
}

/// The stream of a seed, divided into calls of all kinds.
pub fn stream(mode: Mode, size: Size, seed: u64) -> CheckedStream {
    let mut random = StreamRandom::new(seed);
    let mut settings = random.settings(mode, size);
    settings.threads = threads().unwrap_or(settings.threads);
    let columns = settings.statistics.iter().flat_map(|one| &one.columns);
    let given = columns.filter(|&&column| column == Column::Given).count();
    let mut rows = random.rows(mode, size, given);
    if random.is(0.2) {
        // Repeated ids: such rows are not edges in batch mode, but are in causal mode.
        let count = rows.len();
        for at in 0..count {
            if random.is(0.1) {
                rows.ids[at] = rows.ids[random.size(0, count)];
            }
        }
    }
    let most = match size {
        Size::Small => 12,
        Size::Medium => 96,
        Size::Large => 512,
    };
    let parts = random.cut(&rows, most).into_iter().enumerate();
    let calls = parts.map(|(at, rows)| {
        if at == 0 && random.is(0.2) {
            StreamCall::Start(rows)
        } else if random.is(0.85) {
            StreamCall::Transform(rows)
        } else {
            StreamCall::Learn(rows)
        }
    });
    let calls = calls.collect();
    CheckedStream { settings, calls }
}
