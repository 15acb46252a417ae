//! The layout of a region: computed once from the options, written into the header, and validated
//! whenever it is read back.

use farrow_memory::{Geometry, HUGE_PAGE_BYTES_USUAL, Length, Offset, Section, Span, page_bytes};

use crate::error::FormatError;
use crate::format::options::{
    BLOCK_BYTES, CAPACITY_MAX, NAME_GRAIN_BYTES, NAMESPACES_MAX, OBJECTS_MAX, RECORDS_MAX,
    RegionOptions,
};

/// Bytes of the header at the start of the control section. All its words fit the smallest page.
pub const HEADER_BYTES: u64 = 4096;
/// Bytes of a client record.
pub(crate) const CLIENT_BYTES: u64 = 64;
/// Bytes of a grant record.
pub(crate) const GRANT_BYTES: u64 = 32;
/// Bytes of a hold-block owner record.
pub(crate) const HOLD_OWNER_BYTES: u64 = 8;
/// Bytes of a directory entry.
pub(crate) const ENTRY_BYTES: u64 = 128;
/// Bytes of one slot in a name index.
pub(crate) const INDEX_BYTES: u64 = 8;
/// Words at the start of a hold block that are not hold slots.
pub(crate) const HOLD_HEADER_WORDS: u64 = 16;
/// The word of a client's first hold block with twice the number of its open seals, plus 1. In its
/// other blocks, and of a client that does not tell, it is 0.
pub(crate) const OPEN_SEALS_WORD: u64 = 1;
/// Bytes of an entry that a client writes, in one of its entry pages.
pub(crate) const CLIENT_ENTRY_BYTES: u64 = 96;
/// Bytes of an entry-page owner record.
pub(crate) const ENTRY_OWNER_BYTES: u64 = 8;
/// Bytes of the home's record for a client entry: its life, and the id after a takeover.
pub(crate) const LIFE_BYTES: u64 = 16;
/// Bytes of an event: eight words and a name.
pub(crate) const EVENT_BYTES: u64 = 320;
/// Bytes of a namespace record.
pub(crate) const NAMESPACE_BYTES: u64 = 128;
/// Bytes of the word with the last use of an object.
pub(crate) const USE_BYTES: u64 = 8;
/// Bytes of each of the three parts of the cluster table: a view of 64 members of 1.5 KiB each,
/// doubled for reserve.
pub(crate) const CLUSTER_PART_BYTES: u64 = 192 << 10;
/// Parts of the cluster table: the node's own state, twice, and the state published to clients.
pub(crate) const CLUSTER_PARTS: u64 = 3;
/// Objects per word of the pin table.
pub(crate) const PINS_IN_WORD: u32 = 64;

/// A heap of this size or more starts at a huge page, as does the data section.
const HUGE_CAPACITY_MIN: u64 = 32 * HUGE_PAGE_BYTES_USUAL.0;

/// Maximum number of entry pages: with pages of 4 KiB, slightly more than [`OBJECTS_MAX`] entries.
const ENTRY_PAGES_MAX: u32 = OBJECTS_MAX / 42 + 1;

/// Number of parts of a region besides the header.
pub(crate) const TABLES: usize = 17;

/// One part of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) span: Span,
    /// Its length according to its count.
    bytes: u64,
    /// Alignment of its start.
    grain: u64,
    section: Section,
}

impl Table {
    pub(crate) fn is_control(&self) -> bool {
        self.section == Section::Control
    }
}

/// Number of client entries in one page.
fn client_entries_in(page: u64) -> u32 {
    (page / CLIENT_ENTRY_BYTES) as u32
}

/// The parts of a region. Every table starts at a multiple of 128 bytes; the name heap, of 32
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Length of the two sections.
    pub geometry: Geometry,
    /// Page size of the machine that created the region; also the size of a hold block.
    pub page: Length,
    /// Maximum number of objects.
    pub objects_max: u32,
    /// Maximum number of clients.
    pub clients_max: u32,
    /// Maximum number of grants.
    pub grants_max: u32,
    /// Maximum number of hold blocks.
    pub hold_blocks_max: u32,
    /// Slots in each of the two name indexes: a power of two, at least twice `objects_max`.
    pub index_places: u64,
    /// Maximum number of entry pages.
    pub entry_pages_max: u32,
    /// Slots of the event ring.
    pub events_max: u32,
    /// Maximum number of namespaces besides the default one.
    pub namespaces_max: u32,
    /// Client records.
    pub clients: Span,
    /// Grant records.
    pub grants: Span,
    /// Owners of hold blocks.
    pub hold_owners: Span,
    /// Directory entries.
    pub directory: Span,
    /// The two name indexes.
    pub index: [Span; 2],
    /// The name heap.
    pub names: Span,
    /// Owners of entry pages.
    pub entry_owners: Span,
    /// The home's records for client entries.
    pub lives: Span,
    /// The pin table, one bit for each object.
    pub pins: Span,
    /// The event ring.
    pub events: Span,
    /// Namespace records.
    pub namespaces: Span,
    /// The node's state of its cluster.
    pub cluster: Span,
    /// Hold blocks, the first part of the data section.
    pub hold_blocks: Span,
    /// Entry pages, which clients write.
    pub entry_pages: Span,
    /// Last use of each object, one word each; a hint, written by all clients.
    pub uses: Span,
    /// The heap, which holds all blocks.
    pub heap: Span,
}

