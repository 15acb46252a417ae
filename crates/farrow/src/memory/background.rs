//! Page table work that no caller should wait for, in one low-priority thread for each process.
//!
//! Without huge pages, page faults take about a third of a first pass over a large object (170 ns
//! for each 4 KiB page). Taking down the writable entries of a large sealed buffer takes 20 us a
//! MiB. `get` and `put` leave both to this thread.

use crate::lock::lock;
use std::collections::BTreeSet;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use farrow_memory::{Alias, Length, Offset, Populate, Region, Retired, Span, fork, process_id};
use farrow_store::ObjectId;

/// The reader faults in a smaller object faster than it can wake a thread.
const POPULATE_BYTES_MIN: u64 = 1 << 20;

/// Bytes populated by one call.
const PIECE_BYTES: u64 = 8 << 20;

/// Maximum length of the queue. Beyond it, objects are faulted in by their readers, and the caller
/// takes down page tables itself.
const QUEUE_MAX: usize = 64;

/// Objects remembered as populated, so that a repeated get costs nothing.
const REMEMBERED_MAX: usize = 4096;

enum BackgroundTask {
    /// Populate page table entries for reading.
    Populate(Weak<Region>, Vec<Span>),
    /// Take down page tables that were moved out of the window.
    TakeDown(Retired),
    /// Unmap an alias after a write.
    Unmap(Alias),
}

#[derive(Debug)]
pub(crate) struct Populator {
    /// False with huge pages: they cause 512 times fewer faults, which cost less than waking the
    /// thread.
    is_needed: bool,
    done: Mutex<BTreeSet<ObjectId>>,
}

impl Populator {
    pub(crate) fn new(region: &Region) -> Self {
        Self { is_needed: region.fabric().huge_page_bytes().is_none(), done: Mutex::default() }
    }

    /// Populates these blocks, unless that was done before.
    pub(crate) fn start(&self, region: &Arc<Region>, id: ObjectId, blocks: &[Span]) {
        let bytes: u64 = blocks.iter().map(|block| block.length.0).sum();
        if bytes < POPULATE_BYTES_MIN || !self.is_needed {
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
            let _ =
                queue.try_send(BackgroundTask::Populate(Arc::downgrade(region), blocks.to_vec()));
        }
    }
}

/// Takes page tables down later; at once if the queue is full or there is no thread.
pub(crate) fn take_down(retired: Retired) {
    if retired.is_empty() {
        return;
    }
    if let Some(queue) = worker() {
        // A full queue gives the task back, and its drop does the work.
        let _ = queue.try_send(BackgroundTask::TakeDown(retired));
    }
}

/// Unmaps an alias later. A long one is unmapped at once if the queue is full.
pub(crate) fn unmap(alias: Alias) {
    if alias.span().length <= alias.at_once() {
        return alias.leave();
    }
    if let Some(queue) = worker() {
        let _ = queue.try_send(BackgroundTask::Unmap(alias));
    }
}

/// Starts the thread before it is needed, so that the first `get` does not pay for it.
pub(crate) fn warm_up() {
    let _ = worker();
}

/// The queue of the one thread of this process.
fn worker() -> Option<&'static SyncSender<BackgroundTask>> {
    static WORKER: OnceLock<Option<(u32, SyncSender<BackgroundTask>)>> = OnceLock::new();
    // A child must not wait for a thread that it does not have.
    let _steady = WORKER.get().is_none().then(fork::without_fork);
    let started = WORKER.get_or_init(|| {
        #[cfg(feature = "failpoints")]
        fork::trial::pass(fork::trial::ForkSection::Worker);
        let (sender, receiver) = sync_channel::<BackgroundTask>(QUEUE_MAX);
        let work = move || {
            for task in receiver {
                match task {
                    BackgroundTask::Populate(region, blocks) => {
                        blocks.into_iter().for_each(|block| walk(&region, block));
                    }
                    BackgroundTask::TakeDown(retired) => drop(retired),
                    BackgroundTask::Unmap(alias) => drop(alias),
                }
            }
        };
        std::thread::Builder::new()
            .name("farrow-pages".into())
            .stack_size(128 << 10)
            .spawn(work)
            .ok()
            .map(|_| (process_id(), sender))
    });
    let (pid, sender) = started.as_ref()?;
    // A forked child has the queue but not the thread.
    (*pid == process_id()).then_some(sender)
}

fn walk(region: &Weak<Region>, block: Span) {
    let mut done = 0;
    while done < block.length.0 {
        // The region is held for one piece at a time, so that a dropped client does not stay alive.
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
