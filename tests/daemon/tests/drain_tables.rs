//! A node with parts of huge tables is drained. The parts move, readers and appenders go on, and
//! the table is whole after the node has left, and after nodes died at every step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use common::nodes::{self, DaemonNodes, LEASE_MS};
use common::wait_for;
use farrow::{
    AppendOptions, BatchData, Client, Error, HugeTable, Partition, Reach, SchemaNode, Value,
    WaitFor,
};
use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_store::failpoints;
use rustix::process::{Pid, Signal, kill_process};

const SOON: Duration = Duration::from_secs(20);
const ROWS: i64 = 1000;

const NET: &[&str] = &["--no-prepare", "--net", "only"];
const MAPPED: &[&str] = &["--no-prepare"];

fn batch(values: impl IntoIterator<Item = i64>) -> RecordBatch {
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(values));
    RecordBatch::try_from_iter_with_nullable([("n", values, true)]).unwrap()
}

fn schema_of(batch: &RecordBatch) -> SchemaNode {
    SchemaNode::try_from(batch.schema().as_ref()).unwrap()
}

fn open(client: &Client) -> HugeTable {
    client.huge_table("t", Some(&schema_of(&batch([])))).unwrap()
}

fn append(table: &HugeTable, first: i64, node: Option<&str>) -> Result<Partition, Error> {
    let rows = batch(first..first + ROWS);
    let (schema, batch) = (schema_of(&rows), BatchData::from(&rows));
    let value = Value::RecordBatch { schema: &schema, batch: &batch };
    table.append(&value, &AppendOptions { position: None, node, timeout: SOON, statistics: true })
}

fn values(table: &HugeTable, version: Option<u64>) -> Result<Vec<i64>, Error> {
    let arrow = table.table(version)?;
    let columns = arrow.batches.iter().map(|batch| Int64Array::from(batch.columns[0].clone()));
    Ok(columns.flat_map(|column| column.values().to_vec()).collect())
}

fn assert_whole(table: &HugeTable, chunks: i64, what: &str) {
    let found = values(table, None).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(found, (0..chunks * ROWS).collect::<Vec<_>>(), "{what}");
    let snapshot = table.snapshot(None).unwrap();
    assert_eq!(snapshot.version, chunks as u64, "{what}");
    for (statistics, chunk) in
        table.statistics(&snapshot.partitions).unwrap().iter().zip(&snapshot.partitions)
    {
        assert!(statistics.is_some(), "{what}: {chunk:?} without statistics");
    }
    let old = values(table, Some(1)).unwrap();
    assert_eq!(old, (0..ROWS).collect::<Vec<_>>(), "{what}: version 1");
}

fn begin_drain(client: &Client) {
    client.begin_drain().unwrap();
    await_notices(client);
}

