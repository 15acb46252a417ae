//! Makes page table entries of large objects ready while their reader begins.
//!
//! Without huge pages a fault on each 4 KiB page costs a first pass about a third of its time
//! (170 ns a page here). `get` itself must not wait for that, so a thread walks ahead.

use std::collections::BTreeSet;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use farrow_memory::{Length, Offset, Populate, Region, Span};
use farrow_store::ObjectId;

use crate::session::lock;

/// Smaller objects are faulted in by their reader in less time than it takes to tell a thread.
const POPULATE_BYTES_MIN: u64 = 1 << 20;

/// Bytes made ready by one call.
const PIECE_BYTES: u64 = 8 << 20;

/// Objects waiting; further ones are left to their readers' faults.
const QUEUE_MAX: usize = 64;

/// Objects remembered as done, so that getting one again costs nothing.
const REMEMBERED_MAX: usize = 4096;

type Task = (Weak<Region>, Vec<Span>);

#[derive(Debug, Default)]
pub(crate) struct Populator {
    done: Mutex<BTreeSet<ObjectId>>,
}

impl Populator {
    /// Starts on these blocks unless they were done before.
    pub(crate) fn start(&self, region: &Arc<Region>, id: ObjectId, blocks: &[Span]) {
        let bytes: u64 = blocks.iter().map(|block| block.length.0).sum();
        if bytes < POPULATE_BYTES_MIN {
            return;
        }
        {
            let mut done = lock(&self.done);
            if !done.insert(id) {
                return;
            }
            if done.len() > REMEMBERED_MAX {
                done.clear();
            }
        }
        if let Some(queue) = worker() {
            let _ = queue.try_send((Arc::downgrade(region), blocks.to_vec()));
        }
    }
}

/// One thread a process, started at the first need.
fn worker() -> Option<&'static SyncSender<Task>> {
    static WORKER: OnceLock<Option<(u32, SyncSender<Task>)>> = OnceLock::new();
    let started = WORKER.get_or_init(|| {
        let (sender, receiver) = sync_channel::<Task>(QUEUE_MAX);
        let work = move || {
            for (region, blocks) in receiver {
                for block in blocks {
                    walk(&region, block);
                }
            }
        };
        std::thread::Builder::new()
            .name("farrow-populate".into())
            .stack_size(128 << 10)
            .spawn(work)
            .ok()
            .map(|_| (std::process::id(), sender))
    });
    let (pid, sender) = started.as_ref()?;
    // A forked child has the queue but not the thread.
    (*pid == std::process::id()).then_some(sender)
}

fn walk(region: &Weak<Region>, block: Span) {
    let mut done = 0;
    while done < block.length.0 {
        // Held for one piece at a time: a client that goes is not kept.
        let Some(region) = region.upgrade() else {
            return;
        };
        let length = PIECE_BYTES.min(block.length.0 - done);
        let piece = Span { offset: Offset(block.offset.0 + done), length: Length(length) };
        if region.populate(piece, Populate::Read).is_err() {
            return;
        }
        done += length;
    }
}
