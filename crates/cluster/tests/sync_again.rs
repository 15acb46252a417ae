//! Barriers, flags and waits for names over a link that loses questions and answers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod fuzzed;

use farrow_wire::{ReplyBody, RequestBody, SyncAsk, WireError, WireTarget};
use fuzzed::nodes::FuzzedNodes;

type Replies = Vec<(usize, Result<ReplyBody, WireError>)>;

/// Names of which some are retained by either node.
const NAMES: usize = 12;

fn ask(number: usize, ask: SyncAsk) -> RequestBody {
    RequestBody::Sync { name: format!("s{number}"), ask }
}

fn replies_of(world: &mut FuzzedNodes, rounds: usize) -> Replies {
    (0..rounds).for_each(|_| world.round());
    let mut replies = std::mem::take(&mut world.replies);
    replies.sort_by_key(|(number, _)| *number);
    replies
}

/// A question that failed, as when a connection was rebuilt, broke the barrier for all parties.
#[test]
fn a_barrier_outlives_lost_questions_and_lost_answers() {
    for (lost_questions, lost_answers) in [(0, 0), (3, 0), (0, 3), (2, 2), (9, 9)] {
        let mut world = FuzzedNodes::founded();
        world.replies.clear();
        for number in 0..NAMES {
            (world.lost_questions, world.lost_answers) = (lost_questions, lost_answers);
            // Twice, so that one that was told of twice would count for the second time.
            for _ in 0..2 {
                let arrive = || SyncAsk::Arrive { parties: 2, timeout_ms: 20_000 };
                world.request_of_a(ask(number, arrive()));
                let early = replies_of(&mut world, 80);
                assert_eq!(early, [], "barrier {number} is passed by one");
                world.request_of_b(false, ask(number, arrive()));
                let replies = replies_of(&mut world, 80);
                assert_eq!(replies, [(0, Ok(ReplyBody::Done)), (1, Ok(ReplyBody::Done))]);
            }
            // Set once, though it is asked for more than once: what was cleared stays so.
            let flags = |value| Ok(ReplyBody::Flags { value, is_met: true });
            (world.lost_questions, world.lost_answers) = (lost_questions, lost_answers);
            world.request_of_a(ask(number, SyncAsk::SetFlags { set: 1, clear: 0 }));
            assert_eq!(replies_of(&mut world, 80), [(0, flags(1))]);
            world.request_of_b(false, ask(number, SyncAsk::SetFlags { set: 2, clear: 1 }));
            assert_eq!(replies_of(&mut world, 80), [(1, flags(2))]);
            world.request_of_a(ask(number, SyncAsk::WaitFlags { mask: 2, timeout_ms: 9 }));
            assert_eq!(replies_of(&mut world, 80), [(0, flags(2))]);
        }
        world.assert_sound();
    }
}

/// The question is repeated until the timeout; then the others learn which party timed out.
#[test]
fn a_barrier_whose_owner_never_answers_ends_with_its_time() {
    let mut world = FuzzedNodes::founded();
    world.replies.clear();
    world.lost_answers = u32::MAX;
    let mut retained_by_b = 0;
    for number in 0..NAMES {
        world.lost_questions = u32::MAX;
        world.request_of_a(ask(number, SyncAsk::Arrive { parties: 2, timeout_ms: 1_000 }));
        // A second for the wait, five for an outcome that is under way, and some.
        let replies = replies_of(&mut world, 140);
        let [(0, Err(error))] = &replies[..] else { panic!("{replies:?}") };
        match error {
            WireError::NodeLost { node, .. } => {
                assert_eq!(node, "b");
                retained_by_b += 1;
            }
            WireError::BarrierBroken(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!((1..NAMES).contains(&retained_by_b), "{retained_by_b} of {NAMES}");
}

/// A failed wait silently ended all other waits of its client, at every node.
#[test]
fn a_wait_that_comes_to_nothing_leaves_the_others_of_its_client_alone() {
    let mut world = FuzzedNodes::founded();
    world.replies.clear();
    let arrive = |timeout_ms| SyncAsk::Arrive { parties: 2, timeout_ms };
    (0..NAMES).for_each(|number| world.request_of_a(ask(number, arrive(60_000))));
    assert_eq!(replies_of(&mut world, 10), []);
    (world.lost_questions, world.lost_answers) = (u32::MAX, u32::MAX);
    (NAMES..2 * NAMES).for_each(|number| world.request_of_a(ask(number, arrive(1_000))));
    let failed = replies_of(&mut world, 140);
    assert!(failed.len() == NAMES && failed.iter().all(|(_, body)| body.is_err()), "{failed:?}");
    (world.lost_questions, world.lost_answers) = (0, 0);
    assert_eq!(replies_of(&mut world, 60), []);
    (0..NAMES).for_each(|number| world.request_of_b(false, ask(number, arrive(1_000))));
    let passed = replies_of(&mut world, 80);
    assert!(passed.iter().all(|(_, body)| *body == Ok(ReplyBody::Done)), "{passed:?}");
    assert_eq!(passed.len(), 2 * NAMES);
    // What was given up is not taken for one that waits.
    (NAMES..2 * NAMES).for_each(|number| world.request_of_b(false, ask(number, arrive(60_000))));
    assert_eq!(replies_of(&mut world, 80), []);
}

/// Regression test: the question for a name was sent once. If it or its answer was lost, the client
/// waited until its timeout, though the object was there.
#[test]
fn a_wait_for_a_name_outlives_lost_questions_and_lost_answers() {
    for (lost_questions, lost_answers) in [(0, 0), (1, 0), (0, 1), (9, 0)] {
        let mut world = FuzzedNodes::founded();
        world.replies.clear();
        (world.lost_questions, world.lost_answers) = (lost_questions, lost_answers);
        let targets = vec![WireTarget::Name("x".to_owned())];
        world.request_of_a(RequestBody::Wait { targets, count: 1, timeout_ms: 60_000 });
        assert_eq!(replies_of(&mut world, 80), []);
        assert_eq!((world.lost_questions, world.lost_answers), (0, 0), "nothing was lost");
        world.seal_at_b("x");
        let replies = replies_of(&mut world, 10);
        let ready = replies.iter().filter(|(number, _)| *number == 0);
        let ready: Vec<_> = ready.map(|(_, reply)| reply.clone()).collect();
        assert_eq!(ready, [Ok(ReplyBody::Ready(vec![true]))]);
        world.assert_sound();
    }
}
