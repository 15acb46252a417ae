//! Tables whose rows are in the memory of several nodes: real daemons of one machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use common::nodes::{DaemonNodes, wait_for};
use common::{PATIENCE, SeededDice, assert_balanced, client_at, this_test_again};
use farrow::error::NotPermitted;
use farrow::{
    AppendOptions, BatchData, Client, ConnectOptions, Error, HugeTable, NamespaceSpec, Partition,
    Reach, SchemaNode, Snapshot, Value, WaitFor,
};
use farrow_memory::sync::{AtomicBool, Ordering};

const SOON: Duration = Duration::from_secs(20);

/// Where no node is killed a busy machine must not make one seem to be: a lease of 10 s.
const CALM: &[&str] = &["--lease-ms", "10000"];

/// Set in the environment of a child that appends until it is killed; names the socket.
const APPENDER_SOCKET: &str = "FARROW_TEST_APPENDER_SOCKET";

fn batch(values: impl IntoIterator<Item = i64>) -> RecordBatch {
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(values));
    RecordBatch::try_from_iter_with_nullable([("n", values, true)]).unwrap()
}

fn schema_of(batch: &RecordBatch) -> SchemaNode {
    SchemaNode::try_from(batch.schema().as_ref()).unwrap()
}

fn open(client: &Client, name: &str) -> HugeTable {
    client.huge_table(name, Some(&schema_of(&batch([])))).unwrap()
}

fn append_to(
    table: &HugeTable,
    rows: &RecordBatch,
    position: Option<u64>,
    node: Option<&str>,
) -> Result<Partition, Error> {
    let (schema, batch) = (schema_of(rows), BatchData::from(rows));
    let value = Value::RecordBatch { schema: &schema, batch: &batch };
    table.append(&value, &AppendOptions { position, node, timeout: SOON, statistics: true })
}

fn append(table: &HugeTable, rows: &RecordBatch) -> Result<Partition, Error> {
    append_to(table, rows, None, None)
}

/// The values of the table's one column, and whether each chunk lies in the memory of its node.
fn values(table: &HugeTable, version: Option<u64>) -> Result<Vec<i64>, Error> {
    let arrow = table.table(version)?;
    let columns = arrow.batches.iter().map(|batch| Int64Array::from(batch.columns[0].clone()));
    Ok(columns.flat_map(|column| column.values().to_vec()).collect())
}

fn lost_node<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::NodeLost { node, .. }) => node,
        other => panic!("{other:?}"),
    }
}

