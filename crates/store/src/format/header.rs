//! The first page of a region: identification, and the ranges of all tables.

use farrow_memory::sync::Ordering;
use farrow_memory::{Geometry, Length, Offset, Region, Section, Span, page_bytes};

use crate::error::{FormatError, StoreError};
use crate::format::hash::HashKey;
use crate::format::ids::{NamespaceId, RegionUid};
use crate::format::layout::{HEADER_BYTES, Layout};
use crate::tables::control::Control;

/// The version of the format that this program reads and writes.
pub const FORMAT_VERSION: u32 = 3;

/// First word of a region: "FARROWRG".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"FARROWRG");
/// First word while a region is being created: no client or home opens it.
pub(crate) const MAGIC_MAKING: u64 = u64::from_le_bytes(*b"FARRMAKE");

/// Words of the immutable part, with the checksum in the last one.
pub(crate) const HEADER_WORDS: usize = 52;
const CHECKSUM_WORD: usize = HEADER_WORDS - 1;
/// First word of the (offset, length) pairs of the tables.
const TABLES_WORD: usize = 17;

/// The number of times a home has opened the region, including its creation.
pub(crate) const LIFE: Offset = Offset(512);
/// The number of role changes of the name indexes. Even: index 0 is in use; odd: index 1.
pub(crate) const INDEX_TURN: Offset = Offset(640);
/// The first directory slot that was never used.
pub(crate) const SLOTS_USED: Offset = Offset(768);
/// The number of events published so far.
pub(crate) const EVENTS_HEAD: Offset = Offset(896);
/// The watched namespaces: bit `id % 64` of each.
pub(crate) const WATCHED: Offset = Offset(1024);

/// The time until which clients of earlier builds read replicas without asking the home, by the
/// monotonic clock in ns.
pub(crate) const REPLICAS_UNTIL_AWAKE: Offset = Offset(1152);

/// The time until which replicas may be read without asking the home, by the boot clock in ns.
pub(crate) const REPLICAS_UNTIL: Offset = Offset(1280);

/// The bit of a namespace in the word of watched namespaces. Several namespaces share a bit.
#[must_use]
pub fn watched_bit(namespace: NamespaceId) -> u64 {
    1 << (namespace.0 % 64)
}

/// The contents of the first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionHeader {
    pub(crate) uid: RegionUid,
    pub(crate) key: HashKey,
    pub(crate) created_at_ns: u64,
    pub(crate) layout: Layout,
}

impl RegionHeader {
    pub(crate) fn encode(&self) -> [u64; HEADER_WORDS] {
        let layout = &self.layout;
        let mut words = [0; HEADER_WORDS];
        let first = [
            MAGIC,
            u64::from(FORMAT_VERSION) | (HEADER_WORDS as u64 * 8) << 32,
            self.uid.0,
            self.key.0[0],
            self.key.0[1],
            layout.page.0,
            layout.geometry.control.0,
            layout.geometry.data.0,
            self.created_at_ns,
            layout.objects_max.into(),
            layout.clients_max.into(),
            layout.grants_max.into(),
            layout.hold_blocks_max.into(),
            layout.index_places,
            layout.entry_pages_max.into(),
            layout.events_max.into(),
            layout.namespaces_max.into(),
        ];
        let tables = layout.tables();
        let spans = tables.iter().flat_map(|table| [table.span.offset.0, table.span.length.0]);
        for (word, value) in words.iter_mut().zip(first.into_iter().chain(spans)) {
            *word = value;
        }
        words[CHECKSUM_WORD] = checksum(&words);
        words
    }

    /// Read the header of a region and check all of it before use.
    pub(crate) fn read(region: &Region) -> Result<Self, FormatError> {
        let found = region.length();
        if found.0 < HEADER_BYTES {
            return Err(FormatError::Truncated { needed: Length(HEADER_BYTES), found });
        }
        let span = Span::new(Offset(0), Length(HEADER_WORDS as u64 * 8));
        // Cannot be outside of the region: the length was checked.
        let _ = region.refresh_if_remote(span);
        let words = region.words(span).map_err(|error| FormatError::Access(error.to_string()))?;
        let mut copy = [0; HEADER_WORDS];
        for (i, word) in copy.iter_mut().enumerate() {
            *word = words.load(i, Ordering::Acquire).unwrap_or_default();
        }
        let header = Self::decode(&copy)?;
        header.compare(region.geometry())?;
        Ok(header)
    }

    pub(crate) fn decode(words: &[u64; HEADER_WORDS]) -> Result<Self, FormatError> {
        if words[0] != MAGIC {
            return Err(match words[0] {
                MAGIC_MAKING => FormatError::Unfinished,
                found => FormatError::BadMagic { found },
            });
        }
        let version = words[1] as u32;
        if version != FORMAT_VERSION {
            return Err(FormatError::OtherVersion { found: version, known: FORMAT_VERSION });
        }
        let (stored, computed) = (words[CHECKSUM_WORD], checksum(words));
        if stored != computed {
            return Err(FormatError::Checksum { stored, computed });
        }
        let count = |what, word: usize| {
            let value = words[word];
            let max = u32::MAX.into();
            u32::try_from(value).map_err(|_| FormatError::OutOfRange { what, value, min: 1, max })
        };
        let table = |i: usize| {
            let at = TABLES_WORD + 2 * i;
            Span::new(Offset(words[at]), Length(words[at + 1]))
        };
        let layout = Layout {
            geometry: Geometry { control: Length(words[6]), data: Length(words[7]) },
            page: Length(words[5]),
            objects_max: count("objects_max", 9)?,
            clients_max: count("clients_max", 10)?,
            grants_max: count("grants_max", 11)?,
            hold_blocks_max: count("hold_blocks_max", 12)?,
            index_places: words[13],
            entry_pages_max: count("entry_pages_max", 14)?,
            events_max: count("events_max", 15)?,
            namespaces_max: count("namespaces_max", 16)?,
            clients: table(0),
            grants: table(1),
            hold_owners: table(2),
            directory: table(3),
            index: [table(4), table(5)],
            names: table(6),
            entry_owners: table(7),
            lives: table(8),
            pins: table(9),
            events: table(10),
            namespaces: table(11),
            cluster: table(12),
            hold_blocks: table(13),
            entry_pages: table(14),
            uses: table(15),
            heap: table(16),
        };
        layout.validate()?;
        Ok(Self {
            uid: RegionUid(words[2]),
            key: HashKey([words[3], words[4]]),
            created_at_ns: words[8],
            layout,
        })
    }

