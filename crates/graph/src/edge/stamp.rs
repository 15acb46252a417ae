//! Timestamps as small unsigned offsets.

use std::fmt::Debug;

/// A timestamp as its distance from the graph's base time.
///
/// With `u32` an entry has 12 bytes instead of 16; `u64` holds the distance of any two `i64`.
pub(crate) trait Stamp: Copy + Ord + Default + Debug + Send + Sync + 'static {
    /// The largest distance this type holds.
    const OFFSET_MAX: u64;

    fn from_offset(offset: u64) -> Self;
    fn offset(self) -> u64;

    /// The stamp of a time in a graph with this base, if it fits.
    fn since(base: i64, time: i64) -> Option<Self> {
        let offset = u64::try_from(i128::from(time) - i128::from(base)).ok()?;
        (offset <= Self::OFFSET_MAX).then(|| Self::from_offset(offset))
    }

    /// The window from this stamp on.
    fn onward(self) -> (Self, Self) {
        (self, Self::from_offset(Self::OFFSET_MAX))
    }

    /// The window of all stamps.
    fn always() -> (Self, Self) {
        Self::default().onward()
    }

    /// The next stamp, or the last one itself.
    fn after(self) -> Self {
        Self::from_offset(self.offset().saturating_add(1).min(Self::OFFSET_MAX))
    }

    /// The first stamp of a window that ends here and includes its first instant.
    fn closed(self, window: u64) -> Self {
        // No edge is older than the base, so saturation excludes none.
        Self::from_offset(self.offset().saturating_sub(window))
    }

    /// The first stamp of a window that ends here and excludes its first instant.
    fn open(self, window: u64) -> Self {
        match self.offset().checked_sub(window) {
            Some(edge) => Self::from_offset(edge.saturating_add(1).min(Self::OFFSET_MAX)),
            None => Self::from_offset(0),
        }
    }
}

impl Stamp for u32 {
    const OFFSET_MAX: u64 = u32::MAX as u64;

    #[expect(clippy::cast_possible_truncation, reason = "callers keep to OFFSET_MAX")]
    fn from_offset(offset: u64) -> u32 {
        debug_assert!(offset <= Self::OFFSET_MAX);
        offset as u32
    }

    fn offset(self) -> u64 {
        u64::from(self)
    }
}

impl Stamp for u64 {
    const OFFSET_MAX: u64 = u64::MAX;

    fn from_offset(offset: u64) -> u64 {
        offset
    }

    fn offset(self) -> u64 {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::Stamp;

    #[test]
    fn windows_end_at_the_base_at_the_latest() {
        assert_eq!(10u32.closed(4), 6);
        assert_eq!(10u32.open(4), 7);
        assert_eq!(10u32.open(10), 1);
        assert_eq!(10u32.open(11), 0);
        assert_eq!(10u32.closed(u64::MAX), 0);
        assert_eq!(u64::MAX.open(0), u64::MAX);
    }
}