fn await_notices(client: &Client) {
    wait_for("all members to know", || {
        client.drain_report().unwrap().untold.is_empty().then_some(())
    })
    .unwrap_or_else(|| panic!("{:?}", client.drain_report()));
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

/// Moves all parts of the table from the client's node to another one.
fn move_parts(client: &Client, node: &str) {
    let mut why = String::new();
    wait_for("all parts to move", || {
        // A staged copy of a killed move has no name, and ends with this process.
        let mut left = client.list("").unwrap();
        left.retain(|one| one.name.is_some());
        // The root first: its node accepts no new members.
        left.sort_by_key(|one| one.name.clone());
        for one in &left {
            let table = open(client);
            let moved = table.move_part(one.id, one.name.as_deref().unwrap(), node, deadline());
            if let Err(error) = moved {
                why = format!("{:?}: {error}", one.name);
            }
        }
        left.is_empty().then_some(())
    })
    .unwrap_or_else(|| panic!("{why}"));
    wait_for("the node to leave the table", || {
        open(client).leave_node(deadline()).map_err(|error| why = error.to_string()).ok()
    })
    .unwrap_or_else(|| panic!("{why}"));
}

fn end(nodes: &mut DaemonNodes, number: usize) {
    let pid = Pid::from_raw(nodes.daemons[number].pid().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    nodes.daemons[number].wait_end();
}

/// The table begins at node `home`, and has chunks at a and b; a is drained and ends.
fn drain_and_leave(home: usize, flags: &[&str]) {
    let what = format!("home {home}, {flags:?}");
    let mut nodes = DaemonNodes::start(3, "16M", flags);
    let clients: Vec<Client> = (0..3).map(|number| nodes.client(number)).collect();
    let tables: Vec<HugeTable> = [home, 0, 1, 2].iter().map(|n| open(&clients[*n])).collect();
    let tables = &tables[1..];
    for number in 0..6 {
        append(&tables[number % 2], number as i64 * ROWS, None).unwrap();
    }
    for table in tables {
        assert_whole(table, 6, &what);
    }
    let held = tables[2].table(None).unwrap();
    let before = tables[2].snapshot(None).unwrap();
    begin_drain(&clients[0]);
    // The client of the draining node itself appends elsewhere.
    let refused = append(&tables[0], 6 * ROWS, None);
    assert!(matches!(refused, Err(Error::NodeDraining { .. })), "{what}: {refused:?}");
    append(&tables[0], 6 * ROWS, Some("b")).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers = (0..3).map(|number| {
            let (client, is_over, what) = (&clients[number], &is_over, &what);
            scope.spawn(move || {
                let table = open(client);
                while !is_over.load(Ordering::Relaxed) {
                    let found = values(&table, None);
                    let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert!(found.len() >= 7 * ROWS as usize, "{what}: {} rows", found.len());
                    assert_eq!(found, (0..found.len() as i64).collect::<Vec<_>>(), "{what}");
                    assert!(open(client).snapshot(None).unwrap().version >= 7, "{what}");
                }
            })
        });
        let readers = readers.collect::<Vec<_>>();
        // c has no chunk before, so it becomes a member while the root moves, or after.
        let appender = scope.spawn(|| {
            for number in 7..10 {
                append(&tables[2], number * ROWS, None).unwrap();
            }
        });
        let moved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            move_parts(&clients[0], "b");
        }));
        let appended = appender.join();
        is_over.store(true, Ordering::Relaxed);
        moved.unwrap();
        appended.unwrap();
        for reader in readers {
            reader.join().unwrap();
        }
    });
    for table in tables {
        assert_whole(table, 10, &what);
        let found = table.snapshot(None).unwrap().partitions;
        assert!(found.iter().all(|chunk| &*chunk.node != "a"), "{what}: {found:?}");
    }
    assert!(clients[0].list("").unwrap().is_empty(), "{what}");
    drop(held);
    end(&mut nodes, 0);
    nodes::wait_for(&clients[2], |members| {
        members.find("a").is_none_or(|one| one.reach == Reach::Left)
    });
    for number in 1..3 {
        assert_whole(&tables[number], 10, &what);
        assert_whole(&open(&clients[number]), 10, &what);
    }
    // What was listed before the drain is found as well.
    assert_eq!(tables[2].statistics(&before.partitions).unwrap().len(), 6, "{what}");
    assert!(tables[2].is_mapped(&before.partitions[0]).is_ok(), "{what}");
    append(&tables[1], 10 * ROWS, Some("c")).unwrap();
    tables[2].wait(WaitFor::Version(11), SOON).unwrap();
    assert_whole(&tables[2], 11, &what);
    let pinned = clients[1].list("t").unwrap().into_iter().filter(|one| !one.is_pinned);
    assert_eq!(pinned.map(|one| one.name).collect::<Vec<_>>(), [], "{what}: not pinned");
    tables[1].drop_table().unwrap();
    for client in &clients[1..] {
        assert!(client.list("").unwrap().is_empty(), "{what}");
    }
    assert!(matches!(tables[2].snapshot(None), Err(Error::NotFound { .. })), "{what}");
}

#[test]
fn a_table_of_another_node_loses_nothing_when_its_node_is_drained() {
    for flags in [MAPPED, NET] {
        drain_and_leave(1, flags);
    }
}

#[test]
fn a_table_moves_with_its_root() {
    for flags in [MAPPED, NET] {
        drain_and_leave(0, flags);
    }
}

#[test]
fn a_table_moves_there_and_back() {
    let nodes = DaemonNodes::start(2, "16M", MAPPED);
    let (a, b) = (nodes.client(0), nodes.client(1));
    let (here, there) = (open(&a), open(&b));
    let mut chunks = 0;
    for _ in 0..3 {
        for (table, client, node, other) in [(&here, &a, "b", &b), (&there, &b, "a", &a)] {
            append(table, chunks * ROWS, None).unwrap();
            chunks += 1;
            begin_drain(client);
            move_parts(client, node);
            client.cancel_drain().unwrap();
            wait_for("the end of the drain", || {
                (!other.members().unwrap().is_any_draining()).then_some(())
            })
            .unwrap();
            for table in [&here, &there, &open(&a), &open(&b)] {
                assert_whole(table, chunks, node);
            }
        }
    }
}

