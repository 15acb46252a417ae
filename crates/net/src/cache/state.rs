//! The tables of a cache, under one lock. No function here blocks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use farrow_memory::{FileMap, Length, Offset, Span};

use super::chunks::{MirrorBlock, PartState, join, join_unless};
use crate::error::CacheError;

/// Statistics of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Capacity in bytes.
    pub limit: u64,
    /// Bytes charged: complete, arriving, or being freed.
    pub used: u64,
    /// Objects in all mirrors.
    pub objects: u64,
    /// Objects without holds.
    pub idle_objects: u64,
    /// Requests that wait for room.
    pub waiters: u64,
    /// Objects evicted to make room, in total.
    pub evicted_objects: u64,
}

/// Number of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct MirrorId(u64);

/// Key of an object and number of its mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct MirrorObjectId {
    pub(super) mirror: MirrorId,
    pub(super) key: u64,
}

#[derive(Debug)]
pub(super) struct MirroredObject {
    pub(super) blocks: Vec<MirrorBlock>,
    /// Number of holds of readers.
    pub(super) holds: u64,
    /// Number of fetches that may still write its bytes.
    pub(super) claims: u64,
    /// Sequence number of the end of its last hold: its position in the order of eviction.
    idle_since: Option<u64>,
    /// Whether it was deleted at its home. New holds are then refused.
    pub(super) is_removed: bool,
}

impl MirroredObject {
    fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.blocks.iter().map(MirrorBlock::span)
    }

    /// The block that contains a range.
    pub(super) fn block_of(&mut self, range: Span) -> Option<&mut MirrorBlock> {
        self.blocks.iter_mut().find(|block| block.span().contains(range) && !range.is_empty())
    }
}

#[derive(Debug)]
struct MirrorState {
    map: Arc<FileMap>,
    grain: u64,
    objects: HashMap<u64, MirroredObject>,
    /// First byte of each block, mapped to its last byte and its object.
    blocks: BTreeMap<u64, (u64, u64)>,
    /// Number of arriving and complete parts in each charged grain.
    grains: HashMap<u64, u64>,
    /// Bytes whose memory is being freed.
    leaving: HashSet<Span>,
}

/// Parts that left the tables. Their memory is freed next, then their room.
#[derive(Debug)]
pub(super) struct EvictedParts {
    object: MirrorObjectId,
    map: Arc<FileMap>,
    /// The parts, with adjacent ones joined.
    spans: Vec<Span>,
    /// The individual parts, in the same order.
    parts: Vec<Span>,
    /// Whether the parts belong to an object that stays. They are arriving until their memory is
    /// freed.
    is_of_claim: bool,
}

/// What has become of the memory of parts that left the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartsMemory {
    /// It is free.
    Freed,
    /// It could not be freed, and stays charged.
    Charged,
    /// It stays in the file until that ends, for readers that have it mapped.
    LeftInFile,
}

impl EvictedParts {
    /// Frees the memory. Called without the lock.
    pub(super) fn punch(&self) -> PartsMemory {
        match self.spans.iter().all(|span| punch(&self.map, *span)) {
            true => PartsMemory::Freed,
            false => PartsMemory::Charged,
        }
    }
}

fn punch(map: &FileMap, span: Span) -> bool {
    let punched = map.punch(span);
    if let Err(error) = &punched {
        tracing::error!(%error, "memory of the cache is not given back and stays charged");
    }
    punched.is_ok()
}

#[derive(Debug)]
pub(super) struct CacheState {
    limit: u64,
    used: u64,
    mirrors: BTreeMap<MirrorId, MirrorState>,
    /// Objects without holds and claims, least recently used first.
    idle: BTreeMap<u64, MirrorObjectId>,
    /// Requests that wait for room, in the order of arrival.
    pub(super) waiters: VecDeque<u64>,
    next: u64,
    evicted_objects: u64,
}

/// Outcome of a request for parts.
pub(super) enum PartsOutcome {
    /// The caller must fetch these bytes; their room is charged. Each span is within one block.
    Claimed(Vec<Span>),
    /// The memory of these parts must be freed first.
    Evict(Vec<EvictedParts>),
    /// The room is insufficient, even with evictions.
    Full,
}

