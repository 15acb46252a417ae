//! One graph with its columns: rows in, features out, old edges away.

use crate::features::Edges;
use crate::graph::{Adjacency, Dynamic, Entry, Floor, Lens, Record, Side, Stamp, push};
use crate::patterns::{
    Evidence, Found, Groups, Hubs, Kind, Pairs, Plan, Scene, Scratch, Trigger, find,
};
use crate::running::{Values, Vertex};
use crate::settings::{Column, Mode, Settings, Statistics};
use crate::statistics::{self, Wanted};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Triggers, or accounts, that a worker takes at once.
const CHUNK: usize = 32;

/// Where features go: row by row, `stride` values apart, from `offset` on.
#[derive(Debug)]
pub(crate) struct Output<'a> {
    pub cells: &'a mut [f64],
    pub stride: usize,
    pub offset: usize,
}

/// What an edge carries beside its ends and its time.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    /// Number of arrival of the first value.
    pub head: u64,
    pub ids: Option<VecDeque<i64>>,
    pub values: Vec<VecDeque<f64>>,
    /// Edges that arrived earlier no longer count in the moments (specification, E3).
    pub recent: u64,
}

/// A graph whose stamps are of type `T`.
#[derive(Debug)]
pub(crate) struct Core<T> {
    pub(crate) graph: Dynamic<T>,
    pub(crate) columns: Columns,
    /// The latest time that came, once one has.
    pub(crate) now: Option<i64>,
    queue: Queue<T>,
    scratch: Vec<Scratch<T>>,
    statistics: statistics::Scratch<T>,
    by_source: Groups,
    by_target: Groups,
    pairs: Pairs,
    hubs: Hubs<T>,
    triggers: Vec<Trigger<T>>,
    ends: Vec<[u32; 2]>,
}

/// Causal mode evicts by time: in order of arrival but for the edges that came late.
#[derive(Debug)]
struct Queue<T> {
    late: BTreeSet<(T, u64)>,
    /// Edges before this one that did not come late have been evicted.
    cursor: u64,
    newest: T,
    alive: usize,
    /// Evicted, and still in the graph for the triggers of the batch.
    gone: Vec<u64>,
    /// All edges up to this time and arrival are evicted.
    floor: Option<(T, u64)>,
}

impl<T: Stamp> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue {
            late: BTreeSet::new(),
            cursor: 0,
            newest: T::default(),
            alive: 0,
            gone: Vec::new(),
            floor: None,
        }
    }
}

impl<T: Stamp> Queue<T> {
    fn add(&mut self, time: T, number: u64) {
        if time < self.newest {
            self.late.insert((time, number));
        }
        self.newest = self.newest.max(time);
        self.alive += 1;
    }

    /// The oldest edge by time, then by arrival.
    fn oldest(&mut self, graph: &Dynamic<T>) -> Option<(T, u64)> {
        let punctual = loop {
            if self.cursor >= graph.next() {
                break None;
            }
            let record = graph.record(self.cursor);
            match record.map(|record| (record.time, self.cursor)) {
                // One that came late may be evicted and still in the graph.
                Some(key) if !self.late.contains(&key) && Some(key) > self.floor => {
                    break Some(key);
                }
                _ => self.cursor += 1,
            }
        };
        match (punctual, self.late.first().copied()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Evicts what is older than `oldest`, and more until `most` are left.
    fn evict(&mut self, graph: &Dynamic<T>, oldest: T, most: usize) {
        while let Some(key) = self.oldest(graph) {
            if key.0 >= oldest && self.alive <= most {
                return;
            }
            if !self.late.remove(&key) {
                self.cursor = key.1 + 1;
            }
            self.alive -= 1;
            self.gone.push(key.1);
            self.floor = self.floor.max(Some(key));
        }
    }
}

impl Columns {
    fn push(&mut self, edges: &Edges<'_>, row: usize) {
        if let Some(ids) = &mut self.ids {
            push(ids, edges.ids[row]);
        }
        for (values, column) in self.values.iter_mut().zip(edges.columns) {
            push(values, column[row]);
        }
    }

    /// Forgets what arrived before `head`.
    fn forget(&mut self, head: u64) {
        while self.head < head {
            self.head += 1;
            if let Some(ids) = &mut self.ids {
                ids.pop_front();
            }
            for values in &mut self.values {
                values.pop_front();
            }
        }
    }

    fn number(&self, seq: u32) -> u64 {
        self.head + u64::from(seq.wrapping_sub(self.head as u32))
    }
}

/// The measured columns, by their place in the statistics.
struct Measured<'a, T> {
    graph: &'a Dynamic<T>,
    columns: &'a Columns,
    /// None: the timestamps.
    given: Vec<Option<&'a VecDeque<f64>>>,
}

impl<'a, T> Measured<'a, T> {
    fn new(graph: &'a Dynamic<T>, columns: &'a Columns, statistics: &Statistics) -> Self {
        let mut values = columns.values.iter();
        let given = statistics.columns.iter().map(|column| match column {
            Column::Time => None,
            Column::Given => values.next(),
        });
        Measured { graph, columns, given: given.collect() }
    }
}

impl<T: Stamp> Values<T> for Measured<'_, T> {
    fn value(&self, column: usize, entry: Entry<T>) -> f64 {
        let Some(Some(values)) = self.given.get(column) else {
            return self.graph.time(entry.time) as f64;
        };
        let place = self.columns.number(entry.seq) - self.columns.head;
        values.get(place as usize).copied().unwrap_or(f64::NAN)
    }

