//! A graph whose older part is in segments against one that holds all its edges.
//!
//! `FARROW_GRAPH_STREAMS` sets the number of random streams.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod oracle;

use farrow_graph::{
    Edges, GraphError, GraphFeatures, ListKind, Mode, PatternSettings, RowRequest, RowSource,
    Segment, SegmentBuffers, SegmentInfo, SegmentRow, Settings, WorkShare,
};
use oracle::StreamRows;
use oracle::check::{CheckedStream, StreamCall, amounts, by_engine, call, show, shrink};
use oracle::random::{Size, StreamRandom, stream};
use std::sync::{Arc, Mutex};

/// Features of every call, bit by bit, and the clock.
type Results = Vec<(Vec<u64>, Option<i64>)>;

fn bits(cells: &[f64]) -> Vec<u64> {
    cells.iter().map(|cell| cell.to_bits()).collect()
}

/// The treatment of a graph with segments between two calls.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Life {
    /// A segment is built at once, or a few calls later.
    Sealing,
    /// The graph is rebuilt from its segments and the rows after them.
    Restarting,
    /// The graph is saved and restored.
    Restoring,
    /// Rows of segments are read through a row source.
    Far,
    /// Another graph gets the same rows, and attaches the segments later, several at once.
    Following,
    /// The canary: segments lack their first edge.
    Losing,
}

/// A row source that copies rows of a segment one by one.
#[derive(Debug)]
struct CopyingSource {
    segment: Arc<Segment>,
    requested: Mutex<usize>,
    reason: Option<&'static str>,
}

impl RowSource for CopyingSource {
    fn row(&self, wanted: RowRequest) -> SegmentRow<'_> {
        *self.requested.lock().unwrap() += 1;
        if self.reason.is_some() {
            return SegmentRow::Near(&[]);
        }
        SegmentRow::Far(Arc::from(&*self.segment.row(wanted.account, wanted.list)))
    }

    fn failure(&self) -> Option<String> {
        self.reason.map(ToOwned::to_owned)
    }
}

fn behind_a_wall(segment: Segment, reason: Option<&'static str>) -> Segment {
    let beside = segment.buffers().unwrap();
    let about = segment.info().clone();
    let wall = CopyingSource { segment: Arc::new(segment), requested: Mutex::new(0), reason };
    Segment::far(about, beside, Arc::new(wall)).unwrap()
}

/// Runs a stream on a graph with segments.
fn by_hybrid(stream: &CheckedStream, seed: u64, life: Life) -> Results {
    let mut random = StreamRandom::new(seed);
    let mut engine = GraphFeatures::new(stream.settings.clone()).unwrap();
    let mut results = Vec::new();
    let mut pending = None;
    let mut follower = GraphFeatures::new(stream.settings.clone()).unwrap();
    // Segments that the follower lacks.
    let mut new: Vec<Arc<Segment>> = Vec::new();
    let mut segments: Vec<Arc<Segment>> = Vec::new();
    // Rows by sequence number, as in a log.
    let mut log = Vec::new();
    for one in &stream.calls {
        if matches!(one, StreamCall::Start(_)) {
            (pending, segments, log) = (None, Vec::new(), Vec::new());
            new.clear();
        }
        log.extend(arrivals(one, stream.settings.mode));
        let mut cells = call(&mut engine, one);
        if life == Life::Following {
            cells = call(&mut follower, one);
            if random.is(0.3) {
                new.drain(..).for_each(|one| follower.attach(one).unwrap());
            }
        }
        results.push((bits(&cells), engine.stats().now));
        pending = pending.or_else(|| engine.freeze());
        if random.is(0.3) {
            continue;
        }
        if let Some(frozen) = pending.take() {
            let mut segment = frozen.plan().unwrap().build().unwrap();
            if life == Life::Far {
                segment = behind_a_wall(segment, None);
            }
            if life == Life::Losing {
                segment = without_its_first_edge(&segment);
            }
            let segment = Arc::new(segment);
            engine.attach(Arc::clone(&segment)).unwrap();
            new.push(Arc::clone(&segment));
            segments.push(segment);
        }
        let expired = engine.expired();
        segments.retain(|one| !expired.contains(one.info()));
        new.retain(|one| !expired.contains(one.info()));
        if life == Life::Restoring && random.is(0.25) {
            engine = GraphFeatures::restore(stream.settings.clone(), &engine.state()).unwrap();
            (segments, log) = (Vec::new(), Vec::new());
        }
        if life == Life::Restarting && !segments.is_empty() {
            let (accounts, late) = (engine.accounts(0), engine.late_edges());
            let about = segments[segments.len() - 1].info();
            let end = about.first + about.numbers;
            let next = engine.next_number();
            pending = None;
            engine.adopt(&accounts, segments.iter().cloned(), &late, end).unwrap();
            let newer = log.len() - (next - end) as usize;
            replay(&mut engine, &log[newer..], &mut random);
            assert_eq!(engine.next_number(), next);
            let expired = engine.expired();
            segments.retain(|one| !expired.contains(one.info()));
        }
    }
    results
}

