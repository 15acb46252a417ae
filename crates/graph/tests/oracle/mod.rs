//! The definitions of `docs/reference/graph-definitions.md` as slow code: the engine must agree with them.
//!
//! The oracle shares only settings and names with the engine. Every call rebuilds the whole graph,
//! and every definition is one function. Letters and numbers are those of the document.
#![allow(dead_code, reason = "each test uses its part")]

pub mod check;
pub mod cycles;
pub mod random;
pub mod shapes;
pub mod statistics;
pub mod view;

use farrow_graph::{Edges, Mode, Pattern, PatternKind, PatternSettings, Settings};
use statistics::{EdgeRow, of_row};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use view::OracleView;

/// An edge of the graph (A).
#[derive(Clone, Debug)]
pub struct Edge {
    /// The number of earlier edges.
    pub number: u64,
    pub id: i64,
    pub source: i64,
    pub target: i64,
    pub time: i64,
    pub values: Vec<f64>,
}

/// A pattern according to a definition.
#[derive(Clone, Debug)]
pub struct OraclePattern<'a> {
    pub size: usize,
    pub accounts: Vec<i64>,
    /// No edge twice.
    pub edges: Vec<&'a Edge>,
}

/// Owned rows of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamRows {
    pub ids: Vec<i64>,
    pub sources: Vec<i64>,
    pub targets: Vec<i64>,
    pub times: Vec<i64>,
    pub columns: Vec<Vec<f64>>,
}

/// A definition that is wrong on purpose. The tests must detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinitionFault {
    /// D1 with a window that is closed at its old end.
    ClosedStars,
    /// D3 with bins that are open at their upper end.
    OpenBins,
    /// D4 without the rule about later legs.
    LateLegs,
    /// D5 with a window that is open at its old end.
    OpenCycles,
    /// D7: an edge of the trigger's instant is never earlier.
    NoTies,
    /// B3: in order of time in batch mode, in order of arrival in causal mode.
    OtherEviction,
    /// E4 divides by the count minus one.
    SampleVariance,
    /// E3 (batch mode) or E (causal mode) without its window.
    EndlessStatistics,
}

/// The result of `transform`.
#[derive(Clone, Debug, Default)]
pub struct Transformed {
    /// Row after row.
    pub cells: Vec<f64>,
    pub patterns: Vec<Pattern>,
}

#[derive(Clone, Debug)]
pub struct Oracle {
    settings: Settings,
    fault: Option<DefinitionFault>,
    /// Alive, in order of arrival.
    edges: Vec<Edge>,
    arrived: u64,
    /// The clock.
    now: Option<i64>,
    /// The position of each account in the order of first appearance.
    appeared: HashMap<i64, usize>,
    /// Moments do not count edges that arrived before this one (E3).
    recent: u64,
}

impl StreamRows {
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn part(&self, range: std::ops::Range<usize>) -> StreamRows {
        StreamRows {
            ids: self.ids[range.clone()].to_vec(),
            sources: self.sources[range.clone()].to_vec(),
            targets: self.targets[range.clone()].to_vec(),
            times: self.times[range.clone()].to_vec(),
            columns: self.columns.iter().map(|one| one[range.clone()].to_vec()).collect(),
        }
    }

    /// Calls `run` with the rows in the form that the engine takes.
    pub fn with<R>(&self, run: impl FnOnce(&Edges<'_>) -> R) -> R {
        let columns: Vec<&[f64]> = self.columns.iter().map(Vec::as_slice).collect();
        run(&Edges {
            ids: &self.ids,
            sources: &self.sources,
            targets: &self.targets,
            times: &self.times,
            columns: &columns,
        })
    }

    pub fn push(&mut self, (id, source, target, time): (i64, i64, i64, i64)) {
        self.ids.push(id);
        self.sources.push(source);
        self.targets.push(target);
        self.times.push(time);
    }
}

/// The window and bins of a kind, if it is enabled.
pub fn pattern_of(settings: &Settings, kind: PatternKind) -> Option<&PatternSettings> {
    match kind {
        PatternKind::FanIn | PatternKind::FanOut => settings.fan.as_ref(),
        PatternKind::DegreeIn | PatternKind::DegreeOut => settings.degree.as_ref(),
        PatternKind::ScatterGather => settings.scatter_gather.as_ref(),
        PatternKind::TemporalCycle => settings.temporal_cycle.as_ref(),
        PatternKind::SimpleCycle => settings.simple_cycle.as_ref(),
        PatternKind::GatherScatter => settings.gather_scatter.as_ref(),
    }
}

/// D3: the first bin that is not smaller than the size, else the last.
pub fn bin_of(bins: &[u64], size: usize, fault: Option<DefinitionFault>) -> usize {
    let fits = |&bin: &u64| {
        if fault == Some(DefinitionFault::OpenBins) {
            bin > size as u64
        } else {
            bin >= size as u64
        }
    };
    bins.iter().position(fits).unwrap_or(bins.len() - 1)
}

/// The beginning of a window, which may be out of range for `i64`.
pub fn before(time: i64, window: u64) -> i128 {
    i128::from(time) - i128::from(window)
}

impl Oracle {
    pub fn new(settings: &Settings, fault: Option<DefinitionFault>) -> Oracle {
        Oracle {
            settings: settings.clone(),
            fault,
            edges: Vec::new(),
            arrived: 0,
            now: None,
            appeared: HashMap::new(),
            recent: 0,
        }
    }

