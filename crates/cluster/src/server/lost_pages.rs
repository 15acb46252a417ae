//! Reports of memory that clients have removed.

use super::warnings::Throttle;

/// What was reported of the pages that mapped files have lost.
#[derive(Debug, Default)]
pub(super) struct LostPages {
    reported: u64,
    throttle: Throttle,
}

impl LostPages {
    /// Reports pages that were lost since the last report.
    pub(super) fn report(&mut self, now_ms: u64) {
        let lost = farrow_memory::lost_pages();
        if self.is_due(lost, now_ms) {
            tracing::error!(pages = lost, "pages of mapped memory were removed");
        }
    }

    fn is_due(&mut self, lost: u64, now_ms: u64) -> bool {
        let is_due = lost != self.reported && self.throttle.admit(now_ms).is_some();
        if is_due {
            self.reported = lost;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_pages_are_reported_once_and_at_most_once_a_second() {
        let mut pages = LostPages::default();
        assert!(!pages.is_due(0, 0));
        assert!(pages.is_due(1, 5) && !pages.is_due(1, 5_000));
        assert!(pages.is_due(2, 5_000) && !pages.is_due(3, 5_999));
        assert!(pages.is_due(3, 6_000));
    }
}