impl CacheState {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            used: 0,
            mirrors: BTreeMap::new(),
            idle: BTreeMap::new(),
            waiters: VecDeque::new(),
            next: 0,
            evicted_objects: 0,
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            limit: self.limit,
            used: self.used,
            objects: self.mirrors.values().map(|mirror| mirror.objects.len() as u64).sum(),
            idle_objects: self.idle.len() as u64,
            waiters: self.waiters.len() as u64,
            evicted_objects: self.evicted_objects,
        }
    }

    /// The next sequence number, larger than all earlier ones.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn add_mirror(&mut self, map: Arc<FileMap>, grain: u64) -> MirrorId {
        let id = MirrorId(self.number());
        let mirror = MirrorState {
            map,
            grain,
            objects: HashMap::new(),
            blocks: BTreeMap::new(),
            grains: HashMap::new(),
            leaving: HashSet::new(),
        };
        self.mirrors.insert(id, mirror);
        id
    }

    pub(super) fn remove_mirror(&mut self, id: MirrorId) {
        self.mirrors.remove(&id);
    }

    pub(super) fn keys(&self, id: MirrorId) -> Vec<u64> {
        self.mirrors.get(&id).map_or_else(Vec::new, |one| one.objects.keys().copied().collect())
    }

    pub(super) fn object(&mut self, id: MirrorObjectId) -> Option<&mut MirroredObject> {
        self.mirrors.get_mut(&id.mirror)?.objects.get_mut(&id.key)
    }

    /// Whether memory of these blocks is being freed.
    pub(super) fn is_leaving(&self, id: MirrorId, blocks: &[Span]) -> bool {
        self.mirrors.get(&id).is_some_and(|mirror| {
            mirror.leaving.iter().any(|span| blocks.iter().any(|block| block.overlaps(*span)))
        })
    }

    /// Other objects with bytes in these blocks.
    pub(super) fn overlapping(&self, id: MirrorObjectId, blocks: &[Span]) -> Vec<(Span, u64)> {
        let Some(mirror) = self.mirrors.get(&id.mirror) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for block in blocks {
            let last = block.offset.0 + (block.length.0 - 1);
            // Blocks in the table do not overlap, so all blocks before one that ends too early also
            // end too early.
            let before = mirror.blocks.range(..=last).rev();
            let touching = before.take_while(|(_, (end, _))| *end >= block.offset.0);
            let of_other_objects = touching.filter(|(_, (_, key))| *key != id.key);
            found.extend(of_other_objects.map(|(_, (_, key))| (*block, *key)));
        }
        found
    }

    /// Adds an object with one hold. The caller has checked that its blocks are not empty, are
    /// within the map, and overlap no other block.
    pub(super) fn insert(&mut self, id: MirrorObjectId, blocks: &[Span]) {
        let Some(mirror) = self.mirrors.get_mut(&id.mirror) else {
            return;
        };
        for block in blocks {
            let last = block.offset.0 + (block.length.0 - 1);
            mirror.blocks.insert(block.offset.0, (last, id.key));
        }
        let blocks = blocks.iter().copied().map(MirrorBlock::new).collect();
        let object =
            MirroredObject { blocks, holds: 1, claims: 0, idle_since: None, is_removed: false };
        mirror.objects.insert(id.key, object);
    }

    /// Whether the object has exactly these blocks.
    pub(super) fn has_blocks(&mut self, id: MirrorObjectId, blocks: &[Span]) -> bool {
        self.object(id).is_some_and(|object| object.spans().eq(blocks.iter().copied()))
    }

    /// Adds a hold. Returns `false` if the object is missing or deleted.
    pub(super) fn hold(&mut self, id: MirrorObjectId) -> bool {
        let Some(object) = self.object(id).filter(|object| !object.is_removed) else {
            return false;
        };
        object.holds += 1;
        if let Some(since) = object.idle_since.take() {
            self.idle.remove(&since);
        }
        true
    }

    /// Called after a hold or a claim ended. An unused object becomes idle; if it was deleted or
    /// has no complete parts, it is removed and its parts are returned.
    pub(super) fn settle(&mut self, id: MirrorObjectId) -> Option<EvictedParts> {
        let since = self.number();
        let object = self.object(id)?;
        if object.holds > 0 || object.claims > 0 || object.idle_since.is_some() {
            return None;
        }
        let has_bytes =
            object.blocks.iter().any(|block| block.parts_in(PartState::Complete).next().is_some());
        // An object without bytes frees no room, so an eviction might never remove it.
        if object.is_removed || !has_bytes {
            return self.take_out(id);
        }
        object.idle_since = Some(since);
        self.idle.insert(since, id);
        None
    }

    /// Removes an object without holds and claims from the tables.
    pub(super) fn take_out(&mut self, id: MirrorObjectId) -> Option<EvictedParts> {
        let mirror = self.mirrors.get_mut(&id.mirror)?;
        let object = mirror.objects.get(&id.key)?;
        if object.holds > 0 || object.claims > 0 {
            return None;
        }
        let object = mirror.objects.remove(&id.key)?;
        if let Some(since) = object.idle_since {
            self.idle.remove(&since);
        }
        for span in object.spans() {
            mirror.blocks.remove(&span.offset.0);
        }
        let parts: Vec<_> =
            object.blocks.iter().flat_map(|block| block.parts_in(PartState::Complete)).collect();
        let spans = join(parts.iter().copied());
        mirror.leaving.extend(&spans);
        let map = Arc::clone(&mirror.map);
        Some(EvictedParts { object: id, map, spans, parts, is_of_claim: false })
    }

    /// The incomplete parts of a claim. They remain arriving until their memory is freed.
    pub(super) fn abandon(&mut self, id: MirrorObjectId, claimed: &[Span]) -> Option<EvictedParts> {
        let map = Arc::clone(&self.mirrors.get(&id.mirror)?.map);
        let object = self.object(id)?;
        let mut parts = Vec::new();
        for span in claimed {
            let Some(block) = object.block_of(*span) else { continue };
            let arriving =
                block.parts_of(*span).filter(|at| block.state(*at) == PartState::Arriving);
            parts.extend(arriving.filter_map(|at| block.part(at)));
        }
        let spans = join(parts.iter().copied());
        Some(EvictedParts { object: id, map, spans, parts, is_of_claim: true })
    }

    /// Called after an attempt to free the memory of an eviction, or instead of one.
    pub(super) fn forget(&mut self, eviction: &EvictedParts, memory: PartsMemory) {
        let Some(mirror) = self.mirrors.get_mut(&eviction.object.mirror) else {
            return;
        };
        for span in eviction.spans.iter().filter(|_| !eviction.is_of_claim) {
            mirror.leaving.remove(span);
        }
        if eviction.is_of_claim
            && let Some(object) = mirror.objects.get_mut(&eviction.object.key)
        {
            for part in &eviction.parts {
                if let Some(block) = object.block_of(*part) {
                    block.parts_of(*part).for_each(|at| block.set(at, PartState::Missing));
                }
            }
        }
        if memory == PartsMemory::Charged {
            return;
        }
        let (grain, section) = (mirror.grain, Span::new(Offset(0), mirror.map.length()));
        let mut spans = eviction.spans.iter().peekable();
        for part in &eviction.parts {
            // Both are in the same order, and each part is within a span.
            while spans.next_if(|span| !span.contains(*part)).is_some() {}
            let number = part.offset.0 / grain;
            let Some(count) = mirror.grains.get_mut(&number) else { continue };
            *count -= 1;
            if *count > 0 {
                continue;
            }
            mirror.grains.remove(&number);
            let whole = Span::new(Offset(number * grain), Length(grain));
            let is_punched = spans.peek().is_some_and(|span| span.contains(whole));
            // Otherwise, pages at its ends were shared with parts that left earlier.
            let is_free = is_punched
                || memory == PartsMemory::LeftInFile
                || whole.intersection(section).is_none_or(|rest| punch(&mirror.map, rest));
            if is_free {
                self.used -= grain;
            }
        }
    }

    /// Charges and claims the missing parts of ranges, or returns the necessary evictions.
    ///
    /// The missing parts are determined and charged under one lock, so only one of two requests
    /// fetches a part.
    pub(super) fn claim(
        &mut self,
        id: MirrorObjectId,
        ranges: &[Span],
    ) -> Result<PartsOutcome, CacheError> {
        let missing = self.missing(id, ranges)?;
        let Some(mirror) = self.mirrors.get_mut(&id.mirror) else {
            return Ok(PartsOutcome::Claimed(Vec::new()));
        };
        let grain = mirror.grain;
        let mut fresh: Vec<u64> = missing.iter().map(|part| part.offset.0 / grain).collect();
        fresh.retain(|number| !mirror.grains.contains_key(number));
        fresh.sort_unstable();
        fresh.dedup();
        let requested = fresh.len() as u64 * grain;
        if requested > self.limit {
            return Err(CacheError::TooLarge {
                requested: Length(requested),
                limit: Length(self.limit),
            });
        }
        let free = self.limit.saturating_sub(self.used);
        if requested > free {
            return Ok(match self.evict(requested - free) {
                evictions if evictions.is_empty() => PartsOutcome::Full,
                evictions => PartsOutcome::Evict(evictions),
            });
        }
        self.used += requested;
        for part in &missing {
            *mirror.grains.entry(part.offset.0 / grain).or_default() += 1;
        }
        let Some(object) = self.object(id) else {
            return Ok(PartsOutcome::Claimed(Vec::new()));
        };
        for part in &missing {
            if let Some(block) = object.block_of(*part) {
                block.parts_of(*part).for_each(|at| block.set(at, PartState::Arriving));
            }
        }
        object.claims += 1;
        // The home and these tables refuse a span of two blocks.
        let starts: BTreeSet<Offset> = object.spans().map(|block| block.offset).collect();
        Ok(PartsOutcome::Claimed(join_unless(missing, |at| starts.contains(&at))))
    }

    /// The parts of ranges that are neither complete nor arriving, in order, each once.
    pub(super) fn missing(
        &mut self,
        id: MirrorObjectId,
        ranges: &[Span],
    ) -> Result<Vec<Span>, CacheError> {
        let removed = CacheError::Removed { object: id.key };
        let object = self.object(id).ok_or(removed)?;
        let mut missing = Vec::new();
        for range in ranges {
            let wrong = CacheError::NotInObject { range: *range, object: id.key };
            let block = object.block_of(*range).ok_or(wrong)?;
            let parts = block.parts_of(*range).filter(|at| block.state(*at) == PartState::Missing);
            missing.extend(parts.filter_map(|at| block.part(at)));
        }
        missing.sort_unstable();
        missing.dedup();
        Ok(missing)
    }

    /// The worst state of the parts of ranges.
    pub(super) fn progress(
        &mut self,
        id: MirrorObjectId,
        ranges: &[Span],
    ) -> Result<PartState, CacheError> {
        let removed = CacheError::Removed { object: id.key };
        let object = self.object(id).ok_or(removed)?;
        let mut worst = PartState::Complete;
        for range in ranges {
            let wrong = CacheError::NotInObject { range: *range, object: id.key };
            let block = object.block_of(*range).ok_or(wrong)?;
            for at in block.parts_of(*range) {
                match block.state(at) {
                    PartState::Missing => return Ok(PartState::Missing),
                    PartState::Arriving => worst = PartState::Arriving,
                    PartState::Complete => {}
                }
            }
        }
        Ok(worst)
    }

    /// Removes idle objects that free at least `needed` bytes; none if that is impossible.
    fn evict(&mut self, needed: u64) -> Vec<EvictedParts> {
        let mut planned: HashMap<(MirrorId, u64), u64> = HashMap::new();
        let (mut freed, mut victims) = (0, Vec::new());
        for id in self.idle.values() {
            if freed >= needed {
                break;
            }
            victims.push(*id);
            let Some(mirror) = self.mirrors.get(&id.mirror) else { continue };
            let Some(object) = mirror.objects.get(&id.key) else { continue };
            for part in object.blocks.iter().flat_map(|one| one.parts_in(PartState::Complete)) {
                let number = part.offset.0 / mirror.grain;
                let count = planned.entry((id.mirror, number)).or_default();
                *count += 1;
                if mirror.grains.get(&number) == Some(count) {
                    freed += mirror.grain;
                }
            }
        }
        if freed < needed {
            return Vec::new();
        }
        self.evicted_objects += victims.len() as u64;
        victims.into_iter().filter_map(|id| self.take_out(id)).collect()
    }
}
