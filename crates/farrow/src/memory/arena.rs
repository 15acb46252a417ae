//! Memory for small objects, several to a page.
//!
//! Small objects are written through a second mapping of their chunk, at a private address, which
//! is removed with the chunk. A system call for each object takes longer than the rest of a put,
//! and locks the whole file of a region against other clients' writes.

use std::sync::{Arc, Mutex};

use farrow_memory::{Alias, Length, Offset, Region, Span, page_bytes};
use farrow_store::BLOCK_BYTES;

use crate::clock::deadline_after;
use crate::error::Error;
use crate::gate::RequestGate;
use crate::interrupt::suspend;
use crate::lock::lock;
use crate::memory::extents::Extents;
use crate::memory::node::{NodeAccess, NodeUntil};
use crate::memory::room::Demand;

/// Objects up to this size share pages. Larger ones have pages of their own, which wastes less than
/// 1/16 of them.
pub(crate) const SMALL_BYTES_MAX: u64 = 64 << 10;

/// The first chunk from which small objects are cut; each later one is twice as large.
const CHUNK_BYTES_FIRST: u64 = 64 << 10;
/// The largest chunk.
const CHUNK_BYTES_MAX: u64 = 1 << 20;

/// Bytes of a chunk's mapping that are populated at a time: 64 single page faults cost more, and
/// the whole chunk at once would be a noticeable pause.
const READY_BYTES: u64 = 256 << 10;

/// The reason of a wait for another thread, in errors.
const WAIT_FOR_CHUNK: &str = "memory for small objects, which another thread requests";

#[derive(Debug, Default)]
pub(crate) struct Arena {
    state: Mutex<ArenaState>,
    /// One thread at a time asks the node for a chunk.
    refill: RequestGate,
}

#[derive(Debug, Default)]
struct ArenaState {
    /// The unused rest of the chunk.
    next: u64,
    end: u64,
    chunk_bytes: u64,
    /// The chunk, writable. `None`: the mapping failed.
    alias: Option<Arc<Alias>>,
    /// End of the populated part of the alias.
    ready_end: u64,
}

impl Arena {
    /// Memory for `bytes`, rounded up to whole lines, from free memory.
    pub(crate) fn take(
        &self,
        node: &dyn NodeAccess,
        extents: &Extents,
        bytes: u64,
    ) -> Result<Span, Error> {
        self.take_from(node, extents, bytes, |node, bytes| extents.take_to_cut(node, bytes))
    }

    /// As [`Self::take`], after that found no memory: the node makes room.
    pub(crate) fn make(
        &self,
        node: &dyn NodeAccess,
        extents: &Extents,
        bytes: u64,
        demand: &Demand,
    ) -> Result<Span, Error> {
        self.take_from(node, extents, bytes, |node, bytes| extents.make_to_cut(node, bytes, demand))
    }

    fn take_from(
        &self,
        node: &dyn NodeAccess,
        extents: &Extents,
        bytes: u64,
        fresh: impl FnOnce(&dyn NodeAccess, u64) -> Result<Span, Error>,
    ) -> Result<Span, Error> {
        let length = lines(bytes);
        if let Some(span) = lock(&self.state).take(length) {
            return Ok(span);
        }
        let deadline = deadline_after(node.timeout());
        let _one = self.refill.enter(WAIT_FOR_CHUNK, deadline)?;
        let chunk = {
            let mut state = lock(&self.state);
            // Another thread may have refilled it meanwhile.
            if let Some(span) = state.take(length) {
                return Ok(span);
            }
            (state.chunk_bytes * 2).clamp(CHUNK_BYTES_FIRST, CHUNK_BYTES_MAX)
        };
        let fresh = {
            // Other threads wait for this request.
            let _quiet = suspend();
            fresh(&NodeUntil { node, deadline }, chunk.max(length))?
        };
        let mut state = lock(&self.state);
        state.chunk_bytes = chunk;
        // A new chunk right behind the old one continues it: nothing is left over.
        if fresh.offset.0 != state.end {
            let rest = Span { offset: Offset(state.next), length: Length(state.end - state.next) };
            leave(node, extents, rest);
            state.next = fresh.offset.0;
        }
        state.end = fresh.offset.0 + fresh.length.0;
        state.map(node.region());
        Ok(state.cut(length))
    }

    /// Writes bytes to memory that was taken here, and publishes them.
    pub(crate) fn write(
        &self,
        region: &Arc<Region>,
        offset: Offset,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let span = Span { offset, length: Length(bytes.len() as u64) };
        let alias = lock(&self.state).alias.clone();
        match alias.filter(|alias| alias.span().contains(span)) {
            Some(alias) => alias.write(offset, bytes)?,
            // Another thread has started the next chunk since, or the mapping failed.
            None => write_by_call(region, offset, bytes)?,
        }
        // A seal follows, by a release store or by a message.
        region.publish_if_node_local(span)?;
        Ok(())
    }

    /// Gives back memory that was not used after all.
    pub(crate) fn untake(&self, node: &dyn NodeAccess, extents: &Extents, span: Span) {
        let mut state = lock(&self.state);
        if span.offset.0 + span.length.0 == state.next {
            state.next = span.offset.0;
        } else {
            drop(state);
            extents.give_lines(node, span);
        }
    }
}

impl ArenaState {
    fn take(&mut self, length: u64) -> Option<Span> {
        (self.end - self.next >= length).then(|| self.cut(length))
    }

    /// Cuts memory from the chunk, which is long enough.
    fn cut(&mut self, length: u64) -> Span {
        let span = Span { offset: Offset(self.next), length: Length(length) };
        self.next += length;
        if self.ready_end < self.next {
            self.make_ready();
        }
        span
    }

    /// Maps the new chunk in place of the old one.
    fn map(&mut self, region: &Arc<Region>) {
        let pages = self.next - self.next % page_bytes();
        let span = Span { offset: Offset(pages), length: Length(self.end - pages) };
        self.ready_end = pages;
        self.alias = region
            .alias(span)
            .inspect_err(|error| tracing::debug!(%error, "a chunk is written by system calls"))
            .map(Arc::new)
            .ok();
    }

    fn make_ready(&mut self) {
        let start = self.ready_end;
        self.ready_end = (self.next + READY_BYTES).min(self.end);
        if let Some(alias) = &self.alias {
            let part = Span { offset: Offset(start), length: Length(self.ready_end - start) };
            // If this fails, each page is populated by the first write to it.
            let _ = alias.populate_part(part);
        }
    }
}

/// `bytes` rounded up to whole lines.
pub(crate) fn lines(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(BLOCK_BYTES)
}

/// Writes bytes to pages of this client that are not mapped writable.
fn write_by_call(region: &Arc<Region>, offset: Offset, bytes: &[u8]) -> Result<(), Error> {
    if region.write_by_call(offset, bytes).is_err() {
        // A device may support only mappings.
        let span = Span { offset, length: Length(bytes.len() as u64) };
        let pages = span.outward(page_bytes()).unwrap_or(span);
        region.alias(pages)?.write(offset, bytes)?;
    }
    Ok(())
}

/// Gives back the rest of a chunk: whole pages to this client's extents, single lines to the node.
fn leave(node: &dyn NodeAccess, extents: &Extents, rest: Span) {
    let end = rest.offset.0 + rest.length.0;
    let first_page = rest.offset.0.next_multiple_of(page_bytes()).min(end);
    let lines = Span { offset: rest.offset, length: Length(first_page - rest.offset.0) };
    extents.give_lines(node, lines);
    if end > first_page {
        let pages = Span { offset: Offset(first_page), length: Length(end - first_page) };
        extents.give(node, pages);
    }
}
