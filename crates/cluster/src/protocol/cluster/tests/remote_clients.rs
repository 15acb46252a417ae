//! Clients of another machine: their holds, grants and unsealed memory are reclaimed once they have
//! certainly ended, and not before.

use farrow_store::ClientSlot;

use super::*;

#[test]
fn what_a_client_has_stays_while_its_node_says_that_it_lives_and_comes_back_when_it_says_it_ended()
{
    let mut world = MappedCluster::new(false);
    let mut far = world.far_reader(60);
    world.disconnect(&far);
    let began = world.now_ms;
    world.go_on_with(LONG_MS, |world| world.retained() == (HELD, GRANTED, 0));
    let requested = world.asked_since(began, is_watch);
    assert!(requested.len() as u64 >= LONG_MS / SOON_MS, "{requested:?}");
    let watched = Question::Watch { pid: 60, start_time: 1 };
    assert!(world.log.iter().all(|(_, question)| *question == watched), "{:?}", world.log);
    // It returns to its slot, and no questions are asked while it is connected.
    world.resume(&mut far).unwrap();
    let back = world.now_ms + ROUND_MS;
    world.go_on_with(LONG_MS, |world| world.retained() == (HELD, GRANTED, 0));
    assert_eq!(world.asked_since(back, is_watch), [0_u64; 0]);
    world.disconnect(&far);
    world.go_on_with(LONG_MS, |world| world.retained() == (HELD, GRANTED, 0));
    world.kill(&mut far);
    world.go_on(SOON_MS);
    assert_all_is_back(&world);
    world.assert_unknown(&mut far);
}

#[test]
fn memory_of_a_dead_client_is_reused_only_after_its_machine_has_cleaned_its_caches() {
    let mut world = MappedCluster::new(true);
    world.is_cleaning = false;
    let mut far = world.far_reader(60);
    let writable = world.nodes[0].home().writable_by(ClientSlot(far.welcome.slot));
    world.disconnect(&far);
    world.go_on_with(LONG_MS, |world| world.retained() == (HELD, GRANTED, 0));
    assert_eq!(world.asked_since(0, is_clean), [0_u64; 0], "it may be writing");
    world.kill(&mut far);
    world.go_on(SOON_MS);
    // Its hold is released; the memory that it could write is in quarantine.
    assert_eq!(world.retained(), (0, 0, GRANTED));
    let began = world.now_ms;
    world.go_on_with(LONG_MS, |world| world.retained() == (0, 0, GRANTED));
    let capacity = world.stats().capacity;
    let refused = world.grant(world.local, capacity).unwrap_err();
    assert!(matches!(refused, WireError::OutOfMemory(_)), "{refused}");
    let mut all_else = world.grant_all();
    assert_eq!(all_else.iter().map(|span| span.1).sum::<u64>(), capacity - GRANTED);
    let (begin, end) = (far.granted.0, far.granted.0 + GRANTED);
    assert!(all_else.iter().all(|span| span.0 + span.1 <= begin || end <= span.0), "{all_else:?}");
    world.assert_unknown(&mut far);
    // Its node is asked repeatedly to clean all memory that the client could write.
    let requested = world.asked_since(began, is_clean);
    assert!(requested.len() as u64 >= LONG_MS / SOON_MS, "{requested:?}");
    let clean = Question::Clean {
        region_uid: world.nodes[0].home().uid().0,
        spans: writable.into_iter().map(farrow_wire::wire_span).collect(),
    };
    let questions = world.log.iter().filter(|(_, question)| is_clean(question));
    questions.for_each(|(_, question)| assert_eq!(*question, clean));
    world.is_cleaning = true;
    world.go_on(SOON_MS);
    let cleaned = world.now_ms;
    assert_eq!(world.stats().quarantine, 0);
    assert_eq!(world.grant(world.local, GRANTED).unwrap(), far.granted);
    all_else.push(far.granted);
    world.ask(world.local, RequestBody::Release { spans: all_else }).unwrap();
    assert_all_is_back(&world);
    world.go_on(LONG_MS);
    assert_eq!(world.asked_since(cleaned, |_| true), [0_u64; 0], "there is nothing more to ask");
}

