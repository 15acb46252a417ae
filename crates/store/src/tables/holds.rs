//! The home's view of the hold blocks: the owner of each block, and the objects that are held.
//!
//! A hold block is a page of the data section that one client writes. Word 0 bounds the slots that
//! may be in use; slots begin at word 16. A slot is 0, or a directory slot plus 1. All of it is
//! untrusted input: the first word is clamped, and a value that names no retiring object is
//! ignored. A client that stores wrong values loses its own holds only.

use std::collections::BTreeSet;

use farrow_memory::{Length, Offset, Proximity, Span};

use crate::error::StoreError;
use crate::failpoint;
use crate::format::layout::{HOLD_HEADER_WORDS, HOLD_OWNER_BYTES, Layout, OPEN_SEALS_WORD};
use crate::tables::client_pages::ClientPages;
use crate::tables::control::{Control, word_of};
use crate::tables::slot_set::SlotSet;

/// The hold-block table and the blocks.
#[derive(Debug)]
pub(crate) struct HoldArea {
    control: Control,
    layout: Layout,
    pages: ClientPages,
    /// Owner of each block: client slot plus 1, or 0.
    owners: Vec<u32>,
    assigned: BTreeSet<u32>,
    free: BTreeSet<u32>,
    /// Clients whose holds no longer count, though their blocks are not free yet.
    silent: BTreeSet<u32>,
}

impl HoldArea {
    /// Take over the table of an existing region.
    pub(crate) fn open(control: Control, layout: Layout) -> Result<Self, StoreError> {
        let pages = ClientPages::new(control.region(), layout.hold_blocks)?;
        let mut area = Self {
            control,
            layout,
            pages,
            owners: vec![0; layout.hold_blocks_max as usize],
            assigned: BTreeSet::new(),
            free: BTreeSet::new(),
            silent: BTreeSet::new(),
        };
        for (block, owner) in (0..).zip(area.owners.iter_mut()) {
            let at = word_of(layout.hold_owners, HOLD_OWNER_BYTES, block, 0);
            let found = area.control.load(at)?;
            if found == 0 || found > layout.clients_max.into() {
                area.free.insert(block);
            } else {
                *owner = found as u32;
                area.assigned.insert(block);
            }
        }
        Ok(area)
    }

    /// Record whether the process of a client runs on this node.
    pub(crate) fn set_proximity(&mut self, client: u32, proximity: Proximity) {
        self.pages.set_proximity(client, proximity);
    }

    /// Ignore all holds of a client. Its blocks stay its own until [`Self::take_all`].
    pub(crate) fn silence(&mut self, client: u32) {
        self.silent.insert(client);
    }

    /// Assign one more block to a client, zeroed.
    pub(crate) fn assign(&mut self, client: u32) -> Result<Span, StoreError> {
        let max = self.layout.hold_blocks_max;
        let block = *self.free.first().ok_or(StoreError::HoldBlocksExhausted { max })?;
        self.pages.zero(self.span_of(block))?;
        failpoint!("hold_block.zeroed");
        self.set_owner(block, client + 1)?;
        failpoint!("hold_block.owned");
        self.free.remove(&block);
        self.assigned.insert(block);
        Ok(self.span_of(block))
    }

    /// Take all blocks of a client, and so its holds. Returns the number of blocks.
    pub(crate) fn take_all(&mut self, client: u32) -> Result<u32, StoreError> {
        self.silent.remove(&client);
        self.pages.set_proximity(client, Proximity::Remote);
        let blocks: Vec<u32> = self.blocks_of(client).collect();
        for block in &blocks {
            self.pages.zero(self.span_of(*block))?;
            failpoint!("client.leave.holds");
            self.set_owner(*block, 0)?;
            self.assigned.remove(block);
            self.free.insert(*block);
        }
        Ok(blocks.len() as u32)
    }

    /// Blocks without an owner.
    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Spans of the blocks of a client.
    pub(crate) fn spans_of(&self, client: u32) -> Vec<Span> {
        self.blocks_of(client).map(|block| self.span_of(block)).collect()
    }

    /// Clients that own a block.
    pub(crate) fn owners(&self) -> BTreeSet<u32> {
        self.assigned.iter().filter_map(|b| self.owner_of(*b)).collect()
    }

    /// Every held slot, in one pass. Values that no correct client stores are left out.
    pub(crate) fn held(&self) -> Result<SlotSet, StoreError> {
        let mut held = SlotSet::default();
        self.each_held(|slot| {
            held.insert(slot);
        })?;
        Ok(held)
    }