    fn is_causal(&self) -> bool {
        self.settings.mode == Mode::Causal
    }

    /// Empties the graph and adds rows in their own order (B2).
    pub fn start(&mut self, rows: &StreamRows) {
        *self = Oracle::new(&self.settings, self.fault);
        self.add(rows, &(0..rows.len()).collect::<Vec<_>>());
    }

    /// Adds rows in order of time, in causal mode in their own order (B2).
    pub fn learn(&mut self, rows: &StreamRows) {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        if !self.is_causal() {
            order.sort_by_key(|&row| rows.times[row]);
        }
        self.add(rows, &order);
    }

    fn add(&mut self, rows: &StreamRows, order: &[usize]) {
        let batch = if self.is_causal() { 1 } else { order.len().max(1) };
        for part in order.chunks(batch) {
            self.insert(rows, part);
            self.evict(rows, part);
        }
    }

    /// In causal mode, every row is a separate batch.
    pub fn transform(&mut self, rows: &StreamRows) -> Transformed {
        let batch = if self.is_causal() { 1 } else { rows.len().max(1) };
        let mut answer = Transformed::default();
        for from in (0..rows.len()).step_by(batch) {
            let part = self.batch(&rows.part(from..(from + batch).min(rows.len())));
            answer.cells.extend(part.cells);
            answer.patterns.extend(part.patterns);
        }
        answer
    }

    /// B1: insert all, compute all, evict.
    fn batch(&mut self, rows: &StreamRows) -> Transformed {
        let mut seen = BTreeSet::new();
        let mut order: Vec<usize> =
            (0..rows.len()).filter(|&row| seen.insert(rows.ids[row])).collect();
        order.sort_by_key(|&row| rows.times[row]);
        let first = self.arrived;
        self.insert(rows, &order);
        let view = OracleView::new(&self.edges, &self.appeared, &self.settings, self.fault);
        let (counts, patterns) = self.count(&view, first);
        let mut cells = Vec::new();
        for row in 0..rows.len() {
            // A dropped row gets the counts of the retained row with its id (B2).
            let of = |&at: &usize| rows.ids[order[at]] == rows.ids[row];
            let place = (0..order.len()).find(of).unwrap_or_default();
            cells.extend(&counts[place]);
            if let Some(wanted) = &self.settings.statistics {
                let (source, target, time) =
                    (rows.sources[row], rows.targets[row], rows.times[row]);
                let row = EdgeRow { source, target, time };
                cells.extend(of_row(&view, wanted, self.recent, row));
            }
        }
        self.evict(rows, &order);
        Transformed { cells, patterns }
    }

    /// Every pattern of every trigger, credited to the edges of the batch that are part of it.
    fn count(&self, view: &OracleView<'_>, first: u64) -> (Vec<Vec<f64>>, Vec<Pattern>) {
        let enabled = PatternKind::ALL
            .iter()
            .filter_map(|&kind| Some((kind, pattern_of(&self.settings, kind)?)));
        let enabled: Vec<(PatternKind, &PatternSettings)> = enabled.collect();
        let width = enabled.iter().map(|(_, one)| one.bins.len()).sum();
        let triggers: Vec<&Edge> = self.edges.iter().filter(|one| one.number >= first).collect();
        let mut counts = vec![vec![0.0; width]; triggers.len()];
        let mut patterns = Vec::new();
        for trigger in triggers {
            let mut column = 0;
            for &(kind, PatternSettings { window, bins }) in &enabled {
                for shape in view.shapes(kind, trigger, *window) {
                    let bin = column + bin_of(bins, shape.size, self.fault);
                    for edge in shape.edges.iter().filter(|one| one.number >= first) {
                        counts[(edge.number - first) as usize][bin] += 1.0;
                    }
                    patterns.push(named(kind, trigger, shape));
                }
                column += bins.len();
            }
        }
        (counts, patterns)
    }

