//! Whether packed pieces really arrive faster than plain ones did.

use std::time::{Duration, Instant};

/// First pause after packed pieces that were not faster; each further pause is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Maximum pause: a link that has become slower is noticed within a minute.
const PAUSE_MAX: Duration = Duration::from_secs(64);

/// Packed pieces have to be faster by one part in this number: less is noise.
const GAIN_PARTS: u64 = 8;

/// Pieces that arrived without a pause in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Bytes on the link.
    pub(crate) wire: u64,
    /// Bytes of the pieces.
    pub(crate) bytes: u64,
    /// Bytes of those pieces that came packed.
    pub(crate) packed: u64,
}

/// The outcomes of packed pieces of one peer. Time is an argument.
#[derive(Debug, Default)]
pub(crate) struct PackTrial {
    pause: Duration,
    again_at: Option<Instant>,
}

impl PackTrial {
    /// Whether packed pieces may be asked for.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        self.again_at.is_none_or(|at| at <= now)
    }

    /// Compares a stretch with packed pieces with the rate of plain ones, in bytes a second.
    pub(crate) fn on_stretch(
        &mut self,
        stretch: &Stretch,
        (elapsed, now): (Duration, Instant),
        plain_rate: u64,
    ) {
        // If only a part was packed, only that part has to be faster.
        let bytes = u128::from(stretch.bytes);
        let needed = bytes * u128::from(GAIN_PARTS) + u128::from(stretch.packed);
        // The rate of plain pieces times this, in eighths of a byte.
        let needed_rate = u128::from(plain_rate).saturating_mul(needed) / bytes.max(1);
        let rate = bytes * u128::from(GAIN_PARTS) * 1_000_000_000 / elapsed.as_nanos().max(1);
        let is_faster = rate >= needed_rate;
        match is_faster {
            true => self.pause = Duration::ZERO,
            false => {
                self.pause = (2 * self.pause).clamp(PAUSE_MIN, PAUSE_MAX);
                self.again_at = now.checked_add(self.pause);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn packed_pieces_that_are_not_faster_pause_for_longer_each_time() {
        let (mut trial, now) = (PackTrial::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        let packed = Stretch { wire: 4 * MB, bytes: 8 * MB, packed: 8 * MB };
        let second = Duration::from_secs(1);
        assert!(trial.is_open(now));
        trial.on_stretch(&packed, (second, now), 7 * MB);
        assert!(trial.is_open(now), "an eighth faster");
        trial.on_stretch(&packed, (second, now), 8 * MB);
        assert!(!trial.is_open(now) && trial.is_open(after(1)));
        trial.on_stretch(&packed, (second, after(1)), 8 * MB);
        assert!(!trial.is_open(after(2)) && trial.is_open(after(3)));
        for _ in 0..20 {
            trial.on_stretch(&packed, (second, now), 8 * MB);
        }
        assert!(!trial.is_open(after(63)) && trial.is_open(after(64)));
        trial.on_stretch(&packed, (second, after(64)), MB);
        trial.on_stretch(&packed, (second, after(64)), u64::MAX);
        assert!(!trial.is_open(after(64)) && trial.is_open(after(65)), "the first pause again");
    }

    /// After a change from plain to packed, a stretch has pieces of both.
    #[test]
    fn only_the_packed_part_has_to_be_faster() {
        let now = Instant::now();
        let is_open = |packed, plain_rate| {
            let mut trial = PackTrial::default();
            let stretch = Stretch { wire: 8 * MB, bytes: 8 * MB, packed };
            trial.on_stretch(&stretch, (Duration::from_secs(1), now), plain_rate);
            trial.is_open(now)
        };
        assert!(is_open(MB, 7 * MB + MB / 2) && is_open(0, 8 * MB));
        assert!(!is_open(8 * MB, 7 * MB + MB / 2) && !is_open(MB, 8 * MB));
    }
}