#[test]
fn chunks_on_three_nodes_are_one_table_in_place() {
    let nodes = DaemonNodes::start(3, "64MiB", CALM);
    let clients: Vec<_> = (0..3).map(|number| nodes.client(number)).collect();
    let tables: Vec<_> = clients.iter().map(|client| open(client, "t")).collect();
    assert_eq!(values(&tables[2], None).unwrap(), [0_i64; 0]);
    let first = append(&tables[0], &batch(0..1000)).unwrap();
    assert_eq!((first.version, first.position, first.rows, &*first.node), (1, 0, 1000, "a"));
    // From b to the memory of c, and behind a gap.
    let third = append_to(&tables[1], &batch(1500..2000), Some(1500), Some("c")).unwrap();
    assert_eq!((third.version, &*third.node), (2, "c"));
    for table in &tables {
        match table.table(None) {
            Err(Error::RowsMissing { table, first: 1000, last: 1499, rows: 2000 }) => {
                assert_eq!(table, "t");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(values(table, Some(1)).unwrap(), (0..1000).collect::<Vec<_>>());
        let snapshot = table.snapshot(None).unwrap();
        assert_eq!((snapshot.rows, snapshot.rows_in_a_row()), (2000, 1000));
    }
    let waiting = clients[0].huge_table("t", None).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| waiting.wait(WaitFor::Rows(2000), SOON).unwrap());
        append_to(&tables[1], &batch(1000..1500), Some(1000), Some("b")).unwrap();
        assert_eq!(waiting.join().unwrap().version, 3);
    });
    for (table, client) in tables.iter().zip(&clients) {
        assert_eq!(values(table, None).unwrap(), (0..2000).collect::<Vec<_>>());
        let snapshot = table.snapshot(None).unwrap();
        let places = snapshot.partitions.iter().map(|one| (one.position, one.rows, &*one.node));
        let expected = [(0, 1000, "a"), (1000, 500, "b"), (1500, 500, "c")];
        assert_eq!(places.collect::<Vec<_>>(), expected);
        let arrow = table.table(None).unwrap();
        for (chunk, batch) in snapshot.partitions.iter().zip(&arrow.batches) {
            let buffer = &batch.columns[0].buffers()[0];
            let home = client.at(&chunk.node).unwrap();
            assert!(home.locate(buffer.as_ptr(), buffer.len()).is_some(), "{chunk:?} is a copy");
            let other = client.at(if &*chunk.node == "a" { "b" } else { "a" }).unwrap();
            assert!(other.locate(buffer.as_ptr(), buffer.len()).is_none());
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_nothing() {
    let nodes = DaemonNodes::start(2, "64MiB", CALM);
    let (a, b) = (nodes.client(0), nodes.client(1));
    assert!(matches!(a.huge_table("t", None), Err(Error::NotFound { .. })));
    let (table, other) = (open(&a, "t"), open(&b, "t"));
    append_to(&table, &batch(0..10), Some(10), None).unwrap();
    let before: Vec<_> = [&a, &b].map(|client| client.stats().unwrap().node).into();
    for (position, rows) in [(10, 1), (0, 11), (19, 5), (12, 3), (5, 30)] {
        match append_to(&other, &batch(0..rows), Some(position), None) {
            Err(Error::RowsTaken {
                first, taken_first: 10, taken_last: 19, version: 1, ..
            }) => {
                assert_eq!(first, position);
            }
            refused => panic!("{position}+{rows}: {refused:?}"),
        }
    }
    let end = i64::MAX as u64;
    let invalid = [
        append_to(&other, &batch([]), Some(0), None).unwrap_err(),
        append_to(&other, &batch(0..2), Some(end - 1), None).unwrap_err(),
        append_to(&other, &batch(0..1), Some(u64::MAX), None).unwrap_err(),
        append_to(&other, &batch(0..1), None, Some("z")).unwrap_err(),
        other.append(&Value::Bytes(b"rows"), &AppendOptions::default()).unwrap_err(),
        other.snapshot(Some(2)).unwrap_err(),
        b.huge_table("", Some(other.schema())).unwrap_err(),
    ];
    for error in invalid {
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    let words: ArrayRef = Arc::new(StringArray::from(vec!["one"]));
    let words = RecordBatch::try_from_iter_with_nullable([("n", words, true)]).unwrap();
    let errors = [
        append_to(&other, &words, None, None).unwrap_err(),
        b.huge_table("t", Some(&schema_of(&words))).unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("Int64 in the table, not Utf8"), "{error}");
    }
    b.put(&Value::Bytes(b"plain"), Some("plain")).unwrap();
    let error = a.huge_table("plain", None).unwrap_err();
    assert!(error.to_string().contains("no huge table"), "{error}");
    b.delete(&["plain".into()]).unwrap();
    for (client, before) in [&a, &b].into_iter().zip(before) {
        let after = client.stats().unwrap();
        assert_eq!(after.node.objects, before.objects);
        assert_balanced(&after);
    }
    // What nobody took is still free.
    append_to(&other, &batch(0..10), Some(0), None).unwrap();
    append_to(&other, &batch(0..1), Some(end - 1), None).unwrap();
    let full = append(&table, &batch([1])).unwrap_err();
    assert!(matches!(full, Error::InvalidArgument(_)), "{full}");
    let late = table.wait(WaitFor::Rows(21), Duration::from_millis(20)).unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
}

/// What is wrong with what a reader saw, one look after the other, of a table that ended so.
fn wrong_with(seen: &[Snapshot], end: &Snapshot) -> Option<String> {
    let mut last = 0;
    for snapshot in seen {
        if snapshot.version < last {
            return Some(format!("version {} after {last}", snapshot.version));
        }
        last = snapshot.version;
        let of_end = end.partitions.iter().filter(|one| one.version <= last);
        if !snapshot.partitions.iter().eq(of_end) {
            return Some(format!("version {last}: {:?}", snapshot.partitions));
        }
    }
    let mut versions: Vec<u64> = end.partitions.iter().map(|one| one.version).collect();
    versions.sort_unstable();
    if !versions.iter().copied().eq(1..=end.version) {
        return Some(format!("versions {versions:?}"));
    }
    let pairs = end.partitions.iter().zip(end.partitions.iter().skip(1));
    let overlap = pairs.into_iter().find(|(one, next)| one.end() > next.position);
    overlap.map(|(one, next)| format!("{one:?} and {next:?} overlap"))
}

#[test]
fn of_rows_that_many_append_at_once_exactly_the_free_ones_are_taken() {
    const ROWS: u64 = 400;
    let nodes = DaemonNodes::start(3, "64MiB", CALM);
    let seed = Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id());
    let tables: Vec<_> = (0..3).map(|number| open(&nodes.client(number), "t")).collect();
    let is_over = AtomicBool::new(false);
    type PartitionsAndRows = (Vec<(Partition, i64)>, Vec<(u64, u64, u64)>);
    let (reported, seen): (Vec<PartitionsAndRows>, Vec<Vec<Snapshot>>) =
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|number| {
                    let (client, is_over) = (nodes.client(number), &is_over);
                    scope.spawn(move || {
                        let table = client.huge_table("t", None).unwrap();
                        let mut seen = Vec::new();
                        while !is_over.load(Ordering::SeqCst) {
                            seen.push(table.snapshot(None).unwrap());
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        seen
                    })
                })
                .collect();
            let writers: Vec<_> = tables
                .iter()
                .enumerate()
                .map(|(number, table)| {
                    let names = &nodes.names;
                    scope.spawn(move || {
                        let mut dice = SeededDice(seed.wrapping_add(1 + number as u64) | 1);
                        let (mut done, mut refused) = (Vec::new(), Vec::new());
                        for round in 0..40_i64 {
                            let (position, rows) = (dice.roll(ROWS), 1 + dice.roll(20));
                            let mark = 1000 * number as i64 + round;
                            let rows_of = batch((0..rows).map(|_| mark));
                            let node = &names[dice.roll(3) as usize];
                            match append_to(table, &rows_of, Some(position), Some(node)) {
                                Ok(chunk) => done.push((chunk, mark)),
                                Err(Error::RowsTaken { version, .. }) => {
                                    refused.push((position, rows, version));
                                }
                                Err(error) => panic!("seed {seed}: {error}"),
                            }
                        }
                        (done, refused)
                    })
                })
                .collect();
            let reported = writers.into_iter().map(|one| one.join().unwrap()).collect();
            is_over.store(true, Ordering::SeqCst);
            (reported, readers.into_iter().map(|one| one.join().unwrap()).collect())
        });
    let end = open(&nodes.client(1), "t").snapshot(None).unwrap();
    for table in &tables {
        assert_eq!(table.snapshot(None).unwrap(), end, "seed {seed}");
    }
    for seen in &seen {
        assert_eq!(wrong_with(seen, &end), None, "seed {seed}");
    }
    let by_version: BTreeMap<u64, &Partition> =
        end.partitions.iter().map(|one| (one.version, one)).collect();
    let mut marks = BTreeMap::new();
    for (done, refused) in &reported {
        for (chunk, mark) in done {
            assert_eq!(by_version.get(&chunk.version), Some(&chunk), "seed {seed}");
            marks.insert(chunk.position, (*mark, chunk.rows));
        }
        for (position, rows, version) in refused {
            let by = by_version[version];
            let is_overlap = by.position < position + rows && *position < by.end();
            assert!(is_overlap, "seed {seed}: {position}+{rows} was free of {by:?}");
        }
    }
    assert_eq!(marks.len(), end.partitions.len(), "seed {seed}: each is somebody's");
    // The gaps, from all nodes; then each row is what its writer wrote.
    let mut next = 0;
    for (number, chunk) in end.partitions.iter().enumerate() {
        if chunk.position > next {
            let gap = batch((next..chunk.position).map(|_| -1));
            append_to(&tables[number % 3], &gap, Some(next), None).unwrap();
            marks.insert(next, (-1, chunk.position - next));
        }
        next = chunk.end();
    }
    let expected: Vec<i64> =
        marks.values().flat_map(|(mark, rows)| (0..*rows).map(|_| *mark)).collect();
    for table in &tables {
        assert_eq!(values(table, None).unwrap(), expected, "seed {seed}");
    }
}