/// The rows of a call that become edges, in order of arrival: (id, source, target, time, values).
fn arrivals(call: &StreamCall, mode: Mode) -> Vec<ArrivedRow> {
    let rows = call.rows();
    let mut order: Vec<usize> = (0..rows.len()).collect();
    if mode == Mode::Batch && matches!(call, StreamCall::Transform(_)) {
        let is_first = |row: &usize| !rows.ids[..*row].contains(&rows.ids[*row]);
        order.retain(is_first);
    }
    if mode == Mode::Batch && !matches!(call, StreamCall::Start(_)) {
        order.sort_by_key(|&row| rows.times[row]);
    }
    let one = |row: usize| {
        let values = rows.columns.iter().map(|column| column[row]).collect();
        ((rows.ids[row], rows.sources[row], rows.targets[row], rows.times[row]), values)
    };
    order.into_iter().map(one).collect()
}

type ArrivedRow = ((i64, i64, i64, i64), Vec<f64>);

/// Adds rows in order of arrival, divided into other calls.
fn replay(engine: &mut GraphFeatures, log: &[ArrivedRow], random: &mut StreamRandom) {
    let mut rows = StreamRows::default();
    rows.columns.resize(log.first().map_or(0, |(_, values)| values.len()), Vec::new());
    for (row, values) in log {
        rows.push(*row);
        rows.columns.iter_mut().zip(values).for_each(|(column, value)| column.push(*value));
    }
    for part in random.cut(&rows, 20) {
        part.with(|edges| engine.learn(edges)).unwrap();
    }
}

fn without_its_first_edge(segment: &Segment) -> Segment {
    let mut about = segment.info().clone();
    if about.edges == about.loops {
        return Segment::new(about, segment.buffers().unwrap()).unwrap();
    }
    let mut buffers = segment.buffers().unwrap();
    about.edges -= 1;
    for list in [ListKind::Out, ListKind::In] {
        let (starts, entries) = (&buffers.starts[list as usize], &buffers.entries[list as usize]);
        let first = entries.iter().enumerate().min_by_key(|(_, packed)| **packed).unwrap().0;
        let mut entries = entries.to_vec();
        entries.remove(first);
        let shift = |start: &i32| start - i32::from(*start > first as i32);
        buffers.starts[list as usize] = starts.iter().map(shift).collect::<Vec<_>>().into();
        buffers.entries[list as usize] = entries.into();
    }
    Segment::new(about, buffers).unwrap()
}

fn plain(stream: &CheckedStream) -> Results {
    let settings = Settings { segment: None, ..stream.settings.clone() };
    let all = by_engine(&CheckedStream { settings, calls: stream.calls.clone() });
    all.into_iter().map(|one| (bits(&one.cells), one.now)).collect()
}

