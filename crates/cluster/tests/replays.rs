//! Replayed messages of an earlier incarnation of a member, and clients that reconnect. Two nodes
//! without sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod fuzzed;

use farrow_cluster::protocol::cluster::Answer;
use farrow_wire::{Reach, ReplyBody, RequestBody, SyncAsk, WireError};
use fuzzed::StepKind;
use fuzzed::nodes::FuzzedNodes;

/// Names of which some are retained by either node.
const NAMES: usize = 12;
/// Longer than two leases, and than it takes to come back.
const ROUNDS: usize = 80;

fn flags(number: usize, set: u64, clear: u64) -> RequestBody {
    let ask = SyncAsk::SetFlags { set, clear };
    RequestBody::Sync { name: format!("s{number}"), ask }
}

/// Flags as a client of `a` finds them.
fn all_flags(world: &mut FuzzedNodes) -> Vec<u64> {
    world.replies.clear();
    (0..NAMES).for_each(|number| world.request_of_a(flags(number, 0, 0)));
    (0..ROUNDS).for_each(|_| world.round());
    let replies = std::mem::take(&mut world.replies).into_iter();
    let value = |reply| match reply {
        (0, Ok(ReplyBody::Flags { value, .. })) => Some(value),
        _ => None,
    };
    replies.filter_map(value).collect()
}

/// The node is a member with a valid certificate: only the incarnation of a message shows that it
/// is old. In that incarnation the node claimed names, set flags and met at barriers.
#[test]
fn what_a_member_said_in_an_earlier_life_is_refused() {
    let mut world = FuzzedNodes::founded();
    world.said_by_b = Some(Vec::new());
    let first = world.members_of_a().find("b").unwrap().incarnation;
    for number in 0..NAMES {
        world.seal_at_b(&format!("before {number}"));
        world.request_of_b(false, flags(number, 1, 0));
        world.round();
    }
    (0..ROUNDS).for_each(|_| world.round());
    let old = world.said_by_b.take().unwrap();
    world.is_cut = true;
    (0..ROUNDS).for_each(|_| world.round());
    assert_eq!(world.members_of_a().find("b").unwrap().reach, Reach::Lost);
    world.is_cut = false;
    (0..ROUNDS).for_each(|_| world.round());
    let members = world.members_of_a();
    let second = members.find("b").unwrap().incarnation;
    assert!(second > first && members.find("b").unwrap().reach == Reach::Live, "{members:?}");
    // Whatever it said of flags before would change them now.
    for number in 0..NAMES {
        world.request_of_a(flags(number, 2, 1));
    }
    (0..ROUNDS).for_each(|_| world.round());
    assert_eq!(all_flags(&mut world), [2; NAMES]);
    let (mut messages, mut questions) = (0, 0);
    for (kind, life, body) in old {
        assert_eq!(life, first);
        let answer = world.again(kind, life, &body);
        if kind == StepKind::Question {
            let reason = format!("b is no member in life {first}");
            assert_eq!(answer, Some(Answer::No(reason)));
            questions += 1;
        } else {
            // In the name of the life that it has now it is no better.
            world.again(kind, second, &body);
            messages += 1;
        }
        assert_eq!(world.members_of_a(), members);
    }
    assert!(messages > 10 && questions > 10, "{messages} messages, {questions} questions");
    assert_eq!(all_flags(&mut world), [2; NAMES]);
    (0..ROUNDS).for_each(|_| world.round());
    assert_eq!(world.members_of_a(), members);
    world.assert_sound();
}

/// A link broke, and the client's node noticed that first: the client reconnected while the node
/// with the memory still had the old connection. The client was rejected permanently.
#[test]
fn a_client_that_comes_back_before_its_connection_has_ended_has_to_come_again() {
    let mut world = FuzzedNodes::founded();
    let early = world.remote_client_returns(FuzzedNodes::REMOTE_CLIENT_PID);
    assert!(
        matches!(&early, Err(WireError::NoRemoteSession { node, .. }) if node == "a"),
        "{early:?}"
    );
    // Another process is none of this.
    let other = world.remote_client_returns(FuzzedNodes::REMOTE_CLIENT_PID + 1);
    assert!(matches!(other, Err(WireError::Denied(_))), "{other:?}");
    world.remote_client_lost();
    let back = world.remote_client_returns(FuzzedNodes::REMOTE_CLIENT_PID);
    assert!(matches!(back, Ok(ReplyBody::Welcome(_))), "{back:?}");
    world.assert_sound();
}