#[test]
fn rows_that_are_appended_at_the_end_from_all_nodes_follow_each_other() {
    const ROUNDS: u64 = 30;
    let nodes = DaemonNodes::start(3, "64MiB", CALM);
    let tables: Vec<_> = (0..3).map(|number| open(&nodes.client(number), "t")).collect();
    std::thread::scope(|scope| {
        for (number, table) in tables.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mark = 1000 * number as i64 + round as i64;
                    append(table, &batch((0..=round % 7).map(|_| mark))).unwrap();
                }
            });
        }
    });
    let end = tables[0].snapshot(None).unwrap();
    assert_eq!((end.version, &end.missing), (3 * ROUNDS, &None));
    assert_eq!(end.rows, 3 * (0..ROUNDS).map(|round| round % 7 + 1).sum::<u64>());
    let all = values(&tables[1], None).unwrap();
    for number in 0..3 {
        // What one appended is in its order.
        let own: Vec<i64> = all.iter().copied().filter(|mark| mark / 1000 == number).collect();
        assert!(own.is_sorted());
        assert_eq!(own.len() as u64, end.rows / 3);
    }
}

#[test]
fn canary_a_history_that_cannot_be_is_found() {
    let id = farrow::ObjectId { hi: 1, lo: 1 };
    let chunk = |version, position, rows| Partition {
        version,
        position,
        rows,
        node: "a".into(),
        bytes: 8,
        id,
    };
    let of = |version, partitions: Vec<Partition>| Snapshot {
        version,
        rows: partitions.last().map_or(0, Partition::end),
        missing: None,
        partitions,
    };
    let (one, two) = (of(1, vec![chunk(1, 0, 5)]), of(2, vec![chunk(1, 0, 5), chunk(2, 5, 5)]));
    assert_eq!(wrong_with(&[one.clone(), one.clone(), two.clone()], &two), None);
    assert!(wrong_with(&[two.clone(), one], &two).is_some(), "back in time");
    let torn = of(2, vec![chunk(2, 5, 5)]);
    assert!(
        wrong_with(std::slice::from_ref(&torn), &two).is_some(),
        "a later version without an earlier"
    );
    assert!(wrong_with(&[], &torn).is_some(), "a version is missing at the end");
    let overlap = of(2, vec![chunk(1, 0, 6), chunk(2, 5, 5)]);
    assert!(wrong_with(&[], &overlap).is_some(), "rows are there twice");
    let other = of(1, vec![chunk(1, 0, 4)]);
    assert!(wrong_with(&[other], &two).is_some(), "a version has changed");
}

