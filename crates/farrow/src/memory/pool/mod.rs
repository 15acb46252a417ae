//! The buffers of the pool, which belong to the session.
//!
//! A buffer of a page or more has pages of its own. When it becomes part of an object, its pages
//! are sealed in place, and its address stays valid while the buffer lives. Smaller buffers share
//! pages and are copied at `put`, because a page is the unit of protection.

pub(crate) mod expected;
mod slab;

use std::collections::BTreeMap;
use std::sync::Mutex;

use farrow_memory::{Length, Offset, Retired, Span, fork, page_bytes, sync};
use farrow_store::Held;

use crate::error::Error;
use crate::lock::lock;
use crate::memory::extents::{Extents, SealOutcome, SealTicket};
use crate::memory::node::NodeAccess;
use crate::memory::unused::Unused;
use slab::Slabs;

/// Buffers from this size on have pages of their own.
const OWN_PAGES_BYTES_MIN: u64 = 2049;

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

/// The buffers of all pools of a session.
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
    /// seal remains unknown, or if it cannot be made writable again.
    Sealing(SealTicket),
    /// Part of an object, which this buffer holds.
    Sealed(Held),
}

/// What a freed buffer was.
pub(crate) enum FreedBuffer {
    /// Memory of no object, in use since that fork.
    Unused(Unused, u64),
    /// Part of an object, in use since that fork.
    Sealed(Held, u64),
}

/// The outcome of a reallocation in place.
pub(crate) enum Resized {
    /// The buffer has to move.
    Not,
    InPlace,
    /// In place, and these pages at its end are unused.
    Without(Span),
}

