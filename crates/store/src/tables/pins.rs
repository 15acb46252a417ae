//! Which objects are pinned: a bit for each directory slot, in the control section.
//!
//! A pin prevents automatic eviction; it survives the home. It is one bit, however often an object
//! is pinned, and is removed with the object.

use std::collections::BTreeSet;

use crate::error::StoreError;
use crate::failpoint;
use crate::format::ids::Slot;
use crate::format::layout::{Layout, PINS_IN_WORD};
use crate::tables::control::{Control, word_of};

/// The pin table as the home writes it.
#[derive(Debug)]
pub(crate) struct Pins {
    control: Control,
    layout: Layout,
    pinned: BTreeSet<u32>,
}

impl Pins {
    /// Take over the table of an existing region. Pins of slots without an object are cleared: a
    /// kill may have separated the end of an object from that of its pin.
    pub(crate) fn open(
        control: Control,
        layout: Layout,
        has_object: impl Fn(Slot) -> Result<bool, StoreError>,
    ) -> Result<Self, StoreError> {
        let mut pins = Self { control, layout, pinned: BTreeSet::new() };
        for word in 0..layout.objects_max.div_ceil(PINS_IN_WORD) {
            let found = pins.control.load(pins.place(word))?;
            if found == 0 {
                continue;
            }
            for bit in (0..PINS_IN_WORD).filter(|bit| found >> bit & 1 == 1) {
                let slot = word * PINS_IN_WORD + bit;
                if slot < layout.objects_max && has_object(Slot(slot))? {
                    pins.pinned.insert(slot);
                }
            }
            let retained = pins.word(word);
            if retained != found {
                pins.control.store(pins.place(word), retained)?;
            }
        }
        Ok(pins)
    }

    pub(crate) fn is_pinned(&self, slot: Slot) -> bool {
        self.pinned.contains(&slot.0)
    }

    /// Slots of pinned objects, from `first` on, in order.
    pub(crate) fn iter_from(&self, first: Slot) -> impl Iterator<Item = Slot> + '_ {
        self.pinned.range(first.0..).copied().map(Slot)
    }

    pub(crate) fn count(&self) -> u32 {
        self.pinned.len() as u32
    }

    /// Pin or unpin the object in `slot`. One store, none if nothing changes.
    pub(crate) fn set(&mut self, slot: Slot, is_pinned: bool) -> Result<(), StoreError> {
        let has_changed =
            if is_pinned { self.pinned.insert(slot.0) } else { self.pinned.remove(&slot.0) };
        if has_changed {
            let word = slot.0 / PINS_IN_WORD;
            self.control.store(self.place(word), self.word(word))?;
            failpoint!("pin.stored");
        }
        Ok(())
    }

    /// Whether private state and table agree.
    pub(crate) fn check(&self) -> Result<(), String> {
        for word in 0..self.layout.objects_max.div_ceil(PINS_IN_WORD) {
            let found = self.control.load(self.place(word)).map_err(|error| error.to_string())?;
            if found != self.word(word) {
                return Err(format!("pin word {word} is {found:#x}, not {:#x}", self.word(word)));
            }
        }
        Ok(())
    }

    /// A word of the table as it should be.
    fn word(&self, word: u32) -> u64 {
        let first = word * PINS_IN_WORD;
        let set = self.pinned.range(first..first.saturating_add(PINS_IN_WORD));
        set.fold(0, |bits, slot| bits | 1 << (slot - first))
    }

    fn place(&self, word: u32) -> farrow_memory::Offset {
        word_of(self.layout.pins, 8, word, 0)
    }
}
