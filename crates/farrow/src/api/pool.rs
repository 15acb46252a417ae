//! The allocator of memory in the region, for Arrow to build tables in.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use farrow_memory::{Address, Length, Offset, Span, fork, page_bytes};

use crate::connection::session::Session;
use crate::error::Error;
use crate::lock::lock;
use crate::memory::pool::expected::Expected;
use crate::memory::pool::{FreedBuffer, PoolCore, PoolStats, Resized, slab_bytes};
use crate::memory::unused::Unused;

/// The page table entries of buffers from this size on are populated at once, which causes a
/// quarter of the page faults.
const POPULATE_BYTES_MIN: u64 = 256 << 10;

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
        self.session.check()?;
        self.expect_no_more();
        let sizes: Vec<u64> = sizes.iter().copied().filter(|size| *size > 0).collect();
        if !sizes.is_empty() {
            let expected = Expected::take(&*self.session, self.session.pool.extents(), &sizes)?;
            *lock(&self.expected) = Some(expected);
        }
        Ok(())
    }

    /// Returns the unused part of the memory reserved with [`Self::expect`].
    pub fn expect_no_more(&self) {
        // In a forked child the memory belongs to the parent, a thread of which may have held the lock.
        if !self.session.is_own_process() {
            return;
        }
        let expected = lock(&self.expected).take();
        if let Some(expected) = expected {
            expected.end(&*self.session, self.session.pool.extents());
        }
    }

    /// Memory of at least `size` bytes at a multiple of `alignment` (a power of two up to a page).
    /// `None`: the region is full, or this process is a forked child of the client's.
    pub fn allocate(&self, size: usize, alignment: usize) -> Option<NonNull<u8>> {
        let taken = self.take(size, alignment);
        let Some(offset) = taken else {
            self.session.pool.count_refused(size as u64);
            return None;
        };
        self.session.pool.count_allocated(size as u64);
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
            self.session.pool.count_resized(old as u64, new as u64);
            return Some(pointer);
        }
        let fresh = self.allocate(new, alignment)?;
        let retained = old.min(new) as u64;
        let moved = self.offset(fresh).is_some_and(|to| self.copy(offset, to, retained).is_ok());
        if !moved {
            self.free(fresh, new);
            return None;
        }
        self.session.pool.count_moved();
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
        match session.pool.remove(offset, size as u64) {
            Some(FreedBuffer::Unused(memory, since)) => self.give_unused(memory, since),
            Some(FreedBuffer::Sealed(held, since)) => {
                held.date_back(since);
                session.release(held);
            }
            None => {}
        }
    }

    /// True if the pointer is into the region, so that this pool must free it.
    pub fn contains(&self, pointer: NonNull<u8>) -> bool {
        self.offset(pointer).is_some()
    }

    /// Statistics since the client connected; zeros in a forked child.
    pub fn stats(&self) -> PoolStats {
        if !self.session.is_own_process() {
            return PoolStats::default();
        }
        self.session.pool.stats()
    }

    /// Returns unused memory to the node.
    pub fn trim(&self) {
        self.session.pool.trim(&*self.session);
    }

    fn take(&self, size: usize, alignment: usize) -> Option<Offset> {
        let session = &self.session;
        let size = size.max(1) as u64;
        let alignment = alignment as u64;
        if alignment > page_bytes() || !session.is_own_process() {
            return None;
        }
        if PoolCore::is_slot(size, alignment) {
            return self.take_slot(size);
        }
        let span = self.pages(size)?;
        if span.length.0 >= POPULATE_BYTES_MIN {
            let _ = session.region.populate(span, farrow_memory::Populate::Write);
        }
        session.pool.insert(span);
        Some(span.offset)
    }

    fn take_slot(&self, size: u64) -> Option<Offset> {
        let core = &self.session.pool;
        core.take_slot(size)
            .or_else(|| self.pages(slab_bytes()).and_then(|fresh| core.take_slot_of(fresh, size)))
    }

    fn fits_in_place(&self, offset: Offset, new: u64) -> bool {
        let core = &self.session.pool;
        let extend = |end: Offset, more: u64| {
            let of_expected =
                lock(&self.expected).as_mut().is_some_and(|room| room.extend(end, more));
            of_expected || core.extents().extend(end, more)
        };
        match core.resize(offset, new, extend) {
            Resized::Not => false,
            Resized::InPlace => true,
            Resized::Without(tail) => {
                self.give(tail);
                true
            }
        }
    }

    /// Whole pages: of the expected memory, or else of free memory.
    fn pages(&self, bytes: u64) -> Option<Span> {
        let expected = lock(&self.expected).as_mut().and_then(|room| room.allocate(bytes));
        expected.or_else(|| logged(self.session.pool.extents().take(&*self.session, bytes)))
    }

    /// Gives back memory that was in use since fork `since`: to the expected memory if it is part
    /// of that, once no child shares it.
    fn give_unused(&self, memory: Unused, since: u64) {
        if fork::is_inherited(since, fork::forks()) {
            return self.session.give_unused(memory, since);
        }
        let pages = match memory {
            Unused::Pages(pages) => Some(pages),
            Unused::Slot(offset) => self.session.pool.remove_slot(offset),
            Unused::Sealing(_) => return self.session.give_unused(memory, since),
        };
        if let Some(pages) = pages {
            self.give(pages);
        }
    }

    fn give(&self, span: Span) {
        let is_expected = lock(&self.expected).as_mut().is_some_and(|room| room.give(span));
        if !is_expected {
            self.session.pool.extents().give(&*self.session, span);
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

fn logged(taken: Result<Span, Error>) -> Option<Span> {
    taken.inspect_err(|error| tracing::debug!(%error, "the pool has no room")).ok()
}
