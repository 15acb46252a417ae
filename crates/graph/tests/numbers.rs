//! Small numbers of accounts in graphs with segments: they are used again, and processes that share
//! segments need not agree on the numbers of other accounts.
//!
//! `FARROW_GRAPH_STREAMS` sets the number of random streams.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod oracle;

use farrow_graph::{
    Edges, GraphError, GraphFeatures, ListKind, Mode, PatternSettings, Segment, SegmentInfo,
    Settings, WorkShare,
};
use oracle::StreamRows;
use oracle::check::{CheckedStream, StreamCall, amounts, by_engine, call, show, shrink};
use oracle::random::{Size, StreamRandom, stream};
use std::collections::VecDeque;
use std::sync::Arc;

fn bits(cells: &[f64]) -> Vec<u64> {
    cells.iter().map(|cell| cell.to_bits()).collect()
}

/// The treatment of a second graph, which has the same rows and the first one's segments.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Follower {
    /// It attaches segments some calls later.
    Late,
    /// It attaches none.
    Alone,
    /// It is sometimes rebuilt from the segments that there are.
    Rebuilt,
    /// The canary: one account of each segment has another one's name.
    Misled,
}

/// A random stream whose accounts change over time; some leave and return.
fn changing(mode: Mode, size: Size, seed: u64) -> CheckedStream {
    let mut stream = stream(mode, size, seed);
    stream.settings.edges_max = None;
    stream.settings.segment = Some(1 + seed % 40);
    let horizon = stream.settings.time_window.unwrap_or(30).min(30) as i64;
    let (step, lives) = (1 + horizon * (1 + (seed % 3) as i64) / 2, 2 + (seed / 3 % 4) as i64);
    let times = stream.calls.iter().flat_map(|call| call.rows().times.iter().copied());
    let first = times.min().unwrap_or_default();
    for call in &mut stream.calls {
        let (StreamCall::Start(rows) | StreamCall::Learn(rows) | StreamCall::Transform(rows)) =
            call;
        let StreamRows { sources, targets, times, .. } = rows;
        for (at, account) in sources.iter_mut().enumerate().chain(targets.iter_mut().enumerate()) {
            // One account in five stays.
            if *account % 5 != 0 {
                let life = (times[at].abs_diff(first).cast_signed() / step) % lives;
                *account = account.wrapping_add(life * 100_003);
            }
        }
    }
    stream
}

/// The segment with the names of two accounts exchanged.
fn misnamed(segment: &Segment) -> Segment {
    let mut buffers = segment.buffers().unwrap();
    let mut accounts = buffers.accounts.to_vec();
    if accounts.len() > 1 {
        accounts.swap(0, 1);
    }
    buffers.accounts = accounts.into();
    Segment::new(segment.info().clone(), buffers).unwrap()
}

/// One graph that builds segments, and one that follows it.
struct FollowedGraph {
    first: GraphFeatures,
    second: GraphFeatures,
    random: StreamRandom,
    life: Follower,
    /// Segments that the first graph has, and how many of the newest ones the second one lacks.
    segments: VecDeque<Arc<Segment>>,
    behind: usize,
    /// Whether each graph does one half of the work of a call.
    shares: bool,
    /// Rows that are in no segment, by sequence number.
    log: VecDeque<(u64, [i64; 4], Vec<f64>)>,
}

impl FollowedGraph {
    fn new(settings: &Settings, seed: u64, life: Follower) -> FollowedGraph {
        let made = || GraphFeatures::new(settings.clone()).unwrap();
        FollowedGraph {
            first: made(),
            second: made(),
            random: StreamRandom::new(seed),
            life,
            segments: VecDeque::new(),
            behind: 0,
            shares: false,
            log: VecDeque::new(),
        }
    }

    /// The features of a call in both graphs, or their halves of them.
    fn features(&mut self, one: &StreamCall) -> [Vec<f64>; 2] {
        let width = self.first.settings().width();
        let mut share = 0;
        [&mut self.first, &mut self.second].map(|engine| {
            let StreamCall::Transform(rows) = one else { return call(engine, one) };
            if !self.shares {
                return call(engine, one);
            }
            let mut cells = vec![7.0; rows.len() * width];
            let part = WorkShare { index: share, count: 2 };
            share += 1;
            rows.with(|edges| engine.transform_share(edges, &mut cells, width, 0, part)).unwrap();
            cells
        })
    }

