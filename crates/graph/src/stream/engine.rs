//! One graph with its columns: rows in, features out, old edges away.

use super::columns::{EdgeColumns, MeasuredColumns};
use super::eviction_queue::{EvictionQueue, QueueCheckpoint};
use super::hybrid::HybridGraph;
use super::pending_rows::PendingRows;
use crate::accounts::AccountHash;
use crate::edge::{Adjacency, EvictionFloor, Stamp, Visibility};
use crate::edge::{Record, Removal, Side};
use crate::features::Edges;
use crate::memory::{OutOfMemory, probe, reserve};
use crate::patterns::{
    CHUNK, Hubs, Kind, MatchCollector, PatternMatch, SearchContext, SearchPlan, SearchScratch,
    Trigger, TriggerGroups, TriggerPairs, find,
};
use crate::segment::SegmentInfo;
use crate::settings::{Mode, Settings};
use crate::statistics;
use crate::statistics::{MeasurePlan, Vertex};
use crate::store::{DynamicGraph, PIECE, StoreCheckpoint};
use crate::threads::{KeepAwake, together};
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::sync::{Mutex, PoisonError};

/// The shortest pieces of triggers that are looked at one by one,
const CHUNK_MIN: usize = 4;
/// and by which part of what is left they become shorter.
const TAIL: usize = 8;
/// Rows that are added together: as many as are worth another thread's waking.
const ROWS_ADDED: usize = 4096;
/// Rows that causal mode adds at once where it computes nothing.
pub(crate) const LEARNT_AT_ONCE: usize = 1 << 16;
/// What a row of a call takes while the call lasts, beside its counts and statistics: a trigger,
/// places in orders and groups, its accounts in tables, and what trees keep of one that comes late.
const ROW_BYTES: usize = 256;
/// What the tables of searches take, unless accounts have many thousands of edges.
const SEARCH_BYTES: usize = 64 << 10;
/// Of fewer rows the searches take less time than it takes to wake other threads for them.
const HELPED_MIN: usize = if cfg!(debug_assertions) { 2 } else { 8 };
/// Both ends of a trigger, and both lists of each.
const LISTS: [(Side, Side); 4] =
    [(Side::Out, Side::Out), (Side::Out, Side::In), (Side::In, Side::Out), (Side::In, Side::In)];
/// Where features go: row by row, `stride` values apart, from `offset` on.
#[derive(Debug)]
pub(crate) struct FeatureOutput<'a> {
    pub cells: &'a mut [f64],
    pub stride: usize,
    pub offset: usize,
    pub share: WorkShare,
}

/// Which part of a call's work is to be done: every `count`-th piece, from `index` on. The counts
/// of all shares add up to those of the whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkShare {
    pub index: usize,
    pub count: usize,
}

impl WorkShare {
    pub(crate) const WHOLE: WorkShare = WorkShare { index: 0, count: 1 };

    fn has(self, piece: usize) -> bool {
        piece % self.count == self.index
    }
}

/// What a call takes for so many rows beside what the graph keeps of them.
pub(crate) fn call_bytes(settings: &Settings, rows: usize) -> usize {
    let statistics = settings.statistics.as_ref().map_or(0, |one| 4 * one.width());
    let counts = settings.histogram_width() * settings.threads * size_of::<u32>();
    let row = ROW_BYTES + counts + statistics * size_of::<f64>();
    rows.saturating_mul(row).saturating_add(SEARCH_BYTES)
}

