//! The local, partial copy of one peer's data section.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_memory::{FileMap, Length, Span};

use super::chunks::PartState;
use super::state::{MirrorId, MirrorObjectId, PartsMemory, PartsOutcome};
use super::{Cache, FetchClaim, WAITERS_MAX};
use crate::error::CacheError;

/// A sparse file with the offsets of a peer's data section. The key of an object is its id, which
/// the daemon never reuses.
#[derive(Debug)]
pub struct Mirror {
    cache: Arc<Cache>,
    id: MirrorId,
    map: Arc<FileMap>,
    has_large_grains: bool,
    is_file_retained: AtomicBool,
}

/// Outcome of [`Mirror::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoveOutcome {
    /// The mirror does not have the object.
    Unknown,
    /// The memory of the object was freed.
    Removed,
    /// The object has holds or claims. New holds are refused, and its memory is freed when the last
    /// of these ends.
    InUse,
}

impl Mirror {
    pub(super) fn new(
        cache: Arc<Cache>,
        id: MirrorId,
        map: Arc<FileMap>,
        has_large_grains: bool,
    ) -> Self {
        Self { cache, id, map, has_large_grains, is_file_retained: AtomicBool::new(false) }
    }

    /// The file, for readers to map.
    #[must_use]
    pub fn map(&self) -> &Arc<FileMap> {
        &self.map
    }

    /// Keeps the bytes of the file when the mirror ends: for readers that still have it mapped then.
    /// Its memory is freed with the file.
    pub fn keep_file(&self) {
        self.is_file_retained.store(true, Ordering::Relaxed);
    }

    fn object(&self, key: u64) -> MirrorObjectId {
        MirrorObjectId { mirror: self.id, key }
    }

    /// Holds an object of the mirror, even if none of its bytes are complete.
    #[must_use]
    pub fn hold(self: &Arc<Self>, key: u64) -> Option<MirrorHold> {
        let is_there = self.cache.lock().hold(self.object(key));
        is_there.then(|| MirrorHold { mirror: Arc::clone(self), key })
    }

    /// Adds an object without its bytes, unless the mirror has it, and holds it. Other objects in
    /// these blocks have been deleted at the home: they are removed, unless they are in use. The
    /// call waits up to `time` for memory of these blocks that is being freed.
    ///
    /// # Errors
    /// [`CacheError::Bounds`], [`CacheError::Overlap`], [`CacheError::OtherBlocks`],
    /// [`CacheError::Removed`], [`CacheError::NoRoom`] after `time`.
    pub fn insert(
        self: &Arc<Self>,
        key: u64,
        blocks: &[Span],
        time: Duration,
    ) -> Result<MirrorHold, CacheError> {
        for block in blocks {
            self.map.check(*block)?;
        }
        let blocks: Vec<_> = blocks.iter().copied().filter(|block| !block.is_empty()).collect();
        check_apart(key, &blocks)?;
        let (id, begin) = (self.object(key), Instant::now());
        let mut state = self.cache.lock();
        loop {
            if state.object(id).is_some() {
                if !state.has_blocks(id, &blocks) {
                    return Err(CacheError::OtherBlocks { object: key });
                }
                return match state.hold(id) {
                    true => Ok(MirrorHold { mirror: Arc::clone(self), key }),
                    false => Err(CacheError::Removed { object: key }),
                };
            }
            let mut evictions = Vec::new();
            let mut in_use = None;
            for (block, other) in state.overlapping(id, &blocks) {
                // An object with two overlapping blocks is listed twice.
                let other = self.object(other);
                if state.object(other).is_some() {
                    match state.take_out(other) {
                        Some(eviction) => evictions.push(eviction),
                        None => in_use = Some((block, other.key)),
                    }
                }
            }
            if !evictions.is_empty() {
                drop(state);
                state = self.cache.give_back(evictions);
                continue;
            }
            if let Some((block, other)) = in_use {
                return Err(CacheError::Overlap { block, object: key, other });
            }
            if state.is_leaving(self.id, &blocks) {
                let (used, limit) = (Length(state.used()), Length(state.limit()));
                let requested = Length(blocks.iter().map(|block| block.length.0).sum());
                state = Cache::wait(&self.cache.parts_changed, state, begin, time)
                    .ok_or(CacheError::NoRoom { requested, used, limit, waited: time })?;
                continue;
            }
            state.insert(id, &blocks);
            return Ok(MirrorHold { mirror: Arc::clone(self), key });
        }
    }

    /// Removes an object that was deleted at its home. New holds are refused.
    pub fn remove(&self, key: u64) -> RemoveOutcome {
        let id = self.object(key);
        let mut state = self.cache.lock();
        let Some(object) = state.object(id) else {
            return RemoveOutcome::Unknown;
        };
        object.is_removed = true;
        let Some(eviction) = state.take_out(id) else {
            return RemoveOutcome::InUse;
        };
        drop(state);
        drop(self.cache.give_back(vec![eviction]));
        RemoveOutcome::Removed
    }
}

/// Checks that blocks of one object are disjoint: shared bytes would be counted twice.
fn check_apart(key: u64, blocks: &[Span]) -> Result<(), CacheError> {
    let mut sorted = blocks.to_vec();
    sorted.sort_unstable();
    let mut pairs = sorted.iter().zip(sorted.iter().skip(1));
    match pairs.find(|(a, b)| a.overlaps(**b)) {
        Some((_, block)) => Err(CacheError::Overlap { block: *block, object: key, other: key }),
        None => Ok(()),
    }
}

