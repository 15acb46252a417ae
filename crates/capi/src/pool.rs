//! The memory pool of `farrow.h`: the basis of `farrow::MemoryPool` (C++).
//!
//! An Arrow buffer keeps a bare pointer to its pool, and some (pyarrow's) outlive every owner of
//! the pool. A handle may therefore be *retired* instead of closed: it stays valid, allocates
//! nothing more, and releases the client when the last allocation is freed.

use crate::error::{CallFailure, guard, guard_or};
use crate::handles::FarrowClient;
use crate::status::FarrowStatus;
use farrow::Pool;
use farrow_memory::sync::{AtomicBool, AtomicU64, Ordering};
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::{PoisonError, RwLock, TryLockError};

/// Attempts to lock a retired pool for its release. Most readers hold the lock for microseconds; one
/// that waits for the node releases the pool itself.
const LOCK_TRIES: u32 = 10_000;

/// A pool of one client, behind a handle that can outlive the pool.
#[derive(Debug)]
pub struct FarrowPool {
    lent: RwLock<Option<Pool>>,
    /// Allocations that are not freed yet.
    live: AtomicU64,
    spilled_bytes: AtomicU64,
    is_retired: AtomicBool,
    is_strict: bool,
}

impl FarrowPool {
    /// A handle on `pool`.
    pub fn new(pool: Pool, is_strict: bool) -> FarrowPool {
        FarrowPool {
            is_strict,
            lent: RwLock::new(Some(pool)),
            live: AtomicU64::new(0),
            spilled_bytes: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
        }
    }

    /// Total bytes allocated elsewhere because the region was full.
    pub fn spilled_bytes(&self) -> u64 {
        self.spilled_bytes.load(Ordering::Relaxed)
    }

    /// Stops allocation, and releases the pool with the last allocation.
    pub fn retire(&self) {
        self.is_retired.store(true, Ordering::SeqCst);
        self.with(Pool::expect_no_more);
        self.let_go_when_unused();
    }

    /// Whether the client was released.
    pub fn is_let_go(&self) -> bool {
        self.with(|_| ()).is_none()
    }

    /// See [`Pool::expect`].
    ///
    /// # Errors
    ///
    /// As for [`Pool::expect`].
    pub fn expect(&self, sizes: &[u64]) -> Result<(), farrow::Error> {
        let expected = self.with(|pool| pool.expect(sizes)).unwrap_or(Ok(()));
        self.let_go_if_retired();
        expected
    }

    fn with<T>(&self, use_it: impl FnOnce(&Pool) -> T) -> Option<T> {
        let lent = self.lent.read().unwrap_or_else(PoisonError::into_inner);
        lent.as_ref().map(use_it)
    }

    /// Releases the pool if it has no allocation. The attempts are bounded: after a fork, a thread
    /// that does not exist in the child may hold the lock. The child then keeps the pool, at no
    /// cost.
    fn let_go_when_unused(&self) {
        for _ in 0..LOCK_TRIES {
            match self.lent.try_write() {
                Ok(mut lent) => {
                    // The lock excludes allocations now, and later ones see the retired flag.
                    let is_unused = self.live.load(Ordering::SeqCst) == 0;
                    let pool = if is_unused { lent.take() } else { None };
                    drop(lent);
                    drop(pool); // may end the connection: not under the lock
                    return;
                }
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
                Err(TryLockError::Poisoned(_)) => return,
            }
        }
    }

    /// Releases a pool that was retired while this thread held its lock, which `retire` may have given
    /// up to wait for. Called without the lock.
    fn let_go_if_retired(&self) {
        if self.is_retired.load(Ordering::SeqCst) && self.live.load(Ordering::SeqCst) == 0 {
            self.let_go_when_unused();
        }
    }

    fn allocate(&self, size: usize, alignment: usize) -> Option<NonNull<u8>> {
        let allocated = self.with(|pool| {
            if self.is_retired.load(Ordering::SeqCst) {
                return None;
            }
            let data = pool.allocate(size, alignment);
            if data.is_some() {
                self.live.fetch_add(1, Ordering::SeqCst);
            }
            data
        });
        let data = allocated.flatten();
        if data.is_none() {
            self.let_go_if_retired();
        }
        data
    }

    fn reallocate(
        &self,
        data: NonNull<u8>,
        old: usize,
        new: usize,
        alignment: usize,
    ) -> Option<NonNull<u8>> {
        self.with(|pool| {
            if new > old && self.is_retired.load(Ordering::SeqCst) {
                return None;
            }
            pool.reallocate(data, old, new, alignment)
        })?
    }