/// A random stream whose graph has segments of some length.
fn segmented(mode: Mode, size: Size, seed: u64) -> CheckedStream {
    let mut stream = stream(mode, size, seed);
    stream.settings.edges_max = None;
    let longest = 1 + seed % 60;
    stream.settings.segment = Some(if seed.is_multiple_of(7) { 1 } else { longest });
    stream
}

/// Fails with the smallest stream on which the two graphs differ.
fn agree(stream: CheckedStream, seed: u64, life: Life) {
    let differs = |stream: &CheckedStream| by_hybrid(stream, seed, life) != plain(stream);
    if differs(&stream) {
        let rows = stream.calls.iter().map(|call| call.rows().len()).sum::<usize>();
        let stream = if rows <= 600 { shrink(stream, differs) } else { stream };
        let (got, want) = (by_hybrid(&stream, seed, life), plain(&stream));
        let first = got.iter().zip(&want).position(|(got, want)| got != want).unwrap_or_default();
        let figure = |one: &Results| -> Vec<f64> {
            one[first].0.iter().map(|cell| f64::from_bits(*cell)).collect()
        };
        let (got, want) = (figure(&got), figure(&want));
        let text = show(&stream);
        panic!("seed {seed}, {life:?}, call {first}: {got:?}, not {want:?}\n{text}");
    }
}

fn agree_on_streams(mode: Mode, life: Life) {
    let [small, medium, large] = amounts();
    for (size, count) in [(Size::Small, small), (Size::Medium, medium), (Size::Large, large)] {
        (0..count).for_each(|seed| agree(segmented(mode, size, seed), seed, life));
    }
}

#[test]
fn segments_change_nothing_in_causal_mode() {
    agree_on_streams(Mode::Causal, Life::Sealing);
}

#[test]
fn segments_change_nothing_in_batch_mode() {
    agree_on_streams(Mode::Batch, Life::Sealing);
}

#[test]
fn a_graph_with_segments_can_be_restored() {
    agree_on_streams(Mode::Causal, Life::Restoring);
    agree_on_streams(Mode::Batch, Life::Restoring);
}

#[test]
fn a_graph_can_be_made_from_segments_and_what_came_behind_them() {
    agree_on_streams(Mode::Causal, Life::Restarting);
}

#[test]
fn another_graph_with_the_same_rows_may_attach_segments_at_any_time() {
    agree_on_streams(Mode::Causal, Life::Following);
    agree_on_streams(Mode::Batch, Life::Following);
}

#[test]
fn segments_may_be_out_of_this_process() {
    agree_on_streams(Mode::Causal, Life::Far);
    agree_on_streams(Mode::Batch, Life::Far);
}

/// The canary: the comparison must detect a segment that lacks an edge.
#[test]
fn a_lost_edge_is_distinguished() {
    let [small, _, _] = amounts();
    for mode in [Mode::Causal, Mode::Batch] {
        let is_seen = (0..small).any(|seed| {
            let stream = segmented(mode, Size::Small, seed);
            by_hybrid(&stream, seed, Life::Losing) != plain(&stream)
        });
        assert!(is_seen, "in {small} streams of {mode:?} mode");
    }
}

