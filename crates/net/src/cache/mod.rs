//! The mirrors of a node and the room that they share.
//!
//! A [`Mirror`] is a sparse file in which offset x stands for offset x of one peer's data section. It
//! has objects; an object has blocks; a block has parts, one for each chunk (`chunks`). A part is
//! missing, arriving or complete. A reader keeps an object with [`Held`]; a fetch keeps the parts that
//! it brings with a [`Claim`]. Objects without either are evicted as a whole, least recently used first.
//!
//! **Room.** `--cache` is counted in grains: 64 KiB, or the huge page where the file has those. A
//! grain is charged while any part in it is arriving or complete, and given back after its memory
//! is. A claim is charged whole before its first byte is asked for; if there is no room and
//! nothing to evict it waits, in the order of arrival, for its caller's time.
//!
//! All tables are in `state`, under one lock. Memory is given back outside of that lock,
//! since it takes some 25 us a MiB; meanwhile the bytes are `leaving`, and no object may be put there.

mod chunks;
mod claim;
mod mirror;
mod state;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farrow_memory::{FileMap, Length};

pub use claim::FetchClaim;
pub use mirror::{Mirror, MirrorHold, RemoveOutcome};

use crate::CHUNK_BYTES;
use crate::error::CacheError;
use state::{CacheState, EvictedParts};

/// Most requests that wait for room at a time. Each is a thread of the daemon.
const WAITERS_MAX: usize = 1024;

/// What a cache uses, and what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes that may be in use.
    pub limit: u64,
    /// Bytes in use: complete, arriving, or on their way out.
    pub used: u64,
    /// Objects in all mirrors.
    pub objects: u64,
    /// Objects without holds.
    pub idle_objects: u64,
    /// Requests that wait for room.
    pub waiters: u64,
    /// Objects that were evicted to make room.
    pub evicted_objects: u64,
}

/// The room of all mirrors of a node.
#[derive(Debug)]
pub struct Cache {
    state: Mutex<CacheState>,
    /// Room became free, or an object idle.
    room_changed: Condvar,
    /// Parts became complete, or missing again.
    parts_changed: Condvar,
}

impl Cache {
    /// A cache of so many bytes.
    #[must_use]
    pub fn new(limit: Length) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(CacheState::new(limit.0)),
            room_changed: Condvar::new(),
            parts_changed: Condvar::new(),
        })
    }

    /// A mirror of a peer's data section in an empty sparse file of the same length. `grain` is how
    /// much memory the file takes at a time: [`CHUNK_BYTES`], or its huge page.
    ///
    /// # Errors
    /// [`CacheError::TooLarge`] if not even one grain fits.
    pub fn mirror(
        self: &Arc<Self>,
        map: Arc<FileMap>,
        grain: Length,
    ) -> Result<Arc<Mirror>, CacheError> {
        let grain = Length(grain.0.max(CHUNK_BYTES)).round_up(CHUNK_BYTES).unwrap_or(grain);
        let mut state = self.lock();
        if grain.0 > state.limit() {
            return Err(CacheError::TooLarge { asked: grain, limit: Length(state.limit()) });
        }
        let id = state.add_mirror(Arc::clone(&map), grain.0);
        let has_large_grains = grain.0 > CHUNK_BYTES;
        Ok(Arc::new(Mirror::new(Arc::clone(self), id, map, has_large_grains)))
    }

    /// Counts.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.lock().stats()
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits on a condition for what is left of the time; `None` when it is over.
    fn wait<'a>(
        condition: &Condvar,
        state: MutexGuard<'a, CacheState>,
        begin: Instant,
        time: Duration,
    ) -> Option<MutexGuard<'a, CacheState>> {
        let left = time.checked_sub(begin.elapsed()).filter(|left| !left.is_zero())?;
        let waited = condition.wait_timeout(state, left);
        Some(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Gives the memory of what was taken out of the tables back, and then its room.
    fn give_back<'a>(&'a self, evictions: Vec<EvictedParts>) -> MutexGuard<'a, CacheState> {
        let punched: Vec<_> = evictions.iter().map(EvictedParts::punch).collect();
        let mut state = self.lock();
        for (eviction, is_punched) in evictions.iter().zip(punched) {
            state.forget(eviction, is_punched);
        }
        self.room_changed.notify_all();
        self.parts_changed.notify_all();
        state
    }
}

#[cfg(test)]
mod tests;