    /// The features of a call in both graphs.
    fn call(&mut self, one: &StreamCall) -> [Vec<u64>; 2] {
        if matches!(one, StreamCall::Start(_)) {
            (self.segments, self.behind, self.log) = Default::default();
        }
        let number = if self.log.is_empty() { self.first.next_number() } else { u64::MAX };
        let number = self.log.back().map_or(number, |(number, ..)| number + 1);
        self.log.extend(
            (number..)
                .zip(arrivals(one, self.first.settings().mode))
                .map(|(number, (row, values))| (number, row, values)),
        );
        let cells = self.features(one);
        self.seal();
        self.follow();
        if self.shares {
            let sums = cells[0].iter().zip(&cells[1]).map(|(one, other)| one + other);
            let sums = bits(&sums.collect::<Vec<_>>());
            return [sums.clone(), sums];
        }
        cells.map(|cells| bits(&cells))
    }

    fn seal(&mut self) {
        let is_removed = |expired: &[SegmentInfo], one: &Segment| expired.contains(one.info());
        let expired = self.first.expired();
        let known = self.segments.len() - self.behind;
        let left =
            self.segments.iter().take(known).filter(|one| !is_removed(&expired, one)).count();
        self.segments.retain(|one| !is_removed(&expired, one));
        self.behind = self.segments.len() - left;
        if self.random.is(0.3) {
            return;
        }
        if let Some(frozen) = self.first.freeze() {
            let segment = Arc::new(frozen.plan().unwrap().build().unwrap());
            self.first.attach(Arc::clone(&segment)).unwrap();
            let end = segment.info().first + segment.info().numbers;
            self.log.retain(|(number, ..)| *number >= end);
            self.segments.push_back(segment);
            self.behind += 1;
        }
    }

    fn follow(&mut self) {
        match self.life {
            Follower::Alone => {}
            Follower::Rebuilt if self.random.is(0.2) => self.rebuild(),
            _ if self.random.is(0.4) => {
                for segment in self.segments.iter().skip(self.segments.len() - self.behind) {
                    let segment = match self.life {
                        Follower::Misled => Arc::new(misnamed(segment)),
                        _ => Arc::clone(segment),
                    };
                    self.second.attach(segment).unwrap();
                }
                self.behind = 0;
            }
            _ => {}
        }
    }

    /// Makes the second graph again, as a process that has just begun would.
    fn rebuild(&mut self) {
        let end = self.segments.back().map(|one| one.info().first + one.info().numbers);
        let Some(end) = end else { return };
        let (accounts, late) = (self.first.accounts(0), self.first.late_edges());
        self.second.adopt(&accounts, self.segments.iter().cloned(), &late, end).unwrap();
        self.behind = 0;
        let mut rows = StreamRows::default();
        let columns = self.log.front().map_or(0, |(_, _, values)| values.len());
        rows.columns.resize(columns, Vec::new());
        for (_, [id, source, target, time], values) in &self.log {
            rows.push((*id, *source, *target, *time));
            rows.columns.iter_mut().zip(values).for_each(|(column, value)| column.push(*value));
        }
        for part in self.random.cut(&rows, 20) {
            part.with(|edges| self.second.learn(edges)).unwrap();
        }
        assert_eq!(self.second.next_number(), self.first.next_number());
    }
}

/// The rows of a call that become edges, in order of arrival.
fn arrivals(call: &StreamCall, mode: Mode) -> Vec<([i64; 4], Vec<f64>)> {
    let rows = call.rows();
    let mut order: Vec<usize> = (0..rows.len()).collect();
    if mode == Mode::Batch && matches!(call, StreamCall::Transform(_)) {
        order.retain(|&row| !rows.ids[..row].contains(&rows.ids[row]));
    }
    if mode == Mode::Batch && !matches!(call, StreamCall::Start(_)) {
        order.sort_by_key(|&row| rows.times[row]);
    }
    let one = |row: usize| {
        let values = rows.columns.iter().map(|column| column[row]).collect();
        ([rows.ids[row], rows.sources[row], rows.targets[row], rows.times[row]], values)
    };
    order.into_iter().map(one).collect()
}

/// The features of all calls in both graphs.
fn by_pair(stream: &CheckedStream, seed: u64, life: Follower) -> [Vec<Vec<u64>>; 2] {
    let mut pair = FollowedGraph::new(&stream.settings, seed, life);
    pair.shares = seed.is_multiple_of(3);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for one in &stream.calls {
        let [own, follower] = pair.call(one);
        first.push(own);
        second.push(follower);
    }
    [first, second]
}

fn plain(stream: &CheckedStream) -> Vec<Vec<u64>> {
    let settings = Settings { segment: None, ..stream.settings.clone() };
    let all = by_engine(&CheckedStream { settings, calls: stream.calls.clone() });
    all.into_iter().map(|one| bits(&one.cells)).collect()
}

