//! A sum over a node's directory, read from the region like by a client, as a check of the daemon's
//! own sums.
//!
//! The daemon counts up at each seal and down at each delete. Its equation also balances if both
//! sides miss the same block. The directory's entries are independent of these sums.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow::{Client, Stats};
use farrow_memory::Span;
use farrow_store::Reader;
use farrow_wire::NodeStats;

use super::{Daemon, assert_balanced};

/// Time for a daemon to finish pending requests after its clients stop.
const QUIET_MAX: Duration = Duration::from_secs(20);

pub struct DirectorySum(Reader);

impl DirectorySum {
    pub fn open(client: &Client) -> Self {
        Self(Reader::open(Arc::clone(client.region())).unwrap())
    }

    /// Bytes of the blocks of all objects in the directory.
    pub fn live_bytes(&self) -> Result<u64, String> {
        let listed = self.0.list("").map_err(|error| error.to_string())?;
        if let Some(one) = listed.iter().find(|one| one.entry.extra_count > 0 || one.is_spilled) {
            return Err(format!("not of one block in memory, as those of these tests: {one:?}"));
        }
        let blocks = listed.into_iter().map(|one| one.entry.primary).collect();
        sum_of(blocks, self.0.layout().heap)
    }
}

/// Bytes of blocks, of which no two overlap and none leaves the heap.
pub fn sum_of(mut blocks: Vec<Span>, heap: Span) -> Result<u64, String> {
    blocks.sort_unstable_by_key(|block| block.offset);
    let mut end = heap.offset.0;
    for block in &blocks {
        if block.offset.0 < end {
            return Err(format!("{block} begins before {end:#x}, where the last one ends"));
        }
        end = block.offset.0 + block.length.0;
    }
    if end > heap.offset.0 + heap.length.0 {
        return Err(format!("a block ends at {end:#x}, behind the heap {heap}"));
    }
    Ok(blocks.iter().map(|block| block.length.0).sum())
}

/// `allocated = live + what is granted, retiring and in quarantine`, to the byte, with `live` from
/// the directory.
pub fn compare(live: u64, node: &NodeStats) -> Result<(), String> {
    let allocated = node.capacity - node.free;
    let sum = live + node.granted + node.retiring + node.quarantine;
    if allocated == sum && live == node.used {
        return Ok(());
    }
    Err(format!("{allocated} B are allocated, {sum} B accounted for, {live} B live: {node:?}"))
}

/// Checks a node whose clients are idle; waits for their pending requests.
pub fn assert_counted(daemon: &Daemon, whose: &str) -> Stats {
    let client = daemon.client();
    let directory = DirectorySum::open(&client);
    let until = Instant::now() + QUIET_MAX;
    loop {
        let before = client.stats().unwrap();
        let live = directory.live_bytes();
        let after = client.stats().unwrap();
        assert_balanced(&after);
        let counted = live.and_then(|live| compare(live, &before.node).map(|()| live));
        match counted.and_then(|live| compare(live, &after.node)) {
            Ok(()) => return after,
            Err(reason) => assert!(Instant::now() < until, "{whose}: {reason}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
