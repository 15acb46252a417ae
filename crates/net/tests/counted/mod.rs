//! The system's allocator. It notes the largest block and the most bytes at a time, of all threads
//! but those of the test itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use farrow_memory::sync::{AtomicU64, Ordering::Relaxed};

static LIVE: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(0);
static LARGEST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_COUNTED: Cell<bool> = const { Cell::new(true) };
}

/// Counts nothing on this thread from now on.
pub fn leave_out_this_thread() {
    IS_COUNTED.set(false);
}

pub struct CountingAllocator;

/// Begins again at zero.
pub fn reset() {
    LIVE.store(0, Relaxed);
    MOST.store(0, Relaxed);
    LARGEST.store(0, Relaxed);
}

/// The largest block and the most bytes at a time, since the last reset.
pub fn maxima() -> [u64; 2] {
    [LARGEST.load(Relaxed), MOST.load(Relaxed)]
}

fn change(added: usize, removed: usize) {
    // A thread that ends may free memory after its local values.
    if !IS_COUNTED.try_with(Cell::get).unwrap_or(true) {
        return;
    }
    let change = (added as u64).wrapping_sub(removed as u64);
    let live = LIVE.fetch_add(change, Relaxed).wrapping_add(change);
    // Below zero: memory of before the last reset was freed.
    if live < 1 << 63 {
        MOST.fetch_max(live, Relaxed);
    }
    LARGEST.fetch_max(added as u64, Relaxed);
}

// SAFETY: every call is forwarded to the system's allocator with its own arguments.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        change(layout.size(), 0);
        // SAFETY: the caller upholds the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        change(0, layout.size());
        // SAFETY: the caller upholds the contract of `dealloc`; `System` allocated the block.
        unsafe { System.dealloc(block, layout) }
    }
}
