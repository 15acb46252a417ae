//! Where everything lies in a region: computed once from the options, written into the header,
//! and never believed when read back before it is checked.

use farrow_memory::{Geometry, HUGE_PAGE_BYTES_USUAL, Length, Offset, Section, Span, page_bytes};

use crate::error::FormatError;
use crate::options::{
    BLOCK_BYTES, CAPACITY_MAX, NAME_GRAIN_BYTES, OBJECTS_MAX, RECORDS_MAX, RegionOptions,
};

/// Bytes at the start of the control section that the header takes. All its words fit the
/// smallest page there is.
pub(crate) const HEADER_BYTES: u64 = 4096;
/// Bytes of a client record.
pub(crate) const CLIENT_BYTES: u64 = 64;
/// Bytes of a grant record.
pub(crate) const GRANT_BYTES: u64 = 32;
/// Bytes of a hold-block record.
pub(crate) const HOLD_OWNER_BYTES: u64 = 8;
/// Bytes of a directory entry.
pub(crate) const ENTRY_BYTES: u64 = 128;
/// Bytes of one place in a name index.
pub(crate) const INDEX_BYTES: u64 = 8;
/// Words at the start of a hold block that are no hold slots.
pub(crate) const HOLD_HEADER_WORDS: u64 = 16;

/// A heap of this size or more starts at a huge page, as does the data section.
const HUGE_CAPACITY_MIN: u64 = 32 * HUGE_PAGE_BYTES_USUAL.0;

/// The parts of a region. Every table starts at a multiple of 128 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Length of the two sections.
    pub geometry: Geometry,
    /// Page size of the machine that made the region; also the size of a hold block.
    pub page: Length,
    /// Most objects.
    pub objects_max: u32,
    /// Most clients.
    pub clients_max: u32,
    /// Most grants.
    pub grants_max: u32,
    /// Most hold blocks.
    pub hold_blocks_max: u32,
    /// Places in each of the two name indexes: a power of two, at least twice `objects_max`.
    pub index_places: u64,
    /// Client records.
    pub clients: Span,
    /// Grant records.
    pub grants: Span,
    /// Hold-block records: who owns which block.
    pub hold_owners: Span,
    /// Directory entries.
    pub directory: Span,
    /// The two name indexes.
    pub index: [Span; 2],
    /// Bytes of names.
    pub names: Span,
    /// Hold blocks, the first part of the data section.
    pub hold_blocks: Span,
    /// Where objects lie.
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
        let control = place(0, section_grain).offset;
        let hold_blocks = place(u64::from(options.hold_blocks_max) * page, page);
        let heap = place(options.capacity.0.next_multiple_of(page), section_grain);
        let layout = Self {
            geometry: Geometry { control: Length(control.0), data: Length(end - control.0) },
            page: Length(page),
            objects_max: options.objects_max,
            clients_max: options.clients_max,
            grants_max: options.grants_max,
            hold_blocks_max: options.hold_blocks_max,
            index_places,
            clients,
            grants,
            hold_owners,
            directory,
            index,
            names,
            hold_blocks,
            heap,
        };
        layout.validate()?;
        Ok(layout)
    }

    /// Every part with its name, in the order of the header.
    pub(crate) fn tables(&self) -> [(&'static str, Span); 9] {
        [
            ("client table", self.clients),
            ("grant table", self.grants),
            ("hold-block table", self.hold_owners),
            ("directory", self.directory),
            ("name index 0", self.index[0]),
            ("name index 1", self.index[1]),
            ("name heap", self.names),
            ("hold blocks", self.hold_blocks),
            ("heap", self.heap),
        ]
    }

    /// Hold slots in one block.
    pub(crate) fn hold_slots(&self) -> u64 {
        (self.page.0 / 8).saturating_sub(HOLD_HEADER_WORDS)
    }

    /// Whether all parts lie disjoint in their sections, with the lengths their counts give.
    pub(crate) fn validate(&self) -> Result<(), FormatError> {
        self.validate_counts()?;
        let sized = [
            self.clients_max as u64 * CLIENT_BYTES,
            self.grants_max as u64 * GRANT_BYTES,
            self.hold_blocks_max as u64 * HOLD_OWNER_BYTES,
            self.objects_max as u64 * ENTRY_BYTES,
            self.index_places * INDEX_BYTES,
            self.index_places * INDEX_BYTES,
            self.names.length.0,
            self.hold_blocks_max as u64 * self.page.0,
            self.heap.length.0,
        ];
        let header = ("header", Span::new(Offset(0), Length(HEADER_BYTES)));
        let mut sorted = vec![header];
        for (i, ((table, span), bytes)) in self.tables().into_iter().zip(sized).enumerate() {
            let is_data = i >= 7;
            let section = if is_data { Section::Data } else { Section::Control };
            let grain = if is_data { self.page.0 } else { NAME_GRAIN_BYTES };
            let reason = if span.length.0 != bytes {
                "its length is not what its count gives"
            } else if span.is_empty() {
                "it is empty"
            } else if !span.is_aligned(if i < 6 { HOLD_OWNER_BYTES } else { grain })
                || (i < 6 && !span.offset.is_multiple_of(BLOCK_BYTES))
            {
                "it is not aligned"
            } else if !self.geometry.span_of(section).contains(span) {
                "it leaves its section"
            } else {
                sorted.push((table, span));
                continue;
            };
            return Err(FormatError::Misplaced { table, span, reason });
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
    fn the_tables_of_a_large_region_take_less_than_two_percent() {
        let layout = Layout::new(&RegionOptions::for_capacity(Length(32 << 30))).unwrap();
        let share = layout.geometry.total().0 - layout.heap.length.0;
        assert!(share * 50 < layout.heap.length.0, "{share}");
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