/// A graph whose stamps are of type `T`.
#[derive(Debug)]
pub(crate) struct StreamEngine<T> {
    pub(crate) graph: HybridGraph<T>,
    pub(crate) columns: EdgeColumns,
    /// The latest time that came, once one has.
    pub(crate) now: Option<i64>,
    pub(crate) queue: EvictionQueue<T>,
    pub(crate) scratch: Vec<SearchScratch<T>>,
    pub(crate) statistics: statistics::StatisticsScratch<T>,
    pub(crate) by_source: TriggerGroups,
    pub(crate) by_target: TriggerGroups,
    pub(crate) pairs: TriggerPairs,
    pub(crate) hubs: Hubs<T>,
    pub(crate) triggers: Vec<Trigger<T>>,
    /// Rows of a call as they are added.
    pub(crate) added: Vec<Record<T>>,
    /// Segments of which nothing is left, until somebody asks.
    pub(crate) expired: Vec<SegmentInfo>,
    /// What was there before rows came that are to go again.
    before: Option<RollbackPoint<T>>,
    /// Rows that are in the graph and have no features yet; until they do nothing is evicted.
    pub(crate) ahead: Option<PendingRows<T>>,
    /// Statistics of accounts of the call, and where each account's begin.
    pub(crate) described: (HashMap<i64, usize, AccountHash>, Vec<f64>),
}

/// All that the insertion of rows changes, as it was.
#[derive(Debug)]
struct Checkpoint<T> {
    graph: StoreCheckpoint<T>,
    next: u64,
    now: Option<i64>,
    queue: QueueCheckpoint<T>,
}

/// All that rows change before something is evicted.
#[derive(Debug)]
struct RollbackPoint<T> {
    place: Checkpoint<T>,
    /// These carry on from row to row, and must not from rows that go again. None: rows may stay,
    /// and if they go all begins anew.
    carried: Option<(Hubs<T>, statistics::StatisticsScratch<T>)>,
}

impl<T: Stamp> StreamEngine<T> {
    pub(crate) fn new(settings: &Settings, base: i64) -> StreamEngine<T> {
        // Only batch mode orders accounts by their first appearance.
        let remembers = settings.mode == Mode::Batch && settings.simple_cycle.is_some();
        let columns = settings.statistics.as_ref().map_or(0, |one| one.given());
        StreamEngine {
            graph: HybridGraph::from(match settings.segment {
                Some(_) => DynamicGraph::before_segments(base),
                None => DynamicGraph::new(base, remembers),
            }),
            columns: EdgeColumns::new(settings.keeps_ids, columns),
            now: None,
            queue: EvictionQueue::default(),
            scratch: Vec::new(),
            statistics: statistics::StatisticsScratch::default(),
            by_source: TriggerGroups::default(),
            by_target: TriggerGroups::default(),
            pairs: TriggerPairs::default(),
            hubs: Hubs::default(),
            triggers: Vec::new(),
            added: Vec::new(),
            expired: Vec::new(),
            before: None,
            ahead: None,
            described: Default::default(),
        }
    }

    /// Has rows that come from here on go again with `rewind`; until then nothing is evicted.
    pub(crate) fn preview(&mut self) {
        let carried = (std::mem::take(&mut self.hubs), std::mem::take(&mut self.statistics));
        self.before = Some(RollbackPoint { place: self.place(), carried: Some(carried) });
    }

    /// Has rows that come from here on go again with `rewind` or stay with `keep`; until then
    /// nothing is evicted.
    pub(crate) fn begin(&mut self) {
        self.before = Some(RollbackPoint { place: self.place(), carried: None });
    }

    /// Keeps what came since `begin`.
    pub(crate) fn keep(&mut self, settings: &Settings, pool: Option<&rayon::ThreadPool>) {
        if self.before.take().is_some() {
            self.evict(settings, pool);
        }
    }

    /// Is as it was before `preview` or `begin`.
    pub(crate) fn rewind(&mut self) {
        let Some(RollbackPoint { place, carried }) = self.before.take() else { return };
        self.take_back(place);
        (self.hubs, self.statistics) = carried.unwrap_or_default();
    }

    fn place(&self) -> Checkpoint<T> {
        let (graph, queue) = (self.graph.mark(), self.queue.mark());
        Checkpoint { graph, next: self.graph.next(), now: self.now, queue }
    }

