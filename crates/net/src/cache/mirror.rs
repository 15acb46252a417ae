//! One peer's data section, as far as it is here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::{FileMap, Length, Span};

use super::chunks::PartState;
use super::state::{MirrorId, MirrorObjectId, PartsOutcome};
use super::{Cache, FetchClaim, WAITERS_MAX};
use crate::error::CacheError;

/// A sparse file in which offsets are those of a peer's data section. Objects go by a key that the
/// daemon chooses and never uses for another object: their id.
#[derive(Debug)]
pub struct Mirror {
    cache: Arc<Cache>,
    id: MirrorId,
    map: Arc<FileMap>,
    has_large_grains: bool,
}

/// Outcome of [`Mirror::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoveOutcome {
    /// It was not there.
    Unknown,
    /// Its memory was given back.
    Removed,
    /// It has holds or claims. New holds are refused, and its memory is released when the last of
    /// these ends.
    InUse,
}

impl Mirror {
    pub(super) fn new(
        cache: Arc<Cache>,
        id: MirrorId,
        map: Arc<FileMap>,
        has_large_grains: bool,
    ) -> Self {
        Self { cache, id, map, has_large_grains }
    }

    /// The file, for readers to map.
    #[must_use]
    pub fn map(&self) -> &Arc<FileMap> {
        &self.map
    }

    fn object(&self, key: u64) -> MirrorObjectId {
        MirrorObjectId { mirror: self.id, key }
    }

    /// Holds an object that is here, however much of it.
    #[must_use]
    pub fn hold(self: &Arc<Self>, key: u64) -> Option<MirrorHold> {
        let is_there = self.cache.lock().hold(self.object(key));
        is_there.then(|| MirrorHold { mirror: Arc::clone(self), key })
    }

    /// Puts an object in, with none of its bytes, or finds it, and holds it. Other objects in these
    /// blocks are ones that were deleted since: they are removed, unless a reader still holds them.
    /// Memory that is being given back is waited for, no longer than `time`.
    ///
    /// # Errors
    /// [`CacheError::Bounds`], [`CacheError::Overlap`], [`CacheError::OtherBlocks`],
    /// [`CacheError::Gone`], [`CacheError::NoRoom`] when the time is over.
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
                    false => Err(CacheError::Gone { object: key }),
                };
            }
            let mut evictions = Vec::new();
            let mut in_use = None;
            for (block, other) in state.overlapping(id, &blocks) {
                // Met twice where it has two blocks here.
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
                let asked = Length(blocks.iter().map(|block| block.length.0).sum());
                state = Cache::wait(&self.cache.parts_changed, state, begin, time)
                    .ok_or(CacheError::NoRoom { asked, used, limit, waited: time })?;
                continue;
            }
            state.insert(id, &blocks);
            return Ok(MirrorHold { mirror: Arc::clone(self), key });
        }
    }

    /// The object was deleted at its home: new holds are refused from now on.
    pub fn remove(&self, key: u64) -> RemoveOutcome {
        let id = self.object(key);
        let mut state = self.cache.lock();
        let Some(object) = state.object(id) else {
            return RemoveOutcome::Unknown;
        };
        object.is_gone = true;
        let Some(eviction) = state.take_out(id) else {
            return RemoveOutcome::InUse;
        };
        drop(state);
        drop(self.cache.give_back(vec![eviction]));
        RemoveOutcome::Removed
    }
}

/// Blocks of one object share no byte: its parts would be counted twice.
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
    /// Nobody holds any of its objects: each hold keeps the mirror.
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        let keys = state.keys(self.id);
        let evictions = keys.into_iter().filter_map(|key| state.take_out(self.object(key)));
        let evictions = evictions.collect();
        drop(state);
        self.cache.give_back(evictions).remove_mirror(self.id);
    }
}

/// A reader's hold on an object of a mirror. While it lives nothing of the object is evicted.
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

    /// Where it is.
    #[must_use]
    pub fn mirror(&self) -> &Arc<Mirror> {
        &self.mirror
    }

    fn id(&self) -> MirrorObjectId {
        self.mirror.object(self.key)
    }

    /// Is every byte of these ranges here? Each range must lie in one block.
    ///
    /// # Errors
    /// [`CacheError::NotInObject`].
    pub fn is_complete(&self, ranges: &[Span]) -> Result<bool, CacheError> {
        let progress = self.mirror.cache.lock().progress(self.id(), ranges)?;
        Ok(progress == PartState::Complete)
    }

    /// Claims the parts of these ranges that are neither complete nor arriving, and charges room for
    /// all of them. Waits for room no longer than `time`, behind all earlier requests.
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
                // Earlier requests wait. A request that needs no room does not wait behind them.
                match state.missing(self.id(), ranges) {
                    Ok(missing) if !missing.is_empty() => {}
                    Ok(_) => break state.claim(self.id(), ranges),
                    Err(error) => break Err(error),
                }
            } else {
                match state.claim(self.id(), ranges) {
                    Ok(PartsOutcome::Evict(evictions)) => {
                        // First in the queue, so that no later request takes the room.
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
                    let asked = Length(missing.iter().map(|part| part.length.0).sum());
                    break Err(CacheError::NoRoom { asked, used, limit, waited: time });
                }
            }
        };
        if let Some(place) = place {
            state.waiters.retain(|waiter| *waiter != place);
            // The next in the queue may fit.
            cache.room_changed.notify_all();
        }
        drop(state);
        let parts = match outcome? {
            PartsOutcome::Claimed(parts) => parts,
            PartsOutcome::Evict(_) | PartsOutcome::Full => Vec::new(),
        };
        let map = Arc::clone(&self.mirror.map);
        let has_large_grains = self.mirror.has_large_grains;
        Ok(FetchClaim::new(Arc::clone(cache), self.id(), map, parts, has_large_grains))
    }

    /// Waits until no part of the ranges is arriving, no longer than `time`. Returns whether all of
    /// them are complete then: a fetch that failed leaves its parts missing.
    ///
    /// # Errors
    /// [`CacheError::NotInObject`].
    pub fn wait_for_others(&self, ranges: &[Span], time: Duration) -> Result<bool, CacheError> {
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
        // A deleted object can be held again by its own holder.
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
        let gone = state.settle(self.id());
        drop(state);
        match gone {
            Some(gone) => drop(cache.give_back(vec![gone])),
            None => cache.room_changed.notify_all(),
        }
    }
}
