//! An allocator of memory in the region, for Arrow to build tables in.
//!
//! A buffer of a page or more has pages of its own. When it becomes part of an object, its pages
//! are sealed in place, and its address stays valid while the buffer lives. Smaller buffers share
//! pages and are copied at `put`, because a page is the unit of protection.

mod expected;
mod slab;

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use farrow_memory::{Address, Length, Offset, Retired, Span, fork, page_bytes, sync};
use farrow_store::Held;

use crate::connection::session::Session;
use crate::error::Error;
use crate::lock::lock;
use crate::memory::extents::{Extents, SealTicket};
use crate::memory::node::Node;
use crate::memory::unused::Unused;
use expected::Expected;
use slab::Slabs;

/// Buffers from this size on have pages of their own.
const OWN_PAGES_BYTES_MIN: u64 = 2049;

/// The page table entries of buffers from this size on are populated at once, which causes a
/// quarter of the page faults.
const POPULATE_BYTES_MIN: u64 = 256 << 10;

/// Statistics of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of live allocations.
    pub allocated: u64,
    /// Maximum of the bytes that were live at one time.
    pub allocated_max: u64,
    /// Allocations since the start.
    pub allocations: u64,
    /// Bytes allocated since the start.
    pub allocated_total: u64,
    /// Reallocations that had to move.
    pub moves: u64,
    /// Allocations that failed because the region was full.
    pub refused: u64,
    /// Bytes requested by these allocations.
    pub refused_bytes: u64,
}

/// The pool of a client. Threads may share it. Its memory keeps the client's session alive only
/// while the pool lives, so a consumer of its buffers must also keep the pool.
///
/// A pool takes free memory. It knows neither the total demand nor whether an object will result,
/// so no object is evicted or spilled for it; when memory is full its allocations fail. A load that
/// knows its size declares it with [`Self::expect`], and then objects are evicted for it.
#[derive(Debug)]
pub struct Pool {
    session: Arc<Session>,
    expected: Mutex<Option<Expected>>,
}

/// The state of the pool, which belongs to the session.
#[derive(Debug)]
pub(crate) struct PoolCore {
    extents: Extents,
    state: Mutex<PoolState>,
    refused: sync::AtomicU64,
    refused_bytes: sync::AtomicU64,
}

#[derive(Debug, Default)]
struct PoolState {
    slabs: Slabs,
    large: BTreeMap<u64, Large>,
    stats: PoolStats,
}

/// A buffer with pages of its own.
#[derive(Debug)]
struct Large {
    pages: u64,
    /// The last fork before the allocation.
    since: u64,
    state: LargeState,
}

#[derive(Debug)]
enum LargeState {
    Live,
    /// Being sealed: read-only, and no other thread may seal it. It stays so if the outcome of the
    /// seal remains unknown.
    Sealing(SealTicket),
    /// Part of an object, which this buffer holds.
    Sealed(Held),
}

