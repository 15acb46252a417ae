//! An entry that a client writes itself, and the life word that the home writes for it.
//!
//! Slots from `objects_max` on are *client entries*. The entry is in an entry page, which one
//! client writes. Its *life* is in the control section, which only the home writes. An object
//! exists while its entry is sealed in the open life. So a client creates an object with its own
//! stores, the home ends it with one store, and no word has two writers.

use farrow_memory::{Length, Offset, Span};

use crate::format::entry::{Entry, EntryFault, EntryState, Sequence};
use crate::format::hash::crc_of_words;
use crate::format::ids::{NamespaceId, ObjectId, ObjectKind, RegionUid, Slot};
use crate::format::layout::{CLIENT_ENTRY_BYTES, LIFE_BYTES, Layout};
use crate::tables::control::word_of;

/// Words of a client entry.
pub(crate) const CLIENT_ENTRY_WORDS: usize = 12;
/// The word with the checksum.
const CHECKSUM_WORD: usize = CLIENT_ENTRY_WORDS - 1;
/// The word of a life record with the id in the directory, after a takeover.
pub(crate) const FORWARD_WORD: u64 = 1;

/// The life in a word of the life table. A word that was never written has the first life.
pub(crate) fn life_of(word: u64) -> Sequence {
    if word == 0 { Sequence::FIRST } else { Sequence(word) }
}

/// Whether an object may exist in this life. The last life is never used: it has no next one.
pub(crate) fn is_open(life: Sequence) -> bool {
    life.state() == EntryState::Free && life.next_life().is_some()
}

impl Layout {
    /// The client entry number of a slot, if it is a client entry.
    pub(crate) fn client_entry(&self, slot: Slot) -> Option<u32> {
        slot.0.checked_sub(self.objects_max).filter(|number| *number < self.client_entries())
    }

    /// The slot of a client entry.
    pub(crate) fn client_slot(&self, number: u32) -> Slot {
        Slot(self.objects_max.saturating_add(number))
    }

    /// The range of a client entry.
    pub(crate) fn client_entry_span(&self, number: u32) -> Span {
        let in_page = self.client_entries_in_page().max(1);
        let page = Offset(self.entry_pages.offset.0 + u64::from(number / in_page) * self.page.0);
        let at = page.0 + u64::from(number % in_page) * CLIENT_ENTRY_BYTES;
        Span::new(Offset(at), Length(CLIENT_ENTRY_BYTES))
    }

    /// The offset of a word of a life record: 0 is the life, 1 is the id after a takeover.
    pub(crate) fn life(&self, number: u32, word: u64) -> Offset {
        word_of(self.lives, LIFE_BYTES, number, word)
    }
}

/// The words of an entry as a client publishes them. It has no name and a single block.
pub(crate) fn encode(entry: &Entry) -> [u64; CLIENT_ENTRY_WORDS] {
    let mut words = [
        entry.sequence().0,
        u64::from(entry.kind.as_u8()) | entry.descriptor.length.0 << 32,
        entry.primary.offset.0,
        entry.primary.length.0,
        entry.descriptor.offset.0.wrapping_sub(entry.primary.offset.0),
        entry.size.0,
        u64::from(entry.descriptor_crc) | u64::from(entry.metadata_crc) << 32,
        entry.metadata_bytes.into(),
        entry.sealed_at_ns,
        u64::from(entry.creator_pid) | u64::from(entry.creator) << 32,
        0,
        0,
    ];
    words[CHECKSUM_WORD] = checksum(&words);
    words
}

/// Decode words copied from a client entry. All of it is untrusted. It has no namespace: that is a
/// property of its page.
pub(crate) fn decode(
    words: &[u64; CLIENT_ENTRY_WORDS],
    uid: RegionUid,
    slot: Slot,
    layout: &Layout,
) -> Result<Entry, EntryFault> {
    let sequence = Sequence(words[0]);
    if sequence != Sequence::new(sequence.generation(), EntryState::Sealed) {
        return Err("not sealed");
    }
    if checksum(words) != words[CHECKSUM_WORD] {
        return Err("checksum differs");
    }
    let primary = Span::new(Offset(words[2]), Length(words[3]));
    let descriptor_at =
        primary.offset.0.checked_add(words[4]).ok_or("descriptor leaves 64 bits")?;
    let entry = Entry {
        id: ObjectId::new(uid, sequence.generation(), slot),
        kind: ObjectKind::from_u8((words[1] & 0xff) as u8).ok_or("unknown kind")?,
        primary,
        descriptor: Span::new(Offset(descriptor_at), Length(words[1] >> 32)),
        size: Length(words[5]),
        extra_count: 0,
        name: Span::default(),
        name_hash: 0,
        descriptor_crc: words[6] as u32,
        extra_crc: 0,
        sealed_at_ns: words[8],
        creator_pid: words[9] as u32,
        creator: (words[9] >> 32) as u32,
        metadata_bytes: words[7] as u32,
        metadata_crc: (words[6] >> 32) as u32,
        residency: 0,
        is_relocated: false,
        is_replica: false,
        is_staged: false,
        namespace: NamespaceId::DEFAULT,
    };
    entry.validate(layout)?;
    Ok(entry)
}