/// The window has more segments than a word has bits.
#[test]
fn hundreds_of_segments_change_nothing() {
    let mut random = StreamRandom::new(7);
    let pattern = |window| Some(PatternSettings { window, bins: vec![2, 3, 4, 8] });
    let settings = Settings {
        fan: pattern(200),
        degree: pattern(150),
        scatter_gather: pattern(190),
        temporal_cycle: pattern(180),
        simple_cycle: pattern(70),
        gather_scatter: pattern(200),
        work_max: 5_000,
        segment: Some(1),
        ..Settings::default()
    };
    let mut account = || 1 + random.range(0, 12) * random.range(0, 12) / 6;
    let all: Vec<_> = (0..1500).map(|at| (at, account(), account(), at / 3)).collect();
    let mut both = [Some(1), None]
        .map(|segment| GraphFeatures::new(Settings { segment, ..settings.clone() }).unwrap());
    let mut most = 0;
    for part in all.chunks(3) {
        let features =
            both.each_mut().map(|engine| rows(part).with(|edges| engine.transform(edges)).unwrap());
        assert_eq!(features[0], features[1]);
        while let Some(frozen) = both[0].freeze() {
            both[0].attach(Arc::new(frozen.plan().unwrap().build().unwrap())).unwrap();
        }
        most = most.max(both[0].stats().segments);
    }
    assert!(most > 190, "{most} segments");
    assert_eq!(both[0].stats().cut_short, both[1].stats().cut_short);
}

fn fan(segment: Option<u64>) -> Settings {
    let fan = Some(PatternSettings { window: 40, bins: vec![2, 3, 4] });
    Settings { fan, segment, ..Settings::default() }
}

fn rows(all: &[(i64, i64, i64, i64)]) -> StreamRows {
    let mut rows = StreamRows::default();
    all.iter().for_each(|&row| rows.push(row));
    rows
}

fn learned(all: &[(i64, i64, i64, i64)]) -> GraphFeatures {
    let mut engine = GraphFeatures::new(fan(Some(10))).unwrap();
    rows(all).with(|edges| engine.learn(edges)).unwrap();
    engine
}

#[test]
fn a_span_is_given_away_once_it_is_over() {
    let mut engine = learned(&[(0, 1, 2, 11), (1, 3, 2, 19)]);
    assert!(engine.freeze().is_none(), "the span from 10 to 19 is not over");
    rows(&[(2, 4, 2, 20)]).with(|edges| engine.learn(edges)).unwrap();
    let frozen = engine.freeze().unwrap();
    assert_eq!((frozen.info().edges, frozen.info().base, frozen.info().span), (2, 11, 8));
    let segment = Arc::new(frozen.plan().unwrap().build().unwrap());
    engine.attach(Arc::clone(&segment)).unwrap();
    let again = engine.attach(segment).unwrap_err();
    assert!(matches!(again, GraphError::Segment { given: 0, expected: 2, .. }), "{again}");
    assert_eq!((engine.stats().edges, engine.stats().sealed), (3, 2));
    let edges = |list| engine.edges_of(2, list, 12, 20);
    assert_eq!((edges(ListKind::In), edges(ListKind::Out)), (vec![(3, 19), (4, 20)], vec![]));
    assert_eq!(engine.edges_of(7, ListKind::In, 0, 99), []);
    // 40 after its last edge, the segment is evicted.
    rows(&[(3, 5, 2, 60)]).with(|edges| engine.learn(edges)).unwrap();
    assert_eq!(engine.expired().iter().map(|about| about.first).collect::<Vec<_>>(), [0]);
    assert_eq!((engine.stats().segments, engine.expired().len()), (0, 0));
}

#[test]
fn shares_of_a_call_add_up_to_it() {
    let [small, medium, _] = amounts();
    for (mode, size, count) in
        [(Mode::Causal, Size::Small, small / 4), (Mode::Batch, Size::Medium, medium / 2)]
    {
        for seed in 0..count {
            let stream = segmented(mode, size, seed);
            let width = stream.settings.width();
            let whole = by_engine(&stream);
            let shares = 2 + (seed % 3) as usize;
            let mut sums: Vec<Vec<f64>> =
                whole.iter().map(|one| vec![0.0; one.cells.len()]).collect();
            for share in 0..shares {
                let mut engine = GraphFeatures::new(stream.settings.clone()).unwrap();
                for (sums, one) in sums.iter_mut().zip(&stream.calls) {
                    let StreamCall::Transform(rows) = one else {
                        call(&mut engine, one);
                        continue;
                    };
                    let mut cells = vec![7.0; sums.len()];
                    let part = |edges: &Edges<'_>| {
                        engine.transform_share(
                            edges,
                            &mut cells,
                            width,
                            0,
                            WorkShare { index: share, count: shares },
                        )
                    };
                    rows.with(part).unwrap();
                    sums.iter_mut().zip(&cells).for_each(|(sum, cell)| *sum += cell);
                }
            }
            let whole: Vec<_> = whole.into_iter().map(|one| one.cells).collect();
            assert!(sums == whole, "seed {seed}:\n{}", show(&stream));
        }
    }
    let mut engine = learned(&[]);
    let third = WorkShare { index: 2, count: 2 };
    let share = |edges: &Edges<'_>| engine.transform_share(edges, &mut [], 6, 0, third);
    let error = rows(&[]).with(share).unwrap_err();
    assert_eq!(error.to_string(), "share is 2; there are 2");
}

