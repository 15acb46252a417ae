//! The client side of holds: claim an object by one store, release it by one store.
//!
//! # Why a held object is not freed
//!
//! The argument is that of hazard pointers (Michael, "Hazard Pointers", 2004). A reader
//!   1. loads the entry's sequence `s` and sees it sealed,
//!   2. stores its claim,
//!   3. passes a sequentially consistent fence,
//!   4. loads the sequence again and holds the object only if it is still `s`.
//!
//! To delete an object, the home
//!   1. stores the sequence with state retiring,
//!   2. passes a sequentially consistent fence,
//!   3. loads every claim and frees the object only if none names it.
//!
//! All such fences have one total order. If the reader's fence is first, the home's loads, which
//! follow the home's fence, see the claim: the object stays. If the home's fence is first, the
//! reader's second load sees retiring, or a later life: the reader gives up. The number of slots in
//! use, in word 0 of a block, is raised before the claim and so before the fence; the same argument
//! covers it.
//!
//! Several objects may be claimed with one fence, after all claims and before all second loads. The
//! argument holds for each of them.
//!
//! The creator of an object may claim it after another client has deleted it: the home retains it
//! until the creator has confirmed its claim, so the claim is there before the home's loads.
//!
//! For an object that a client sealed without the home, the word in question is the life, which
//! only the home writes. An open life corresponds to a sealed sequence.
//!
//! A claim is released by a release store, and the home loads claims with acquire: all reads by the
//! reader precede the reuse of the space. A sequence never repeats, so the slot's next life cannot
//! be mistaken for this one.
//!
//! On a node-local region a client of another node publishes its claim before the fence and
//! refreshes the word it loads after it. The home publishes its store before its fence and
//! refreshes the claims after it. Memory orders everything that is published, so the argument still
//! holds.
//!
//! The threads and handles of one client share a claim, which is counted here. The lock of a shard
//! is held over a few loads and stores of mapped memory. The only system call under it is the check
//! for child processes.
//!
//! A forked child reads the objects its parent held at the fork, and has no claims of its own. So a
//! claim older than a fork stays, with a count of 0, until no child of that fork is left
//! ([`farrow_memory::fork`]). If the parent ends first, its claims stay in its blocks: the home
//! leaves the client's slot alone while any process maps the region through it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_memory::{Alias, Length, Offset, Region, Span, fork};

use crate::error::StoreError;
use crate::failpoint;
use crate::format::client_entry::life_of;
use crate::format::entry::{Entry, EntryState, SEQUENCE_WORD, Sequence};
use crate::format::header::RegionHeader;
use crate::format::ids::Slot;
use crate::format::layout::{ENTRY_BYTES, HOLD_HEADER_WORDS, Layout, OPEN_SEALS_WORD};
use crate::hazard::{self, ClaimRequest};
use crate::tables::control::word_of;

mod batch;

pub use batch::HeldBytes;

/// Locks that readers of different objects spread over: a power of two, a few times the cores of a
/// small machine.
const SHARDS: usize = 16;

/// Free slots retained by a shard, so that most claims take no second lock.
const SPARE_MAX: usize = 4;

/// A mark is lowered only from above this: scanning a few lines costs the home less than writing
/// word 0 for each hold costs a reader.
const MARK_RETAINED: u64 = 64;

/// One slot of a hold block, which may hold a claim.
#[derive(Debug)]
struct HoldSlot {
    /// The block, mapped writable.
    block: Arc<Alias>,
    /// Number of the block in the table.
    number: usize,
    /// Slot within the block, from 0.
    index: u64,
}

/// Slots of a block that are in use, and the mark in its word 0: every slot in use is below the
/// mark.
#[derive(Clone, Copy, Debug, Default)]
struct BlockCounts {
    /// Where the block is.
    offset: Offset,
    in_use: u64,
    mark: u64,
}

/// An object this client holds.
#[derive(Debug)]
struct HoldClaim {
    sequence: Sequence,
    /// 0: only children of this process may still use it.
    count: u64,
    /// The last fork before its first use.
    since: u64,
    /// The last fork before its release, while the count is 0.
    until: u64,
    place: HoldSlot,
}

impl HoldClaim {
    fn new(sequence: Sequence, since: u64, place: HoldSlot) -> Self {
        Self { sequence, count: 1, since, until: since, place }
    }
}

/// State shared by all shards: one short lock when an object is first claimed or last released.
#[derive(Debug, Default)]
struct HoldPool {
    free: Vec<HoldSlot>,
    blocks: Vec<BlockCounts>,
    /// The first block, in which the client publishes its open seals.
    first: Option<Arc<Alias>>,
}

