//! Nodes that did not join, with the reason: for the log and for `farrow nodes`.

use std::collections::BTreeMap;

/// Pause before the same message is logged again.
pub(in crate::protocol) const AGAIN_MS: u64 = 60_000;

/// Limit of remembered addresses, and of messages.
pub(in crate::protocol) const REMEMBERED_MAX: usize = 128;

/// The reasons, by address, and the logged messages.
#[derive(Debug, Default)]
pub(in crate::protocol) struct NotJoined {
    /// Reasons why nodes at these addresses are not reached or did not join.
    pub(in crate::protocol) why_not: BTreeMap<String, String>,
    /// Logged messages, with their times.
    pub(in crate::protocol) said: BTreeMap<String, u64>,
}

impl NotJoined {
    pub(in crate::protocol) fn note(&mut self, address: &str, why: String) {
        if self.why_not.len() < REMEMBERED_MAX || self.why_not.contains_key(address) {
            self.why_not.insert(address.to_owned(), why);
        }
    }

    /// Whether a message is to be logged now.
    pub(in crate::protocol) fn is_due(&mut self, words: &str, now_ms: u64) -> bool {
        self.said.retain(|_, at_ms| now_ms.saturating_sub(*at_ms) < AGAIN_MS);
        let is_due = !self.said.contains_key(words) && self.said.len() < REMEMBERED_MAX;
        if is_due {
            self.said.insert(words.to_owned(), now_ms);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_said_once_a_minute() {
        let mut not_joined = NotJoined::default();
        assert!(not_joined.is_due("x", 5) && not_joined.is_due("y", 5));
        assert!(!not_joined.is_due("x", 5 + AGAIN_MS - 1));
        assert!(not_joined.is_due("x", 5 + AGAIN_MS));
    }

    #[test]
    fn what_is_remembered_has_a_limit() {
        let mut not_joined = NotJoined::default();
        for n in 0..2 * REMEMBERED_MAX {
            not_joined.note(&n.to_string(), String::new());
            not_joined.is_due(&n.to_string(), 0);
        }
        assert_eq!(not_joined.why_not.len(), REMEMBERED_MAX);
        assert_eq!(not_joined.said.len(), REMEMBERED_MAX);
    }
}
