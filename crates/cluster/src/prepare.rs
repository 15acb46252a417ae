//! Touches a region's pages before their first use: tables first, then the heap.
//!
//! A tmpfs reserves pages at creation and clears each at its first touch, which costs several times
//! as much as the copy into it. A thread touches them in advance, as far as the node lends them at
//! its start. It rests as long as it works, and has the usual priority: while it touches pages it
//! has the kernel's lock on the address space, and must not be without a core then.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farrow_memory::{Length, MapError, Offset, Populate, Region, Span, sync};

use crate::protocol::Preparation;

/// Bytes touched at once, few enough to stop quickly.
const PIECE_BYTES: u64 = 16 << 20;

/// Longest rest after a piece.
const REST_MAX: Duration = Duration::from_millis(50);

/// The pages to touch.
pub(crate) struct HeapPages {
    pub(crate) region: Arc<Region>,
    pub(crate) heap: Span,
    /// The lent ranges of the data section.
    pub(crate) lent: Vec<Span>,
}

/// Clears a flag at the end of the thread, whatever ends it.
struct Running(Arc<sync::AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, sync::Ordering::Release);
    }
}

/// Starts the thread. `prepared` counts the finished bytes of the heap. Clearing
/// `preparation.should_go_on` stops it.
pub(crate) fn start(
    pages: HeapPages,
    prepared: Arc<sync::AtomicU64>,
    preparation: Preparation,
) -> Option<JoinHandle<()>> {
    let HeapPages { region, heap, lent } = pages;
    let Preparation { should_go_on, is_running } = preparation;
    is_running.store(true, sync::Ordering::Relaxed);
    let running = Running(is_running);
    let work = move || {
        let _running = running;
        let is_stopped = || !should_go_on.load(sync::Ordering::Relaxed);
        let control = Length(region.geometry().control.0);
        let tables = Span { offset: Offset(control.0), length: Length(heap.offset.0 - control.0) };
        // Names and entries are written throughout the control section.
        let by_populate = |piece| region.populate(piece, Populate::Write);
        let by_alias = |piece| region.prepare(piece, &is_stopped).map(drop);
        let done =
            each_piece(Span { offset: Offset(0), length: control }, by_populate, &is_stopped)
                .and_then(|()| each_piece(tables, by_alias, &is_stopped))
                .and_then(|()| {
                    let by_alias = |piece: Span| {
                        by_alias(piece)?;
                        prepared.fetch_add(piece.length.0, sync::Ordering::Relaxed);
                        Ok(())
                    };
                    let mut lent = lent.iter().filter_map(|span| span.intersection(heap));
                    lent.try_for_each(|span| each_piece(span, by_alias, &is_stopped))
                });
        if let Err(error) = done {
            tracing::debug!(%error, "pages are not prepared in advance");
        }
    };
    match std::thread::Builder::new().name("farrow-prepare".into()).spawn(work) {
        Ok(thread) => Some(thread),
        Err(error) => {
            tracing::warn!(%error, "no thread can be started that prepares pages");
            None
        }
    }
}

fn each_piece(
    span: Span,
    prepare: impl Fn(Span) -> Result<(), MapError>,
    is_stopped: &dyn Fn() -> bool,
) -> Result<(), MapError> {
    let mut done = 0;
    while done < span.length.0 && !is_stopped() {
        let length = PIECE_BYTES.min(span.length.0 - done);
        let began = Instant::now();
        prepare(Span { offset: Offset(span.offset.0 + done), length: Length(length) })?;
        done += length;
        std::thread::sleep(began.elapsed().min(REST_MAX));
    }
    Ok(())
}