type ClaimMap = HashMap<u32, HoldClaim, BuildHasherDefault<SlotHasher>>;

/// Claims on the slots of one shard, and a few free slots for more.
#[derive(Debug, Default)]
struct Shard {
    claims: ClaimMap,
    spare: Vec<HoldSlot>,
    /// Slots whose claims are retained for children.
    inherited: Vec<u32>,
}

/// All holds of one client. Shared by its threads.
#[derive(Debug)]
pub struct HoldTable {
    region: Arc<Region>,
    layout: Layout,
    shards: [Mutex<Shard>; SHARDS],
    pool: Mutex<HoldPool>,
    is_abandoned: AtomicBool,
}

impl HoldTable {
    /// A table over the hold blocks that the home has assigned to this client.
    ///
    /// # Errors
    /// [`StoreError::Format`] if `region` is not a store region, [`StoreError::BadSpan`] for a span
    /// that is not a hold block, [`StoreError::Map`] if a block cannot be mapped writable.
    pub fn new(region: Arc<Region>, blocks: &[Span]) -> Result<Self, StoreError> {
        let layout = RegionHeader::read(&region)?.layout;
        let table = Self {
            region,
            layout,
            shards: Default::default(),
            pool: Mutex::default(),
            is_abandoned: AtomicBool::new(false),
        };
        for block in blocks {
            table.add_block(*block)?;
        }
        Ok(table)
    }

    /// Add a block that the home has assigned. False: it is in the table already, and there are no
    /// more slots than before.
    ///
    /// # Errors
    /// As [`HoldTable::new`].
    pub fn add_block(&self, span: Span) -> Result<bool, StoreError> {
        let page = self.layout.page;
        let is_block = self.layout.hold_blocks.contains(span)
            && span.length == page
            && span.offset.is_multiple_of(page.0);
        if !is_block {
            return Err(StoreError::BadSpan { span, reason: "it is not a hold block" });
        }
        if lock(&self.pool).has(span) {
            return Ok(false);
        }
        let block = Arc::new(self.region.alias(span)?);
        // The first claim should not wait for the page.
        block.populate()?;
        // The home has zeroed it. This node's caches may have older bytes, and would write them
        // back with the first claim.
        self.region.refresh_if_remote(span)?;
        let mut pool = lock(&self.pool);
        // Another thread may have added it meanwhile.
        if pool.has(span) {
            return Ok(false);
        }
        let number = pool.blocks.len();
        pool.blocks.push(BlockCounts { offset: span.offset, ..BlockCounts::default() });
        pool.first.get_or_insert_with(|| Arc::clone(&block));
        // The last one in is the first one out: low slots are used first.
        let indexes = (0..self.layout.hold_slots()).rev();
        pool.free.extend(indexes.map(|index| HoldSlot {
            block: Arc::clone(&block),
            number,
            index,
        }));
        Ok(true)
    }

    /// How many objects are held.
    #[must_use]
    pub fn len(&self) -> usize {
        let used = |claims: &ClaimMap| claims.values().filter(|claim| claim.count > 0).count();
        self.shards.iter().map(|shard| used(&lock(shard).claims)).sum()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slots that are still free.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        let spare: usize = self.shards.iter().map(|shard| lock(shard).spare.len()).sum();
        spare + lock(&self.pool).free.len()
    }

    /// Touch no claim from now on, like a client that was killed. A child process does so by itself
    /// after `fork`: its copies of the handles are not the owner's, and must release nothing.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    /// Tell the home how many seals of objects whose memory this client uses are open: begun, and
    /// neither failed nor followed by a hold. A home that follows a killed one retains the objects
    /// of a client with open seals until the client has confirmed them.
    ///
    /// # Errors
    /// Memory that cannot be written.
    pub fn publish_open_seals(&self, open: u64) -> Result<(), StoreError> {
        let pool = lock(&self.pool);
        match &pool.first {
            Some(block) if self.is_usable() => store_word(block, OPEN_SEALS_WORD, open << 1 | 1),
            _ => Ok(()),
        }
    }

    fn is_usable(&self) -> bool {
        self.region.is_of_this_process() && !self.is_abandoned.load(Ordering::Acquire)
    }