#[test]
fn segments_that_do_not_fit_are_refused() {
    let mut engine = learned(&[(0, 1, 2, 1), (1, 3, 2, 20)]);
    let segment = engine.freeze().unwrap().plan().unwrap().build().unwrap();
    let (about, buffers) = (segment.info().clone(), segment.buffers().unwrap());
    // Too few names of accounts, or none.
    let mut short = buffers.clone();
    short.accounts = short.accounts.slice(0, 1);
    let error = Segment::new(about.clone(), short.clone()).unwrap_err().to_string();
    assert_eq!(error, "accounts that a segment names are 1, where 2 are possible");
    short.accounts = Vec::new().into();
    let nameless = Arc::new(Segment::new(about.clone(), short).unwrap());
    let error = engine.attach(nameless).unwrap_err().to_string();
    assert_eq!(error, "accounts that a segment names are 0, where 2 are possible");
    // Buffers that are too short for their content.
    let mut short = buffers.clone();
    short.index = short.index.slice(0, 1);
    assert!(matches!(Segment::new(about.clone(), short), Err(GraphError::Segment { .. })));
    let mut short = buffers.clone();
    short.entries[0] = Vec::new().into();
    assert!(matches!(Segment::new(about.clone(), short), Err(GraphError::Segment { .. })));
    // Malformed offsets and entries give empty or wrong rows, but no read out of bounds.
    let mut nonsense = buffers;
    nonsense.starts[0] = vec![i32::MIN, 1].into();
    nonsense.entries[1] = vec![u64::MAX].into();
    engine.attach(Arc::new(Segment::new(about, nonsense).unwrap())).unwrap();
    let cells = rows(&[(2, 1, 2, 21)]).with(|edges| engine.transform(edges)).unwrap();
    assert_eq!(cells.len(), 6);
    let error = engine.freeze().map(|frozen| frozen.info().clone());
    assert_eq!(error, None);
}

/// A segment without rows: buffers of no account.
fn no_rows() -> SegmentBuffers {
    SegmentBuffers {
        index: Vec::new().into(),
        accounts: Vec::new().into(),
        starts: [vec![0].into(), vec![0].into(), vec![0].into()],
        entries: [Vec::new().into(), Vec::new().into(), Vec::new().into()],
        times: Vec::new().into(),
        ids: Vec::new().into(),
        values: Vec::new(),
    }
}

#[test]
fn segments_cover_fewer_than_two_to_the_31_numbers() {
    let most = i32::MAX as u64;
    let info = |numbers| SegmentInfo { numbers, ..SegmentInfo::default() };
    let near = Arc::new(Segment::new(info(most), no_rows()).unwrap());
    for numbers in [most + 1, u64::MAX] {
        let want = GraphError::Segment { what: "numbers", given: numbers, expected: most };
        assert_eq!(Segment::new(info(numbers), no_rows()).unwrap_err(), want);
        let wall =
            CopyingSource { segment: Arc::clone(&near), requested: Mutex::new(0), reason: None };
        let far = Segment::far(info(numbers), no_rows(), Arc::new(wall));
        assert_eq!(far.unwrap_err(), want);
    }
}