    /// Takes back rows that were inserted since, of which nothing has been evicted.
    fn take_back(&mut self, Checkpoint { graph, next, now, queue }: Checkpoint<T>) {
        self.queue.rewind(queue, next);
        self.graph.rewind(graph);
        self.columns.rewind(self.graph.next());
        self.now = now;
        self.triggers.clear();
    }

    /// The same with stamps of another type, or from another base.
    pub(crate) fn restamp<S: Stamp>(self, settings: &Settings, base: i64) -> StreamEngine<S> {
        let from = self.graph.base();
        let shift = |stamp: T| {
            let offset = i128::from(from) + i128::from(stamp.offset()) - i128::from(base);
            S::from_offset(offset.clamp(0, i128::from(S::OFFSET_MAX)) as u64)
        };
        let queue = EvictionQueue {
            late: self.queue.late.iter().map(|&(time, number)| (shift(time), number)).collect(),
            cursor: self.queue.cursor,
            newest: shift(self.queue.newest),
            alive: self.queue.alive,
            floor: self.queue.floor.map(|(time, number)| (shift(time), number)),
            ..EvictionQueue::default()
        };
        let ahead = self.ahead.map(|ahead| ahead.restamp(shift));
        let graph = self.graph.restamp(base);
        let (columns, now, expired) = (self.columns, self.now, self.expired);
        StreamEngine {
            graph,
            columns,
            now,
            queue,
            expired,
            ahead,
            ..StreamEngine::new(settings, base)
        }
    }

    /// Adds rows in the order that `order` gives and notes them as triggers; all of them, or where
    /// there is no memory none.
    pub(crate) fn insert(
        &mut self,
        settings: &Settings,
        edges: &Edges<'_>,
        order: &[u32],
        pool: Option<&rayon::ThreadPool>,
    ) -> Result<(), OutOfMemory> {
        let place = self.place();
        let mut added = std::mem::take(&mut self.added);
        let inserted = self.try_insert(settings, edges, order, &mut added, pool);
        if inserted.is_err() {
            self.take_back(place);
            self.graph.release_idle(added.iter().flat_map(|one| [one.source, one.target]));
        }
        self.added = added;
        inserted
    }

    fn try_insert(
        &mut self,
        settings: &Settings,
        edges: &Edges<'_>,
        order: &[u32],
        added: &mut Vec<Record<T>>,
        pool: Option<&rayon::ThreadPool>,
    ) -> Result<(), OutOfMemory> {
        self.triggers.clear();
        reserve(&mut self.triggers, order.len())?;
        // Edges may have been taken out since.
        self.queue.next = None;
        let first = self.graph.next();
        let base = self.graph.base();
        for part in order.chunks(ROWS_ADDED) {
            let edge = |at: usize| {
                let row = part[at] as usize;
                // The caller has seen to it that the graph can hold them.
                let time = T::since(base, edges.times[row]).unwrap_or_default();
                (edges.sources[row], edges.targets[row], time)
            };
            self.graph.intern(part.len(), edge, added, pool)?;
            let number = self.graph.insert(added, pool)?;
            self.columns.push(edges, part)?;
            self.note(settings, edges, part, added, (first, number))?;
        }
        if settings.mode == Mode::Batch {
            // For those that will go.
            reserve(&mut self.queue.gone, order.len().clamp(1, PIECE))?;
        }
        // Searches follow, which cannot say that there is no memory.
        probe(call_bytes(settings, order.len()))
    }