fn differs(stream: &CheckedStream, seed: u64, life: Follower) -> bool {
    let want = plain(stream);
    by_pair(stream, seed, life).iter().any(|got| *got != want)
}

fn agree_on_streams(mode: Mode, life: Follower) {
    let [small, medium, large] = amounts();
    for (size, count) in
        [(Size::Small, small / 2), (Size::Medium, medium / 2), (Size::Large, large / 2)]
    {
        for seed in 0..count {
            let stream = changing(mode, size, seed);
            if differs(&stream, seed, life) {
                let rows = stream.calls.iter().map(|call| call.rows().len()).sum::<usize>();
                let is_bad = |stream: &CheckedStream| differs(stream, seed, life);
                let stream = if rows <= 600 { shrink(stream, is_bad) } else { stream };
                panic!("seed {seed}, {mode:?}, {life:?}\n{}", show(&stream));
            }
        }
    }
}

#[test]
fn a_follower_that_attaches_segments_later_has_the_same_features() {
    agree_on_streams(Mode::Causal, Follower::Late);
    agree_on_streams(Mode::Batch, Follower::Late);
}

#[test]
fn a_follower_without_segments_has_the_same_features() {
    agree_on_streams(Mode::Causal, Follower::Alone);
    agree_on_streams(Mode::Batch, Follower::Alone);
}

#[test]
fn a_follower_that_begins_at_any_time_has_the_same_features() {
    agree_on_streams(Mode::Causal, Follower::Rebuilt);
}

/// The canary: the comparison must detect accounts with wrong names.
#[test]
fn a_wrong_name_is_distinguished() {
    let [small, _, _] = amounts();
    let is_seen = (0..small).any(|seed| {
        let stream = changing(Mode::Causal, Size::Small, seed);
        let settings = &stream.settings;
        let mut pair = FollowedGraph::new(settings, seed, Follower::Misled);
        let want = plain(&stream);
        // A wrong name may also contradict an earlier segment.
        let run = std::panic::AssertUnwindSafe(|| {
            stream.calls.iter().zip(&want).any(|(one, want)| pair.call(one)[1] != *want)
        });
        std::panic::catch_unwind(run).unwrap_or(true)
    });
    assert!(is_seen, "in {small} streams");
}

fn year_settings(mode: Mode) -> Settings {
    let pattern = |window| Some(PatternSettings { window, bins: vec![2, 3, 4] });
    Settings {
        mode,
        fan: pattern(100),
        scatter_gather: pattern(70),
        temporal_cycle: pattern(100),
        time_window: Some(100),
        segment: Some(10),
        ..Settings::default()
    }
}

/// Day after day a tenth of the accounts is replaced by others. Memory and known accounts follow
/// the window, in a graph that builds segments and in one that follows it.
#[test]
fn in_a_year_of_new_accounts_memory_follows_the_window() {
    for mode in [Mode::Causal, Mode::Batch] {
        let settings = year_settings(mode);
        let mut pair = FollowedGraph::new(&settings, 1, Follower::Late);
        let mut whole = GraphFeatures::new(Settings { segment: None, ..settings }).unwrap();
        let mut random = StreamRandom::new(2);
        let (mut id, mut early, mut accounts) = (0, [0; 2], 0);
        for day in 0..365 {
            let mut rows = StreamRows::default();
            for at in 0..60 {
                // Some of an old generation return after months.
                let generation =
                    if random.is(0.02) { day % 100 } else { day + random.range(0, 10) };
                let mut account = || generation * 40 + random.range(0, 40);
                let (source, target) = (account(), account());
                rows.push((id, source, target, day * 10 + at / 6));
                id += 1;
            }
            let want = bits(&rows.with(|edges| whole.transform(edges)).unwrap());
            let [own, follower] = pair.call(&StreamCall::Transform(rows));
            assert!(own == want && follower == want, "{mode:?}, day {day}");
            let alive = whole.stats().accounts;
            accounts = accounts.max(alive);
            for (graph, early) in [&pair.first, &pair.second].into_iter().zip(&mut early) {
                let stats = graph.stats();
                if day < 90 {
                    *early = (*early).max(stats.bytes);
                }
                assert!(
                    stats.bytes <= *early * 5 / 4,
                    "{mode:?}, day {day}: {} bytes after {early}",
                    stats.bytes
                );
                // Whole segments leave at once, and numbers are released an eighth at a time.
                let most = accounts * 2;
                assert!(
                    stats.accounts <= most,
                    "{mode:?}, day {day}: {} of {alive}",
                    stats.accounts
                );
            }
        }
        assert!(accounts < 1_000, "{accounts} at once, of 15,000");
    }
}