#[test]
fn sequence_numbers_of_a_segment_end_before_the_largest_number() {
    let info = |first| SegmentInfo { first, numbers: 5, ..SegmentInfo::default() };
    assert!(Segment::new(info(u64::MAX - 5), no_rows()).is_ok());
    let want = GraphError::Segment { what: "first", given: u64::MAX - 4, expected: u64::MAX - 5 };
    assert_eq!(Segment::new(info(u64::MAX - 4), no_rows()).unwrap_err(), want);
}

#[test]
fn a_segment_that_cannot_be_read_is_an_error_that_names_its_time() {
    let mut engine = learned(&[(0, 1, 2, 1), (1, 3, 2, 20)]);
    let segment = engine.freeze().unwrap().plan().unwrap().build().unwrap();
    engine.attach(Arc::new(behind_a_wall(segment, Some("node b is lost")))).unwrap();
    let error = rows(&[(2, 4, 2, 21)]).with(|edges| engine.transform(edges)).unwrap_err();
    let text = "the edges from time 1 on are out of reach: node b is lost";
    assert_eq!(error.to_string(), text);
}

#[test]
fn segments_need_a_length_and_no_other_limit() {
    let settings = Settings { edges_max: Some(9), ..fan(Some(10)) };
    let error = GraphFeatures::new(settings).unwrap_err().to_string();
    assert!(error.starts_with("edges_max cannot"), "{error}");
    let error = GraphFeatures::new(fan(Some(0))).unwrap_err().to_string();
    assert_eq!(error, "segment is 0; at least 1 is needed");
    let mut engine = GraphFeatures::new(fan(None)).unwrap();
    let error = engine.adopt(&[], [], &engine.late_edges(), 0).unwrap_err().to_string();
    assert_eq!(error, "segment is needed to take segments up");
}

/// Late edges were counted on eviction, but not on adoption: the count of live edges fell below
/// zero.
#[test]
fn late_edges_that_were_taken_up_are_evicted() {
    let mut engine = learned(&[(0, 1, 2, 12), (1, 1, 3, 11), (2, 1, 3, 10), (3, 1, 3, 21)]);
    let segment = Arc::new(engine.freeze().unwrap().plan().unwrap().build().unwrap());
    engine.attach(Arc::clone(&segment)).unwrap();
    let late = engine.late_edges();
    assert_eq!(late.numbers, [1, 2]);
    engine.adopt(&[], [segment], &late, 3).unwrap();
    rows(&[(3, 1, 2, 500), (4, 1, 2, 501)]).with(|edges| engine.learn(edges)).unwrap();
    assert_eq!((engine.stats().edges, engine.stats().segments), (2, 0));
}

/// A graph that continues without a lost segment still numbers rows like all others.
#[test]
fn a_graph_goes_on_without_segments_that_are_lost() {
    let mut engine = learned(&[(0, 1, 2, 1), (1, 3, 2, 20), (2, 1, 3, 31)]);
    let mut segments = Vec::new();
    while let Some(frozen) = engine.freeze() {
        segments.push(Arc::new(frozen.plan().unwrap().build().unwrap()));
        engine.attach(Arc::clone(&segments[segments.len() - 1])).unwrap();
        rows(&[]).with(|edges| engine.learn(edges)).unwrap();
    }
    let late = engine.late_edges();
    for retained in [&segments[..0], &segments[..1], &segments[1..]] {
        engine.adopt(&[], retained.iter().cloned(), &late, 2).unwrap();
        assert_eq!(engine.next_number(), 2);
        rows(&[(2, 1, 3, 31)]).with(|edges| engine.learn(edges)).unwrap();
        assert_eq!(engine.stats().edges, retained.len() + 1);
        assert_eq!(engine.edges_of(1, ListKind::Out, 30, 31), [(3, 31)]);
    }
}