/// crc32c of the 88 bytes before the checksum.
fn checksum(words: &[u64; CLIENT_ENTRY_WORDS]) -> u64 {
    crc_of_words::<{ CHECKSUM_WORD * 8 }>(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ids::Generation;
    use crate::format::options::RegionOptions;
    use proptest::prelude::*;

    const UID: RegionUid = RegionUid(77);

    fn layout() -> Layout {
        Layout::new(&RegionOptions::for_capacity(Length(1 << 20))).unwrap()
    }

    fn entry(layout: &Layout) -> Entry {
        let heap = layout.heap.offset.0;
        Entry {
            id: ObjectId::new(UID, Generation(5), layout.client_slot(43)),
            kind: ObjectKind::Table,
            primary: Span::new(Offset(heap + 256), Length(1024)),
            descriptor: Span::new(Offset(heap + 512), Length(101)),
            size: Length(1 << 40),
            extra_count: 0,
            name: Span::default(),
            name_hash: 0,
            descriptor_crc: 1,
            extra_crc: 0,
            sealed_at_ns: 3,
            creator_pid: 4,
            creator: 5,
            metadata_bytes: 30,
            metadata_crc: 7,
            residency: 0,
            is_relocated: false,
            is_replica: false,
            is_staged: false,
            namespace: NamespaceId::DEFAULT,
        }
    }

    #[test]
    fn an_entry_survives_but_not_with_a_bit_changed() {
        let layout = layout();
        let (entry, slot) = (entry(&layout), layout.client_slot(43));
        let words = encode(&entry);
        assert_eq!(decode(&words, UID, slot, &layout), Ok(entry));
        for bit in 0..CLIENT_ENTRY_WORDS * 64 {
            let mut bad = words;
            bad[bit / 64] ^= 1 << (bit % 64);
            assert!(decode(&bad, UID, slot, &layout).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn entries_lie_in_their_pages_and_slots_lead_to_them() {
        let layout = layout();
        let in_page = layout.client_entries_in_page();
        let (mut last, page) = (layout.entry_pages.offset.0, layout.page.0);
        for number in 0..layout.client_entries() {
            let span = layout.client_entry_span(number);
            assert!(layout.entry_pages.contains(span) && span.offset.0 >= last);
            last = span.end().unwrap().0;
            let first = (span.offset.0 - layout.entry_pages.offset.0) / page;
            assert_eq!(first, u64::from(number / in_page));
            assert_eq!((last - 1 - layout.entry_pages.offset.0) / page, first);
            assert_eq!(layout.client_entry(layout.client_slot(number)), Some(number));
        }
        assert_eq!(layout.client_entry(Slot(layout.objects_max - 1)), None);
        assert_eq!(layout.client_entry(layout.client_slot(layout.client_entries())), None);
    }

    #[test]
    fn the_last_life_is_never_open() {
        assert!(is_open(life_of(0)) && life_of(0).generation() == Generation(1));
        let last = Sequence::new(Generation(u32::MAX), EntryState::Free);
        assert!(
            !is_open(last) && is_open(Sequence::new(Generation(u32::MAX - 1), EntryState::Free))
        );
        assert!(!is_open(Sequence::new(Generation(1), EntryState::Retiring)));
    }

    proptest! {
        #[test]
        fn forged_words_never_panic(words: [u64; CLIENT_ENTRY_WORDS], fix: bool, small: bool) {
            let layout = layout();
            let mut words = words;
            if small {
                words[2] = layout.heap.offset.0 + (words[2] % 4096) * 128;
                words[3] = (words[3] % 64) * 128;
                words[4] %= 8192;
                words[1] = (words[1] % 8) | ((words[1] >> 32 & 0xfff) << 32);
            }
            if fix {
                words[0] = Sequence(words[0] & 0x7_ffff_ffff).with(EntryState::Sealed).0;
                words[CHECKSUM_WORD] = checksum(&words);
            }
            if let Ok(entry) = decode(&words, UID, layout.client_slot(3), &layout) {
                prop_assert!(layout.heap.contains(entry.primary));
                prop_assert!(entry.primary.contains(entry.descriptor));
            }
        }
    }
}
