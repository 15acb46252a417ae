//! Names: their bytes in the name heap, and the index from a hash to a slot.
//!
//! The index is an open-addressing table of words: high half the tag (the high half of the hash),
//! low half the slot plus 1. 0 is a place never used, a word with a low half of 0 is a tombstone. A
//! probe starts at the hash modulo the number of places and ends at the first 0.
//!
//! A reader that probes while the home changes the table misses no name that is there all the time.
//! The place of such a name does not change within one table, and no place between the start of its
//! probe and that place becomes 0: a tombstone becomes 0 only if the next place is 0, and then no
//! probe passes over it. Where a name gets a newer object, its place changes once; a reader that saw
//! the older object retire loads the place again. When the tables swap roles, the turn grows, and a reader that found
//! nothing checks the turn again.

use std::borrow::Cow;

use farrow_memory::sync::Ordering;
use farrow_memory::{Length, Offset, Span, Words, WordsMut};

use crate::alloc::space::{Run, SpaceAllocator};
use crate::error::StoreError;
use crate::failpoint;
use crate::format::full_name::NAMESPACE_END;
use crate::format::hash::{HashKey, NameHash};
use crate::format::header::INDEX_TURN;
use crate::format::ids::Slot;
use crate::format::layout::Layout;
use crate::format::options::{NAME_BYTES_MAX, NAME_GRAIN_BYTES};
use crate::tables::control::Control;

/// A place that was used; not 0, so that probes continue.
const TOMBSTONE: u64 = 1 << 32;

/// Places in a cache line of 64 B, the shortest one.
const LINE_PLACES: usize = 8;

/// Whether `name` may be the name of an object of the default namespace.
///
/// # Errors
/// [`StoreError::NameInvalid`] if it is empty, longer than 255 bytes, or contains NUL.
pub fn check_name(name: &str) -> Result<(), StoreError> {
    full_name("", name).map(drop)
}

/// The name of an object in the directory: its own name in the default namespace (`""`), elsewhere
/// the name of the namespace, a NUL, and its own name.
///
/// # Errors
/// [`StoreError::NameInvalid`] if its own name is empty, contains NUL, or makes more than 255
/// bytes.
pub fn full_name<'a>(namespace: &str, name: &'a str) -> Result<Cow<'a, str>, StoreError> {
    let bytes = name.len() as u64;
    let before = if namespace.is_empty() { 0 } else { namespace.len() as u64 + 1 };
    let max = NAME_BYTES_MAX.saturating_sub(before);
    if bytes == 0 || bytes > max || name.contains(NAMESPACE_END) {
        return Err(StoreError::NameInvalid { bytes, max });
    }
    if namespace.is_empty() {
        return Ok(Cow::Borrowed(name));
    }
    Ok(Cow::Owned(format!("{namespace}{NAMESPACE_END}{name}")))
}

/// Whether `full` is the name of an object of this namespace.
///
/// # Errors
/// [`StoreError::NameInvalid`] if it is not.
pub(crate) fn check_full_name(namespace: &str, full: &str) -> Result<(), StoreError> {
    let own = match full.strip_prefix(namespace) {
        Some(rest) if !namespace.is_empty() => rest.strip_prefix(NAMESPACE_END),
        rest => rest,
    };
    let invalid = StoreError::NameInvalid { bytes: full.len() as u64, max: NAME_BYTES_MAX };
    own.ok_or(invalid).and_then(|own| full_name(namespace, own)).map(drop)
}

/// Pass the slots whose names may have this hash to `see`, in probe order, until it returns a
/// result. At most one round of the table. `refresh` is called before the first place and each
/// start of a line.
pub(crate) fn probe<T, E>(
    index: &Words<'_>,
    hash: NameHash,
    refresh: impl Fn(usize) -> Result<(), E>,
    mut see: impl FnMut(usize, Slot) -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let mask = index.len().wrapping_sub(1);
    for step in 0..index.len() {
        let at = (hash.0 as usize).wrapping_add(step) & mask;
        if step == 0 || at.is_multiple_of(LINE_PLACES) {
            refresh(at)?;
        }
        // Acquire: a place cleared for a new turn shows that the old turn is over.
        match index.load(at, Ordering::Acquire) {
            None | Some(0) => return Ok(None),
            Some(word) => {
                let slot = (word as u32).checked_sub(1);
                if let Some(slot) = slot.filter(|_| word >> 32 == hash.0 >> 32)
                    && let Some(found) = see(at, Slot(slot))?
                {
                    return Ok(Some(found));
                }
            }
        }
    }
    Ok(None)
}

/// The home's side: allocates name bytes and changes the index.
#[derive(Debug)]
pub(crate) struct Names {
    control: Control,
    layout: Layout,
    key: HashKey,
    heap: SpaceAllocator,
    turn: u64,
    /// Names in the index.
    count: u64,
    /// Places of the index that are not 0.
    filled: u64,
    /// Names freed since this was opened.
    erased: u64,
}