    /// Hold the object of `entry`. None: it is no longer there.
    ///
    /// # Errors
    /// [`StoreError::HoldsExhausted`] if all slots are in use: ask the home for another block.
    pub fn hold(self: &Arc<Self>, entry: &Entry) -> Result<Option<Held>, StoreError> {
        let life = self.expected(entry);
        let is_held = self.acquire(entry.id.slot(), life, life)?;
        Ok(is_held.then(|| Held { table: Arc::clone(self), entry: Box::new(*entry) }))
    }

    /// Hold the deleted object of `entry`, which the home retains for this client until the client
    /// confirms. None: the slot is in another life.
    pub(super) fn hold_retiring(
        self: &Arc<Self>,
        entry: &Entry,
    ) -> Result<Option<Held>, StoreError> {
        let life = entry.sequence();
        let is_held = self.acquire(entry.id.slot(), life, life.with(EntryState::Retiring))?;
        Ok(is_held.then(|| Held { table: Arc::clone(self), entry: Box::new(*entry) }))
    }

    /// The expected word of an object's life while the object is there.
    fn expected(&self, entry: &Entry) -> Sequence {
        match self.layout.client_entry(entry.id.slot()) {
            // The home decides whether it is still there, not the client that wrote the entry.
            Some(_) => Sequence::new(entry.id.generation(), EntryState::Free),
            None => entry.sequence(),
        }
    }

    /// Claim the life `sequence` of `slot`, whose word is `expected`, or count one more use of an
    /// existing claim.
    fn acquire(
        &self,
        slot: Slot,
        sequence: Sequence,
        expected: Sequence,
    ) -> Result<bool, StoreError> {
        if !self.is_usable() {
            return Err(StoreError::HoldsUnusable);
        }
        let since = fork::completed_forks();
        let mut shard = self.shard(slot);
        if let Some(claim) = shard.claims.get_mut(&slot.0) {
            // A claim on another life: the slot is not free, so it is not in the requested life.
            if claim.sequence != sequence {
                return Ok(false);
            }
            claim.count += 1;
            return Ok(true);
        }
        let place = match shard.spare.pop() {
            Some(place) => place,
            None => self.take_place()?,
        };
        match self.claim(&place, slot, expected) {
            Ok(true) => {
                shard.claims.insert(slot.0, HoldClaim::new(sequence, since, place));
                Ok(true)
            }
            other => {
                self.give_back(&mut shard, place);
                other
            }
        }
    }

    /// Steps 2 to 4 of the reader.
    fn claim(&self, place: &HoldSlot, slot: Slot, expected: Sequence) -> Result<bool, StoreError> {
        let words = ClaimWords { table: self, place, slot };
        hazard::claim(words, claim_on(slot), expected.0)
    }

    /// Drop one use. The last one clears the claim, unless a child may have inherited it.
    fn release(self: &Arc<Self>, slot: Slot) {
        if !self.is_usable() {
            return;
        }
        let mut shard = self.shard(slot);
        let Some(claim) = shard.claims.get_mut(&slot.0) else {
            return;
        };
        claim.count -= 1;
        if claim.count > 0 {
            return;
        }
        claim.until = fork::forks();
        if claim.since != claim.until && fork::is_inherited(claim.since, claim.until) {
            return self.keep_for_children(shard, slot);
        }
        self.let_claim_go(&mut shard, slot);
    }

    /// Defer clearing the claim on this slot until no child can use it.
    #[cold]
    fn keep_for_children(self: &Arc<Self>, mut shard: MutexGuard<'_, Shard>, slot: Slot) {
        shard.inherited.push(slot.0);
        drop(shard);
        let this: Weak<Self> = Arc::downgrade(self);
        fork::defer(this);
    }

    /// Removes an unused claim and clears its slot.
    fn let_claim_go(&self, shard: &mut Shard, slot: Slot) {
        if let Some(claim) = shard.claims.remove(&slot.0) {
            match claim.place.store(0) {
                Ok(()) => {
                    failpoint!(client "hold.released");
                    self.give_back(shard, claim.place);
                }
                // A slot that cannot be cleared is not used again.
                Err(error) => {
                    tracing::error!(%error, slot = slot.0, "a hold could not be released")
                }
            }
        }
    }

    fn share(&self, slot: Slot) {
        if !self.is_usable() {
            return;
        }
        if let Some(claim) = self.shard(slot).claims.get_mut(&slot.0) {
            claim.count += 1;
        }
    }

    /// Record that the claim protects bytes that this process has had since fork `since`.
    fn date_back(&self, slot: Slot, since: u64) {
        if let Some(claim) = self.shard(slot).claims.get_mut(&slot.0) {
            claim.since = claim.since.min(since);
        }
    }

