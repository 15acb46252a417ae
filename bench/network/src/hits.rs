//! The cost of a hit in both designs: rows of fully cached segments are requested as by a graph,
//! without other work, or with every entry read.

use crate::cache::{CachedContent, Design, Policy, RowCache, RowCacheSettings};
use crate::client::{DEADLINE, NetworkError, RowClient};
use crate::rows::{FetchSettings, Index, Remote};
use crate::whatif::median;
use crate::wire::RowKey;
use farrow_graph::{
    Edges, GraphError, GraphFeatures, ListKind, RowRequest, RowSource, Segment, Settings,
};
use serde_json::{Value, json};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// More than any of the measured segments take.
const CAPACITY: usize = 4 << 30;
/// Passes over all rows, of both designs alternately; the median counts.
const PASSES: usize = 7;
/// Entries of all rows of one length: 1 MiB, which the last cache of any processor holds.
const ENTRIES: usize = 1 << 17;
/// Most rows of one length: short rows should not cause misses of the processor's cache.
const ROWS_MAX: usize = 1 << 12;
/// Least number of requested rows in one pass: enough for the clock.
const ASKED_MIN: usize = 1 << 14;
/// Lengths that are compared.
const LENGTHS: [usize; 5] = [1, 10, 100, 1_000, 10_000];

/// Segments behind a client whose cache holds them all, in this design.
///
/// # Errors
/// Those of a client.
pub fn remote(
    server: SocketAddr,
    design: Design,
    banks: usize,
    is_traced: bool,
) -> Result<Arc<Remote>, NetworkError> {
    let (policy, content, capacity) = (Policy::Lru, CachedContent::Full, CAPACITY);
    let cache = RowCacheSettings { policy, content, capacity, banks, design };
    // The thesis' index is remote; the rows requested here exist in both designs.
    let fetch = FetchSettings { design, index: Index::Local, prefetch_max: 0, is_traced };
    Ok(Remote::new(RowClient::new(server, DEADLINE)?, Some(RowCache::new(cache)), fetch))
}

/// Requests rows one by one from both designs. The index of a segment, which a graph reads in any
/// case, has the position of each row.
pub fn compared(requested: &[RowKey], thesis: &Arc<Remote>, ours: &Arc<Remote>) -> Value {
    let requested: Vec<(usize, RowRequest)> =
        requested.iter().filter_map(|&key| ours.wanted(key)).collect();
    let all = requested.iter().map(|(segment, _)| segment + 1).max().unwrap_or(0);
    let rows = |remote: &Arc<Remote>| (0..all).map(|at| remote.rows(at as u32)).collect();
    let designs: [Vec<Arc<dyn RowSource>>; 2] = [rows(thesis), rows(ours)];
    let count = requested.len().max(1) as f64;
    let mut entries = 0;
    let mut pass = |segments: &[Arc<dyn RowSource>], is_read: bool| {
        let began = Instant::now();
        entries = 0;
        for &(segment, wanted) in &requested {
            let row = segments[segment].row(wanted);
            entries += row.len();
            if is_read {
                std::hint::black_box(row.iter().fold(0, |all, one| all ^ one));
            }
            std::hint::black_box(row);
        }
        began.elapsed().as_secs_f64() * 1e9 / count
    };
    let mut times = [const { Vec::new() }; 4];
    for turn in 0..=PASSES {
        for (at, times) in times.iter_mut().enumerate() {
            let time = pass(&designs[at % 2], at >= 2);
            // The first pass fetches rows, or their memory is not cached yet.
            if turn > 0 {
                times.push(time);
            }
        }
    }
    let [thesis_ns, ours_ns, thesis_read_ns, ours_read_ns] = times.map(median);
    json!({
        "rows": requested.len(),
        "entries_per_row": entries as f64 / count,
        "thesis_ns": thesis_ns,
        "ours_ns": ours_ns,
        "thesis_over_ours": thesis_ns / ours_ns,
        "thesis_read_ns": thesis_read_ns,
        "ours_read_ns": ours_read_ns,
        "thesis_over_ours_read": thesis_read_ns / ours_read_ns,
    })
}

/// A segment of one day in which `accounts` accounts pay `length` times each.
fn segment(accounts: usize, length: usize) -> Result<Segment, GraphError> {
    const DAY: i64 = 86_400;
    let count = accounts * length;
    let account = |row: usize| (row % accounts) as i64;
    // One row of the next day ends the first one.
    let ids: Vec<i64> = (0..=count as i64).collect();
    let sources: Vec<i64> = (0..=count).map(account).collect();
    let targets: Vec<i64> = sources.iter().map(|source| source + accounts as i64).collect();
    let mut times = vec![0; count];
    times.push(DAY);
    let settings = Settings {
        segment: Some(DAY as u64),
        time_window: Some(DAY as u64),
        ..Settings::default()
    };
    let mut features = GraphFeatures::new(settings)?;
    let (ids, sources, targets, times) = (&ids[..], &sources[..], &targets[..], &times[..]);
    features.learn(&Edges { ids, sources, targets, times, columns: &[] })?;
    let frozen = features.freeze().ok_or(GraphError::Segment {
        what: "full days",
        given: 0,
        expected: 1,
    })?;
    frozen.plan()?.build()
}

/// Both designs by the length of rows.
///
/// # Errors
/// Making rows, or transferring them to the server, failed.
pub fn by_length(server: SocketAddr, banks: usize) -> Result<Vec<Value>, Box<dyn Error>> {
    let one = |length: usize| -> Result<Value, Box<dyn Error>> {
        let accounts = (ENTRIES / length).min(ROWS_MAX);
        let near = segment(accounts, length)?;
        let all = 0..near.info().accounts as u32;
        let keys: Vec<RowKey> = all
            .filter(|&account| near.row(account, ListKind::Out).len() == length)
            .map(|account| RowKey::new(0, account, ListKind::Out))
            .collect();
        if keys.len() != accounts {
            return Err(format!("{} rows of {length} entries", keys.len()).into());
        }
        // Not in memory order: a stride by a prime that divides no count visits all rows.
        let requested: Vec<RowKey> =
            (0..ASKED_MIN.max(accounts)).map(|at| keys[at * 7_919 % accounts]).collect();
        let made = |design| -> Result<Arc<Remote>, Box<dyn Error>> {
            let remote = remote(server, design, banks, false)?;
            remote.bring(0, &near)?;
            remote.segment(0, &near)?;
            Ok(remote)
        };
        Ok(compared(&requested, &made(Design::Thesis)?, &made(Design::Ours)?))
    };
    LENGTHS.into_iter().map(one).collect()
}