    /// Notes rows that have been added, from edge number `number` on, as triggers of a call that
    /// began with number `first`. In causal mode each evicts.
    fn note(
        &mut self,
        settings: &Settings,
        edges: &Edges<'_>,
        rows: &[u32],
        added: &[Record<T>],
        (first, number): (u64, u64),
    ) -> Result<(), OutOfMemory> {
        let (horizon, most) = (settings.horizon(), settings.edges_max.unwrap_or(usize::MAX));
        let is_causal = settings.mode == Mode::Causal;
        // Where nothing comes late, and age alone evicts, no row has to know what went before it.
        let is_plain = is_causal && self.queue.is_plain(added, most);
        let mut oldest = self.oldest(horizon);
        for ((number, &Record { source, target, time }), &row) in (number..).zip(added).zip(rows) {
            let floor = self.floor(first, oldest);
            self.triggers.push(Trigger { source, target, time, floor });
            if !is_causal {
                continue;
            }
            let now = Some(edges.times[row as usize]);
            if now > self.now {
                self.now = now;
                oldest = self.oldest(horizon);
            }
            self.queue.add(time, number);
            if !is_plain {
                self.queue.evict(&self.graph, number + 1, oldest, most)?;
            }
        }
        if is_plain {
            self.queue.evict_aged(&self.graph, oldest)?;
        }
        Ok(())
    }

    /// The oldest time that stays.
    fn oldest(&self, horizon: u64) -> T {
        let now = self.now.and_then(|now| self.graph.stamp(now));
        now.map_or(T::default(), |now| now.closed(horizon))
    }

    /// What has been evicted so far, or is older than `time`, for a trigger of the batch that begins
    /// at `first`.
    fn floor(&self, first: u64, time: T) -> EvictionFloor<T> {
        match self.queue.floor {
            Some((evicted, number)) if evicted >= time => {
                let place = i128::from(number) + 1 - i128::from(first);
                let place = place.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as i32;
                EvictionFloor { time: evicted, place: Some(place) }
            }
            _ => EvictionFloor { time, place: None },
        }
    }

    /// Forgets what is kept of accounts of which a trigger with this floor, and all later ones, see
    /// nothing.
    pub(crate) fn forget(&mut self, oldest: T) {
        self.statistics.forget(oldest, self.graph.is_ordered());
        self.hubs.forget(oldest, self.graph.is_ordered());
    }

    /// Takes out what the rows just added have made too old.
    pub(crate) fn evict(&mut self, settings: &Settings, pool: Option<&rayon::ThreadPool>) {
        if self.ahead.is_some() {
            // What segments have leaves the newest part, as ever.
            self.drain();
            self.columns.forget(self.graph.head());
            return;
        }
        match settings.mode {
            Mode::Causal => {
                let oldest = self.oldest(settings.horizon());
                self.forget(oldest);
                self.graph.remove_all(&self.queue.gone, pool);
                self.queue.settle();
            }
            Mode::Batch => {
                self.evict_in_order_of_arrival(settings, pool);
                let oldest = self.oldest(settings.horizon());
                self.hubs.forget(oldest, self.graph.is_ordered());
            }
        }
        if settings.segment.is_some() {
            self.evict_segments(settings);
        }
        self.columns.forget(self.graph.head());
        self.give_back(pool);
        self.end();
    }

    /// Specification, B3 and E3.
    fn evict_in_order_of_arrival(&mut self, settings: &Settings, pool: Option<&rayon::ThreadPool>) {
        let Some(newest) = self.triggers.iter().map(|one| one.time).max() else { return };
        // The clock starts at 0.
        let now = self.now.unwrap_or(0).max(self.graph.time(newest));
        self.now = Some(now);
        let is_old =
            |time: i64, window: u64| i128::from(time) < i128::from(now) - i128::from(window);
        let (horizon, most) = (settings.horizon(), settings.edges_max.unwrap_or(usize::MAX));
        let surplus = self.graph.len().saturating_sub(most);
        let late = self.graph.late_edges();
        let late = late.filter(|(.., front)| is_old(self.graph.time(*front), horizon));
        let seq = |number: u64| number as u32;
        let late = late.map(|(number, record, _)| Removal { record, seq: seq(number) });
        let late: Vec<Removal<T>> = late.collect();
        self.graph.remove_all(&late, pool);
        let mut gone = std::mem::take(&mut self.queue.gone);
        let mut left = surplus;
        loop {
            gone.clear();
            let is_evicted = |&(place, (number, record)): &(usize, (u64, Record<T>))| {
                // One that came late waits for those in front of it, which may be in a segment now.
                let time = self.graph.front(number).unwrap_or(record.time);
                place < left || is_old(self.graph.time(time), horizon)
            };
            // In batch mode edges go in order of arrival.
            let oldest = self.graph.records().take(gone.capacity().clamp(1, PIECE)).enumerate();
            let oldest = oldest.take_while(is_evicted);
            gone.extend(oldest.map(|(_, (number, record))| Removal { record, seq: seq(number) }));
            if gone.is_empty() {
                break;
            }
            left = left.saturating_sub(gone.len());
            self.graph.remove_all(&gone, pool);
        }
        self.queue.gone = gone;
        let Some(statistics) = &settings.statistics else { return };
        let oldest = i128::from(now) - i128::from(statistics.window);
        self.columns.recent_time = Some(i64::try_from(oldest).unwrap_or(i64::MIN));
        self.columns.recent = self.columns.recent.max(self.graph.head());
        while let Some(record) = self.graph.record(self.columns.recent) {
            let time = self.graph.front(self.columns.recent).unwrap_or(record.time);
            if !is_old(self.graph.time(time), statistics.window) {
                break;
            }
            self.columns.recent += 1;
        }
    }