    /// Pass each held slot to `see`, as often as it is held, in one pass over all blocks. The caller
    /// has fenced. Values that are no slot are left out.
    pub(crate) fn each_held(&self, mut see: impl FnMut(u32)) -> Result<(), StoreError> {
        let mut next = 0;
        while let Some(block) = self.counted_from(next) {
            self.each_held_in(block, &mut see)?;
            next = block + 1;
        }
        Ok(())
    }

    /// As [`Self::each_held`], of one block. Returns how many of its places are in use.
    pub(crate) fn each_held_in(
        &self,
        block: u32,
        mut see: impl FnMut(u32),
    ) -> Result<u64, StoreError> {
        let mut count = 0;
        self.scan(block, |value| {
            count += u64::from(value != 0);
            let slot = value.checked_sub(1).and_then(|slot| u32::try_from(slot).ok());
            slot.filter(|slot| self.layout.is_slot(*slot)).into_iter().for_each(&mut see);
        })?;
        Ok(count)
    }

    /// The first block from `block` on whose holds count.
    pub(crate) fn counted_from(&self, block: u32) -> Option<u32> {
        self.assigned.range(block..).copied().find(|block| self.counts(*block))
    }

    /// The client that owns a block.
    pub(crate) fn client_of(&self, block: u32) -> Option<u32> {
        self.owner_of(block)
    }

    /// Whether a client says that it has no open seal: it holds all objects whose memory it uses.
    pub(crate) fn has_no_open_seal(&self, client: u32) -> Result<bool, StoreError> {
        let mut marks = Vec::new();
        for block in self.blocks_of(client) {
            let at = Offset(self.span_of(block).offset.0 + OPEN_SEALS_WORD * 8);
            marks.extend(self.pages.read(Span::new(at, Length(8)), Some(client))?);
        }
        // One block says how many are open; the word of the others is 0.
        marks.retain(|word| *word != 0);
        Ok(marks == [1])
    }

    /// How many blocks are assigned.
    pub(crate) fn assigned(&self) -> u32 {
        self.assigned.len() as u32
    }

    /// Whether private state and table agree.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (block, owner) in (0..).zip(&self.owners) {
            let at = word_of(self.layout.hold_owners, HOLD_OWNER_BYTES, block, 0);
            let found = self.control.load(at).map_err(|error| error.to_string())?;
            let is_assigned = self.assigned.contains(&block);
            if found != u64::from(*owner)
                || is_assigned != (*owner != 0)
                || is_assigned == self.free.contains(&block)
            {
                return Err(format!("hold block {block}: owner {owner}, the region says {found}"));
            }
        }
        Ok(())
    }

    /// Pass each slot of a block that may be in use to `see`.
    fn scan(&self, block: u32, see: impl FnMut(u64)) -> Result<(), StoreError> {
        let (mut span, owner) = (self.span_of(block), self.owner_of(block));
        let used =
            |words: &[u64]| words.first().copied().unwrap_or(0).min(self.layout.hold_slots());
        if self.pages.is_far(owner) {
            // Only the lines in use: each refreshed line has a cost. The number of slots was
            // published before any claim beyond it, so a claim outside of it is too late.
            let head = self.pages.read(Span::new(span.offset, Length(8)), owner)?;
            span.length = Length((HOLD_HEADER_WORDS + used(&head)) * 8);
        }
        let words = self.pages.read(span, owner)?;
        let used = used(&words);
        let slots = words.iter().skip(HOLD_HEADER_WORDS as usize).take(used as usize);
        slots.copied().for_each(see);
        Ok(())
    }

    fn counts(&self, block: u32) -> bool {
        self.owner_of(block).is_none_or(|client| !self.silent.contains(&client))
    }

    fn set_owner(&mut self, block: u32, owner: u32) -> Result<(), StoreError> {
        let at = word_of(self.layout.hold_owners, HOLD_OWNER_BYTES, block, 0);
        self.control.store(at, owner.into())?;
        if let Some(known) = self.owners.get_mut(block as usize) {
            *known = owner;
        }
        Ok(())
    }

    fn owner_of(&self, block: u32) -> Option<u32> {
        self.owners.get(block as usize)?.checked_sub(1)
    }

    fn blocks_of(&self, client: u32) -> impl Iterator<Item = u32> + '_ {
        self.assigned.iter().copied().filter(move |block| self.owner_of(*block) == Some(client))
    }

    fn span_of(&self, block: u32) -> Span {
        let page = self.layout.page.0;
        Span::new(Offset(self.layout.hold_blocks.offset.0 + u64::from(block) * page), Length(page))
    }
}