impl Pool {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session, expected: Mutex::default() }
    }

    /// Reserves memory for buffers of these sizes, all or none, instead of any earlier reservation.
    /// Unused objects are evicted or spilled for it, but only if that frees enough. A single size
    /// may be the sum of all buffers. Unused memory is returned by [`Self::expect_no_more`], or
    /// with the pool.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] and the other errors of [`Client::create`](crate::Client::create)
    /// about memory.
    pub fn expect(&self, sizes: &[u64]) -> Result<(), Error> {
        self.session.check_process()?;
        self.expect_no_more();
        let sizes: Vec<u64> = sizes.iter().copied().filter(|size| *size > 0).collect();
        if !sizes.is_empty() {
            let expected = Expected::take(&self.session, self.session.pool.extents(), &sizes)?;
            *lock(&self.expected) = Some(expected);
        }
        Ok(())
    }

    /// Returns the unused part of the memory reserved with [`Self::expect`].
    pub fn expect_no_more(&self) {
        let expected = lock(&self.expected).take();
        if let Some(expected) = expected
            && self.session.is_own_process()
        {
            expected.end(&self.session, self.session.pool.extents());
        }
    }

    /// Memory of at least `size` bytes at a multiple of `alignment` (a power of two up to a page).
    /// `None`: the region is full, or this process is a forked child of the client's.
    pub fn allocate(&self, size: usize, alignment: usize) -> Option<NonNull<u8>> {
        let core = &self.session.pool;
        let taken = self.take(size, alignment);
        let Some(offset) = taken else {
            core.refused.fetch_add(1, sync::Ordering::Relaxed);
            core.refused_bytes.fetch_add(size as u64, sync::Ordering::Relaxed);
            return None;
        };
        lock(&core.state).stats.allocated(size as u64);
        self.pointer(offset)
    }

    /// Changes the size of an allocation, in place if possible; its first bytes are retained.
    /// `None`: the region is full, and the old allocation stays as it was.
    pub fn reallocate(
        &self,
        pointer: NonNull<u8>,
        old: usize,
        new: usize,
        alignment: usize,
    ) -> Option<NonNull<u8>> {
        // In a forked child the allocation belongs to the parent.
        let offset = self.offset(pointer).filter(|_| self.session.is_own_process())?;
        if self.fits_in_place(offset, new as u64) {
            lock(&self.session.pool.state).stats.resized(old as u64, new as u64);
            return Some(pointer);
        }
        let fresh = self.allocate(new, alignment)?;
        let retained = old.min(new) as u64;
        let moved = self.offset(fresh).is_some_and(|to| self.copy(offset, to, retained).is_ok());
        if !moved {
            self.free(fresh, new);
            return None;
        }
        lock(&self.session.pool.state).stats.moves += 1;
        self.free(pointer, old);
        Some(fresh)
    }

    /// Frees an allocation of `size` bytes. Memory that became part of an object stays in it.
    pub fn free(&self, pointer: NonNull<u8>, size: usize) {
        let session = &self.session;
        if !session.is_own_process() {
            return;
        }
        let Some(offset) = self.offset(pointer) else {
            return;
        };
        let freed = {
            let mut state = lock(&session.pool.state);
            state.stats.freed(size as u64);
            match state.large.remove(&offset.0) {
                Some(large) => FreeOutcome::Large(large),
                None => match state.slabs.since_of(offset.0) {
                    Some(since) => FreeOutcome::Slot(since),
                    None => return,
                },
            }
        };
        let large = match freed {
            FreeOutcome::Large(large) => large,
            FreeOutcome::Slot(since) => return self.give_unused(Unused::Slot(offset), since),
        };
        let pages = Span { offset, length: Length(large.pages) };
        match large.state {
            LargeState::Live => self.give_unused(Unused::Pages(pages), large.since),
            LargeState::Sealed(held) => {
                held.date_back(large.since);
                session.release(held);
            }
            // The node decides whether the memory belongs to an object.
            LargeState::Sealing(ticket) => self.give_unused(Unused::Limbo(ticket), large.since),
        }
    }

    /// True if the pointer is into the region, so that this pool must free it.
    pub fn contains(&self, pointer: NonNull<u8>) -> bool {
        self.offset(pointer).is_some()
    }

    /// Statistics since the client connected; zeros in a forked child.
    pub fn stats(&self) -> PoolStats {
        let core = &self.session.pool;
        if !self.session.is_own_process() {
            return PoolStats::default();
        }
        let mut stats = lock(&core.state).stats;
        stats.refused = core.refused.load(sync::Ordering::Relaxed);
        stats.refused_bytes = core.refused_bytes.load(sync::Ordering::Relaxed);
        stats
    }

    /// Returns unused memory to the node.
    pub fn trim(&self) {
        self.session.pool.trim(&self.session);
    }

    fn take(&self, size: usize, alignment: usize) -> Option<Offset> {
        let session = &self.session;
        let size = size.max(1) as u64;
        let alignment = alignment as u64;
        if alignment > page_bytes() || !session.is_own_process() {
            return None;
        }
        if size < OWN_PAGES_BYTES_MIN && alignment <= slab::SLOT_BYTES_MIN {
            return self.take_slot(size);
        }
        let span = self.pages(size)?;
        if span.length.0 >= POPULATE_BYTES_MIN {
            let _ = session.region.populate(span, farrow_memory::Populate::Write);
        }
        let since = fork::completed_forks();
        let large = Large { pages: span.length.0, since, state: LargeState::Live };
        lock(&session.pool.state).large.insert(span.offset.0, large);
        Some(span.offset)
    }

    fn take_slot(&self, size: u64) -> Option<Offset> {
        let core = &self.session.pool;
        if let Some(offset) = lock(&core.state).slabs.take(size) {
            return Some(Offset(offset));
        }
        let bytes = Slabs::slab_bytes();
        let span = self.pages(bytes)?;
        let mut state = lock(&core.state);
        state.slabs.add(span, size, fork::completed_forks());
        state.slabs.take(size).map(Offset)
    }

    fn fits_in_place(&self, offset: Offset, new: u64) -> bool {
        let core = &self.session.pool;
        let mut state = lock(&core.state);
        let Some(large) = state.large.get_mut(&offset.0) else {
            return state.slabs.fits(offset.0, new);
        };
        if !matches!(large.state, LargeState::Live) || new < OWN_PAGES_BYTES_MIN {
            return false;
        }
        if new <= large.pages {
            let needed = new.next_multiple_of(page_bytes());
            // Shrinking by half or more is worth a system call: Arrow trims its builders this way.
            // A tail that a child may share is returned with the rest.
            let is_inherited = fork::is_inherited(large.since, fork::forks());
            if needed <= large.pages / 2 && !is_inherited {
                let offset = Offset(offset.0 + needed);
                let tail = Span { offset, length: Length(large.pages - needed) };
                large.pages = needed;
                drop(state);
                self.give(tail);
            }
            return true;
        }
        let end = Offset(offset.0 + large.pages);
        let more = new.next_multiple_of(page_bytes()) - large.pages;
        let of_expected = lock(&self.expected).as_mut().is_some_and(|room| room.extend(end, more));
        let grown = of_expected || core.extents.extend(end, more);
        if grown {
            large.pages = new.next_multiple_of(page_bytes());
        }
        grown
    }

    /// Whole pages: of the expected memory, or else of free memory.
    fn pages(&self, bytes: u64) -> Option<Span> {
        let expected = lock(&self.expected).as_mut().and_then(|room| room.allocate(bytes));
        expected.or_else(|| logged(self.session.pool.extents.take(&self.session, bytes)))
    }

    /// Gives back memory that was in use since fork `since`: to the expected memory if it is part
    /// of that, once no child shares it.
    fn give_unused(&self, memory: Unused, since: u64) {
        if fork::is_inherited(since, fork::forks()) {
            return self.session.give_unused(memory, since);
        }
        let pages = match memory {
            Unused::Pages(pages) => Some(pages),
            Unused::Slot(offset) => lock(&self.session.pool.state).slabs.free(offset.0),
            Unused::Limbo(_) => return self.session.give_unused(memory, since),
        };
        if let Some(pages) = pages {
            self.give(pages);
        }
    }

    fn give(&self, span: Span) {
        let is_expected = lock(&self.expected).as_mut().is_some_and(|room| room.give(span));
        if !is_expected {
            self.session.pool.extents.give(&self.session, span);
        }
    }

    /// Copies within the region, from memory that no thread changes now to memory of this client.
    fn copy(&self, from: Offset, to: Offset, length: u64) -> Result<(), Error> {
        let region = &self.session.region;
        let source = region.sealed(Span { offset: from, length: Length(length) })?;
        let target = region.writable_slice(Span { offset: to, length: Length(length) })?;
        Ok(target.write_at(to, source.as_slice())?)
    }

    fn offset(&self, pointer: NonNull<u8>) -> Option<Offset> {
        self.session.region.offset_of(Address(pointer.as_ptr() as usize))
    }

    fn pointer(&self, offset: Offset) -> Option<NonNull<u8>> {
        let address = self.session.region.address_of(Span { offset, length: Length(1) }).ok()?;
        NonNull::new(std::ptr::with_exposed_provenance_mut(address.0))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // In a forked child the lock may have been held by another thread of the parent.
        if self.session.is_own_process() {
            self.expect_no_more();
        }
    }
}