/// In batch mode, simple cycles depend on the order in which accounts appeared (specification, D7).
#[test]
fn where_the_order_of_accounts_matters_it_is_remembered() {
    let simple_cycle = Some(PatternSettings { window: 100, bins: vec![2, 3] });
    let settings = Settings { simple_cycle, ..year_settings(Mode::Batch) };
    let mut pair = FollowedGraph::new(&settings, 1, Follower::Rebuilt);
    let mut whole = GraphFeatures::new(Settings { segment: None, ..settings }).unwrap();
    for day in 0..60 {
        let mut rows = StreamRows::default();
        let accounts = [day % 7 * 3, day % 7 * 3 + 1, 1_000 + day];
        for (at, source) in (0..).zip(accounts) {
            rows.push((day * 3 + at, source, accounts[(at as usize + 1) % 3], day * 10));
        }
        let want = bits(&rows.with(|edges| whole.transform(edges)).unwrap());
        assert_eq!(pair.call(&StreamCall::Transform(rows)), [want.clone(), want]);
    }
    assert_eq!(pair.first.accounts(0).len(), 14 + 60);
    assert_eq!(pair.first.accounts(73), [1_059]);
}

fn learned(rows: &[(i64, i64, i64, i64)]) -> GraphFeatures {
    let fan = Some(PatternSettings { window: 40, bins: vec![2, 3, 4] });
    let settings = Settings { fan, segment: Some(10), ..Settings::default() };
    let mut engine = GraphFeatures::new(settings).unwrap();
    let mut all = StreamRows::default();
    rows.iter().for_each(|&row| all.push(row));
    all.with(|edges: &Edges<'_>| engine.learn(edges)).unwrap();
    engine
}

fn sealed(engine: &mut GraphFeatures) -> Arc<Segment> {
    let segment = Arc::new(engine.freeze().unwrap().plan().unwrap().build().unwrap());
    engine.attach(Arc::clone(&segment)).unwrap();
    segment
}

/// The other graph has seen the same accounts in another order, and others before them.
#[test]
fn a_segment_names_its_accounts() {
    let mut writer = learned(&[(0, 1, 2, 1), (1, 3, 3, 2), (2, 4, 1, 20)]);
    let segment = sealed(&mut writer);
    assert_eq!(&*segment.buffers().unwrap().accounts, [1, 2, 3]);
    let mut other = learned(&[(9, 4, 3, 0), (1, 2, 1, 1), (2, 3, 7, 20), (3, 7, 4, 21)]);
    other.attach(segment).unwrap();
    assert_eq!(other.edges_of(1, ListKind::Out, 0, 30), [(2, 1)]);
    assert_eq!(other.edges_of(3, ListKind::Loops, 0, 30), [(3, 2)]);
    assert_eq!(other.edges_of(3, ListKind::Out, 0, 30), [(7, 20)]);
    assert_eq!(other.edges_of(7, ListKind::In, 0, 30), [(3, 20)]);
    assert_eq!(other.edges_of(4, ListKind::In, 0, 30), [(7, 21)]);
}

#[test]
fn a_segment_that_contradicts_an_earlier_one_is_refused() {
    let mut engine = learned(&[(0, 1, 2, 1), (1, 3, 2, 11), (2, 3, 1, 21)]);
    sealed(&mut engine);
    let mut rows = StreamRows::default();
    rows.push((3, 5, 6, 22));
    rows.with(|edges| engine.learn(edges)).unwrap();
    let segment = engine.freeze().unwrap().plan().unwrap().build().unwrap();
    // Accounts 2 and 3 have the numbers 1 and 2.
    assert_eq!(&*segment.buffers().unwrap().accounts, [2, 3]);
    for names in [[3, 2], [8, 3], [2, 1]] {
        let mut buffers = segment.buffers().unwrap();
        buffers.accounts = names.to_vec().into();
        let wrong = Arc::new(Segment::new(segment.info().clone(), buffers).unwrap());
        let error = engine.attach(wrong).unwrap_err();
        let what = "accounts under one number, or numbers of one account,";
        assert!(matches!(error, GraphError::Segment { what: it, .. } if it == what), "{error}");
    }
    engine.attach(Arc::new(segment)).unwrap();
    assert_eq!(engine.edges_of(2, ListKind::In, 0, 30), [(1, 1), (3, 11)]);
}