    /// Check that the mapped region matches the header.
    pub(crate) fn compare(&self, mapped: Geometry) -> Result<(), FormatError> {
        let said = self.layout.geometry;
        let (needed, found) = (said.total(), mapped.total());
        if needed > found {
            return Err(FormatError::Truncated { needed, found });
        }
        if said.control != mapped.control {
            let span = said.span_of(Section::Control);
            let reason = "it is mapped with another length";
            return Err(FormatError::Misplaced { table: "control section", span, reason });
        }
        let (region, machine) = (self.layout.page.0, page_bytes());
        if region != machine {
            return Err(FormatError::PageBytes { region, machine });
        }
        Ok(())
    }

    /// Write the header of a region during creation. The magic is stored last, on its own.
    pub(crate) fn write(&self, control: &Control) -> Result<(), StoreError> {
        let words = self.encode();
        let (magic, rest) = words.split_at(1);
        control.store_record(Offset(8), rest)?;
        crate::failpoint!("create.header");
        let zeros = [INDEX_TURN, SLOTS_USED, EVENTS_HEAD, WATCHED];
        let zeros = zeros.into_iter().chain([REPLICAS_UNTIL_AWAKE, REPLICAS_UNTIL]);
        for (offset, value) in [(LIFE, 1)].into_iter().chain(zeros.map(|offset| (offset, 0))) {
            control.store(offset, value)?;
        }
        crate::failpoint!("create.magic");
        control.store(Offset(0), magic[0])
    }
}

/// crc32c of all words before the checksum.
fn checksum(words: &[u64; HEADER_WORDS]) -> u64 {
    let bytes: Vec<u8> = words.iter().take(CHECKSUM_WORD).flat_map(|w| w.to_le_bytes()).collect();
    u64::from(crc32c::crc32c(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::options::RegionOptions;
    use proptest::prelude::*;

    fn header() -> RegionHeader {
        RegionHeader {
            uid: RegionUid(1),
            key: HashKey([2, 3]),
            created_at_ns: 4,
            layout: Layout::new(&RegionOptions::for_capacity(Length(1 << 20))).unwrap(),
        }
    }

    /// The words with a valid checksum.
    fn signed(mut words: [u64; HEADER_WORDS]) -> [u64; HEADER_WORDS] {
        words[CHECKSUM_WORD] = checksum(&words);
        words
    }

    #[test]
    fn a_header_survives_and_no_bit_of_it_may_change() {
        let words = header().encode();
        assert_eq!(RegionHeader::decode(&words), Ok(header()));
        for bit in 0..HEADER_WORDS * 64 {
            let mut bad = words;
            bad[bit / 64] ^= 1 << (bit % 64);
            assert!(RegionHeader::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn each_fault_has_its_own_error() {
        let words = header().encode();
        let mut other = words;
        other[0] = 0;
        assert_eq!(RegionHeader::decode(&other), Err(FormatError::BadMagic { found: 0 }));
        let mut other = words;
        other[1] += 1;
        let expected = Err(FormatError::OtherVersion { found: 4, known: 3 });
        assert_eq!(RegionHeader::decode(&other), expected);
        assert_eq!(RegionHeader::decode(&signed(other)), expected);
        let mut other = words;
        other[2] += 1;
        assert!(matches!(RegionHeader::decode(&other), Err(FormatError::Checksum { .. })));
        let mut other = words;
        other[TABLES_WORD] = other[TABLES_WORD + 2];
        assert!(matches!(RegionHeader::decode(&signed(other)), Err(FormatError::Overlap { .. })));
        let mut other = words;
        other[9] = 1 << 40;
        assert!(matches!(
            RegionHeader::decode(&signed(other)),
            Err(FormatError::OutOfRange { .. })
        ));
        let mut other = words;
        other[TABLES_WORD] += 64;
        assert!(matches!(RegionHeader::decode(&signed(other)), Err(FormatError::Misplaced { .. })));
    }

    #[test]
    fn the_mapped_region_must_be_as_long_as_the_header_says() {
        let header = header();
        let mut mapped = header.layout.geometry;
        assert_eq!(header.compare(mapped), Ok(()));
        mapped.data.0 -= 4096;
        assert!(matches!(header.compare(mapped), Err(FormatError::Truncated { .. })));
        mapped.data.0 += 8192;
        mapped.control.0 += 4096;
        assert!(matches!(header.compare(mapped), Err(FormatError::Misplaced { .. })));
    }

    proptest! {
        #[test]
        fn forged_headers_never_panic(
            changes in prop::collection::vec((1..HEADER_WORDS, any::<u64>()), 1..6),
        ) {
            let mut words = header().encode();
            for (at, value) in changes {
                words[at] = value;
            }
            words[1] = FORMAT_VERSION.into();
            let _ = RegionHeader::decode(&signed(words));
        }
    }
}
