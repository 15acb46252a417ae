//! When the heap of the daemon gives free memory back to the system.

/// Buffers that leave memory behind which is worth giving back to the system.
const TRIM_BYTES_MIN: u64 = 8 << 20;

/// Pause before the heap is trimmed: more buffers may follow, or end.
const TRIM_PAUSE_MS: u64 = 1_000;

/// When the heap gives free memory back to the system. Large buffers leave free ranges below memory
/// that stays in use, and the allocator alone returns only its end.
#[derive(Debug, Default)]
pub(super) struct HeapTrim {
    /// Most bytes that were buffered since the last one.
    peak_bytes: u64,
    pub(super) at_ms: Option<u64>,
}

impl HeapTrim {
    /// Notes the bytes that are buffered now. True: the heap is to be trimmed.
    pub(super) fn note(&mut self, bytes: u64, now_ms: u64) -> bool {
        self.peak_bytes = self.peak_bytes.max(bytes);
        if self.peak_bytes < TRIM_BYTES_MIN || bytes > self.peak_bytes / 2 {
            self.at_ms = None;
            return false;
        }
        let at_ms = *self.at_ms.get_or_insert(now_ms.saturating_add(TRIM_PAUSE_MS));
        let is_due = now_ms >= at_ms;
        if is_due {
            *self = Self { peak_bytes: bytes, at_ms: None };
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_trimmed_once_after_large_buffers_have_ended() {
        let mut trim = HeapTrim::default();
        assert!(!trim.note(TRIM_BYTES_MIN - 1, 0) && !trim.note(0, 5_000));
        assert!(trim.at_ms.is_none(), "too little");
        assert!(!trim.note(2 * TRIM_BYTES_MIN, 6_000) && trim.at_ms.is_none());
        assert!(!trim.note(TRIM_BYTES_MIN, 7_000), "others may follow");
        assert_eq!(trim.at_ms, Some(7_000 + TRIM_PAUSE_MS));
        assert!(!trim.note(2 * TRIM_BYTES_MIN, 7_500) && trim.at_ms.is_none(), "and have");
        assert!(!trim.note(1, 7_000));
        assert!(trim.note(0, 7_000 + TRIM_PAUSE_MS));
        assert!(trim.at_ms.is_none() && !trim.note(0, 20_000));
    }
}