impl Layout {
    /// The layout of a new region.
    ///
    /// # Errors
    /// [`FormatError::OutOfRange`] for options outside of the limits of the format.
    pub fn new(options: &RegionOptions) -> Result<Self, FormatError> {
        options.validate()?;
        let page = page_bytes();
        let is_huge = options.capacity.0 >= HUGE_CAPACITY_MIN;
        let section_grain = if is_huge { page.max(HUGE_PAGE_BYTES_USUAL.0) } else { page };
        let index_places = (2 * u64::from(options.objects_max)).next_power_of_two();
        let mut end = HEADER_BYTES;
        // The limits of the options keep all these sums far below 2^64.
        let mut place = |bytes: u64, grain: u64| {
            let start = end.next_multiple_of(grain);
            end = start + bytes;
            Span::new(Offset(start), Length(bytes))
        };
        let clients = place(u64::from(options.clients_max) * CLIENT_BYTES, BLOCK_BYTES);
        let grants = place(u64::from(options.grants_max) * GRANT_BYTES, BLOCK_BYTES);
        let hold_owners = place(u64::from(options.hold_blocks_max) * HOLD_OWNER_BYTES, BLOCK_BYTES);
        let directory = place(u64::from(options.objects_max) * ENTRY_BYTES, BLOCK_BYTES);
        let index = [(); 2].map(|()| place(index_places * INDEX_BYTES, BLOCK_BYTES));
        let names =
            place(options.name_bytes.0.next_multiple_of(NAME_GRAIN_BYTES), NAME_GRAIN_BYTES);
        let entry_pages_max = options.client_objects_max.div_ceil(client_entries_in(page));
        let client_entries = u64::from(entry_pages_max) * u64::from(client_entries_in(page));
        let entry_owners = place(u64::from(entry_pages_max) * ENTRY_OWNER_BYTES, BLOCK_BYTES);
        let lives = place(client_entries * LIFE_BYTES, BLOCK_BYTES);
        let pins = place(u64::from(options.objects_max.div_ceil(PINS_IN_WORD)) * 8, BLOCK_BYTES);
        let events = place(u64::from(options.events_max) * EVENT_BYTES, BLOCK_BYTES);
        let namespaces = place(u64::from(options.namespaces_max) * NAMESPACE_BYTES, BLOCK_BYTES);
        let cluster = place(CLUSTER_PARTS * CLUSTER_PART_BYTES, BLOCK_BYTES);
        let control = place(0, section_grain).offset;
        let hold_blocks = place(u64::from(options.hold_blocks_max) * page, page);
        let entry_pages = place(u64::from(entry_pages_max) * page, page);
        let uses = place((u64::from(options.objects_max) + client_entries) * USE_BYTES, page);
        let heap = place(options.capacity.0.next_multiple_of(page), section_grain);
        let layout = Self {
            geometry: Geometry { control: Length(control.0), data: Length(end - control.0) },
            page: Length(page),
            objects_max: options.objects_max,
            clients_max: options.clients_max,
            grants_max: options.grants_max,
            hold_blocks_max: options.hold_blocks_max,
            index_places,
            entry_pages_max,
            events_max: options.events_max,
            namespaces_max: options.namespaces_max,
            clients,
            grants,
            hold_owners,
            directory,
            index,
            names,
            entry_owners,
            lives,
            pins,
            events,
            namespaces,
            cluster,
            hold_blocks,
            entry_pages,
            uses,
            heap,
        };
        layout.validate()?;
        Ok(layout)
    }