/// Bytes of a slab.
pub(crate) fn slab_bytes() -> u64 {
    Slabs::slab_bytes()
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

    /// Whether a buffer of this size and alignment is a slot of a slab.
    pub(crate) fn is_slot(size: u64, alignment: u64) -> bool {
        size < OWN_PAGES_BYTES_MIN && alignment <= slab::SLOT_BYTES_MIN
    }

    /// A slot of an open slab; `None` if there is none.
    pub(crate) fn take_slot(&self, size: u64) -> Option<Offset> {
        lock(&self.state).slabs.take(size).map(Offset)
    }

    /// Adds a slab of [`slab_bytes`] bytes, and takes a slot of it.
    pub(crate) fn take_slot_of(&self, fresh: Span, size: u64) -> Option<Offset> {
        let mut state = lock(&self.state);
        state.slabs.add(fresh, size, fork::completed_forks());
        state.slabs.take(size).map(Offset)
    }

    /// Records a buffer with pages of its own.
    pub(crate) fn insert(&self, pages: Span) {
        let since = fork::completed_forks();
        let large = Large { pages: pages.length.0, since, state: LargeState::Live };
        lock(&self.state).large.insert(pages.offset.0, large);
    }

    /// Removes a freed buffer of `size` bytes. `None`: there is none at this offset.
    pub(crate) fn remove(&self, offset: Offset, size: u64) -> Option<FreedBuffer> {
        let mut state = lock(&self.state);
        state.stats.freed(size);
        let Some(large) = state.large.remove(&offset.0) else {
            let since = state.slabs.since_of(offset.0)?;
            return Some(FreedBuffer::Unused(Unused::Slot(offset), since));
        };
        let pages = Span { offset, length: Length(large.pages) };
        Some(match large.state {
            LargeState::Live => FreedBuffer::Unused(Unused::Pages(pages), large.since),
            // The node decides whether the memory belongs to an object.
            LargeState::Sealing(ticket) => {
                FreedBuffer::Unused(Unused::Sealing(ticket), large.since)
            }
            LargeState::Sealed(held) => FreedBuffer::Sealed(held, large.since),
        })
    }

    /// Frees a slot. The result is its slab if that is empty now and another slab is open.
    pub(crate) fn remove_slot(&self, offset: Offset) -> Option<Span> {
        lock(&self.state).slabs.free(offset.0)
    }

    /// Changes the size of a buffer in place. `extend` takes that many bytes of pages behind its
    /// end, and returns whether they were free.
    pub(crate) fn resize(
        &self,
        offset: Offset,
        new: u64,
        extend: impl FnOnce(Offset, u64) -> bool,
    ) -> Resized {
        let mut state = lock(&self.state);
        let Some(large) = state.large.get_mut(&offset.0) else {
            return if state.slabs.fits(offset.0, new) { Resized::InPlace } else { Resized::Not };
        };
        if !matches!(large.state, LargeState::Live) || new < OWN_PAGES_BYTES_MIN {
            return Resized::Not;
        }
        let needed = new.next_multiple_of(page_bytes());
        if new <= large.pages {
            // Shrinking by half or more is worth a system call: Arrow trims its builders this way.
            // A tail that a child may share is returned with the rest.
            let is_inherited = fork::is_inherited(large.since, fork::forks());
            if needed > large.pages / 2 || is_inherited {
                return Resized::InPlace;
            }
            let offset = Offset(offset.0 + needed);
            let tail = Span { offset, length: Length(large.pages - needed) };
            large.pages = needed;
            return Resized::Without(tail);
        }
        if !extend(Offset(offset.0 + large.pages), needed - large.pages) {
            return Resized::Not;
        }
        large.pages = needed;
        Resized::InPlace
    }

    /// Counts an allocation.
    pub(crate) fn count_allocated(&self, bytes: u64) {
        lock(&self.state).stats.allocated(bytes);
    }

    /// Counts an allocation that failed.
    pub(crate) fn count_refused(&self, bytes: u64) {
        self.refused.fetch_add(1, sync::Ordering::Relaxed);
        self.refused_bytes.fetch_add(bytes, sync::Ordering::Relaxed);
    }

    /// Counts a reallocation in place.
    pub(crate) fn count_resized(&self, old: u64, new: u64) {
        lock(&self.state).stats.resized(old, new);
    }

    /// Counts a reallocation that moved.
    pub(crate) fn count_moved(&self) {
        lock(&self.state).stats.moves += 1;
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let mut stats = lock(&self.state).stats;
        stats.refused = self.refused.load(sync::Ordering::Relaxed);
        stats.refused_bytes = self.refused_bytes.load(sync::Ordering::Relaxed);
        stats
    }

    /// Returns unused memory to the node. False if there is none.
    pub(crate) fn trim(&self, node: &dyn NodeAccess) -> bool {
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
    pub(crate) fn free_slot(&self, node: &dyn NodeAccess, offset: Offset) {
        if let Some(slab) = self.remove_slot(offset) {
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
        node: &dyn NodeAccess,
        pages: &[Span],
        retired: &mut Retired,
    ) -> Result<Vec<SealTicket>, Error> {
        let mut tickets = Vec::with_capacity(pages.len());
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
                    let ticket = self.extents.seal_requested(*span);
                    large.state = LargeState::Sealing(ticket);
                    tickets.push(ticket);
                }
            }
        }
        for span in merged(pages) {
            if let Err(error) = node.protect(span, &[span], retired) {
                self.abort_seal(node, &tickets);
                return Err(error);
            }
        }
        Ok(tickets)
    }

    /// Records a successful seal: the buffers belong to the object, and each holds it until freed.
    pub(crate) fn commit_seal(&self, node: &dyn NodeAccess, tickets: &[SealTicket], held: &Held) {
        for ticket in tickets {
            let is_live =
                lock(&self.state).replace_sealing(*ticket, || LargeState::Sealed(held.clone()));
            if is_live {
                self.extents.sealed(node, *ticket);
            } else {
                // Freed meanwhile; a forked child may still read it.
                let outcome = SealOutcome::Sealed(Some(held.clone()));
                self.extents.conclude(node, *ticket, outcome);
            }
        }
    }

    /// Records a failed seal: the buffers are writable again. Those that cannot be made writable stay
    /// read-only until they are freed, and then return to the node.
    pub(crate) fn abort_seal(&self, node: &dyn NodeAccess, tickets: &[SealTicket]) {
        let (mut live, mut read_only) = (Vec::new(), Vec::new());
        let freed = {
            let mut state = lock(&self.state);
            let (own, freed): (Vec<SealTicket>, Vec<SealTicket>) =
                tickets.iter().partition(|ticket| state.is_sealing(**ticket));
            // Under the lock: a buffer that is freed meanwhile must not become writable.
            for span in merged(&own.iter().map(|ticket| ticket.span).collect::<Vec<_>>()) {
                let of_span = own.iter().filter(|ticket| span.contains(ticket.span));
                if let Err(error) = node.region().make_writable(span) {
                    tracing::error!(%error, %span, "a buffer stays read-only");
                    read_only.extend(of_span);
                } else {
                    live.extend(of_span);
                }
            }
            for ticket in &live {
                state.replace_sealing(*ticket, || LargeState::Live);
            }
            freed
        };
        for ticket in live {
            self.extents.refused(node, ticket);
        }
        for ticket in read_only {
            self.extents.refused_read_only(node, ticket);
        }
        for ticket in freed {
            self.extents.conclude(node, ticket, SealOutcome::Refused);
        }
    }
}

impl PoolState {
    fn is_sealing(&self, ticket: SealTicket) -> bool {
        let large = self.large.get(&ticket.span.offset.0);
        large.is_some_and(|large| matches!(large.state, LargeState::Sealing(own) if own == ticket))
    }

    /// Ends the seal of a buffer. False: the buffer was freed meanwhile.
    fn replace_sealing(&mut self, ticket: SealTicket, next: impl FnOnce() -> LargeState) -> bool {
        let is_sealing = self.is_sealing(ticket);
        if let Some(large) = self.large.get_mut(&ticket.span.offset.0).filter(|_| is_sealing) {
            large.state = next();
        }
        is_sealing
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