impl Drop for Mirror {
    /// Removes all objects. None has a hold, since each hold keeps the mirror alive.
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        let keys = state.keys(self.id);
        let evictions = keys.into_iter().filter_map(|key| state.take_out(self.object(key)));
        let evictions: Vec<_> = evictions.collect();
        if self.is_file_retained.load(Ordering::Relaxed) {
            for eviction in &evictions {
                state.forget(eviction, PartsMemory::LeftInFile);
            }
            state.remove_mirror(self.id);
            drop(state);
            self.cache.room_changed.notify_all();
            return;
        }
        drop(state);
        self.cache.give_back(evictions).remove_mirror(self.id);
    }
}

/// A reader's hold on an object of a mirror. While it lives, the object is not evicted.
#[derive(Debug)]
pub struct MirrorHold {
    mirror: Arc<Mirror>,
    key: u64,
}

impl MirrorHold {
    /// The object's key.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The mirror of the object.
    #[must_use]
    pub fn mirror(&self) -> &Arc<Mirror> {
        &self.mirror
    }

    fn id(&self) -> MirrorObjectId {
        self.mirror.object(self.key)
    }

    /// Whether every byte of these ranges is complete. Each range must be within one block.
    ///
    /// # Errors
    /// [`CacheError::NotInObject`].
    pub fn is_complete(&self, ranges: &[Span]) -> Result<bool, CacheError> {
        let progress = self.mirror.cache.lock().progress(self.id(), ranges)?;
        Ok(progress == PartState::Complete)
    }

    /// Claims the parts of these ranges that are neither complete nor arriving, and reserves room
    /// for all of them. Waits up to `time` for room, after all earlier requests.
    ///
    /// # Errors
    /// [`CacheError::NotInObject`], [`CacheError::TooLarge`], [`CacheError::NoRoom`],
    /// [`CacheError::TooManyWaiters`].
    pub fn claim(&self, ranges: &[Span], time: Duration) -> Result<FetchClaim, CacheError> {
        let cache = &self.mirror.cache;
        let begin = Instant::now();
        let mut state = cache.lock();
        let mut place = None;
        let outcome = loop {
            if state.waiters.front().copied() != place {
                // Earlier requests wait. A request that needs no room does not wait for them.
                match state.missing(self.id(), ranges) {
                    Ok(missing) if !missing.is_empty() => {}
                    Ok(_) => break state.claim(self.id(), ranges),
                    Err(error) => break Err(error),
                }
            } else {
                match state.claim(self.id(), ranges) {
                    Ok(PartsOutcome::Evict(evictions)) => {
                        // Enter the queue, so that no later request takes the room.
                        if place.is_none() {
                            let number = state.number();
                            state.waiters.push_back(number);
                            place = Some(number);
                        }
                        drop(state);
                        state = cache.give_back(evictions);
                        continue;
                    }
                    Ok(PartsOutcome::Full) => {}
                    other => break other,
                }
            }
            if place.is_none() {
                let waiting = state.waiters.len();
                if waiting >= WAITERS_MAX {
                    break Err(CacheError::TooManyWaiters { waiting, max: WAITERS_MAX });
                }
                let number = state.number();
                state.waiters.push_back(number);
                place = Some(number);
                continue;
            }
            let (used, limit) = (Length(state.used()), Length(state.limit()));
            match Cache::wait(&cache.room_changed, state, begin, time) {
                Some(woken) => state = woken,
                None => {
                    state = cache.lock();
                    let missing = state.missing(self.id(), ranges).unwrap_or_default();
                    let requested = Length(missing.iter().map(|part| part.length.0).sum());
                    break Err(CacheError::NoRoom { requested, used, limit, waited: time });
                }
            }
        };
        if let Some(place) = place {
            state.waiters.retain(|waiter| *waiter != place);
            // The next request in the queue may fit.
            cache.room_changed.notify_all();
        }
        drop(state);
        let spans = match outcome? {
            PartsOutcome::Claimed(spans) => spans,
            PartsOutcome::Evict(_) | PartsOutcome::Full => Vec::new(),
        };
        let map = Arc::clone(&self.mirror.map);
        let has_large_grains = self.mirror.has_large_grains;
        Ok(FetchClaim::new(Arc::clone(cache), self.id(), map, spans, has_large_grains))
    }

    /// Waits up to `time` until all parts of the ranges are complete or one is missing. Returns
    /// whether all are complete. A failed fetch leaves its parts missing.
    ///
    /// # Errors
    /// [`CacheError::NotInObject`].
    pub fn wait_for_fetches(&self, ranges: &[Span], time: Duration) -> Result<bool, CacheError> {
        let cache = &self.mirror.cache;
        let begin = Instant::now();
        let mut state = cache.lock();
        loop {
            match state.progress(self.id(), ranges)? {
                PartState::Complete => return Ok(true),
                PartState::Missing => return Ok(false),
                PartState::Arriving => {}
            }
            match Cache::wait(&cache.parts_changed, state, begin, time) {
                Some(woken) => state = woken,
                None => return Ok(false),
            }
        }
    }
}

impl Clone for MirrorHold {
    fn clone(&self) -> Self {
        let mut state = self.mirror.cache.lock();
        // A holder of a deleted object may clone its hold.
        if let Some(object) = state.object(self.id()) {
            object.holds += 1;
        }
        Self { mirror: Arc::clone(&self.mirror), key: self.key }
    }
}

impl Drop for MirrorHold {
    fn drop(&mut self) {
        let cache = &self.mirror.cache;
        let mut state = cache.lock();
        if let Some(object) = state.object(self.id()) {
            object.holds -= 1;
        }
        let settled = state.settle(self.id());
        drop(state);
        match settled {
            Some(settled) => drop(cache.give_back(vec![settled])),
            None => cache.room_changed.notify_all(),
        }
    }
}