impl Names {
    /// An empty index, as in a new region.
    pub(crate) fn new(
        control: Control,
        layout: Layout,
        key: HashKey,
        heap: SpaceAllocator,
        turn: u64,
    ) -> Self {
        Self { control, layout, key, heap, turn, count: 0, filled: 0, erased: 0 }
    }

    /// A name heap with `taken` (sorted) in use.
    pub(crate) fn heap(
        layout: &Layout,
        taken: impl IntoIterator<Item = Run>,
    ) -> Result<SpaceAllocator, StoreError> {
        let start = layout.names.offset.0;
        let all = Run { start, end: start + layout.names.length.0 };
        SpaceAllocator::with_occupied(all, NAME_GRAIN_BYTES, NAME_GRAIN_BYTES, taken)
            .map_err(|error| StoreError::Inconsistent(format!("name heap: {error}")))
    }

    pub(crate) fn hash(&self, name: &str) -> NameHash {
        NameHash::of(self.key, name.as_bytes())
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.heap.free_bytes()
    }

    /// How many names were freed since this was opened.
    pub(crate) fn erased(&self) -> u64 {
        self.erased
    }

    /// The allocator of the name heap. A caller that allocates for a trial frees it again.
    pub(crate) fn heap_mut(&mut self) -> &mut SpaceAllocator {
        &mut self.heap
    }

    /// Whether there is room for a name of this many bytes.
    ///
    /// # Errors
    /// [`StoreError::NameSpaceFull`] with the free bytes.
    pub(crate) fn check_room(&self, requested: Length) -> Result<(), StoreError> {
        if self.heap.largest() >= requested.0.next_multiple_of(NAME_GRAIN_BYTES) {
            return Ok(());
        }
        Err(self.full(requested))
    }

    /// The error for a name without room, with the sizes of the heap.
    pub(crate) fn full(&self, requested: Length) -> StoreError {
        let free = self.heap.free_bytes();
        StoreError::NameSpaceFull {
            requested,
            free: Length(free),
            largest: Length(self.heap.largest()),
            used: Length(self.layout.names.length.0.saturating_sub(free)),
        }
    }

    /// Find the place and the slot for which `is_it` returns true.
    pub(crate) fn find(
        &self,
        hash: NameHash,
        mut is_it: impl FnMut(Slot) -> Result<bool, StoreError>,
    ) -> Result<Option<(usize, Slot)>, StoreError> {
        let words = self.control.region().words(self.active())?;
        probe(&words, hash, |_| Ok(()), |at, slot| Ok(is_it(slot)?.then_some((at, slot))))
    }

    /// Allocate room for a name and write it there. No entry refers to it yet.
    pub(crate) fn write(&mut self, name: &str) -> Result<Span, StoreError> {
        let requested = Length(name.len() as u64);
        self.check_room(requested)?;
        let run = self.heap.allocate(requested.0, NAME_GRAIN_BYTES);
        let run =
            run.ok_or_else(|| StoreError::Inconsistent("the name heap is full".to_owned()))?;
        let span = Span::new(Offset(run.start), requested);
        if let Err(error) = self.control.write_bytes(span.offset, name.as_bytes()) {
            self.erase(span)?;
            return Err(error);
        }
        Ok(span)
    }

    /// Free the room of a name.
    pub(crate) fn erase(&mut self, span: Span) -> Result<(), StoreError> {
        let run = name_run(span);
        self.erased += 1;
        self.heap.free(run).map_err(|error| StoreError::Inconsistent(format!("names: {error}")))
    }

    /// Add an entry from `hash` to `slot`. `stored` lists all names in the index, in case the index
    /// has to be rebuilt.
    pub(crate) fn insert<I>(
        &mut self,
        hash: NameHash,
        slot: Slot,
        stored: impl FnOnce() -> Result<I, StoreError>,
    ) -> Result<(), StoreError>
    where
        I: IntoIterator<Item = (NameHash, Slot)>,
    {
        // Beyond three quarters full, probes grow long. Names fill at most half of the places, so a
        // rebuilt index has at least a quarter of its places for further changes.
        if (self.filled + 1).saturating_mul(4) > self.layout.index_places.saturating_mul(3) {
            let stored = stored()?;
            return self.rebuild(stored.into_iter().chain([(hash, slot)]));
        }
        let words = self.control.region().words_mut(self.active())?;
        let (place, was_tombstone) = put(&words, hash, slot)?;
        drop(words);
        self.filled += u64::from(!was_tombstone);
        self.count += 1;
        self.publish(place)
    }