    /// Clears claims that no child uses any more; returns how many of the shard remain.
    fn let_inherited_go(&self, shard: &Mutex<Shard>) -> usize {
        let mut shard = lock(shard);
        let mut left = Vec::new();
        for slot in std::mem::take(&mut shard.inherited) {
            // A claim in use again is released like any other.
            let Some(HoldClaim { count: 0, since, until, .. }) = shard.claims.get(&slot) else {
                continue;
            };
            if fork::is_inherited(*since, *until) {
                left.push(slot);
            } else {
                self.let_claim_go(&mut shard, Slot(slot));
            }
        }
        shard.inherited = left;
        shard.inherited.len()
    }

    /// Take a free slot of the pool, or a spare one of another shard, and raise the mark of its
    /// block above it. The caller holds the lock of a shard, so the other locks are only tried.
    fn take_place(&self) -> Result<HoldSlot, StoreError> {
        let mut pool = lock(&self.pool);
        if let Some(place) = pool.take()? {
            return Ok(place);
        }
        let mut idle = self.shards.iter().filter_map(|shard| shard.try_lock().ok());
        let blocks = pool.blocks.len();
        idle.find_map(|mut shard| shard.spare.pop()).ok_or_else(|| StoreError::HoldsExhausted {
            blocks: blocks as u32,
            slots: blocks as u64 * self.layout.hold_slots(),
        })
    }

    /// Retain a slot in the shard, or put it back into the pool.
    fn give_back(&self, shard: &mut Shard, place: HoldSlot) {
        if let Some(place) = shard.keep(place) {
            lock(&self.pool).put(place);
        }
    }

    /// The span of the word with a slot's life: the sequence of its entry, or the life of a
    /// client's entry.
    fn life_span(&self, slot: Slot) -> Span {
        let at = match self.layout.client_entry(slot) {
            Some(number) => self.layout.life(number, 0),
            None => word_of(self.layout.directory, ENTRY_BYTES, slot.0, SEQUENCE_WORD),
        };
        Span::new(at, Length(8))
    }

    /// That word. On a region that is not coherent this node may see an older value.
    fn sequence(&self, slot: Slot) -> Result<Sequence, StoreError> {
        let span = self.life_span(slot);
        let words = self.region.words(span)?;
        // Acquire: all later reads of the object follow this load.
        let word = words.load(0, Ordering::Acquire);
        let word = word.ok_or_else(|| StoreError::unreachable_word("directory", span.offset.0))?;
        let is_of_client = self.layout.client_entry(slot).is_some();
        Ok(if is_of_client { life_of(word) } else { Sequence(word) })
    }

    fn shard(&self, slot: Slot) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard_of(slot)])
    }
}

impl fork::Deferred for HoldTable {
    fn let_go(&self) -> bool {
        self.is_usable()
            && self.shards.iter().map(|shard| self.let_inherited_go(shard)).sum::<usize>() > 0
    }
}

/// The shard of a directory slot.
fn shard_of(slot: Slot) -> usize {
    slot.0 as usize % SHARDS
}

/// The value of a claim on a directory slot; 0 is no claim.
fn claim_on(slot: Slot) -> u64 {
    u64::from(slot.0) + 1
}

impl HoldPool {
    fn has(&self, block: Span) -> bool {
        self.blocks.iter().any(|own| own.offset == block.offset)
    }

    /// A free slot, with the mark of its block above it.
    fn take(&mut self) -> Result<Option<HoldSlot>, StoreError> {
        let Some(place) = self.free.pop() else {
            return Ok(None);
        };
        if let Some(counts) = self.blocks.get_mut(place.number) {
            counts.in_use += 1;
            if counts.mark <= place.index {
                counts.mark = place.index + 1;
                place.store_word(0, counts.mark)?;
                failpoint!(client "hold.marked");
            }
        }
        Ok(Some(place))
    }

    /// Put a free slot back. A block with no slot in use needs no scan.
    fn put(&mut self, place: HoldSlot) {
        if let Some(counts) = self.blocks.get_mut(place.number) {
            counts.in_use = counts.in_use.saturating_sub(1);
            if counts.in_use == 0 && counts.mark > MARK_RETAINED && place.store_word(0, 0).is_ok() {
                counts.mark = 0;
            }
        }
        self.free.push(place);
    }
}

impl Shard {
    /// Retains a slot, or returns it if the shard has enough.
    fn keep(&mut self, place: HoldSlot) -> Option<HoldSlot> {
        if self.spare.len() >= SPARE_MAX || place.index >= MARK_RETAINED {
            return Some(place);
        }
        self.spare.push(place);
        None
    }