    fn free(&self, data: NonNull<u8>, size: usize) {
        self.with(|pool| pool.free(data, size));
        let was_last = self.live.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.is_retired.load(Ordering::SeqCst) {
            self.let_go_when_unused();
        }
    }
}

/// The pool of a handle.
///
/// # Safety
/// `pool` is NULL, or came from farrow_pool_open and stays open during the call.
unsafe fn handle<'a>(pool: *const FarrowPool) -> Option<&'a FarrowPool> {
    // SAFETY: guaranteed by the caller.
    unsafe { pool.as_ref() }
}

fn bytes(size: u64) -> Option<usize> {
    usize::try_from(size).ok().filter(|size| *size <= isize::MAX as usize)
}

/// See `farrow.h`.
///
/// # Safety
/// `client` is a client handle or NULL, `pool` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_pool_open(
    client: *const FarrowClient,
    strict: c_int,
    pool: *mut *mut FarrowPool,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: the caller passes a client handle that is valid during the call.
        let client = unsafe { client.as_ref() }.ok_or_else(|| CallFailure::null("client"))?;
        // SAFETY: the caller passes writable memory for one pointer.
        let place = unsafe { pool.as_mut() }.ok_or_else(|| CallFailure::null("pool"))?;
        *place = Box::into_raw(Box::new(FarrowPool::new(client.get().pool(), strict != 0)));
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `pool` is NULL or a pool handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_pool_expect(pool: *const FarrowPool, size: u64) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { handle(pool) }.ok_or_else(|| CallFailure::null("pool"))?;
        Ok(pool.expect(&[size])?)
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `pool` is NULL or a handle that is no longer in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_pool_close(pool: *mut FarrowPool) {
    if !pool.is_null() {
        // SAFETY: the handle came from `Box::into_raw` in farrow_pool_open and is returned here.
        guard_or((), || drop(unsafe { Box::from_raw(pool) }));
    }
}

/// See `farrow.h`.
///
/// # Safety
/// `pool` is NULL or a pool handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_pool_retire(pool: *const FarrowPool) {
    guard_or((), || {
        // SAFETY: guaranteed by the caller.
        if let Some(pool) = unsafe { handle(pool) } {
            pool.retire();
        }
    });
}

/// See `farrow.h`.
///
/// # Safety
/// `pool` is NULL or a pool handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_pool_allocate(
    pool: *const FarrowPool,
    size: u64,
    alignment: u64,
) -> *mut u8 {
    guard_or(ptr::null_mut(), || {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { handle(pool) };
        let found = || pool?.allocate(bytes(size)?, bytes(alignment)?);
        found().map_or(ptr::null_mut(), NonNull::as_ptr)
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `pool` is NULL or a pool handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_pool_reallocate(
    pool: *const FarrowPool,
    data: *mut u8,
    old_size: u64,
    new_size: u64,
    alignment: u64,
) -> *mut u8 {
    guard_or(ptr::null_mut(), || {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { handle(pool) };
        let moved = || {
            let (old, new, alignment) = (bytes(old_size)?, bytes(new_size)?, bytes(alignment)?);
            let data = NonNull::new(data)?;
            pool?.reallocate(data, old, new, alignment)
        };
        moved().map_or(ptr::null_mut(), NonNull::as_ptr)
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `pool` is NULL or a pool handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_pool_free(
    pool: *const FarrowPool,
    data: *mut u8,
    size: u64,
    _alignment: u64,
) {
    guard_or((), || {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { handle(pool) };
        if let (Some(pool), Some(data), Some(size)) = (pool, NonNull::new(data), bytes(size)) {
            pool.free(data, size);
        }
    });
}

/// See `farrow.h`.
///
/// # Safety
/// `pool` is NULL or a pool handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_pool_contains(
    pool: *const FarrowPool,
    data: *const c_void,
) -> c_int {
    guard_or(0, || {
        let data = NonNull::new(data.cast::<u8>().cast_mut());
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { handle(pool) };
        let found = || pool?.with(|pool| data.is_some_and(|data| pool.contains(data)));
        c_int::from(found().unwrap_or(false))
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `pool` is NULL or a pool handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_pool_is_strict(pool: *const FarrowPool) -> c_int {
    // SAFETY: guaranteed by the caller.
    c_int::from(unsafe { handle(pool) }.is_some_and(|pool| pool.is_strict))
}

/// See `farrow.h`.
///
/// # Safety
/// `pool` is NULL or a pool handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_pool_note_spill(pool: *const FarrowPool, size: u64) {
    guard_or((), || {
        // SAFETY: guaranteed by the caller.
        if let Some(pool) = unsafe { handle(pool) } {
            pool.spilled_bytes.fetch_add(size, Ordering::Relaxed);
        }
    });
}