#[test]
fn a_table_of_which_a_node_is_lost_says_so_and_others_go_on() {
    let mut nodes = DaemonNodes::start(3, "64MiB", &[]);
    let (a, b) = (nodes.client(0), nodes.client(1));
    let (here, spread) = (open(&a, "here"), open(&a, "spread"));
    append(&here, &batch(0..10)).unwrap();
    append(&spread, &batch(0..10)).unwrap();
    // Nobody but the writer has seen this one before the node is lost.
    let known = b.huge_table("spread", None).unwrap();
    assert_eq!(values(&known, None).unwrap().len(), 10);
    append_to(&spread, &batch(10..20), None, Some("c")).unwrap();
    let view = spread.table(None).unwrap();
    nodes.daemons[2].kill9();
    for client in [&a, &b] {
        wait_for(client, |members| members.find("c").unwrap().reach == Reach::Lost);
    }
    for table in [&spread, &known, &b.huge_table("spread", None).unwrap()] {
        assert_eq!(lost_node(table.snapshot(None)), "c");
        assert_eq!(lost_node(table.table(None).map(drop)), "c");
        assert_eq!(lost_node(table.table(Some(1)).map(drop)), "c");
        assert_eq!(lost_node(append(table, &batch(0..1))), "c");
        assert_eq!(lost_node(table.wait(WaitFor::Rows(100), SOON)), "c");
    }
    assert_eq!(view.batches.iter().map(|batch| batch.rows).sum::<usize>(), 20, "what is held");
    append(&here, &batch(10..20)).unwrap();
    let far = b.huge_table("here", None).unwrap();
    append_to(&far, &batch(20..30), None, Some("b")).unwrap();
    assert_eq!(values(&here, None).unwrap(), (0..30).collect::<Vec<_>>());
    // It might be there.
    assert_eq!(lost_node(a.huge_table("unknown", None).map(drop)), "c");
    assert_eq!(lost_node(a.huge_table("unknown", Some(here.schema())).map(drop)), "c");
    nodes.daemons[2].restart();
    nodes.settle(3);
    for table in [&spread, &known] {
        assert_eq!(values(table, None).unwrap(), (0..20).collect::<Vec<_>>());
    }
    append_to(&known, &batch(20..30), None, Some("c")).unwrap();
    assert_eq!(values(&spread, None).unwrap(), (0..30).collect::<Vec<_>>());
    // Of the node with the root: the table is not mistaken for one that there is not.
    nodes.daemons[0].kill9();
    wait_for(&b, |members| members.find("a").unwrap().reach == Reach::Lost);
    assert_eq!(lost_node(known.table(None).map(drop)), "a");
    assert_eq!(lost_node(nodes.client(2).huge_table("spread", Some(known.schema()))), "a");
}

