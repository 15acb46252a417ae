//! What ends when an answer does not come, or when the other members exclude this node.

use std::collections::BTreeSet;

use farrow_wire::{Extent, NodeUnreachable, WireError};

use super::{CLIENT, INCARNATION, ROUND_MS, ReplicaNodes, opened_at};
use crate::protocol::Action;
use crate::protocol::net::NetAction;
use crate::protocol::net::query::NetQuery;
use crate::protocol::replicas::transfers::{FetchKey, FetchWaiter};

impl ReplicaNodes {
    /// A round of which node a sees nothing, as if its process were stopped.
    fn round_without_a(&mut self) {
        self.now_ms += ROUND_MS;
        for number in 1..self.nodes.len() {
            let mut out = Vec::new();
            self.nodes[number].tick(self.now_ms, &mut out);
            self.send(number, out);
        }
        loop {
            self.messages.retain(|(to, from, _)| *to != 0 && *from != 0);
            if self.deliver().is_none() {
                break;
            }
        }
    }
}

/// Regression test: a node forgets what it holds at a member that is no member any more. That member
/// joined again, still had the holds of its readers, and the memory of what they held never came back.
#[test]
fn a_node_that_was_excluded_ends_what_the_members_read_of_it() {
    let mut pair = ReplicaNodes::of(3);
    while pair.nodes[1].cluster.is_peer("a") || pair.nodes[2].cluster.is_peer("a") {
        pair.round_without_a();
    }
    let mut ended = BTreeSet::new();
    while ended.len() < 2 {
        assert!(pair.now_ms < 60_000, "it does not hear that it is excluded: {ended:?}");
        for action in pair.round() {
            if let Action::Net(NetAction::EndReads { node, incarnation, life: None }) = action {
                assert_eq!(incarnation, INCARNATION);
                ended.insert(node);
            }
        }
    }
    assert_eq!(ended, ["b", "c"].map(str::to_owned).into());
}

/// Regression test: the time of an answer that did not come stayed in the past, so that the event loop
/// ran without a pause, and the client waited without an end.
#[test]
fn an_open_without_an_answer_ends() {
    let mut pair = ReplicaNodes::new();
    let key = FetchKey::new(NetQuery::Name("t".to_owned()), Extent::Whole).unwrap();
    let waiter = FetchWaiter { key, session: CLIENT, seq: 1, until_ms: u64::MAX };
    let (now_ms, mut out) = (pair.now_ms, Vec::new());
    assert_eq!(pair.nodes[1].fetch(waiter, now_ms, &mut out), Ok(None));
    assert!(opened_at("a", &out).is_some(), "{out:?}");
    let fault = loop {
        let is_answer = |action| match action {
            Action::Send { session: CLIENT, reply, .. } => Some(reply.body.unwrap_err()),
            _ => None,
        };
        if let Some(fault) = pair.round().into_iter().find_map(is_answer) {
            break fault;
        }
        assert!(pair.now_ms < now_ms + 61_000, "it waits without an end");
    };
    assert!(pair.now_ms >= now_ms + 60_000);
    let WireError::NodeUnreachable(NodeUnreachable { node, reason, .. }) = &fault else {
        panic!("{fault:?}")
    };
    assert!(node == "a" && reason.contains("no answer within 60000 ms"), "{fault:?}");
    assert!(pair.nodes[1].replicas.next_deadline_ms().is_none());
}