    /// Remove the entry from `hash` to `slot`.
    pub(crate) fn remove(&mut self, hash: NameHash, slot: Slot) -> Result<(), StoreError> {
        let Some((at, _)) = self.find(hash, |found| Ok(found == slot))? else {
            return Err(StoreError::Corrupt { slot, reason: "its name is not in the index" });
        };
        let words = self.control.region().words_mut(self.active())?;
        let mask = words.len().wrapping_sub(1);
        let mut at = at;
        words.store(at, TOMBSTONE, Ordering::Release);
        self.publish(at)?;
        self.count = self.count.saturating_sub(1);
        // No probe needs a tombstone that precedes an empty place.
        while words.load(at.wrapping_add(1) & mask, Ordering::Relaxed) == Some(0)
            && words.load(at, Ordering::Relaxed) == Some(TOMBSTONE)
        {
            words.store(at, 0, Ordering::Release);
            self.publish(at)?;
            self.filled = self.filled.saturating_sub(1);
            at = at.wrapping_sub(1) & mask;
        }
        Ok(())
    }

    /// Lead a name from slot `from` to slot `to` by one store: a reader finds the one or the other.
    pub(crate) fn redirect(
        &mut self,
        hash: NameHash,
        from: Slot,
        to: Slot,
    ) -> Result<(), StoreError> {
        let Some((at, _)) = self.find(hash, |found| Ok(found == from))? else {
            return Err(StoreError::Corrupt { slot: from, reason: "its name is not in the index" });
        };
        let words = self.control.region().words_mut(self.active())?;
        words.store(at, place_word(hash, to), Ordering::Release);
        drop(words);
        self.publish(at)
    }

    /// Rebuild the index in the unused table, then swap the tables by one store. A kill before that
    /// store leaves the old index unchanged.
    pub(crate) fn rebuild(
        &mut self,
        all: impl IntoIterator<Item = (NameHash, Slot)>,
    ) -> Result<(), StoreError> {
        let turn = self.turn.wrapping_add(1);
        let span = self.table(turn);
        self.control.zero(span)?;
        failpoint!("index.zeroed");
        let mut count = 0;
        {
            let words = self.control.region().words_mut(span)?;
            for (hash, slot) in all {
                put(&words, hash, slot)?;
                count += 1;
            }
        }
        self.control.region().publish(span)?;
        failpoint!("index.filled");
        self.control.store(INDEX_TURN, turn)?;
        failpoint!("index.turned");
        (self.turn, self.count, self.filled) = (turn, count, count);
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let words = self.control.region().words(self.active()).map_err(|e| e.to_string())?;
        let all: Vec<u64> =
            (0..words.len()).filter_map(|i| words.load(i, Ordering::Relaxed)).collect();
        let filled = all.iter().filter(|word| **word != 0).count() as u64;
        let count = all.iter().filter(|word| **word as u32 != 0).count() as u64;
        if (filled, count) != (self.filled, self.count) {
            return Err(format!(
                "index has {count} names in {filled} places, accounts say {} in {}",
                self.count, self.filled
            ));
        }
        if filled == all.len() as u64 {
            return Err("no place of the index is empty".to_owned());
        }
        self.heap.check()
    }

    fn publish(&self, place: usize) -> Result<(), StoreError> {
        let place = Offset(self.active().offset.0 + place as u64 * 8);
        Ok(self.control.region().publish(Span::new(place, Length(8)))?)
    }

    fn active(&self) -> Span {
        self.table(self.turn)
    }

    fn table(&self, turn: u64) -> Span {
        self.layout.index[(turn & 1) as usize]
    }
}

/// The word of a place that leads from this hash to this slot.
fn place_word(hash: NameHash, slot: Slot) -> u64 {
    (hash.0 >> 32 << 32) | (u64::from(slot.0) + 1)
}

/// Store into the first place of the probe that is empty or a tombstone. Returns the place, and
/// whether it was a tombstone. The store is not published yet.
fn put(index: &WordsMut<'_>, hash: NameHash, slot: Slot) -> Result<(usize, bool), StoreError> {
    let mask = index.len().wrapping_sub(1);
    let value = place_word(hash, slot);
    for step in 0..index.len() {
        let at = (hash.0 as usize).wrapping_add(step) & mask;
        let found = index.load(at, Ordering::Relaxed).unwrap_or(1);
        if found as u32 == 0 {
            index.store(at, value, Ordering::Release);
            return Ok((at, found != 0));
        }
    }
    Err(StoreError::Inconsistent("the name index is full".to_owned()))
}

/// The bytes of the name heap that a name takes.
pub(crate) fn name_run(span: Span) -> Run {
    let bytes = span.length.0.next_multiple_of(NAME_GRAIN_BYTES);
    Run { start: span.offset.0, end: span.offset.0.saturating_add(bytes) }
}
