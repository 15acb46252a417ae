//! The description of a segment, and the packing of an edge into 64 bits.

/// Sequence numbers, accounts and entries of one segment, at most: offsets of Arrow lists are
/// signed 32-bit numbers.
pub(crate) const COUNT_MAX: u64 = (1 << 31) - 1;

/// The description of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The sequence number of its first edge.
    pub first: u64,
    /// How many sequence numbers it covers. Some may have no edge in it.
    pub numbers: u64,
    /// The time of its first edge.
    pub base: i64,
    /// The time of its last edge, from `base` on.
    pub span: u64,
    /// The number of edges, including self-loops.
    pub edges: u64,
    /// The number of self-loops.
    pub loops: u64,
    /// All small numbers of accounts are below this one.
    pub accounts: u64,
}

/// The layout of a packed entry, from the highest bit down: position in order of arrival, time,
/// account at the other end. The entries of a list therefore increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    other_bits: u32,
    /// 0 if times are in a separate table, by position.
    time_bits: u32,
    other_mask: u64,
    time_mask: u64,
}

fn bits(largest: u64) -> u32 {
    u64::BITS - largest.leading_zeros()
}

fn mask(bits: u32) -> u64 {
    1u64.checked_shl(bits).map_or(u64::MAX, |bit| bit - 1)
}

impl Packing {
    pub(crate) fn new(info: &SegmentInfo) -> Packing {
        let other_bits = bits(info.accounts.saturating_sub(1)).max(1);
        let seq_bits = bits(info.numbers.saturating_sub(1)).max(1);
        let time_bits = bits(info.span);
        let fits = other_bits + seq_bits + time_bits <= u64::BITS;
        let time_bits = if fits { time_bits } else { 0 };
        let (other_mask, time_mask) = (mask(other_bits), mask(time_bits));
        Packing { other_bits, time_bits, other_mask, time_mask }
    }

    pub(crate) fn pack(self, position: u64, time: u64, other: u32) -> u64 {
        let time = if self.time_bits == 0 { 0 } else { time << self.other_bits };
        (position << (self.time_bits + self.other_bits)) | time | u64::from(other)
    }

    #[inline]
    pub(crate) fn other(self, packed: u64) -> u32 {
        (packed & self.other_mask) as u32
    }

    /// The time of an entry, unless there is a table.
    #[inline]
    pub(crate) fn time(self, packed: u64) -> u64 {
        (packed >> self.other_bits) & self.time_mask
    }

    #[inline]
    pub(crate) fn position(self, packed: u64) -> u64 {
        packed >> (self.time_bits + self.other_bits)
    }

    /// Whether times are in a table, because entries have no bits for them.
    pub(crate) fn has_table(self, info: &SegmentInfo) -> bool {
        self.time_bits == 0 && info.span > 0
    }
}

#[cfg(test)]
mod tests {
    use super::{Packing, SegmentInfo};

    #[test]
    fn entries_hold_what_fits_and_leave_times_to_a_table_where_they_do_not() {
        let span = (1 << 17) - 1;
        let info =
            SegmentInfo { numbers: 1 << 23, span, accounts: 1 << 24, ..SegmentInfo::default() };
        let packing = Packing::new(&info);
        let packed = packing.pack((1 << 23) - 1, span, (1 << 24) - 1);
        assert_eq!(u64::MAX, packed, "23 + 17 + 24 bits, all of them used");
        assert_eq!(
            (packing.position(packed), packing.other(packed)),
            ((1 << 23) - 1, (1 << 24) - 1)
        );
        let info = SegmentInfo { span: u64::MAX, ..info };
        let packing = Packing::new(&info);
        assert!(packing.has_table(&info));
        let packed = packing.pack(5, span, 7);
        assert_eq!((packing.position(packed), packing.other(packed)), (5, 7));
        // One edge, of one account, at one time: no bits are needed.
        let info = SegmentInfo { numbers: 1, accounts: 1, ..SegmentInfo::default() };
        let packing = Packing::new(&info);
        assert!(!packing.has_table(&info));
        assert_eq!(packing.pack(0, 0, 0), 0);
    }
}