#[test]
fn a_node_that_does_not_answer_is_asked_again_and_nothing_comes_back_meanwhile() {
    let mut world = MappedCluster::new(false);
    let mut far = world.far_reader(60);
    world.disconnect(&far);
    world.kill(&mut far);
    world.questions = Questions::Refused;
    let began = world.now_ms;
    world.go_on_with(2 * LONG_MS, |world| world.retained() == (HELD, GRANTED, 0));
    let requested = world.asked_since(began, is_watch);
    let gaps: Vec<u64> = requested.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| (AGAIN_MS..=AGAIN_MS + 2 * ROUND_MS).contains(gap)), "{gaps:?}");
    assert!(gaps.len() as u64 >= 2 * LONG_MS / SOON_MS, "{gaps:?}");
    world.questions = Questions::Answered;
    world.go_on(SOON_MS);
    assert_all_is_back(&world);
}

/// A node that is silent for a while, within its lease, loses nothing.
#[test]
fn a_node_that_is_slow_loses_nothing_of_its_clients() {
    for is_cut in [true, false] {
        let mut world = MappedCluster::new(true);
        let mut far = world.far_reader(60);
        for _ in 0..3 {
            (world.is_cut, world.is_stopped) = (is_cut, !is_cut);
            world.go_on_with(LEASE_MS / 2, |world| world.retained() == (HELD, GRANTED, 0));
            (world.is_cut, world.is_stopped) = (false, false);
            world.go_on_with(LONG_MS, |world| {
                world.retained() == (HELD, GRANTED, 0) && world.reach_of_b() != Reach::Lost
            });
        }
        let refused = world.forget("b").unwrap_err();
        assert!(refused.to_string().contains("is not lost"), "{refused}");
        assert!(world.remote_clients.contains(&far.session), "its connection was left alone");
        world.disconnect(&far);
        world.kill(&mut far);
        world.go_on(LONG_MS);
        assert_all_is_back(&world);
    }
}

/// The others exclude a lost node, but only its operator can state the end of its processes.
#[test]
fn what_clients_of_a_lost_node_have_comes_back_when_it_is_said_that_they_ended() {
    for is_node_local in [false, true] {
        let mut world = MappedCluster::new(is_node_local);
        // One is connected to the end, one lost its connection, one ended before.
        world.is_cleaning = false;
        let (connected, mut lonely, mut dead) =
            (world.far_reader(60), world.far_reader(61), world.far_reader(62));
        // One of a third node, which does not matter here.
        let (third, _) =
            world.connect(60, Some(RemoteClient { node: node_key("c") }), None).unwrap();
        world.grant(third, GRANTED).unwrap();
        world.nodes[0].closed(third, true, world.now_ms);
        world.disconnect(&lonely);
        world.disconnect(&dead);
        world.kill(&mut dead);
        world.go_on(SOON_MS);
        let quarantine = if is_node_local { GRANTED } else { 0 };
        let before = (2 * HELD, 3 * GRANTED, quarantine);
        assert_eq!(world.retained(), before);
        (world.is_cut, world.is_stopped) = (true, true);
        world.kill(&mut lonely);
        world.go_on_with(LONG_MS, |world| world.retained() == before);
        assert_eq!(world.reach_of_b(), Reach::Lost);
        assert!(world.remote_clients.is_empty(), "connections of its clients were ended");
        // A lost node is asked nothing, and time alone ends no client.
        let lost = world.now_ms;
        world.go_on_with(4 * LONG_MS, |world| world.retained() == before);
        assert_eq!(world.asked_since(lost + 4 * LEASE_MS, |_| true), [0_u64; 0]);
        assert!(matches!(world.forget("d"), Err(WireError::NoNode { .. })));
        assert_eq!(world.retained(), before);
        assert_eq!(world.forget("b"), Ok(ReplyBody::Done));
        world.round();
        assert_eq!(world.retained(), (0, GRANTED, 0), "that of the third node's client is left");
        assert_eq!(world.stats().clients, 2);
        for mut far in [connected, lonely, dead] {
            world.assert_unknown(&mut far);
            far.holds.abandon();
        }
        // The memory is usable again.
        let all: u64 = world.grant_all().iter().map(|span| span.1).sum();
        assert_eq!(all, world.stats().capacity - GRANTED);
    }
}

