//! Names that clients wait for: those that other nodes are asked about, and those of other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::protocol::cluster::questions::message::NAMES_MAX;

/// Limit of names that one other node may wait for.
pub(super) const AWAITED_MAX: usize = 65_536;

/// Names of a node from which on it is asked which of them it still waits for.
const SWEEP_MIN: usize = NAMES_MAX / 2;

/// Names that a node is asked to report once they are sealed there.
#[derive(Debug, Default)]
struct NameQueue {
    names: BTreeSet<String>,
    /// Number of the question under way: one at a time, with all names that came meanwhile in the
    /// next one.
    under_way: Option<u64>,
    /// The last question failed: when the next one is sent.
    again_at_ms: Option<u64>,
}

/// A question for the report of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) struct AwaitQuestion {
    pub(in crate::protocol::cluster) node: String,
    pub(in crate::protocol::cluster) number: u64,
    pub(in crate::protocol::cluster) names: Vec<String>,
}

/// A question to a node, which of the names it still waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) struct SweepQuestion {
    pub(in crate::protocol::cluster) node: String,
    pub(in crate::protocol::cluster) names: Vec<String>,
    /// Names that the node asked for later stay, whatever it answers.
    requested: u64,
}

/// The names that one other node waits for.
#[derive(Debug)]
struct PeerWaits {
    count: usize,
    /// Number of names at which the node is asked again which of them it still waits for.
    sweep_at: usize,
    is_requested: bool,
}

/// Names that clients wait for.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Awaited {
    queues: BTreeMap<String, NameQueue>,
    last_number: u64,
    /// Names that clients of other nodes wait for: the nodes, each with the number of its request.
    by_peers: BTreeMap<String, BTreeMap<String, u64>>,
    peers: BTreeMap<String, PeerWaits>,
    requests: u64,
}

impl Awaited {
    /// Queues names for a node.
    pub(in crate::protocol::cluster) fn queue(
        &mut self,
        node: &str,
        names: impl IntoIterator<Item = String>,
    ) {
        self.queues.entry(node.to_owned()).or_default().names.extend(names);
    }

    /// Forgets what nodes were asked: in a new view they are asked for all names.
    pub(super) fn forget_queues(&mut self) {
        self.queues.clear();
    }

    /// The next question to a node, unless one is under way or failed just now.
    pub(super) fn next_question(&mut self, node: &str) -> Option<AwaitQuestion> {
        let queue = self.queues.get_mut(node)?;
        if queue.under_way.is_some() || queue.again_at_ms.is_some() || queue.names.is_empty() {
            return None;
        }
        let names = std::iter::from_fn(|| queue.names.pop_first()).take(NAMES_MAX).collect();
        self.last_number += 1;
        queue.under_way = Some(self.last_number);
        Some(AwaitQuestion { node: node.to_owned(), number: self.last_number, names })
    }

    /// A question was answered, or not: then these names are asked for again at a time.
    pub(in crate::protocol::cluster) fn on_response(
        &mut self,
        question: &AwaitQuestion,
        again: Option<(u64, Vec<String>)>,
    ) {
        let Some(queue) = self.queues.get_mut(&question.node) else { return };
        if queue.under_way != Some(question.number) {
            return;
        }
        queue.under_way = None;
        if let Some((at_ms, names)) = again {
            queue.names.extend(names);
            queue.again_at_ms = Some(at_ms);
        }
    }

