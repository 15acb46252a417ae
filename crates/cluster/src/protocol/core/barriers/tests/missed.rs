//! Notifications that are not delivered for long, or are lost since there are too many.

use super::restarts::TIMEOUT_MS;
use super::*;
use crate::protocol::cluster::{Question, WAITING_MAX};

impl BarrierCluster {
    fn wait_for_flags(&mut self, number: usize, word: u64) -> u64 {
        let (name, ask) =
            (format!("f{word}"), SyncAsk::WaitFlags { mask: 1, timeout_ms: TIMEOUT_MS });
        self.request(number, RequestBody::Sync { name, ask })
    }
}

/// Regression test: more notifications than the limit were dropped, and clients waited until their
/// timeouts for barriers that had been passed, and for flags that had been set.
#[test]
fn too_many_notifications_that_are_not_delivered_end_waits_or_have_them_repeated() {
    let mut world = BarrierCluster::new(3, None);
    let arrived = world.arrive_everywhere(0, 2);
    let waits: Vec<u64> = (0..WORDS).map(|word| world.wait_for_flags(0, word)).collect();
    // A barrier with a client of node b, at each owner.
    let parties: Vec<u64> =
        (WORDS..2 * WORDS).map(|word| world.arrive(1, CLIENT, word, 3)).collect();
    let theirs: Vec<u64> =
        (WORDS..2 * WORDS).map(|word| world.arrive(2, CLIENT, word, 3)).collect();
    world.go_on(LEASE_MS / 2);
    world.held = Some((0, 1));
    let mut out = Vec::new();
    let b = world.nodes.get_mut(&1).unwrap();
    let sealed = || Question::Sealed { names: vec!["x".to_owned()] };
    (0..100).for_each(|_| b.cluster.notify("a", sealed(), &mut out));
    let last = world.arrive_everywhere(2, 2);
    let set: Vec<u64> = (0..WORDS).map(|word| world.set_flags(2, word, 1, 0)).collect();
    world.go_on(LEASE_MS);
    assert!(last.iter().chain(&set).all(|seq| world.reply(*seq).is_some()));
    let b = world.nodes.get_mut(&1).unwrap();
    (0..WAITING_MAX).for_each(|_| b.cluster.notify("a", sealed(), &mut out));
    world.perform(1, out);
    assert!((0..WORDS as usize).any(|word| world.reply(arrived[word]).is_none()));
    world.held = None;
    // It has to receive all that wait.
    world.go_on_until(|world| waits.iter().all(|seq| world.reply(*seq).is_some()));
    world.go_on(LEASE_MS);
    assert!(waits.iter().all(|seq| world.reply(*seq) == flags(1)));
    for (word, seq) in (0..).zip(arrived) {
        let reply = world.reply(seq).unwrap();
        let is_unknown = matches!(&reply, Err(WireError::NodeLost { node, .. }) if node == "b");
        assert_eq!(is_unknown, world.owner(word) == "b", "f{word}: {reply:?}");
        assert!(is_unknown || reply == Ok(ReplyBody::Done));
    }
    // Node a does not know which clients of node b have ended.
    for (word, (own, theirs)) in (WORDS..).zip(parties.into_iter().zip(theirs)) {
        let is_broken = |seq| matches!(world.reply(seq), Some(Err(WireError::BarrierBroken(_))));
        let is_at_a = world.owner(word) == "a";
        let replies = (world.reply(own), world.reply(theirs));
        assert_eq!((is_broken(own), is_broken(theirs)), (is_at_a, is_at_a), "f{word}: {replies:?}");
    }
}

/// Regression test: the notification that an arrival was cancelled waited for a link, and the next
/// arrival of the client overtook it. The client counted twice.
#[test]
fn an_arrival_does_not_overtake_the_end_of_an_earlier_one() {
    let mut world = BarrierCluster::new(3, None);
    let arrived = world.arrive_everywhere(1, 3);
    world.go_on(LEASE_MS / 2);
    world.cut = Some(0);
    for seq in arrived {
        world.request(1, RequestBody::Cancel { seq });
    }
    world.go_on(2 * ROUND_MS);
    world.cut = None;
    let again = world.arrive_everywhere(1, 3);
    world.go_on(2 * ROUND_MS);
    let second = world.arrive_everywhere(2, 3);
    world.go_on(LEASE_MS);
    let is_waiting = |seq: &u64| world.reply(*seq).is_none();
    assert!(again.iter().chain(&second).all(is_waiting), "two of three have arrived");
    let last = world.arrive_everywhere(0, 3);
    world.go_on(LEASE_MS);
    let replies = again.iter().chain(&second).chain(&last).map(|seq| world.reply(*seq));
    assert!(replies.into_iter().all(|reply| reply == Some(Ok(ReplyBody::Done))));
}