/// A daemon that was stopped during its exclusion returns as another incarnation. Its clients may
/// have read all the time.
#[test]
fn a_node_that_comes_back_as_a_new_life_says_what_became_of_its_clients() {
    for is_node_local in [false, true] {
        let mut world = MappedCluster::new(is_node_local);
        let (mut living, mut dead) = (world.far_reader(60), world.far_reader(61));
        let before = (2 * HELD, 2 * GRANTED, 0);
        world.is_stopped = true;
        world.go_on_with(LONG_MS, |world| world.retained() == before);
        assert_eq!(world.reach_of_b(), Reach::Lost);
        let life = world.nodes[0].members().find("b").unwrap().incarnation;
        world.kill(&mut dead);
        world.go_on_with(LONG_MS, |world| world.retained() == before);
        world.is_stopped = false;
        world.go_on(2 * LONG_MS);
        let b = world.nodes[0].members().find("b").unwrap().clone();
        assert_eq!(b.reach, Reach::Live);
        assert!(b.incarnation > life, "{} after {life}", b.incarnation);
        // The living client has all its memory, and only that.
        assert_eq!(world.retained(), (HELD, GRANTED, 0));
        world.resume(&mut living).unwrap();
        // The ended client does not return, nor does anything of it to the next client in its slot.
        world.assert_unknown(&mut dead);
        let next = world.far(61);
        assert_eq!(next.welcome.slot, dead.welcome.slot, "else this shows nothing");
        assert!(next.welcome.nonce != dead.welcome.nonce);
        assert_eq!((next.welcome.grants.len(), world.stats().holds), (0, 1));
        world.disconnect(&next);
        world.assert_unknown(&mut dead);
        world.go_on_with(LONG_MS, |world| world.retained() == (HELD, 2 * GRANTED, 0));
    }
}

/// A new daemon knows a node that was lost before only by the slots of its clients. Their memory
/// could not be reclaimed, for "no such node".
#[test]
fn the_clients_of_a_node_that_was_lost_to_an_earlier_daemon_can_be_forgotten() {
    for is_node_local in [false, true] {
        let mut world = MappedCluster::new(is_node_local);
        world.is_cleaning = false;
        let (mut living, mut dead) = (world.far_reader(60), world.far_reader(61));
        world.disconnect(&dead);
        world.kill(&mut dead);
        world.go_on(SOON_MS);
        let quarantine = if is_node_local { GRANTED } else { 0 };
        assert_eq!(world.retained(), (HELD, GRANTED, quarantine));
        (world.is_cut, world.is_stopped) = (true, true);
        world.go_on(LONG_MS);
        assert_eq!(world.reach_of_b(), Reach::Lost);
        world.kill(&mut living);
        world.restart_a();
        // Memory in quarantine is the client's again, until its node or the operator reports more.
        let retained = (HELD, GRANTED + quarantine, 0);
        world.go_on_with(2 * LONG_MS, |world| world.retained() == retained);
        assert!(world.nodes[0].members().has_lease && world.nodes[0].members().find("b").is_none());
        assert!(matches!(world.forget("c"), Err(WireError::NoNode { .. })));
        assert_eq!(world.forget("b"), Ok(ReplyBody::Done));
        world.round();
        assert_all_is_back(&world);
        assert!(matches!(world.forget("b"), Err(WireError::NoNode { .. })), "there is no more");
    }
}

/// A client ended and another one got its slot while its node was still checking the first. The
/// answer took everything from the second, which was alive.
#[test]
fn that_a_client_has_ended_is_not_said_of_the_next_in_its_place() {
    let mut world = MappedCluster::new(false);
    let mut first = world.far(60);
    world.disconnect(&first);
    world.is_slow = true;
    world.go_on(SOON_MS);
    assert_eq!(world.asked_since(0, is_watch).len(), 1, "its node is looking");
    world.resume(&mut first).unwrap();
    world.ask(first.session, RequestBody::Goodbye).unwrap();
    world.remote_clients.remove(&first.session);
    world.nodes[0].closed(first.session, true, world.now_ms);
    world.kill(&mut first);
    // Its node answers that no child of it reads through the slot.
    world.go_on(SOON_MS);
    let second = world.far_reader(61);
    assert_eq!(second.welcome.slot, first.welcome.slot, "else this shows nothing");
    world.disconnect(&second);
    world.is_slow = false;
    world.go_on_with(LONG_MS, |world| world.retained() == (HELD, GRANTED, 0));
    assert!(world.asked_since(0, is_watch).len() > 2, "of the second too");
}