enum FreeOutcome {
    Large(Large),
    /// A slot of a slab made after that fork.
    Slot(u64),
}

fn logged(taken: Result<Span, Error>) -> Option<Span> {
    taken.inspect_err(|error| tracing::debug!(%error, "the pool has no room")).ok()
}

impl PoolCore {
    pub(crate) fn new(heap: Span) -> Result<Self, Error> {
        Ok(Self {
            extents: Extents::new(heap, true)?,
            state: Mutex::default(),
            refused: sync::AtomicU64::new(0),
            refused_bytes: sync::AtomicU64::new(0),
        })
    }

    /// Returns unused memory to the node. False if there is none.
    pub(crate) fn trim(&self, node: &dyn Node) -> bool {
        if !node.is_own_process() {
            return false;
        }
        let empty = lock(&self.state).slabs.take_empty();
        empty.iter().for_each(|slab| self.extents.give(node, *slab));
        self.extents.trim(node) || !empty.is_empty()
    }

    pub(crate) fn extents(&self) -> &Extents {
        &self.extents
    }

    /// Frees a slot, and its slab if that is empty now and another slab is open.
    pub(crate) fn free_slot(&self, node: &dyn Node, offset: Offset) {
        let slab = lock(&self.state).slabs.free(offset.0);
        if let Some(slab) = slab {
            self.extents.give(node, slab);
        }
    }

