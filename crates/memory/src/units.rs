//! Offsets, lengths and spans in a region, addresses in a process.

use std::fmt;
use std::sync::OnceLock;

/// First address of the window in which a region has the same address in every process.
///
/// 64 TiB to 80 TiB was free in every program tried (CPython, the JVM with each collector, V8, Go,
/// all sanitizers except TSAN). The ranges around it are not.
pub const WINDOW_BASE: Address = Address(0x4000_0000_0000);

/// First address after the window.
pub const WINDOW_END: Address = Address(0x5000_0000_0000);

/// Usual size of a huge page: 2 MiB on x86-64, and on AArch64 with 4 KiB pages.
pub const HUGE_PAGE_BYTES_USUAL: Length = Length(2 << 20);

/// Bytes from the start of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(pub u64);

impl Offset {
    /// `self + length`, or `None` if that overflows 64 bits.
    #[must_use]
    pub const fn checked_add(self, length: Length) -> Option<Self> {
        match self.0.checked_add(length.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// `self - length`, or `None` if that is below zero.
    #[must_use]
    pub const fn checked_sub(self, length: Length) -> Option<Self> {
        match self.0.checked_sub(length.0) {
            Some(rest) => Some(Self(rest)),
            None => None,
        }
    }

    /// Whether this is a multiple of `bytes`. Nothing is a multiple of 0.
    #[must_use]
    pub const fn is_multiple_of(self, bytes: u64) -> bool {
        bytes != 0 && self.0.is_multiple_of(bytes)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Length(pub u64);

impl Length {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);

    /// Whether this is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, or `None` if it overflows 64 bits.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// Rounds up to a multiple of `bytes`. `None` if that overflows 64 bits or `bytes` is 0.
    #[must_use]
    pub const fn round_up(self, bytes: u64) -> Option<Self> {
        if bytes == 0 {
            return None;
        }
        match self.0.checked_next_multiple_of(bytes) {
            Some(rounded) => Some(Self(rounded)),
            None => None,
        }
    }

    /// Converts to `usize`. The crate builds for 64-bit machines only, so nothing is truncated.
    #[must_use]
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}

impl From<usize> for Length {
    fn from(bytes: usize) -> Self {
        Self(bytes as u64)
    }
}

/// An address in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub usize);

impl Address {
    /// Converts to a pointer. Making it is safe, using it is not.
    #[must_use]
    pub fn as_ptr(self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.0)
    }
}

impl<T> From<*const T> for Address {
    fn from(pointer: *const T) -> Self {
        Self(pointer.expose_provenance())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A range of bytes in a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Where it starts.
    pub offset: Offset,
    /// How long it is.
    pub length: Length,
}

impl Span {
    /// `length` bytes from `offset`. Does not check bounds; see [`crate::Region::check`].
    #[must_use]
    pub const fn new(offset: Offset, length: Length) -> Self {
        Self { offset, length }
    }

    /// The bytes from `start` up to `end`, or `None` if `end` is less than `start`.
    #[must_use]
    pub const fn between(start: Offset, end: Offset) -> Option<Self> {
        match end.0.checked_sub(start.0) {
            Some(length) => Some(Self::new(start, Length(length))),
            None => None,
        }
    }

    /// The first offset after the span, or `None` if that overflows 64 bits.
    #[must_use]
    pub const fn end(self) -> Option<Offset> {
        self.offset.checked_add(self.length)
    }

    /// Whether the span has no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.length.is_zero()
    }

    /// Whether every byte of `inner` is in this span. An empty `inner` must still start and end
    /// inside. A span whose end overflows 64 bits contains nothing and is contained in nothing.
    #[must_use]
    pub const fn contains(self, inner: Self) -> bool {
        match (self.end(), inner.end()) {
            (Some(end), Some(inner_end)) => self.offset.0 <= inner.offset.0 && inner_end.0 <= end.0,
            _ => false,
        }
    }

    /// Whether both spans have a byte in common. A span whose end overflows 64 bits is treated as
    /// reaching to the last byte.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        if self.is_empty() || other.is_empty() {
            return false;
        }
        // Compares last bytes instead of ends, so that nothing overflows.
        let last = self.offset.0.saturating_add(self.length.0 - 1);
        let other_last = other.offset.0.saturating_add(other.length.0 - 1);
        self.offset.0 <= other_last && other.offset.0 <= last
    }

    /// The bytes common to both spans, or `None` if there are none.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        let start = self.offset.max(other.offset);
        let end = self.end()?.min(other.end()?);
        Self::between(start, end).filter(|span| !span.is_empty())
    }

    /// Whether offset and length are multiples of `bytes`.
    #[must_use]
    pub const fn is_aligned(self, bytes: u64) -> bool {
        self.offset.is_multiple_of(bytes) && Offset(self.length.0).is_multiple_of(bytes)
    }

    /// The smallest span that contains this one and starts and ends at multiples of `bytes`. `None`
    /// if that overflows 64 bits or `bytes` is 0.
    #[must_use]
    pub const fn outward(self, bytes: u64) -> Option<Self> {
        let Some(end) = self.end() else { return None };
        let Some(end) = Length(end.0).round_up(bytes) else {
            return None;
        };
        let start = self.offset.0 - self.offset.0 % bytes;
        Some(Self::new(Offset(start), Length(end.0 - start)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.offset, self.length.0)
    }
}