    /// Every part, in the order of the header.
    pub(crate) fn tables(&self) -> [Table; TABLES] {
        let page = self.page.0;
        let control = |name, span, bytes| Table {
            name,
            span,
            bytes,
            grain: BLOCK_BYTES,
            section: Section::Control,
        };
        let data =
            |name, span, bytes| Table { name, span, bytes, grain: page, section: Section::Data };
        let index_bytes = self.index_places.saturating_mul(INDEX_BYTES);
        let client_entries = u64::from(self.client_entries());
        let objects = u64::from(self.objects_max);
        let records = |count: u32, bytes: u64| u64::from(count) * bytes;
        [
            control("client table", self.clients, records(self.clients_max, CLIENT_BYTES)),
            control("grant table", self.grants, records(self.grants_max, GRANT_BYTES)),
            control(
                "hold-block table",
                self.hold_owners,
                records(self.hold_blocks_max, HOLD_OWNER_BYTES),
            ),
            control("directory", self.directory, records(self.objects_max, ENTRY_BYTES)),
            control("name index 0", self.index[0], index_bytes),
            control("name index 1", self.index[1], index_bytes),
            Table {
                grain: NAME_GRAIN_BYTES,
                ..control("name heap", self.names, self.names.length.0)
            },
            control(
                "entry-page table",
                self.entry_owners,
                records(self.entry_pages_max, ENTRY_OWNER_BYTES),
            ),
            control("life table", self.lives, client_entries * LIFE_BYTES),
            control("pin table", self.pins, u64::from(self.objects_max.div_ceil(PINS_IN_WORD)) * 8),
            control("event ring", self.events, records(self.events_max, EVENT_BYTES)),
            control(
                "namespace table",
                self.namespaces,
                records(self.namespaces_max, NAMESPACE_BYTES),
            ),
            control("cluster table", self.cluster, CLUSTER_PARTS * CLUSTER_PART_BYTES),
            data("hold blocks", self.hold_blocks, records(self.hold_blocks_max, page)),
            data("entry pages", self.entry_pages, records(self.entry_pages_max, page)),
            data("use table", self.uses, (objects + client_entries) * USE_BYTES),
            data("heap", self.heap, self.heap.length.0),
        ]
    }

    /// Hold slots in one block.
    pub(crate) fn hold_slots(&self) -> u64 {
        (self.page.0 / 8).saturating_sub(HOLD_HEADER_WORDS)
    }

    /// Client entries in one page.
    pub(crate) fn client_entries_in_page(&self) -> u32 {
        client_entries_in(self.page.0)
    }

    /// Total number of client entries: the slots from `objects_max` on.
    pub(crate) fn client_entries(&self) -> u32 {
        self.entry_pages_max.saturating_mul(self.client_entries_in_page())
    }

    /// Whether a number is that of a directory slot or of a client entry.
    pub(crate) fn is_slot(&self, slot: u32) -> bool {
        slot < self.objects_max.saturating_add(self.client_entries())
    }

    /// Check that all parts are disjoint, in their sections, and as long as their counts require.
    pub(crate) fn validate(&self) -> Result<(), FormatError> {
        self.validate_counts()?;
        let mut sorted = vec![("header", Span::new(Offset(0), Length(HEADER_BYTES)))];
        for table in self.tables() {
            let span = table.span;
            let is_whole = matches!(table.name, "heap" | "hold blocks" | "entry pages");
            let length_grain = if is_whole { table.grain } else { 8 };
            let reason = if span.length.0 != table.bytes {
                "its length is not what its count gives"
            } else if span.is_empty() {
                "it is empty"
            } else if !span.offset.is_multiple_of(table.grain)
                || !span.length.0.is_multiple_of(length_grain)
            {
                "it is not aligned"
            } else if !self.geometry.span_of(table.section).contains(span) {
                "it leaves its section"
            } else {
                sorted.push((table.name, span));
                continue;
            };
            return Err(FormatError::Misplaced { table: table.name, span, reason });
        }
        sorted.sort_by_key(|(_, span)| *span);
        for pair in sorted.windows(2) {
            if let [(first, first_span), (second, second_span)] = *pair
                && first_span.overlaps(second_span)
            {
                return Err(FormatError::Overlap { first, first_span, second, second_span });
            }
        }
        Ok(())
    }

