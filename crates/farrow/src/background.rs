//! Work on page tables that nobody should wait for, in one thread of low rank a process.
//!
//! Without huge pages a fault on each 4 KiB page costs a first pass over a large object about a
//! third of its time (170 ns a page here), and taking down the writable entries of a large
//! sealed buffer takes 20 us a MiB. `get` and `put` leave both to this thread.

use std::collections::BTreeSet;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use farrow_memory::{Alias, Length, Offset, Populate, Region, Retired, Span, process_id};
use farrow_store::ObjectId;

use crate::session::lock;

/// Smaller objects are faulted in by their reader in less time than it takes to tell a thread.
const POPULATE_BYTES_MIN: u64 = 1 << 20;

/// Bytes made ready by one call.
const PIECE_BYTES: u64 = 8 << 20;

/// Tasks waiting; further objects are left to their readers' faults, and further page tables
/// are taken down by who asks.
const QUEUE_MAX: usize = 64;

/// Objects remembered as done, so that getting one again costs nothing.
const REMEMBERED_MAX: usize = 4096;

enum Task {
    /// Make entries ready for reading.
    Populate(Weak<Region>, Vec<Span>),
    /// Take down what was moved out of the window.
    TakeDown(Retired),
    /// Unmap what was written through, at an address that nobody knows.
    Unmap(Alias),
}

#[derive(Debug)]
pub(crate) struct Populator {
    /// With huge pages there are 512 times fewer faults, and to wake the thread costs more than
    /// they do.
    is_needed: bool,
    done: Mutex<BTreeSet<ObjectId>>,
}

impl Populator {
    pub(crate) fn new(region: &Region) -> Self {
        Self { is_needed: region.fabric().huge_page_bytes().is_none(), done: Mutex::default() }
    }

    /// Starts on these blocks unless they were done before.
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
            let _ = queue.try_send(Task::Populate(Arc::downgrade(region), blocks.to_vec()));
        }
    }
}

/// Takes page tables down later; at once when the thread is busy or not there.
pub(crate) fn take_down(retired: Retired) {
    if retired.is_empty() {
        return;
    }
    if let Some(queue) = worker() {
        // A full queue gives the task back, and its drop does the work.
        let _ = queue.try_send(Task::TakeDown(retired));
    }
}

/// Unmaps an alias later, if that takes long and this is not one too many.
pub(crate) fn unmap(alias: Alias) {
    if alias.span().length <= alias.at_once() {
        return alias.leave();
    }
    if let Some(queue) = worker() {
        let _ = queue.try_send(Task::Unmap(alias));
    }
}

/// Starts the thread before it is needed, so that the first `get` does not pay for it.
pub(crate) fn warm_up() {
    let _ = worker();
}

/// One thread a process.
fn worker() -> Option<&'static SyncSender<Task>> {
    static WORKER: OnceLock<Option<(u32, SyncSender<Task>)>> = OnceLock::new();
    let started = WORKER.get_or_init(|| {
        let (sender, receiver) = sync_channel::<Task>(QUEUE_MAX);
        let work = move || {
            for task in receiver {
                match task {
                    Task::Populate(region, blocks) => {
                        blocks.into_iter().for_each(|block| walk(&region, block));
                    }
                    Task::TakeDown(retired) => drop(retired),
                    Task::Unmap(alias) => drop(alias),
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
        // Held for one piece at a time: a client that goes is not retained.
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
