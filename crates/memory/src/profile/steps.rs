//! The sizes at which a machine is measured.

use crate::units::Length;

/// Number of measured sizes: 64 B to 4 MiB, each four times the previous one. A larger range is
/// treated as the largest size.
pub const STEPS: usize = 9;

/// The smallest measured size.
const STEP_BYTES_FIRST: u64 = 64;

/// The size at which a step is measured.
pub(super) fn step_bytes(index: usize) -> Length {
    Length(STEP_BYTES_FIRST << (2 * index))
}

/// The step of a length: that of the nearest size, by ratio.
#[inline]
pub(super) fn step_of(length: Length) -> usize {
    // 64 << (2 * step) is the nearest size for lengths below twice that value.
    let doublings = (length.0 / STEP_BYTES_FIRST).max(1).ilog2() as usize;
    doublings.div_ceil(2).min(STEPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_belongs_to_the_nearest_step() {
        for (length, step) in [
            (0, 0),
            (1, 0),
            (64, 0),
            (127, 0),
            (128, 1),
            (256, 1),
            (511, 1),
            (512, 2),
            (1024, 2),
            (4096, 3),
            (8191, 3),
            (8192, 4),
            (4 << 20, 8),
            (2 << 20, 8),
            ((2 << 20) - 1, 7),
            (1 << 40, 8),
            (u64::MAX, 8),
        ] {
            assert_eq!(step_of(Length(length)), step, "{length}");
        }
        assert_eq!(step_bytes(STEPS - 1), Length(4 << 20));
    }
}
