//! The room and the cost of other nodes, as a node measures them.

use farrow_wire::{NodeCost, ReplyBody};

use super::{ROUND_MS, ReplicaNodes};
use crate::protocol::Action;
use crate::protocol::cluster::{Answer, PeerAction, Question};
use crate::protocol::net::NetEvent;

fn costs_of_b(pair: &ReplicaNodes) -> NodeCost {
    let node = &pair.nodes[0];
    match node.cluster.nodes(&node.home, &node.drain.record) {
        ReplyBody::Nodes(members) => members.find("b").unwrap().cost,
        other => panic!("{other:?}"),
    }
}

/// The next question of node a for the room of node b, which is not delivered.
fn room_question(pair: &mut ReplicaNodes) -> u64 {
    let until_ms = pair.now_ms + 5_000;
    while pair.now_ms < until_ms {
        // At the time of the next round, which would deliver it.
        let mut out = Vec::new();
        pair.nodes[0].tick(pair.now_ms + ROUND_MS, &mut out);
        let is_room = |action: &Action| {
            matches!(action, Action::Peer(PeerAction::Ask { body, .. })
                if postcard::from_bytes(body) == Ok(Question::Room))
        };
        if let Some(at) = out.iter().position(is_room) {
            let Action::Peer(PeerAction::Ask { token, .. }) = out.remove(at) else { break };
            pair.send(0, out);
            return token;
        }
        pair.send(0, out);
        pair.round();
    }
    panic!("no question for room within 5 s");
}

#[test]
fn the_room_and_the_cost_of_another_node_are_measured() {
    let mut pair = ReplicaNodes::new();
    let free = pair.nodes[1].home().free_bytes().0.0;
    let until_ms = pair.now_ms + 5_000;
    while costs_of_b(&pair).free.is_none() && pair.now_ms < until_ms {
        pair.round();
    }
    let unmeasured = NodeCost { free: Some(free), ..NodeCost::default() };
    assert_eq!(costs_of_b(&pair), unmeasured, "the network of this test has no clock");

    let token = room_question(&mut pair);
    let (now_ms, a) = (pair.now_ms, &mut pair.nodes[0]);
    a.round_trip(token + 1_000_000, 7);
    a.round_trip(token, 120);
    let transfer =
        |bytes| NetEvent::Transferred { node: "b".to_owned(), bytes, way: "net", elapsed_us: 500 };
    a.net_event(transfer((1 << 20) - 1), now_ms, &mut Vec::new());
    a.net_event(transfer(2 << 20), now_ms, &mut Vec::new());
    let measured = NodeCost {
        free: Some(free),
        latency_us: Some(120),
        bytes_per_second: Some((2 << 20) * 2000),
    };
    assert_eq!(costs_of_b(&pair), measured);
}

/// An earlier version does not understand the question. Its room is not known then, and it is asked
/// again: it may be replaced by a newer one.
#[test]
fn the_room_of_an_earlier_version_is_unknown() {
    let mut pair = ReplicaNodes::new();
    let token = room_question(&mut pair);
    let no = postcard::to_allocvec(&Answer::No("24 B: unknown question".to_owned())).unwrap();
    pair.nodes[0].on_response(token, Ok(no), pair.now_ms, &mut Vec::new());
    assert_eq!(costs_of_b(&pair).free, None);
    let again = room_question(&mut pair);
    assert_ne!(again, token);
    pair.nodes[0].on_response(again, Err("no answer".to_owned()), pair.now_ms, &mut Vec::new());
    assert_eq!(costs_of_b(&pair).free, None);
}
