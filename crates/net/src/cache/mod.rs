//! The mirrors of a node and their shared capacity.
//!
//! A [`Mirror`] is a sparse file whose offsets are those of one peer's data section. It has
//! objects; an object has blocks; a block has parts, one for each chunk (`chunks`). A part is
//! missing, arriving or complete. A reader holds an object with a [`MirrorHold`], and a fetch holds
//! its parts with a [`FetchClaim`]. Objects without either are evicted whole, least recently used
//! first.
//!
//! **Room.** `--cache` is counted in grains of 64 KiB, or of a huge page if the file has these. A
//! grain is charged while a part in it is arriving or complete, and until its memory is freed. A
//! claim is charged in full before its first request. Without room or objects to evict, it waits
//! for its caller's time, in order of arrival.
//!
//! All tables are in `state`, under one lock. Memory is freed outside that lock, since this takes
//! some 25 us per MiB. Meanwhile the bytes are `leaving`, and no object can be added there.

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
pub use state::CacheStats;
use state::{CacheState, EvictedParts};

/// Maximum requests that wait for room. Each blocks a thread of the daemon.
const WAITERS_MAX: usize = 1024;

/// The capacity and tables of all mirrors of a node.
#[derive(Debug)]
pub struct Cache {
    state: Mutex<CacheState>,
    /// Signalled when room becomes free or an object becomes idle.
    room_changed: Condvar,
    /// Signalled when parts become complete or missing.
    parts_changed: Condvar,
}

impl Cache {
    /// A cache of `limit` bytes.
    #[must_use]
    pub fn new(limit: Length) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(CacheState::new(limit.0)),
            room_changed: Condvar::new(),
            parts_changed: Condvar::new(),
        })
    }

    /// Creates a mirror of a peer's data section in an empty sparse file of the same length.
    /// `grain` is the file's unit of allocation: [`CHUNK_BYTES`], or its huge page.
    ///
    /// # Errors
    /// [`CacheError::TooLarge`] if one grain exceeds the capacity.
    pub fn mirror(
        self: &Arc<Self>,
        map: Arc<FileMap>,
        grain: Length,
    ) -> Result<Arc<Mirror>, CacheError> {
        let grain = Length(grain.0.max(CHUNK_BYTES)).round_up(CHUNK_BYTES).unwrap_or(grain);
        let mut state = self.lock();
        if grain.0 > state.limit() {
            return Err(CacheError::TooLarge { requested: grain, limit: Length(state.limit()) });
        }
        let id = state.add_mirror(Arc::clone(&map), grain.0);
        let has_large_grains = grain.0 > CHUNK_BYTES;
        Ok(Arc::new(Mirror::new(Arc::clone(self), id, map, has_large_grains)))
    }

    /// Current statistics.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.lock().stats()
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits on a condition for the rest of `time`; `None` when it is over.
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

    /// Frees the memory of parts that left the tables, and then their room.
    fn give_back<'a>(&'a self, evictions: Vec<EvictedParts>) -> MutexGuard<'a, CacheState> {
        let memory: Vec<_> = evictions.iter().map(EvictedParts::punch).collect();
        let mut state = self.lock();
        for (eviction, memory) in evictions.iter().zip(memory) {
            state.forget(eviction, memory);
        }
        self.room_changed.notify_all();
        self.parts_changed.notify_all();
        state
    }
}

#[cfg(test)]
mod tests;
