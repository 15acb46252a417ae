//! How a segment packs an edge into 64 bits, and what it says of itself in numbers.

/// Numbers of arrival, accounts and entries of one segment, at most: offsets of Arrow lists are
/// 32-bit and signed.
pub(crate) const COUNT_MAX: u64 = 1 << 31;

/// What a segment holds, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Number of arrival of its first edge.
    pub first: u64,
    /// Numbers of arrival that it covers. Some may have no edge in it.
    pub numbers: u64,
    /// Time of its first edge.
    pub base: i64,
    /// Time of its last edge, from there on.
    pub span: u64,
    /// Edges, self-loops among them.
    pub edges: u64,
    /// Self-loops.
    pub loops: u64,
    /// Accounts have numbers below this one.
    pub accounts: u64,
}

/// How an entry of 64 bits is packed: rank of arrival, time, account at the other end, from the
/// highest bit down. So entries of a list, which come in order of arrival, are increasing numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    other_bits: u32,
    /// 0: times lie in a table of their own, by rank.
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

    /// Its time, unless there is a table.
    #[inline]
    pub(crate) fn time(self, packed: u64) -> u64 {
        (packed >> self.other_bits) & self.time_mask
    }

    #[inline]
    pub(crate) fn position(self, packed: u64) -> u64 {
        packed >> (self.time_bits + self.other_bits)
    }

    /// Whether times do not fit into entries.
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
        // Nothing to tell apart: one edge, of one account, at one time.
        let info = SegmentInfo { numbers: 1, accounts: 1, ..SegmentInfo::default() };
        let packing = Packing::new(&info);
        assert!(!packing.has_table(&info));
        assert_eq!(packing.pack(0, 0, 0), 0);
    }
}