/// Node `victim` dies at a point of a move from a to b: of the root, or of a chunk.
fn die_at(place: &str, is_root: bool, is_late: bool, flags: &[&str]) {
    let victim = usize::from(place.starts_with("take"));
    let what = format!("{place}, root: {is_root}, late: {is_late}, {flags:?}");
    let mut nodes = DaemonNodes::start(3, "16M", flags);
    let client = nodes.client(0);
    let table = open(&client);
    append(&table, 0, None).unwrap();
    append(&table, ROWS, Some("c")).unwrap();
    drop((table, client));
    nodes.restart_with_failpoint(victim, place, if is_root { 1 } else { 2 });
    let reader = open(&nodes.client(2));
    assert_whole(&reader, 2, &what);
    let client = nodes.client_with_timeout(0, Duration::from_secs(3));
    begin_drain(&client);
    let mut parts = client.list("t").unwrap();
    parts.sort_by_key(|one| one.name.clone());
    let table = client.huge_table("t", None).unwrap();
    let moved = parts
        .iter()
        .try_for_each(|one| table.move_part(one.id, one.name.as_deref().unwrap(), "b", deadline()));
    // Printed if the node does not end.
    println!("{what}: {moved:?}");
    let ended = nodes.daemons[victim].wait_end();
    assert_eq!(ended.signal(), Some(6), "{what}: not passed: {moved:?}");
    drop((table, client));
    if is_late {
        let lost = char::from(b'a' + victim as u8).to_string();
        nodes::wait_for(&nodes.client(2), |members| {
            members.find(&lost).is_some_and(|one| one.reach == Reach::Lost)
        });
        std::thread::sleep(Duration::from_millis(LEASE_MS / 4));
    }
    nodes.daemons[victim].restart();
    nodes.settle(3);
    wait_for("the table to be whole", || {
        let all = (0..3).map(|number| values(&open(&nodes.client(number)), None));
        let expected: Vec<i64> = (0..2 * ROWS).collect();
        all.map(|found| found.ok()).all(|found| found.as_ref() == Some(&expected)).then_some(())
    })
    .unwrap_or_else(|| panic!("{what}: {:?}", values(&open(&nodes.client(2)), None)));
    assert_whole(&reader, 2, &what);
    // The drain goes on with another daemon.
    let client = nodes.client(0);
    await_notices(&client);
    move_parts(&client, "b");
    assert_whole(&reader, 2, &what);
    append(&reader, 2 * ROWS, Some("b")).unwrap();
    let names = (0..3).flat_map(|number| nodes.client(number).list("").unwrap());
    let mut names: Vec<String> = names.filter_map(|one| one.name).collect();
    names.sort();
    let before = names.len();
    names.dedup();
    assert_eq!(names.len(), before, "{what}: a name twice among {names:?}");
    end(&mut nodes, 0);
    assert_whole(&open(&nodes.client(1)), 3, &what);
    assert_whole(&reader, 3, &what);
}

/// A client that has read the old root sees what is appended at a node that joins at the new one.
#[test]
fn what_joins_at_the_new_root_of_a_killed_node_is_seen_at_the_old_one() {
    // Where the killed node is the authority of the new names, they wait for it anyway.
    for _ in 0..3 {
        join_between_roots();
    }
}

fn join_between_roots() {
    let mut nodes = DaemonNodes::start(4, "16M", MAPPED);
    append(&open(&nodes.client(0)), 0, Some("c")).unwrap();
    nodes.restart_with_failpoint(0, "move.taken", 1);
    let reader = open(&nodes.client(2));
    assert_whole(&reader, 1, "before the drain");
    // It ends before the lease.
    let client = nodes.client_with_timeout(0, Duration::from_millis(LEASE_MS / 8));
    begin_drain(&client);
    let root = client.list("t").unwrap().into_iter().find(|one| one.name.as_deref() == Some("t"));
    let moved = open(&client).move_part(root.unwrap().id, "t", "b", deadline());
    assert_eq!(nodes.daemons[0].wait_end().signal(), Some(6), "not passed: {moved:?}");
    let table = open(&nodes.client(1));
    std::thread::scope(|scope| {
        let appended = scope.spawn(|| append(&table, ROWS, Some("d")).unwrap());
        std::thread::sleep(Duration::from_millis(LEASE_MS / 8));
        let is_early = appended.is_finished();
        let seen = reader.snapshot(None).unwrap().version;
        assert!(!is_early || seen == 2, "of 2 versions, the reader sees {seen}");
        nodes.daemons[0].restart();
        appended.join().unwrap();
    });
    nodes.settle(4);
    assert_whole(&reader, 2, "after the drain");
    end(&mut nodes, 0);
}

#[test]
fn a_node_that_dies_at_any_step_of_a_root_loses_nothing() {
    for place in failpoints::OF_NODES {
        die_at(place, true, false, MAPPED);
    }
}

#[test]
fn a_node_that_dies_at_any_step_of_a_chunk_loses_nothing() {
    for place in failpoints::OF_NODES {
        die_at(place, false, false, NET);
    }
}

#[test]
fn a_node_that_dies_at_any_step_of_a_root_and_is_excluded_loses_nothing() {
    for place in failpoints::OF_NODES {
        die_at(place, true, true, NET);
    }
}