    /// Adds rows and computes nothing; where there is no memory, says how many were added.
    pub(crate) fn learn(
        &mut self,
        settings: &Settings,
        edges: &Edges<'_>,
        order: &[u32],
        pool: Option<&rayon::ThreadPool>,
    ) -> Result<(), (usize, OutOfMemory)> {
        let _awake = KeepAwake::during(pool, order.len());
        // Evicting now and then keeps the memory that of the window.
        let step = if settings.mode == Mode::Causal { LEARNT_AT_ONCE } else { order.len().max(1) };
        for (number, part) in order.chunks(step).enumerate() {
            self.insert(settings, edges, part, pool).map_err(|full| (number * step, full))?;
            if self.before.is_none() {
                self.evict(settings, pool);
            }
        }
        if order.is_empty() && self.graph.is_draining() {
            self.triggers.clear();
            self.evict(settings, pool);
        }
        if !order.is_empty() && self.before.is_none() {
            // As many as the call had rows, and nobody asks for them.
            self.triggers = Vec::new();
        }
        Ok(())
    }

    /// Adds rows in `order`, and writes the features of all rows: row `r` gets the counts of the
    /// edge at `places[r]` of the order. Where there is no memory, nothing has changed.
    #[expect(clippy::too_many_arguments, reason = "a call in its parts, made in one place")]
    pub(crate) fn transform(
        &mut self,
        settings: &Settings,
        edges: &Edges<'_>,
        order: &[u32],
        places: &[u32],
        output: FeatureOutput<'_>,
        evidence_max: Option<usize>,
        pool: Option<&rayon::ThreadPool>,
    ) -> Result<CallOutcome, OutOfMemory> {
        let _awake = KeepAwake::during(pool, order.len());
        let first = self.graph.next();
        self.insert(settings, edges, order, pool)?;
        let outcome = self.compute(settings, edges, places, first, output, evidence_max, pool);
        if self.before.is_none() {
            self.evict(settings, pool);
        }
        Ok(outcome)
    }

    /// Writes the features of rows whose edges are in the graph, as triggers from number `first` on.
    #[expect(clippy::too_many_arguments, reason = "a call in its parts")]
    pub(crate) fn compute(
        &mut self,
        settings: &Settings,
        edges: &Edges<'_>,
        places: &[u32],
        first: u64,
        output: FeatureOutput<'_>,
        evidence_max: Option<usize>,
        pool: Option<&rayon::ThreadPool>,
    ) -> CallOutcome {
        let FeatureOutput { cells, stride, offset, share } = output;
        self.prefetch(settings, first);
        let outcome = self.search(settings, first, evidence_max, pool, share);
        let width = settings.histogram_width();
        if let Some(scratch) = self.scratch.first() {
            for (row, &place) in cells.chunks_mut(stride.max(1)).zip(places) {
                let cells = &mut row[offset..offset + width];
                match scratch.credits.row(place as usize) {
                    None => cells.fill(0.0),
                    Some(counts) => {
                        cells.iter_mut().zip(counts).for_each(|(cell, &one)| *cell = one.into());
                    }
                }
            }
        }
        let output = FeatureOutput { cells, stride, offset: offset + width, share };
        self.describe(settings, edges, places, first, output);
        let lost = self.graph.failure();
        let found = outcome.found.iter().map(|found| self.name(settings, found, first)).collect();
        CallOutcome { named: found, lost, ..outcome }
    }