/// Not a test by itself: a child process appends until it is killed.
#[test]
fn appender() {
    let Some(socket) = std::env::var_os(APPENDER_SOCKET) else {
        return;
    };
    let table = client_at(Path::new(&socket)).huge_table("t", None).unwrap();
    for number in 0.. {
        append(&table, &batch((0..=number % 5).map(|_| number))).unwrap();
    }
}

fn start_appender(socket: &Path) -> Child {
    this_test_again("appender")
        .env(APPENDER_SOCKET, socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_client_killed_while_appending_stops_no_other_client() {
    let nodes = DaemonNodes::start(3, "64MiB", CALM);
    let table = open(&nodes.client(0), "t");
    append(&table, &batch([1])).unwrap();
    for round in 0..6 {
        let mut children: Vec<Child> =
            nodes.daemons.iter().map(|daemon| start_appender(&daemon.socket)).collect();
        let before = table.snapshot(None).unwrap().version;
        table.wait(WaitFor::Version(before + 20 + 7 * round), PATIENCE).unwrap();
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let chunk = append(&table, &batch([1, 2, 3])).unwrap();
        let end = table.snapshot(None).unwrap();
        assert_eq!(end.version, chunk.version, "nobody is left");
        assert_eq!((wrong_with(&[], &end), &end.missing), (None, &None));
        assert_eq!(values(&table, None).unwrap().len() as u64, end.rows);
    }
    for number in 0..3 {
        assert_balanced(&nodes.client(number).stats().unwrap());
    }
}

#[test]
fn a_dropped_table_leaves_nothing_while_clients_append() {
    let nodes = DaemonNodes::start(3, "64MiB", CALM);
    let clients: Vec<_> = (0..3).map(|number| nodes.client(number)).collect();
    for round in 0..10 {
        let tables: Vec<_> = clients.iter().map(|client| open(client, "t")).collect();
        append(&tables[round % 3], &batch(0..5)).unwrap();
        std::thread::scope(|scope| {
            for table in &tables {
                scope.spawn(|| {
                    let error = loop {
                        match append(table, &batch(0..3)) {
                            Ok(_) => {}
                            Err(error) => break error,
                        }
                    };
                    assert!(matches!(error, Error::NotFound { .. }), "{error}");
                });
            }
            tables[(round + 1) % 3].wait(WaitFor::Version(5), SOON).unwrap();
            tables[(round + 2) % 3].drop_table().unwrap();
        });
        for (table, client) in tables.iter().zip(&clients) {
            assert!(matches!(table.table(None), Err(Error::NotFound { .. })));
            assert!(matches!(table.drop_table(), Err(Error::NotFound { .. })));
            assert!(matches!(client.huge_table("t", None), Err(Error::NotFound { .. })));
            assert_eq!(client.list("t").unwrap(), [], "round {round}");
            assert_balanced(&client.stats().unwrap());
        }
    }
}

#[test]
fn chunks_are_not_evicted_and_one_that_was_deleted_is_noticed() {
    let nodes = DaemonNodes::start(2, "24MiB", &["--evict", "lru", "--lease-ms", "10000"]);
    let (a, b) = (nodes.client(0), nodes.client(1));
    let table = open(&a, "t");
    let mut ids = Vec::new();
    for number in 0..4_i64 {
        let rows = batch((0..100_000).map(|row| 100_000 * number + row));
        let node = ["a", "b"][number as usize % 2];
        ids.push(append_to(&table, &rows, None, Some(node)).unwrap().id);
    }
    let noise = vec![1_u8; 3 << 20];
    for client in [&a, &b] {
        for _ in 0..12 {
            client.put(&Value::Bytes(&noise), None).unwrap();
        }
        assert!(client.stats().unwrap().node.evicted_total > 0, "the memory was full");
    }
    let fresh = b.huge_table("t", None).unwrap();
    assert_eq!(values(&fresh, None).unwrap(), (0..400_000).collect::<Vec<_>>());
    a.delete(&[ids[1].into()]).unwrap();
    for table in [&table, &fresh, &b.huge_table("t", None).unwrap()] {
        match table.table(None) {
            Err(Error::NotFound { what }) => assert!(what.contains("version 2"), "{what}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_table_is_its_namespaces() {
    let nodes = DaemonNodes::start(2, "64MiB", CALM);
    let clients: Vec<_> = (0..2).map(|number| nodes.client(number)).collect();
    for client in &clients {
        client
            .create_namespace(&NamespaceSpec { name: "team".into(), ..NamespaceSpec::default() })
            .unwrap();
    }
    let team: Vec<_> = (0..2)
        .map(|number| {
            let namespace = "team".to_owned();
            let options = ConnectOptions::at(&nodes.daemons[number].socket);
            Client::connect(&ConnectOptions { namespace, ..options }).unwrap()
        })
        .collect();
    let (plain, theirs) = (open(&clients[0], "t"), open(&team[0], "t"));
    append(&plain, &batch([1])).unwrap();
    append(&theirs, &batch([2])).unwrap();
    let from_b = team[1].huge_table("t", None).unwrap();
    append(&from_b, &batch([3])).unwrap();
    assert_eq!(values(&theirs, None).unwrap(), [2, 3]);
    assert_eq!(values(&clients[1].huge_table("t", None).unwrap(), None).unwrap(), [1]);
    theirs.drop_table().unwrap();
    assert_eq!(values(&plain, None).unwrap(), [1]);
}

/// Chunks in the memory of another node need `write` there, and so does it to pin the chunk before.
#[test]
fn rows_are_appended_where_the_node_was_granted_to_write() {
    let nodes = DaemonNodes::start(2, "64MiB", CALM);
    let (on_a, on_b) = (nodes.client(0), nodes.client(1));
    let (at_a, at_b) = (open(&on_a, "t"), open(&on_b, "t"));
    let denied = |result: Result<Partition, Error>| match result {
        Err(Error::NotPermitted(NotPermitted { node, right, .. })) => (node, right),
        other => panic!("{other:?}"),
    };
    // By the rules of a; b lets a do everything.
    for rights in ["read", "read,delete", "none"] {
        on_a.permit(&format!(":b:{rights}").parse().unwrap()).unwrap();
        let result = append_to(&at_b, &batch(0..10), None, Some("a"));
        assert_eq!(denied(result), ("b".to_owned(), "write".to_owned()), "{rights}");
    }
    on_a.permit(&":b:read,write".parse().unwrap()).unwrap();
    for round in 0..3 {
        append_to(&at_b, &batch(round * 10..round * 10 + 10), None, Some("a")).unwrap();
    }
    append_to(&at_a, &batch(30..40), None, Some("b")).unwrap();
    for table in [&at_a, &at_b] {
        assert_eq!(values(table, None).unwrap(), (0..40).collect::<Vec<_>>());
    }
    assert!(matches!(at_b.drop_table(), Err(Error::NotPermitted(_))));
}
