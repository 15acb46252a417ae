//! Warnings that clients can cause as often as they like.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::protocol::SessionId;

/// Least time between two warnings of a kind.
const PAUSE_MS: u64 = 1_000;

/// The warnings of each kind.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    kinds: BTreeMap<&'static str, Throttle>,
}

/// Admits a warning of one kind once a second.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// The time of the next warning.
    next_ms: u64,
    /// Warnings that were left out since the last one.
    left_out: u64,
}

impl Throttle {
    /// Whether to warn now: then the number of warnings that were left out before.
    pub(super) fn admit(&mut self, now_ms: u64) -> Option<u64> {
        if now_ms < self.next_ms {
            self.left_out += 1;
            return None;
        }
        self.next_ms = now_ms.saturating_add(PAUSE_MS);
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Warnings {
    fn admit(&mut self, kind: &'static str, now_ms: u64) -> Option<u64> {
        self.kinds.entry(kind).or_default().admit(now_ms)
    }

    /// Warns of a client, at most once a second for each kind.
    pub(super) fn warn_of(
        &mut self,
        session: SessionId,
        kind: &'static str,
        error: Option<&dyn Display>,
        now_ms: u64,
    ) {
        if let Some(left_out) = self.admit(kind, now_ms) {
            let error = error.map(tracing::field::display);
            let left_out = (left_out > 0).then_some(left_out);
            tracing::warn!(session = session.0, error, left_out, "{kind}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a client could fill the log with warnings, one for each invalid message.
    #[test]
    fn a_kind_of_warning_is_logged_once_a_second_with_the_number_of_the_rest() {
        let mut warnings = Warnings::default();
        assert_eq!(warnings.admit("one", 5), Some(0));
        assert_eq!(warnings.admit("other", 6), Some(0));
        for now_ms in 5..1_005 {
            assert_eq!(warnings.admit("one", now_ms), None);
        }
        assert_eq!(warnings.admit("one", 1_005), Some(1_000));
        assert_eq!(warnings.admit("one", 2_004), None);
        assert_eq!(warnings.admit("one", 9_000), Some(1));
    }
}
