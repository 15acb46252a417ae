//! Room for small objects, several to a page.
//!
//! They are written by a system call, not through a mapping: then no page that holds a sealed
//! object is mapped writable anywhere, and no page fault is paid.

use std::sync::Mutex;

use farrow_memory::{Length, Offset, Span, page_bytes};
use farrow_store::BLOCK_BYTES;

use crate::error::Error;
use crate::session::{Session, lock};

/// Objects up to this size share pages; larger ones have pages of their own, which wastes less
/// than one part in 16 of them.
pub(crate) const SMALL_BYTES_MAX: u64 = 64 << 10;

/// Chunks that small objects are cut from grow from the first size to the greatest.
const CHUNK_BYTES_FIRST: u64 = 64 << 10;
const CHUNK_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Arena {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What is left of the chunk.
    next: u64,
    end: u64,
    chunk_bytes: u64,
}

impl Arena {
    /// Room for `bytes`, rounded up to whole lines.
    pub(crate) fn take(&self, session: &Session, bytes: u64) -> Result<Span, Error> {
        let length = bytes.max(1).next_multiple_of(BLOCK_BYTES);
        let mut state = lock(&self.state);
        if state.end - state.next < length {
            let chunk = (state.chunk_bytes * 2).clamp(CHUNK_BYTES_FIRST, CHUNK_BYTES_MAX);
            let fresh = session.extents.take(session, chunk.max(length))?;
            state.chunk_bytes = chunk;
            // Behind the old chunk, the new one may go on with it: nothing is left over then.
            if fresh.offset.0 != state.end {
                let rest =
                    Span { offset: Offset(state.next), length: Length(state.end - state.next) };
                leave(session, rest);
                state.next = fresh.offset.0;
            }
            state.end = fresh.offset.0 + fresh.length.0;
        }
        let span = Span { offset: Offset(state.next), length: Length(length) };
        state.next += length;
        Ok(span)
    }

    /// Gives back room that was not used after all.
    pub(crate) fn untake(&self, session: &Session, span: Span) {
        let mut state = lock(&self.state);
        if span.offset.0 + span.length.0 == state.next {
            state.next = span.offset.0;
        } else {
            drop(state);
            session.extents.give_lines(session, span);
        }
    }
}

/// The remains of a chunk: its whole pages are of use to others here, the rest to the node only.
fn leave(session: &Session, rest: Span) {
    let end = rest.offset.0 + rest.length.0;
    let first_page = rest.offset.0.next_multiple_of(page_bytes()).min(end);
    let lines = Span { offset: rest.offset, length: Length(first_page - rest.offset.0) };
    session.extents.give_lines(session, lines);
    if end > first_page {
        let pages = Span { offset: Offset(first_page), length: Length(end - first_page) };
        session.extents.give(session, pages);
    }
}
