//! Makes the heap's pages ready ahead of the first put.
//!
//! A tmpfs reserves pages at creation and clears each at its first touch, which costs several
//! times what the copy into it does. A thread of low priority touches them beforehand.

use std::sync::Arc;
use std::thread::JoinHandle;

use farrow_memory::{Length, Offset, Region, Span, sync};

/// Bytes touched at once: small enough to stop soon.
const PIECE_BYTES: u64 = 16 << 20;

/// Starts the thread; `prepared` counts the bytes done, `should_go_on` stops it.
pub(crate) fn start(
    region: Arc<Region>,
    heap: Span,
    prepared: Arc<sync::AtomicU64>,
    should_go_on: Arc<sync::AtomicBool>,
) -> Option<JoinHandle<()>> {
    let work = move || {
        // The nice value belongs to the thread on Linux (sched(7)).
        let _ = rustix::process::nice(19);
        let is_stopped = || !should_go_on.load(sync::Ordering::Relaxed);
        let mut done = 0;
        while done < heap.length.0 && !is_stopped() {
            let length = PIECE_BYTES.min(heap.length.0 - done);
            let piece = Span { offset: Offset(heap.offset.0 + done), length: Length(length) };
            if let Err(error) = region.prepare(piece, &is_stopped) {
                tracing::debug!(%error, "pages are not made ready ahead");
                return;
            }
            done += length;
            prepared.store(done, sync::Ordering::Relaxed);
        }
    };
    match std::thread::Builder::new().name("farrow-prepare".into()).spawn(work) {
        Ok(thread) => Some(thread),
        Err(error) => {
            tracing::warn!(%error, "no thread to make pages ready");
            None
        }
    }
}
