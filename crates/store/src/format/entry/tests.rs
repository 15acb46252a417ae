//! Entries in words: what is read back, and what is rejected.

use super::*;
use crate::format::options::RegionOptions;
use proptest::prelude::*;

const UID: RegionUid = RegionUid(77);

fn layout() -> Layout {
    Layout::new(&RegionOptions::for_capacity(Length(1 << 20))).unwrap()
}

fn entry(layout: &Layout) -> Entry {
    let heap = layout.heap.offset.0;
    Entry {
        id: ObjectId::new(UID, Generation(5), Slot(3)),
        kind: ObjectKind::Table,
        primary: Span::new(Offset(heap + 256), Length(1024)),
        descriptor: Span::new(Offset(heap + 512), Length(101)),
        size: Length(1 << 40),
        extra_count: 2,
        name: Span::new(layout.names.offset, Length(255)),
        name_hash: u64::MAX,
        descriptor_crc: 1,
        extra_crc: 2,
        sealed_at_ns: 3,
        creator_pid: 4,
        creator: 5,
        metadata_bytes: 30,
        metadata_crc: 7,
        residency: 3,
        is_relocated: true,
        is_replica: true,
        is_staged: true,
        namespace: NamespaceId(4095),
    }
}

#[test]
fn sequences_say_life_and_state() {
    for state in [
        EntryState::Free,
        EntryState::Writing,
        EntryState::Sealed,
        EntryState::Spilled,
        EntryState::Retiring,
        EntryState::Leaving,
        EntryState::Restoring,
    ] {
        let sequence = Sequence::resident(Generation(u32::MAX), (1 << 29) - 1, state);
        assert_eq!((sequence.state(), sequence.generation().0), (state, u32::MAX));
        assert_eq!(sequence.residency(), (1 << 29) - 1);
        assert_eq!(sequence.next_life(), None);
    }
    assert_eq!(Sequence(0).generation(), Generation(0));
    assert_ne!(Sequence::FIRST, Sequence(0));
    let next = Sequence::resident(Generation(1), 9, EntryState::Retiring).next_life().unwrap();
    assert_eq!(next.residency(), 0);
    assert_eq!((next.state(), next.generation().0), (EntryState::Free, 2));
}

#[test]
fn an_entry_survives_in_every_state_but_not_with_a_bit_changed() {
    let layout = layout();
    let entry = entry(&layout);
    let mut words = entry.encode();
    assert_eq!(Entry::decode(&words, UID, Slot(3), &layout), Ok(entry));
    words[0] = Sequence(words[0]).with(EntryState::Retiring).0;
    assert_eq!(Entry::decode(&words, UID, Slot(3), &layout), Ok(entry));
    for bit in 3..ENTRY_WORDS * 64 {
        let mut bad = words;
        bad[bit / 64] ^= 1 << (bit % 64);
        assert!(Entry::decode(&bad, UID, Slot(3), &layout).is_err(), "bit {bit}");
    }
    assert!(Entry::decode(&words, RegionUid(78), Slot(3), &layout).is_err());
    assert!(Entry::decode(&words, UID, Slot(4), &layout).is_err());
}

#[test]
fn entries_that_point_elsewhere_are_refused_with_a_good_checksum() {
    let layout = layout();
    for change in [
        (|e, _| e.primary.offset.0 += 64) as fn(&mut Entry, &Layout),
        |e, _| e.primary.length.0 = 0,
        |e, l| e.primary.offset = l.names.offset,
        |e, _| e.primary.length.0 = 1 << 63,
        |e, _| e.descriptor.offset.0 += 4,
        |e, _| e.descriptor.offset.0 -= 512,
        |e, _| e.descriptor.length.0 = u64::MAX,
        |e, _| e.descriptor.length.0 = 0,
        |e, _| e.kind = ObjectKind::Bytes,
        |e, _| e.extra_count = u32::MAX,
        |e, l| e.name.offset = l.heap.offset,
        |e, _| e.name.offset.0 += 1,
        |e, _| e.metadata_bytes = u32::MAX,
        |e, _| e.metadata_bytes = 1024 - 256 - 101,
    ] {
        let mut bad = entry(&layout);
        change(&mut bad, &layout);
        assert!(Entry::decode(&bad.encode(), UID, Slot(3), &layout).is_err(), "{bad:?}");
    }
}

#[test]
fn plain_bytes_lie_at_the_start_of_their_block() {
    let layout = layout();
    let mut bytes = entry(&layout);
    bytes.kind = ObjectKind::Bytes;
    bytes.descriptor = Span::new(bytes.primary.offset, Length(0));
    bytes.extra_count = 0;
    bytes.metadata_bytes = 0;
    bytes.is_relocated = false;
    bytes.is_replica = false;
    bytes.size = Length(1024);
    assert_eq!(Entry::decode(&bytes.encode(), UID, Slot(3), &layout), Ok(bytes));
    assert_eq!(bytes.payload(), bytes.primary);
    bytes.size = Length(1025);
    assert!(Entry::decode(&bytes.encode(), UID, Slot(3), &layout).is_err());
}

#[test]
fn lists_of_extra_blocks_survive_and_bad_ones_are_refused() {
    let layout = layout();
    let block =
        |offset: u64, length: u64| Span::new(Offset(layout.heap.offset.0 + offset), Length(length));
    let blocks = [block(0, 128), block(4096, 8192)];
    let bytes = encode_extra(&blocks);
    assert_eq!(decode_extra(&bytes, &layout).unwrap(), blocks);
    assert!(decode_extra(&bytes[1..], &layout).is_err());
    for bad in [block(0, 0), block(64, 128), block(0, 100), block(0, u64::MAX - 127)] {
        assert!(decode_extra(&encode_extra(&[bad]), &layout).is_err());
    }
}

proptest! {
    #[test]
    fn forged_words_never_panic(words: [u64; ENTRY_WORDS], fix: bool) {
        let layout = layout();
        let mut words = words;
        if fix {
            words[0] = Sequence(words[0] & 0xffff_ffff).with(EntryState::Sealed).0;
            words[2] = UID.0;
            words[3] = u64::from(Sequence(words[0]).generation().0) << 32 | 3;
            words[CHECKSUM_WORD] = checksum(&words);
        }
        if let Ok(entry) = Entry::decode(&words, UID, Slot(3), &layout) {
            prop_assert!(layout.heap.contains(entry.primary));
        }
    }
}