    fn is_recent(&self, entry: Entry<T>) -> bool {
        self.columns.number(entry.seq) >= self.columns.recent
    }
}

impl<T: Stamp> Core<T> {
    pub(crate) fn new(settings: &Settings, base: i64) -> Core<T> {
        // Only batch mode orders accounts by their first appearance.
        let remembers = settings.mode == Mode::Batch && settings.simple_cycle.is_some();
        let columns = settings.statistics.as_ref().map_or(0, |one| one.given());
        Core {
            graph: Dynamic::new(base, remembers),
            columns: Columns {
                ids: settings.keeps_ids.then(VecDeque::new),
                values: vec![VecDeque::new(); columns],
                ..Columns::default()
            },
            now: None,
            queue: Queue::default(),
            scratch: Vec::new(),
            statistics: statistics::Scratch::default(),
            by_source: Groups::default(),
            by_target: Groups::default(),
            pairs: Pairs::default(),
            hubs: Hubs::default(),
            triggers: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// The same with stamps of another type, or from another base.
    pub(crate) fn restamp<S: Stamp>(self, settings: &Settings, base: i64) -> Core<S> {
        let time = |stamp: T| self.graph.time(stamp);
        let shift = |stamp: T| {
            let offset = i128::from(time(stamp)) - i128::from(base);
            S::from_offset(offset.clamp(0, i128::from(S::OFFSET_MAX)) as u64)
        };
        let queue = Queue {
            late: self.queue.late.iter().map(|&(time, number)| (shift(time), number)).collect(),
            cursor: self.queue.cursor,
            newest: shift(self.queue.newest),
            alive: self.queue.alive,
            gone: Vec::new(),
            floor: self.queue.floor.map(|(time, number)| (shift(time), number)),
        };
        let graph = self.graph.restamp(base);
        Core { graph, columns: self.columns, now: self.now, queue, ..Core::new(settings, base) }
    }

    /// Adds rows in the order that `order` gives and notes them as triggers.
    pub(crate) fn insert(&mut self, settings: &Settings, edges: &Edges<'_>, order: &[u32]) {
        self.triggers.clear();
        let first = self.graph.next();
        let is_causal = settings.mode == Mode::Causal;
        let (horizon, most) = (settings.horizon(), settings.edges_max.unwrap_or(usize::MAX));
        let keys = order.iter().map(|&row| row as usize);
        let keys = keys.map(|row| (edges.sources[row], edges.targets[row]));
        let mut ends = std::mem::take(&mut self.ends);
        self.graph.intern(keys, &mut ends);
        for (&row, &ends) in order.iter().zip(&ends) {
            let row = row as usize;
            let Some(time) = self.graph.stamp(edges.times[row]) else { continue };
            let floor = self.floor(first, horizon);
            let number = self.graph.insert(ends, time);
            self.columns.push(edges, row);
            let [source, target] = ends;
            self.triggers.push(Trigger { source, target, time, floor });
            if is_causal {
                self.now = self.now.max(Some(edges.times[row]));
                self.queue.add(time, number);
                let oldest = self.oldest(horizon);
                self.queue.evict(&self.graph, oldest, most);
            }
        }
        self.ends = ends;
    }

    /// The oldest time that stays.
    fn oldest(&self, horizon: u64) -> T {
        let now = self.now.and_then(|now| self.graph.stamp(now));
        now.map_or(T::default(), |now| now.closed(horizon))
    }

    /// What has been evicted so far, for a trigger of the batch that begins at `first`.
    fn floor(&self, first: u64, horizon: u64) -> Floor<T> {
        let time = self.oldest(horizon);
        match self.queue.floor {
            Some((evicted, number)) if evicted >= time => {
                let place = i128::from(number) + 1 - i128::from(first);
                let place = place.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as i32;
                Floor { time: evicted, place: Some(place) }
            }
            _ => Floor { time, place: None },
        }
    }

    /// Takes out what the rows just added have made too old.
    fn evict(&mut self, settings: &Settings) {
        match settings.mode {
            Mode::Causal => {
                let oldest = self.oldest(settings.horizon());
                self.statistics.forget(oldest, self.graph.is_ordered());
                self.hubs.forget(oldest, self.graph.is_ordered());
                self.graph.remove_all(self.queue.gone.iter().copied());
                self.queue.gone.clear();
            }
            Mode::Batch => self.evict_in_order_of_arrival(settings),
        }
        self.columns.forget(self.graph.head());
    }

    /// Specification, B3 and E3.
    fn evict_in_order_of_arrival(&mut self, settings: &Settings) {
        let Some(newest) = self.triggers.iter().map(|one| one.time).max() else { return };
        // The clock starts at 0.
        let now = self.now.unwrap_or(0).max(self.graph.time(newest));
        self.now = Some(now);
        let is_old =
            |time: i64, window: u64| i128::from(time) < i128::from(now) - i128::from(window);
        let (horizon, most) = (settings.horizon(), settings.edges_max.unwrap_or(usize::MAX));
        let surplus = self.graph.len().saturating_sub(most);
        let is_gone = |&(place, (_, record)): &(usize, (u64, Record<T>))| {
            place < surplus || is_old(self.graph.time(record.time), horizon)
        };
        let gone = self.graph.records().enumerate().take_while(is_gone).count() as u64;
        // In batch mode edges go in order of arrival: there are no gaps.
        let head = self.graph.head();
        self.graph.remove_all(head..head + gone);
        let Some(statistics) = &settings.statistics else { return };
        self.columns.recent = self.columns.recent.max(self.graph.head());
        while let Some(record) = self.graph.record(self.columns.recent) {
            if !is_old(self.graph.time(record.time), statistics.window) {
                break;
            }
            self.columns.recent += 1;
        }
    }

    /// Adds rows and computes nothing.
    pub(crate) fn learn(&mut self, settings: &Settings, edges: &Edges<'_>, order: &[u32]) {
        // Evicting now and then keeps the memory that of the window.
        let step = if settings.mode == Mode::Causal { 1 << 16 } else { order.len().max(1) };
        for part in order.chunks(step) {
            self.insert(settings, edges, part);
            self.evict(settings);
        }
    }

    /// Adds rows in `order`, and writes the features of all rows: row `r` gets the counts of the
    /// edge at `places[r]` of the order.
    #[expect(clippy::too_many_arguments, reason = "a call in its parts, made in one place")]
    pub(crate) fn transform(
        &mut self,
        settings: &Settings,
        edges: &Edges<'_>,
        order: &[u32],
        places: &[u32],
        output: Output<'_>,
        evidence_max: Option<usize>,
        pool: Option<&rayon::ThreadPool>,
    ) -> Outcome {
        let first = self.graph.next();
        self.insert(settings, edges, order);
        let outcome = self.search(settings, first, evidence_max, pool);
        let Output { cells, stride, offset } = output;
        let width = settings.histogram_width();
        if let Some(scratch) = self.scratch.first() {
            for (row, &place) in cells.chunks_mut(stride.max(1)).zip(places) {
                let counts = scratch.credits.row(place as usize);
                for (cell, count) in row[offset..].iter_mut().zip(counts) {
                    *cell = f64::from(*count);
                }
            }
        }
        self.describe(settings, edges, places, first, cells, stride, offset + width);
        let found = outcome.found.iter().map(|found| self.name(settings, found, first)).collect();
        self.evict(settings);
        Outcome { named: found, ..outcome }
    }

    /// Finds all patterns; the counts end up with the first worker.
    fn search(
        &mut self,
        settings: &Settings,
        first: u64,
        evidence_max: Option<usize>,
        pool: Option<&rayon::ThreadPool>,
    ) -> Outcome {
        let is_causal = settings.mode == Mode::Causal;
        let workers = pool.map_or(1, rayon::ThreadPool::current_num_threads);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize_with(workers, Scratch::default);
        for one in &mut scratch {
            one.credits.reset(self.triggers.len(), settings.histogram_width());
            one.credits.evidence = evidence_max.map(Evidence::new);
        }
        let plans = plans(settings);
        if plans.iter().any(|plan| plan.kind.sides().contains(&Side::Out)) {
            self.by_source.fill(&self.triggers, Side::Out);
        }
        if plans.iter().any(|plan| plan.kind.sides().contains(&Side::In)) {
            self.by_target.fill(&self.triggers, Side::In);
        }
        if !is_causal {
            self.pairs.fill(&self.triggers);
        }
        let scene = Scene {
            graph: &self.graph,
            triggers: &self.triggers,
            first: first as u32,
            is_causal,
            pairs: &self.pairs,
            hubs: &self.hubs,
        };
        let work = Work::new(&scene, &plans, &self.by_source, &self.by_target);
        match pool {
            None => {
                if let Some(one) = scratch.first_mut() {
                    work.run(one);
                }
            }
            Some(pool) => pool.scope(|scope| {
                for one in &mut scratch {
                    let work = &work;
                    scope.spawn(move |_| work.run(one));
                }
            }),
        }
        let mut outcome = Outcome::default();
        if let Some((one, others)) = scratch.split_first_mut() {
            for other in others {
                one.credits.merge(&mut other.credits);
            }
            outcome.cut_short = one.credits.cut_short;
            if let Some(mut evidence) = one.credits.evidence.take() {
                // Workers finish in any order.
                evidence.trim();
                outcome.found = evidence.found;
                outcome.dropped = evidence.dropped;
            }
        }
        self.scratch = scratch;
        outcome
    }

    /// Writes the statistics of the ends of each row.
    #[expect(clippy::too_many_arguments, reason = "the output in its parts, which may be empty")]
    fn describe(
        &mut self,
        settings: &Settings,
        edges: &Edges<'_>,
        places: &[u32],
        first: u64,
        cells: &mut [f64],
        stride: usize,
        offset: usize,
    ) {
        let Some(statistics) = &settings.statistics else { return };
        let width = statistics.width();
        if width == 0 {
            return;
        }
        let is_causal = settings.mode == Mode::Causal;
        let wanted = Wanted { statistics, is_causal };
        let measured = Measured::new(&self.graph, &self.columns, statistics);
        let whole = (T::default(), T::from_offset(T::OFFSET_MAX));
        // In batch mode all rows of an account get the same.
        let mut known: hashbrown::HashMap<i64, usize, _> =
            hashbrown::HashMap::with_hasher(crate::graph::Spread);
        let mut kept: Vec<f64> = Vec::new();
        for (row, &place) in places.iter().enumerate() {
            let keys = [edges.sources[row], edges.targets[row]];
            for (end, key) in keys.into_iter().enumerate() {
                let at = row * stride + offset + end * 2 * width;
                if !is_causal && let Some(&from) = known.get(&key) {
                    cells[at..at + 2 * width].copy_from_slice(&kept[from..from + 2 * width]);
                    continue;
                }
                let Some(account) = self.graph.find(key) else {
                    cells[at..at + 2 * width].fill(0.0);
                    continue;
                };
                let (window, lens) = if is_causal {
                    let trigger = self.triggers[place as usize];
                    let lens = Lens::until(first as u32, place, trigger.floor);
                    ((trigger.time.open(statistics.window), trigger.time), lens)
                } else {
                    (whole, Lens::whole(first as u32))
                };
                for (half, side) in [Side::Out, Side::In].into_iter().enumerate() {
                    let at = at + half * width;
                    let out = &mut cells[at..at + width];
                    let vertex = Vertex { account, side, window, lens };
                    self.statistics.measure(&self.graph, &measured, wanted, vertex, out);
                }
                if !is_causal {
                    known.insert(key, kept.len());
                    kept.extend_from_slice(&cells[at..at + 2 * width]);
                }
            }
        }
    }

    /// A found pattern in the caller's terms.
    fn name(&self, settings: &Settings, found: &Found, first: u64) -> crate::Pattern {
        crate::evidence::name(&self.graph, settings, &self.triggers, first, found, &|number| {
            let ids = self.columns.ids.as_ref()?;
            ids.get((number - self.columns.head) as usize).copied()
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        let values: usize = self.columns.values.iter().map(VecDeque::capacity).sum();
        let ids = self.columns.ids.as_ref().map_or(0, VecDeque::capacity);
        let late = self.queue.late.len() * size_of::<(T, u64)>() * 2;
        let scratch: usize = self.scratch.iter().map(Scratch::bytes).sum();
        self.graph.bytes()
            + (values + ids) * size_of::<f64>()
            + late
            + scratch
            + self.statistics.bytes()
            + self.hubs.bytes()
    }
}

/// What a search found beside its counts.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub cut_short: [u64; Kind::COUNT],
    found: Vec<Found>,
    pub named: Vec<crate::Pattern>,
    pub dropped: u64,
}

fn plans(settings: &Settings) -> Vec<Plan<'_>> {
    let mut column = 0;
    let mut plans = Vec::new();
    for kind in Kind::ALL {
        let Some(pattern) = settings.pattern(kind) else { continue };
        let (length_max, work_max) = (settings.cycle_length_max, settings.work_max);
        plans.push(Plan { kind, pattern, column, length_max, work_max });
        column += pattern.bins.len();
    }
    plans
}

/// The search of one batch in pieces that workers take one after the other.
struct Work<'a, T, G> {
    scene: &'a Scene<'a, T, G>,
    tasks: Vec<(Plan<'a>, Option<Side>, std::ops::Range<usize>)>,
    by_source: &'a Groups,
    by_target: &'a Groups,
    next: Mutex<usize>,
}

impl<'a, T: Stamp, G: Adjacency<T>> Work<'a, T, G> {
    fn new(
        scene: &'a Scene<'a, T, G>,
        plans: &[Plan<'a>],
        by_source: &'a Groups,
        by_target: &'a Groups,
    ) -> Work<'a, T, G> {
        let mut tasks = Vec::new();
        // The long searches first: what is left for the end should be short.
        for plan in plans.iter().rev() {
            let mut add = |side, count: usize| {
                let starts = (0..count).step_by(CHUNK);
                tasks.extend(starts.map(|from| (*plan, side, from..(from + CHUNK).min(count))));
            };
            match plan.kind.sides() {
                [] => add(None, scene.triggers.len()),
                sides => {
                    for &side in sides {
                        let groups = if side == Side::In { by_target } else { by_source };
                        add(Some(side), groups.len());
                    }
                }
            }
        }
        Work { scene, tasks, by_source, by_target, next: Mutex::new(0) }
    }

    fn run(&self, scratch: &mut Scratch<T>) {
        loop {
            let task = {
                let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
                *next += 1;
                *next - 1
            };
            let Some((plan, side, range)) = self.tasks.get(task) else { return };
            match side {
                None => {
                    for place in range.clone() {
                        find(self.scene, *plan, None, &[place as u32], scratch);
                    }
                }
                Some(side) => {
                    let groups = if *side == Side::In { self.by_target } else { self.by_source };
                    for group in range.clone() {
                        find(self.scene, *plan, Some(*side), groups.get(group), scratch);
                    }
                }
            }
        }
    }
}
