//! What a reader asks for.

use std::time::Duration;

/// A reader's wish for packed pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackWish {
    /// Bytes a second that the connection receives of plain pieces; 0: whatever becomes smaller.
    pub rate: u64,
}

impl PackWish {
    /// Whether it saves time to send `packed` bytes in place of `plain`. Decompression takes half as
    /// long as compression.
    #[must_use]
    pub fn pays(self, plain: usize, packed: usize, compressing: Duration) -> bool {
        if self.rate == 0 {
            return packed < plain;
        }
        let saved = plain.saturating_sub(packed) as u128;
        let saved_ns = saved * 1_000_000_000 / u128::from(self.rate);
        compressing.as_nanos() * 3 / 2 < saved_ns
    }
}