    fn insert(&mut self, rows: &StreamRows, order: &[usize]) {
        for &row in order {
            let (source, target) = (rows.sources[row], rows.targets[row]);
            for account in [source, target] {
                let place = self.appeared.len();
                self.appeared.entry(account).or_insert(place);
            }
            self.edges.push(Edge {
                number: self.arrived,
                id: rows.ids[row],
                source,
                target,
                time: rows.times[row],
                values: rows.columns.iter().map(|column| column[row]).collect(),
            });
            self.arrived += 1;
        }
    }

    /// B3, or G2 in causal mode.
    fn evict(&mut self, rows: &StreamRows, order: &[usize]) {
        let Some(newest) = order.iter().map(|&row| rows.times[row]).max() else { return };
        let is_causal = self.is_causal();
        let clock = if is_causal { self.now } else { Some(self.now.unwrap_or(0)) };
        let now = clock.map_or(newest, |now| now.max(newest));
        self.now = Some(now);
        let oldest = before(now, self.horizon());
        let most = self.settings.edges_max.unwrap_or(usize::MAX);
        if is_causal != (self.fault == Some(DefinitionFault::OtherEviction)) {
            self.evict_by_time(oldest, most);
        } else {
            self.evict_by_arrival(oldest, most);
        }
        self.forget_moments(now);
    }

    fn evict_by_arrival(&mut self, oldest: i128, most: usize) {
        let is_full = |edges: &[Edge]| edges.len() > most;
        while self.edges.first().is_some_and(|one| i128::from(one.time) < oldest)
            || is_full(&self.edges)
        {
            self.edges.remove(0);
        }
    }

    fn evict_by_time(&mut self, oldest: i128, most: usize) {
        self.edges.retain(|one| i128::from(one.time) >= oldest);
        while self.edges.len() > most {
            let keys = self.edges.iter().map(|one| (one.time, one.number));
            let Some((_, first)) = keys.min() else { return };
            self.edges.retain(|one| one.number != first);
        }
    }

    /// E3: the second queue.
    fn forget_moments(&mut self, now: i64) {
        let Some(statistics) = &self.settings.statistics else { return };
        if self.fault == Some(DefinitionFault::EndlessStatistics) {
            return;
        }
        let oldest = before(now, statistics.window);
        let left = self.edges.iter().filter(|one| one.number >= self.recent);
        let stays = left.clone().find(|one| i128::from(one.time) >= oldest);
        self.recent = stays.map_or(self.arrived, |one| one.number);
    }

    /// B3: how long an edge stays.
    fn horizon(&self) -> u64 {
        let patterns = PatternKind::ALL.iter().filter_map(|&kind| pattern_of(&self.settings, kind));
        let statistics = self.settings.statistics.iter().filter(|_| self.is_causal());
        let longest = patterns.map(|one| one.window).chain(statistics.map(|one| one.window)).max();
        self.settings.time_window.or(longest).unwrap_or(1)
    }

    pub fn edges(&self) -> usize {
        self.edges.len()
    }

    pub fn now(&self) -> Option<i64> {
        self.now
    }

    /// Accounts of edges that are alive.
    pub fn accounts(&self) -> usize {
        let ends = self.edges.iter().flat_map(|one| [one.source, one.target]);
        ends.collect::<BTreeSet<i64>>().len()
    }
}

fn named(kind: PatternKind, trigger: &Edge, shape: OraclePattern<'_>) -> Pattern {
    let by_time: BTreeMap<(i64, u64), i64> =
        shape.edges.iter().map(|one| ((one.time, one.number), one.id)).collect();
    Pattern {
        kind,
        size: shape.size as u32,
        trigger: trigger.id,
        accounts: shape.accounts,
        edges: by_time.into_values().collect(),
    }
}
