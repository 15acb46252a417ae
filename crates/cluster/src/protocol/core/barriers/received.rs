//! Requests of other nodes that were received before.

use std::collections::{BTreeMap, BTreeSet};

/// Limit of remembered requests of one node: far more than it can have under way.
const REMEMBERED_MAX: usize = 4096;

/// Numbers of received requests, by node. At the limit, lower numbers count as received too.
#[derive(Debug, Default)]
pub(super) struct ReceivedRequests(BTreeMap<String, BTreeSet<u64>>);

impl ReceivedRequests {
    /// Whether this request was received before.
    pub(super) fn has(&self, node: &str, number: u64) -> bool {
        let Some(numbers) = self.0.get(node) else {
            return false;
        };
        let is_older = numbers.first().is_some_and(|oldest| number < *oldest);
        numbers.contains(&number) || numbers.len() >= REMEMBERED_MAX && is_older
    }

    /// Notes a request.
    pub(super) fn add(&mut self, node: &str, number: u64) {
        if self.has(node, number) {
            return;
        }
        let numbers = self.0.entry(node.to_owned()).or_default();
        numbers.insert(number);
        if numbers.len() > REMEMBERED_MAX {
            numbers.pop_first();
        }
    }

    /// Forgets the requests of nodes that send no repetitions any more.
    pub(super) fn forget(&mut self, has_left: impl Fn(&str) -> bool) {
        self.0.retain(|node, _| !has_left(node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_comes_again_is_known_for_long() {
        let mut received = ReceivedRequests::default();
        let mut is_new = |node: &str, number| {
            let is_new = !received.has(node, number);
            received.add(node, number);
            is_new
        };
        assert!(is_new("b", 7) && is_new("c", 7) && is_new("b", 6));
        assert!(!is_new("b", 7) && !is_new("b", 6));
        for number in 100..100 + REMEMBERED_MAX as u64 {
            assert!(is_new("b", number));
            assert!(!is_new("b", number));
        }
        for old in [6, 7, 99] {
            assert!(!is_new("b", old), "{old}");
        }
        assert_eq!(received.0["b"].len(), REMEMBERED_MAX);
        received.forget(|node| node == "b");
        assert!(!received.has("b", 7));
        assert!(received.has("c", 7));
    }
}