    /// Nodes that are asked again now, for the names that are still awaited.
    pub(in crate::protocol::cluster) fn due(
        &mut self,
        now_ms: u64,
        is_awaited: impl Fn(&String) -> bool,
    ) -> Vec<String> {
        let mut nodes = Vec::new();
        for (node, queue) in &mut self.queues {
            if queue.again_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
                queue.again_at_ms = None;
                queue.names.retain(&is_awaited);
                nodes.push(node.clone());
            }
        }
        nodes
    }

    pub(in crate::protocol::cluster) fn next_deadline_ms(&self) -> Option<u64> {
        self.queues.values().filter_map(|queue| queue.again_at_ms).min()
    }

    /// Notes names that another node waits for.
    ///
    /// # Errors
    ///
    /// The number of names that it waits for: these would be too many.
    pub(in crate::protocol::cluster) fn add(
        &mut self,
        node: &str,
        names: Vec<String>,
    ) -> Result<(), usize> {
        let has =
            |name: &&String| self.by_peers.get(*name).is_some_and(|nodes| nodes.contains_key(node));
        let more = names.len() - names.iter().filter(has).count();
        let fresh = || PeerWaits { count: 0, sweep_at: SWEEP_MIN, is_requested: false };
        let waits = self.peers.entry(node.to_owned()).or_insert_with(fresh);
        if waits.count + more > AWAITED_MAX {
            return Err(waits.count);
        }
        waits.count += more;
        self.requests += 1;
        for name in names {
            self.by_peers.entry(name).or_default().insert(node.to_owned(), self.requests);
        }
        Ok(())
    }

    /// Removes a name; returns the nodes that wait for it.
    pub(in crate::protocol::cluster) fn take(&mut self, name: &str) -> Vec<String> {
        let nodes: Vec<String> =
            self.by_peers.remove(name).unwrap_or_default().into_keys().collect();
        for node in &nodes {
            if let Some(waits) = self.peers.get_mut(node) {
                waits.count = waits.count.saturating_sub(1);
            }
        }
        nodes
    }

    /// Forgets the names of nodes whose lives have ended.
    pub(in crate::protocol::cluster) fn forget_nodes(&mut self, nodes: &[String]) {
        if !nodes.iter().any(|node| self.peers.remove(node).is_some()) {
            return;
        }
        self.peers.retain(|node, _| !nodes.contains(node));
        self.by_peers.retain(|_, waiting| {
            waiting.retain(|node, _| !nodes.contains(node));
            !waiting.is_empty()
        });
    }

    /// The first question of a sweep, if many names of a node are noted.
    pub(super) fn begin_sweep(&mut self, node: &str) -> Option<SweepQuestion> {
        let waits = self.peers.get_mut(node)?;
        if waits.is_requested || waits.count < waits.sweep_at {
            return None;
        }
        waits.is_requested = true;
        self.sweep_after(node, None)
    }

    fn sweep_after(&mut self, node: &str, after: Option<&str>) -> Option<SweepQuestion> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.by_peers.range::<str, _>((from, Bound::Unbounded));
        let its = later.filter(|(_, nodes)| nodes.contains_key(node));
        let names: Vec<String> = its.map(|(name, _)| name.clone()).take(NAMES_MAX).collect();
        if names.is_empty() {
            self.end_sweep(node);
            return None;
        }
        Some(SweepQuestion { node: node.to_owned(), names, requested: self.requests })
    }

    /// A sweep is over, or cannot go on.
    pub(super) fn end_sweep(&mut self, node: &str) {
        if let Some(waits) = self.peers.get_mut(node) {
            waits.is_requested = false;
            waits.sweep_at = (2 * waits.count).clamp(SWEEP_MIN, AWAITED_MAX - NAMES_MAX);
        }
    }

    /// Removes the names that a node waits for no more. Returns the next question.
    pub(super) fn swept(
        &mut self,
        question: &SweepQuestion,
        still: &[bool],
    ) -> Option<SweepQuestion> {
        let SweepQuestion { node, names, requested } = question;
        for (name, _) in names.iter().zip(still).filter(|(_, is_awaited)| !**is_awaited) {
            let Some(nodes) = self.by_peers.get_mut(name) else { continue };
            if nodes.get(node).is_none_or(|request| request > requested) {
                continue;
            }
            nodes.remove(node);
            if nodes.is_empty() {
                self.by_peers.remove(name);
            }
            if let Some(waits) = self.peers.get_mut(node) {
                waits.count = waits.count.saturating_sub(1);
            }
        }
        self.sweep_after(node, names.last().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(range: std::ops::Range<usize>) -> Vec<String> {
        range.map(|number| format!("n{number:06}")).collect()
    }

    impl Awaited {
        /// The names that a node waits for, and their number as it is counted.
        fn of(&self, node: &str) -> (usize, usize) {
            let its = self.by_peers.values().filter(|nodes| nodes.contains_key(node));
            (its.count(), self.peers.get(node).map_or(0, |waits| waits.count))
        }
    }

    /// Regression test: names whose waits had ended stayed at all other nodes. After 65,536 of them a
    /// node was notified of no sealed name any more.
    #[test]
    fn names_that_no_client_waits_for_any_more_make_room() {
        let mut awaited = Awaited::default();
        let mut sent = 0;
        for first in (0..2 * AWAITED_MAX).step_by(100) {
            awaited.add("a", names(first..first + 100)).unwrap();
            awaited.add("c", names(first % 1000..first % 1000 + 100)).unwrap();
            let mut question = awaited.begin_sweep("a");
            while let Some(one) = question {
                sent += 1;
                assert!(one.names.len() <= NAMES_MAX && one.node == "a");
                let is_awaited = |name: &String| *name >= format!("n{first:06}");
                let still: Vec<bool> = one.names.iter().map(is_awaited).collect();
                question = awaited.swept(&one, &still);
            }
            let (all, counted) = awaited.of("a");
            assert!(all == counted && all <= SWEEP_MIN + 100, "{all} {counted}");
        }
        assert!((1..100).contains(&sent), "{sent} questions");
        assert_eq!(awaited.of("c"), (1000, 1000), "names of another node stay");
        awaited.forget_nodes(&["a".to_owned(), "b".to_owned()]);
        assert_eq!((awaited.of("a"), awaited.of("c")), ((0, 0), (1000, 1000)));
        assert_eq!(awaited.take("n000000"), ["c"]);
        assert_eq!(awaited.of("c"), (999, 999));
        awaited.forget_nodes(&["c".to_owned()]);
        assert!(awaited.by_peers.is_empty() && awaited.peers.is_empty());
    }

    /// The answer of a node is late: it waits for one of the names again.
    #[test]
    fn a_name_that_is_awaited_again_outlives_an_earlier_answer() {
        let mut awaited = Awaited::default();
        awaited.add("a", names(0..SWEEP_MIN)).unwrap();
        let question = awaited.begin_sweep("a").unwrap();
        assert_eq!(awaited.begin_sweep("a"), None, "one at a time");
        awaited.add("a", names(7..8)).unwrap();
        assert_eq!(awaited.swept(&question, &vec![false; SWEEP_MIN]), None);
        assert_eq!(awaited.of("a"), (1, 1));
        assert_eq!(awaited.take("n000007"), ["a"]);
    }

    /// A node of an earlier version does not say which names it waits for.
    #[test]
    fn a_node_that_waits_for_too_many_names_is_refused() {
        let mut awaited = Awaited::default();
        for first in (0..AWAITED_MAX).step_by(NAMES_MAX) {
            awaited.add("a", names(first..first + NAMES_MAX)).unwrap();
            if awaited.begin_sweep("a").is_some() {
                awaited.end_sweep("a");
            }
        }
        assert_eq!(awaited.add("a", names(AWAITED_MAX..AWAITED_MAX + 1)), Err(AWAITED_MAX));
        assert_eq!(awaited.add("a", names(0..10)), Ok(()), "it is repeated");
        assert!(awaited.begin_sweep("a").is_some());
        assert_eq!(awaited.add("c", names(0..1)), Ok(()));
    }

    #[test]
    fn one_question_at_a_time_has_all_names_that_came_meanwhile() {
        let mut awaited = Awaited::default();
        awaited.queue("b", names(0..1));
        let first = awaited.next_question("b").unwrap();
        for number in 1..100 {
            awaited.queue("b", names(number..number + 1));
            assert_eq!(awaited.next_question("b"), None);
        }
        awaited.on_response(&first, Some((100, first.names.clone())));
        assert_eq!(awaited.next_question("b"), None, "it failed just now");
        assert_eq!(awaited.next_deadline_ms(), Some(100));
        assert_eq!(awaited.due(99, |_| true), [""; 0]);
        assert_eq!(awaited.due(100, |name| name != "n000050"), ["b"]);
        let second = awaited.next_question("b").unwrap();
        assert_eq!(second.names.len(), 99, "one of them is awaited no more");
        awaited.on_response(&first, None);
        assert_eq!(awaited.next_question("b"), None, "the answer to an earlier question");
        awaited.on_response(&second, None);
        assert_eq!((awaited.next_question("b"), awaited.next_deadline_ms()), (None, None));
    }
}