    /// Tells far segments which rows the search will start with.
    fn prefetch(&self, settings: &Settings, first: u64) {
        let Some(oldest) = self.triggers.iter().map(|one| one.time).min() else { return };
        let window = oldest.closed(settings.horizon()).onward();
        let view = Visibility::all(first as u32);
        if !self.graph.is_prefetching(window, view) {
            return;
        }
        let ends = self.triggers.iter().flat_map(|one| [one.source, one.target]);
        let mut accounts: Vec<u32> = ends.collect();
        accounts.sort_unstable();
        accounts.dedup();
        let deep = [Kind::ScatterGather, Kind::TemporalCycle, Kind::SimpleCycle];
        let has_next = deep.into_iter().any(|kind| settings.pattern(kind).is_some());
        self.graph.prefetch(&accounts, window, view, has_next);
    }

    /// Finds all patterns; the counts end up with the first worker.
    fn search(
        &mut self,
        settings: &Settings,
        first: u64,
        evidence_max: Option<usize>,
        pool: Option<&rayon::ThreadPool>,
        share: WorkShare,
    ) -> CallOutcome {
        let is_causal = settings.mode == Mode::Causal;
        let workers = 1 + pool.map_or(0, rayon::ThreadPool::current_num_threads);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize_with(workers, SearchScratch::default);
        for one in &mut scratch {
            let evidence = evidence_max.map(MatchCollector::new);
            one.start(self.triggers.len(), settings.histogram_width(), evidence);
        }
        let plans = plans(settings);
        if plans.iter().any(|plan| plan.kind.sides().contains(&Side::Out)) {
            self.by_source.fill(&self.triggers, Side::Out);
        }
        if plans.iter().any(|plan| plan.kind.sides().contains(&Side::In)) {
            self.by_target.fill(&self.triggers, Side::In);
        }
        let credits_pairs = [Kind::ScatterGather, Kind::SimpleCycle];
        if !is_causal && plans.iter().any(|plan| credits_pairs.contains(&plan.kind)) {
            self.pairs.fill(&self.triggers);
        }
        let context = self.context(first, is_causal);
        let work =
            SearchWork::new(&context, &plans, &self.by_source, &self.by_target, workers, share);
        match (pool, scratch.split_first_mut()) {
            (Some(pool), Some((own, others))) if self.triggers.len() >= HELPED_MIN => {
                // This thread searches too: it need not be woken, and has just had the newest edges
                // in its hands.
                let work = &work;
                let others = others.iter_mut().map(|one| move || work.run(one));
                together(pool, others, || work.run(own));
            }
            (_, Some((own, _))) => work.run(own),
            (_, None) => {}
        }
        let mut outcome = CallOutcome::default();
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
    fn describe(
        &mut self,
        settings: &Settings,
        edges: &Edges<'_>,
        places: &[u32],
        first: u64,
        output: FeatureOutput<'_>,
    ) {
        let FeatureOutput { cells, stride, offset, share } = output;
        let Some(statistics) = &settings.statistics else { return };
        let width = statistics.width();
        if width == 0 {
            return;
        }
        let is_causal = settings.mode == Mode::Causal;
        let wanted = MeasurePlan::new(statistics, is_causal);
        let measured = MeasuredColumns::new(&self.graph, &self.columns, statistics);
        let whole = T::always();
        // In batch mode all rows of an account get the same.
        let (mut known, mut kept) = std::mem::take(&mut self.described);
        known.clear();
        kept.clear();
        for (row, &place) in places.iter().enumerate() {
            if row % CHUNK == 0 {
                let chunk = places[row..].iter().take(CHUNK).copied();
                self.context(first, is_causal).touch(chunk, statistics.window, &LISTS);
            }
            if !share.has(row) {
                cells[row * stride + offset..][..4 * width].fill(0.0);
                continue;
            }
            let keys = [edges.sources[row], edges.targets[row]];
            for (end, key) in keys.into_iter().enumerate() {
                let at = row * stride + offset + end * 2 * width;
                if !is_causal && let Some(&from) = known.get(&key) {
                    cells[at..at + 2 * width].copy_from_slice(&kept[from..from + 2 * width]);
                    continue;
                }
                // The row's own edge says it, unless the edge is another row's with its id.
                let edge = self.triggers.get(place as usize);
                let own = edge.map(|edge| if end == 0 { edge.source } else { edge.target });
                let own = own.filter(|&account| is_causal || self.graph.key(account) == key);
                let Some(account) = own.or_else(|| self.graph.find(key)) else {
                    cells[at..at + 2 * width].fill(0.0);
                    continue;
                };
                let (window, view) = if is_causal {
                    let trigger = self.triggers[place as usize];
                    let view = Visibility::until(first as u32, place, trigger.time, trigger.floor);
                    ((trigger.time.open(statistics.window), trigger.time), view)
                } else {
                    (whole, Visibility::all(first as u32))
                };
                for (half, side) in [Side::Out, Side::In].into_iter().enumerate() {
                    let at = at + half * width;
                    let out = &mut cells[at..at + width];
                    let vertex = Vertex { account, side, window, view };
                    self.statistics.measure(&self.graph, &measured, wanted, vertex, out);
                }
                if !is_causal {
                    known.insert(key, kept.len());
                    kept.extend_from_slice(&cells[at..at + 2 * width]);
                }
            }
        }
        self.described = (known, kept);
    }

    /// What searches of a call see that began with edge number `first`.
    fn context(&self, first: u64, is_causal: bool) -> SearchContext<'_, T, HybridGraph<T>> {
        SearchContext {
            graph: &self.graph,
            triggers: &self.triggers,
            first: first as u32,
            is_causal,
            pairs: &self.pairs,
            hubs: &self.hubs,
        }
    }