    /// Retains a slot, or puts it back into the pool.
    fn give_back(&mut self, pool: &mut HoldPool, place: HoldSlot) {
        if let Some(place) = self.keep(place) {
            pool.put(place);
        }
    }
}

/// The words of a claim: a slot of a hold block, and the word of the object's life.
struct ClaimWords<'a> {
    table: &'a HoldTable,
    place: &'a HoldSlot,
    slot: Slot,
}

impl hazard::Claim for ClaimWords<'_> {
    type Error = StoreError;

    fn store(&self, claim: u64) -> Result<(), StoreError> {
        self.place.set_word(self.place.word(), claim)?;
        failpoint!(client "hold.claimed");
        Ok(())
    }

    fn life(&self) -> Result<u64, StoreError> {
        self.table.sequence(self.slot).map(|sequence| sequence.0)
    }

    fn bring_out(wishes: &[ClaimRequest<Self>]) -> Result<(), StoreError> {
        let Some(region) = remote(wishes) else { return Ok(()) };
        let claims = wishes.iter().map(|wish| wish.reader.place.span_of(wish.reader.place.word()));
        Ok(region.publish_all(&claims.collect::<Vec<_>>())?)
    }

    fn bring_in(wishes: &[ClaimRequest<Self>]) -> Result<(), StoreError> {
        let Some(region) = remote(wishes) else { return Ok(()) };
        let lives = wishes.iter().map(|wish| wish.reader.table.life_span(wish.reader.slot));
        Ok(region.refresh_all(&lives.collect::<Vec<_>>())?)
    }
}

/// The region of these claims, if its home is on another node and memory is not coherent.
fn remote<'a>(wishes: &[ClaimRequest<ClaimWords<'a>>]) -> Option<&'a Region> {
    let region = &*wishes.first()?.reader.table.region;
    region.is_remote().then_some(region)
}

impl HoldSlot {
    fn store(&self, value: u64) -> Result<(), StoreError> {
        self.store_word(self.word(), value)
    }

    /// Its word in the block.
    fn word(&self) -> u64 {
        HOLD_HEADER_WORDS + self.index
    }

    fn span_of(&self, word: u64) -> Span {
        word_span(&self.block, word)
    }

    fn set_word(&self, word: u64, value: u64) -> Result<(), StoreError> {
        set_word(&self.block, word, value)
    }

    fn store_word(&self, word: u64, value: u64) -> Result<(), StoreError> {
        store_word(&self.block, word, value)
    }
}

/// The span of a word of a hold block.
fn word_span(block: &Alias, word: u64) -> Span {
    Span::new(Offset(block.span().offset.0 + word * 8), Length(8))
}

fn set_word(block: &Alias, word: u64, value: u64) -> Result<(), StoreError> {
    if !block.words_mut(word_span(block, word))?.store(0, value, Ordering::Release) {
        return Err(StoreError::unreachable_word("hold block", word));
    }
    Ok(())
}

/// As [`set_word`], so that the home sees it too if it is on another node.
fn store_word(block: &Alias, word: u64, value: u64) -> Result<(), StoreError> {
    set_word(block, word, value)?;
    Ok(block.region().publish_if_remote(word_span(block, word))?)
}

/// A claim on an object: while it exists, the object's bytes stay where they are.
#[derive(Debug)]
pub struct Held {
    table: Arc<HoldTable>,
    /// Boxed: a hold is moved through many results, which costs more than the allocation.
    entry: Box<Entry>,
}

impl Held {
    /// The entry of the held object.
    #[must_use]
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Record that this process has had the bytes since before the claim, from fork `since` on:
    /// children of all later forks may have inherited them.
    pub fn date_back(&self, since: u64) {
        self.table.date_back(self.entry.id.slot(), since);
    }

    /// The table it belongs to.
    #[must_use]
    pub fn table(&self) -> &Arc<HoldTable> {
        &self.table
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        self.table.share(self.entry.id.slot());
        Self { table: Arc::clone(&self.table), entry: self.entry.clone() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.table.release(self.entry.id.slot());
    }
}

/// Slots are small numbers in a row: one multiplication spreads them (Fibonacci hashing).
#[derive(Debug, Default)]
struct SlotHasher(u64);

impl Hasher for SlotHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, slot: u32) {
        self.0 = (self.0 ^ u64::from(slot)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The table uses low bits for the place and high bits for the tag.
        self.0 ^ self.0 >> 32
    }
}

/// The state under these locks is consistent after each statement, so a panic elsewhere is
/// harmless.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