    /// The pages of the buffer that contains `span`, if it has pages of its own, and whether they
    /// are already part of an object.
    pub(crate) fn find(&self, span: Span) -> Option<(Span, bool)> {
        let state = lock(&self.state);
        let (start, large) = state.large.range(..=span.offset.0).next_back()?;
        let pages = Span { offset: Offset(*start), length: Length(large.pages) };
        match &large.state {
            LargeState::Live => pages.contains(span).then_some((pages, false)),
            LargeState::Sealed(_) => pages.contains(span).then_some((pages, true)),
            LargeState::Sealing(_) => None,
        }
    }

    /// Makes buffers read-only before their seal. If another thread is already sealing one of them,
    /// that is an error, and nothing changes.
    pub(crate) fn begin_seal(
        &self,
        node: &dyn Node,
        pages: &[Span],
        retired: &mut Retired,
    ) -> Result<(), Error> {
        {
            let mut state = lock(&self.state);
            let is_live = |span: &Span| {
                state.large.get(&span.offset.0).is_some_and(|large| {
                    matches!(large.state, LargeState::Live) && large.pages == span.length.0
                })
            };
            if !pages.iter().all(is_live) {
                return Err(Error::InvalidArgument(
                    "a buffer of this object is being put by another thread".into(),
                ));
            }
            for span in pages {
                if let Some(large) = state.large.get_mut(&span.offset.0) {
                    large.state = LargeState::Sealing(self.extents.asked(*span));
                }
            }
        }
        for span in merged(pages) {
            if let Err(error) = node.protect(span, &[span], retired) {
                self.abort_seal(node, pages);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Records a successful seal: the buffers belong to the object, and each holds it until freed.
    pub(crate) fn commit_seal(&self, pages: &[Span], held: &Held) {
        let mut state = lock(&self.state);
        for span in pages {
            if let Some(large) = state.large.get_mut(&span.offset.0) {
                let before = std::mem::replace(&mut large.state, LargeState::Sealed(held.clone()));
                if let LargeState::Sealing(ticket) = before {
                    self.extents.sealed(ticket);
                }
            }
        }
    }

    /// Records a failed seal: the buffers are writable again.
    pub(crate) fn abort_seal(&self, node: &dyn Node, pages: &[Span]) {
        for span in merged(pages) {
            if let Err(error) = node.region().make_writable(span) {
                tracing::error!(%error, %span, "a buffer stays read-only");
            }
        }
        let mut state = lock(&self.state);
        for span in pages {
            if let Some(large) = state.large.get_mut(&span.offset.0) {
                let before = std::mem::replace(&mut large.state, LargeState::Live);
                if let LargeState::Sealing(ticket) = before {
                    self.extents.refused(ticket);
                }
            }
        }
    }
}

/// Merges adjacent spans, for fewer system calls.
fn merged(pages: &[Span]) -> Vec<Span> {
    let mut sorted = pages.to_vec();
    sorted.sort_unstable_by_key(|span| span.offset);
    let mut merged: Vec<Span> = Vec::with_capacity(sorted.len());
    for span in sorted {
        match merged.last_mut() {
            Some(last) if last.offset.0 + last.length.0 == span.offset.0 => {
                last.length.0 += span.length.0;
            }
            _ => merged.push(span),
        }
    }
    merged
}

impl PoolStats {
    fn allocated(&mut self, bytes: u64) {
        self.allocations += 1;
        self.allocated_total += bytes;
        self.allocated += bytes;
        self.allocated_max = self.allocated_max.max(self.allocated);
    }

    fn freed(&mut self, bytes: u64) {
        self.allocated = self.allocated.saturating_sub(bytes);
    }

    fn resized(&mut self, old: u64, new: u64) {
        self.allocated_total += new.saturating_sub(old);
        self.allocated = self.allocated.saturating_sub(old) + new;
        self.allocated_max = self.allocated_max.max(self.allocated);
    }
}