    /// A found pattern in the caller's terms.
    fn name(&self, settings: &Settings, found: &PatternMatch, first: u64) -> crate::Pattern {
        crate::features::name(&self.graph, settings, &self.triggers, first, found, &|number| {
            self.columns.id(number).or_else(|| self.graph.of(number)?.id(number))
        })
    }
}

/// What a search found beside its counts.
#[derive(Debug, Default)]
pub(crate) struct CallOutcome {
    pub cut_short: [u64; Kind::COUNT],
    found: Vec<PatternMatch>,
    pub named: Vec<crate::Pattern>,
    pub dropped: u64,
    /// Edges that could not be read: the time of the first, and why.
    pub lost: Option<(i64, String)>,
}

fn plans(settings: &Settings) -> Vec<SearchPlan<'_>> {
    let mut column = 0;
    let mut plans = Vec::new();
    for kind in Kind::ALL {
        let Some(pattern) = settings.pattern(kind) else { continue };
        let (length_max, work_max) = (settings.cycle_length_max, settings.work_max);
        plans.push(SearchPlan { kind, pattern, column, length_max, work_max });
        column += pattern.bins.len();
    }
    plans
}

/// Pieces of so many triggers. Those of several workers become shorter, so that they end together.
fn pieces(triggers: usize, is_divided: bool) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut from = 0;
    let shortest = if is_divided { CHUNK_MIN } else { CHUNK };
    std::iter::from_fn(move || {
        let left = triggers - from;
        let piece = from..from + (left / TAIL).clamp(shortest, CHUNK).min(left);
        from = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The search of one batch in pieces that workers take one after the other.
struct SearchWork<'a, T, G> {
    context: &'a SearchContext<'a, T, G>,
    tasks: Vec<(SearchPlan<'a>, Option<Side>, std::ops::Range<usize>)>,
    /// Those of all triggers.
    places: Vec<u32>,
    by_source: &'a TriggerGroups,
    by_target: &'a TriggerGroups,
    next: Mutex<usize>,
}

impl<'a, T: Stamp, G: Adjacency<T>> SearchWork<'a, T, G> {
    fn new(
        context: &'a SearchContext<'a, T, G>,
        plans: &[SearchPlan<'a>],
        by_source: &'a TriggerGroups,
        by_target: &'a TriggerGroups,
        workers: usize,
        share: WorkShare,
    ) -> SearchWork<'a, T, G> {
        // All shares of a call are cut alike, whatever their workers.
        let is_divided = workers > 1 || share.count > 1;
        let mut tasks = Vec::new();
        // The long searches first: what is left for the end should be short.
        for plan in plans.iter().rev() {
            let first = tasks.len();
            match plan.kind.sides() {
                [] => {
                    let pieces = pieces(context.triggers.len(), is_divided);
                    tasks.extend(pieces.map(|one| (*plan, None, one)));
                }
                sides => {
                    let is_divided = is_divided && plan.kind == Kind::ScatterGather;
                    for &side in sides {
                        let groups = if side == Side::In { by_target } else { by_source };
                        let pieces = groups.pieces(is_divided).into_iter();
                        tasks.extend(pieces.map(|one| (*plan, Some(side), one)));
                    }
                    // Of most kinds a hub's triggers are a piece that cannot be divided. Parts of
                    // one stay in their order.
                    tasks[first..].sort_by_key(|(.., piece)| Reverse(piece.len()));
                }
            }
        }
        let tasks = tasks.into_iter().enumerate().filter(|(at, _)| share.has(*at));
        let tasks = tasks.map(|(_, task)| task).collect();
        let places = (0u32..).zip(context.triggers).map(|(place, _)| place).collect();
        SearchWork { context, tasks, places, by_source, by_target, next: Mutex::new(0) }
    }

    fn run(&self, scratch: &mut SearchScratch<T>) {
        loop {
            let task = {
                let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
                *next += 1;
                *next - 1
            };
            let Some((plan, side, range)) = self.tasks.get(task) else { return };
            match side {
                None => {
                    let places = self.places.get(range.clone()).unwrap_or_default();
                    find(self.context, *plan, None, places, scratch);
                }
                Some(side) => {
                    let groups = if *side == Side::In { self.by_target } else { self.by_source };
                    self.touch(*plan, *side, groups, range.clone());
                    for group in groups.get(range.clone()) {
                        find(self.context, *plan, Some(*side), group, scratch);
                    }
                }
            }
        }
    }

    /// Reads where searches of these groups begin.
    fn touch(
        &self,
        plan: SearchPlan<'_>,
        side: Side,
        groups: &TriggerGroups,
        range: std::ops::Range<usize>,
    ) {
        let window = plan.pattern.window;
        match plan.kind {
            // The middle accounts are others for each trigger.
            Kind::ScatterGather => {
                let places = groups.places(range).iter().copied().take(2 * CHUNK);
                let ends = [(side, side), (side.other(), side.other()), (side.other(), side)];
                self.context.touch(places, window, &ends);
            }
            Kind::GatherScatter => {
                let places = groups.get(range).filter_map(|group| group.first().copied());
                self.context.touch(places, window, &[(side, Side::In), (side, Side::Out)]);
            }
            _ => {
                let places = groups.get(range).filter_map(|group| group.first().copied());
                self.context.touch(places, window, &[(side, side)]);
            }
        }
    }
}