    fn validate_counts(&self) -> Result<(), FormatError> {
        let objects = u64::from(self.objects_max);
        let geometry_max = CAPACITY_MAX.0 * 2;
        let ranges = [
            ("objects_max", objects, 1, OBJECTS_MAX.into()),
            ("clients_max", self.clients_max.into(), 1, RECORDS_MAX.into()),
            ("grants_max", self.grants_max.into(), 1, RECORDS_MAX.into()),
            ("hold_blocks_max", self.hold_blocks_max.into(), 1, RECORDS_MAX.into()),
            ("index_places", self.index_places, 2 * objects, 4 * u64::from(OBJECTS_MAX)),
            ("entry_pages_max", self.entry_pages_max.into(), 1, ENTRY_PAGES_MAX.into()),
            ("events_max", self.events_max.into(), 1, RECORDS_MAX.into()),
            ("namespaces_max", self.namespaces_max.into(), 1, NAMESPACES_MAX.into()),
            ("page_bytes", self.page.0, 4096, 1 << 20),
            ("control_bytes", self.geometry.control.0, HEADER_BYTES, geometry_max),
            ("data_bytes", self.geometry.data.0, 1, geometry_max),
            ("heap_bytes", self.heap.length.0, 1, CAPACITY_MAX.0),
        ];
        for (what, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(FormatError::OutOfRange { what, value, min, max });
            }
        }
        for (what, value) in [("index_places", self.index_places), ("page_bytes", self.page.0)] {
            if !value.is_power_of_two() {
                let (min, max) = (value, value.next_power_of_two());
                return Err(FormatError::OutOfRange { what, value, min, max });
            }
        }
        if !self.geometry.control.0.is_multiple_of(self.page.0) {
            let span = self.geometry.span_of(Section::Control);
            let reason = "not whole pages";
            return Err(FormatError::Misplaced { table: "control section", span, reason });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout::new(&RegionOptions::for_capacity(Length(1 << 20))).unwrap()
    }

    #[test]
    fn a_new_layout_is_tight_and_aligned() {
        for capacity in [1u64, 4096, 1 << 20, 1 << 26, 1 << 34, 1 << 47] {
            let mut options = RegionOptions::for_capacity(Length(capacity.max(page_bytes())));
            options.name_bytes = Length(options.name_bytes.0 + 1);
            let layout = Layout::new(&options).unwrap();
            layout.validate().unwrap();
            assert!(layout.heap.length >= options.capacity);
            assert_eq!(layout.heap.end().unwrap().0, layout.geometry.total().0);
            assert!(layout.heap.is_aligned(page_bytes()));
            if capacity >= HUGE_CAPACITY_MIN {
                assert!(layout.heap.offset.is_multiple_of(HUGE_PAGE_BYTES_USUAL.0));
                assert!(layout.geometry.control.0.is_multiple_of(HUGE_PAGE_BYTES_USUAL.0));
            }
        }
    }

    #[test]
    fn the_tables_of_a_large_region_take_less_than_three_percent() {
        let layout = Layout::new(&RegionOptions::for_capacity(Length(32 << 30))).unwrap();
        let share = layout.geometry.total().0 - layout.heap.length.0;
        assert!(share * 100 < 3 * layout.heap.length.0, "{share}");
    }

    #[test]
    fn tables_that_overlap_or_leave_their_section_are_refused() {
        let good = layout();
        let mut bad = good;
        bad.grants.offset = bad.directory.offset;
        assert!(matches!(bad.validate(), Err(FormatError::Overlap { .. })));
        let mut bad = good;
        bad.clients.offset = Offset(0);
        assert!(matches!(bad.validate(), Err(FormatError::Overlap { first: "header", .. })));
        for change in [
            (|l| l.clients.length.0 += 64) as fn(&mut Layout),
            |l| l.directory.offset.0 += 8,
            |l| l.heap.offset.0 += l.page.0,
            |l| l.heap.offset.0 = 1 << 63,
            |l| l.names.offset.0 = l.geometry.control.0,
            |l| l.hold_blocks.offset.0 -= l.page.0,
            |l| l.index[1].offset.0 = u64::MAX - 127,
        ] {
            let mut bad = good;
            change(&mut bad);
            assert!(matches!(bad.validate(), Err(FormatError::Misplaced { .. })), "{bad:?}");
        }
        for change in [
            (|l| l.objects_max = 0) as fn(&mut Layout),
            |l| l.objects_max = u32::MAX,
            |l| l.index_places += 1,
            |l| l.index_places = 1 << 63,
            |l| l.page.0 = 5000,
            |l| l.page.0 = 0,
            |l| l.geometry.control.0 = u64::MAX - 4095,
            |l| l.geometry.data.0 = u64::MAX,
        ] {
            let mut bad = good;
            change(&mut bad);
            assert!(matches!(bad.validate(), Err(FormatError::OutOfRange { .. })), "{bad:?}");
        }
    }
}