/// The two parts of a region. They have different writers, so the `shm` fabric uses two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Section {
    /// Header and tables: written by the home only.
    Control,
    /// Hold blocks and the heap: each page is written by the client it was granted to.
    Data,
}

impl Section {
    /// `"control"` or `"data"`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Data => "data",
        }
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Lengths of the sections of a region. Both are multiples of the page size.
///
/// The data section is mapped directly after the control section. Huge pages require that address
/// and file offset are equal modulo the huge page size. A region with huge pages therefore has a
/// control section whose length is a multiple of it: see [`Geometry::for_huge_pages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Bytes of the control section.
    pub control: Length,
    /// Bytes of the data section.
    pub data: Length,
}

impl Geometry {
    /// Bytes of the whole region. Saturates; a fabric rejects a geometry whose total saturates.
    #[must_use]
    pub const fn total(self) -> Length {
        Length(self.control.0.saturating_add(self.data.0))
    }

    /// The same geometry with control rounded up to [`HUGE_PAGE_BYTES_USUAL`], so that data can use
    /// huge pages. Unchanged if the result does not fit 64 bits.
    #[must_use]
    pub fn for_huge_pages(self) -> Self {
        let control = self.control.round_up(HUGE_PAGE_BYTES_USUAL.0).unwrap_or(self.control);
        Self { control, data: self.data }
    }

    /// The span of a section.
    #[must_use]
    pub const fn span_of(self, section: Section) -> Span {
        match section {
            Section::Control => Span::new(Offset(0), self.control),
            Section::Data => Span::new(Offset(self.control.0), self.data),
        }
    }

    /// The span of the whole region.
    #[must_use]
    pub const fn span(self) -> Span {
        Span::new(Offset(0), self.total())
    }

    /// The section that contains all of `span`, or `None` if `span` crosses or leaves the sections.
    #[must_use]
    pub fn section_of(self, span: Span) -> Option<Section> {
        // Data first: an empty span on the border belongs to the section that follows.
        [Section::Data, Section::Control]
            .into_iter()
            .find(|section| self.span_of(*section).contains(span))
    }
}

/// Page size of this machine in bytes.
#[must_use]
pub fn page_bytes() -> u64 {
    static PAGE_BYTES: OnceLock<u64> = OnceLock::new();
    *PAGE_BYTES.get_or_init(|| rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(offset: u64, length: u64) -> Span {
        Span::new(Offset(offset), Length(length))
    }

    #[test]
    fn ends_do_not_wrap() {
        assert_eq!(span(10, 5).end(), Some(Offset(15)));
        assert_eq!(span(u64::MAX, 1).end(), None);
        assert_eq!(span(u64::MAX, 0).end(), Some(Offset(u64::MAX)));
        assert_eq!(Offset(3).checked_sub(Length(4)), None);
    }

    #[test]
    fn contains_is_by_every_byte() {
        let outer = span(100, 50);
        assert!(outer.contains(span(100, 50)));
        assert!(outer.contains(span(150, 0)));
        assert!(!outer.contains(span(151, 0)));
        assert!(!outer.contains(span(99, 2)));
        assert!(!outer.contains(span(149, 2)));
        assert!(!outer.contains(span(120, u64::MAX)));
        assert!(!span(0, u64::MAX).contains(span(2, u64::MAX)));
    }

    #[test]
    fn overlap_is_symmetric_and_empty_spans_have_none() {
        for (a, b, expected) in [
            (span(0, 10), span(9, 1), true),
            (span(0, 10), span(10, 1), false),
            (span(5, 0), span(0, 10), false),
            (span(u64::MAX - 1, 10), span(u64::MAX, 1), true),
        ] {
            assert_eq!(a.overlaps(b), expected, "{a} {b}");
            assert_eq!(b.overlaps(a), expected, "{b} {a}");
        }
        assert_eq!(span(0, 10).intersection(span(5, 10)), Some(span(5, 5)));
        assert_eq!(span(0, 10).intersection(span(10, 10)), None);
    }

    #[test]
    fn rounding_goes_outward() {
        assert_eq!(span(100, 5000).outward(4096), Some(span(0, 8192)));
        assert_eq!(span(1, 1).outward(0), None);
        assert_eq!(span(u64::MAX - 5, 5).outward(4096), None);
        assert!(span(4096, 8192).is_aligned(4096));
        assert!(!span(4096, 8191).is_aligned(4096));
    }

    #[test]
    fn geometry_names_the_section() {
        let geometry = Geometry { control: Length(8192), data: Length(4096) };
        assert_eq!(geometry.section_of(span(0, 8192)), Some(Section::Control));
        assert_eq!(geometry.section_of(span(8192, 4096)), Some(Section::Data));
        assert_eq!(geometry.section_of(span(8191, 2)), None);
        assert_eq!(geometry.section_of(span(8192, 4097)), None);
        assert_eq!(geometry.for_huge_pages().control, Length(2 << 20));
        assert_eq!(geometry.total(), Length(12288));
    }

    #[test]
    fn a_page_is_a_power_of_two() {
        assert!(page_bytes().is_power_of_two());
    }
}
