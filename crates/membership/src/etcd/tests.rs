//! Membership in etcd under faults of all kinds, in virtual time; and single cases with their
//! stories.

use super::simulator::{EtcdFaults, EtcdWorld};
use super::state::{EtcdMembership, EtcdMutant};
use super::types::{EtcdOutput, EtcdReply, EtcdRequest, EtcdSnapshot, Key, NodeRecord, Revision};
use crate::message::{ClashError, Output};
use crate::options::Options;
use crate::simulation::{LEASE_MS, name, options, seeds_times};
use crate::types::{Epoch, Incarnation};
use crate::view::{JoinCandidate, View};

/// Etcd's own lease with its delay, and a lease of silence; and looks, and the turns of nodes that
/// should act first and do not.
const LOST_LEASES: u64 = 6;

fn begin(count: usize, seed: u64, mutant: Option<EtcdMutant>) -> Result<EtcdWorld, String> {
    let mut world = EtcdWorld::new(count, seed);
    world.environment.mutant = mutant;
    for node in 0..count {
        world.start(node, false)?;
        let wait_ms = world.below(50);
        world.run_until(world.now_ms + wait_ms)?;
    }
    world.run_while(6, |world| !world.is_whole())?;
    Ok(world)
}

fn some_fault(world: &mut EtcdWorld) -> Result<(), String> {
    let count = world.nodes.len() as u64;
    let node = world.below(count) as usize;
    match world.below(12) {
        0 => world.environment.faults.loss_percent = world.below(40),
        1 => world.environment.faults.delay_ms_max = [2, 10, 200, 600][world.below(4) as usize],
        2 => world.environment.faults.early_permille = [0, 10, 100][world.below(3) as usize],
        3 => world.environment.faults.stale_percent = world.below(100),
        4 => {
            world.environment.faults.poke_loss_percent = world.below(101);
            world.environment.faults.poke_delay_ms_max =
                [5, 50, 3 * LEASE_MS][world.below(3) as usize];
        }
        5 => world.environment.faults.cut.push(node),
        6 => world.environment.faults.cut.clear(),
        7 => {
            // Longer than it takes to be lost: an earlier reply may be read afterwards.
            let for_ms = world.below(8 * LEASE_MS);
            world.pause(node, for_ms);
        }
        8 => {
            let for_ms = world.below(4 * LEASE_MS);
            world.pause_etcd(for_ms);
        }
        9 => world.kill(node),
        10 if world.nodes[node].process.is_none() => {
            let has_retained = world.below(3) > 0;
            world.start(node, has_retained)?;
        }
        11 if world.below(4) == 0 => world.leave(node)?,
        _ => {}
    }
    Ok(())
}

/// Faults for a while; then all nodes must find each other; then one is killed, and must be
/// excluded.
fn run(count: usize, seed: u64, leases: u64, mutant: Option<EtcdMutant>) -> Result<(), String> {
    let mut world = begin(count, seed, mutant)?;
    let end_ms = world.now_ms + leases * LEASE_MS;
    while world.now_ms < end_ms {
        some_fault(&mut world)?;
        let wait_ms = world.below(LEASE_MS / 2);
        world.run_until(world.now_ms + wait_ms)?;
    }
    world.environment.faults =
        EtcdFaults { delay_ms_max: 5, poke_delay_ms_max: 5, ..EtcdFaults::default() };
    // Pauses of nodes and etcd have ended by then.
    world.run_until(world.now_ms + 8 * LEASE_MS)?;
    for node in 0..count {
        if world.nodes[node].process.is_none() {
            let has_retained = !world.nodes[node].has_left;
            world.start(node, has_retained)?;
        }
    }
    world.run_while(2 * LOST_LEASES, |world| !world.is_whole())?;
    world.kill(seed as usize % count);
    world.run_while(LOST_LEASES, |world| !world.is_whole())?;
    Ok(())
}

#[test]
fn nodes_agree_whatever_fails() {
    for seed in 0..200 * seeds_times() {
        let count = 2 + seed as usize % 4;
        run(count, seed, 20, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// The assumptions behind the faults above, at the tightest timing: late replies, signs of life
/// that etcd ends too early and that return, and a node that is absent for about as long as its
/// exclusion takes.
fn run_closely(seed: u64, mutant: Option<EtcdMutant>) -> Result<(), String> {
    let mut world = begin(3, seed, mutant)?;
    world.environment.faults.delay_ms_max = 240;
    world.environment.faults.early_permille = 30;
    world.environment.faults.stale_percent = 50;
    for _ in 0..20 {
        let node = world.below(3) as usize;
        let for_ms = world.below(3 * LEASE_MS);
        match world.below(2) {
            0 => world.pause(node, 2 * for_ms),
            _ => world.environment.faults.cut = vec![node],
        }
        world.run_until(world.now_ms + for_ms)?;
        world.environment.faults.cut.clear();
        let wait_ms = world.below(LEASE_MS);
        world.run_until(world.now_ms + wait_ms)?;
    }
    Ok(())
}

#[test]
fn leases_and_views_exclude_each_other_however_close_they_come() {
    for seed in 0..100 * seeds_times() {
        run_closely(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Each of these faults is detected, so the runs above would detect it too.
#[test]
fn the_simulator_notices_what_would_be_wrong() {
    for mutant in [
        EtcdMutant::LeaseFromReceipt,
        EtcdMutant::ExcludesAtOnce,
        EtcdMutant::ComparesViewOnly,
        EtcdMutant::TrustsKeepAlive,
    ] {
        let is_noticed = (0..1000).any(|seed| {
            let error = run_closely(seed, Some(mutant)).err();
            error.is_some_and(|error| error.contains("has the lease"))
        });
        assert!(is_noticed, "{mutant:?}");
    }
}

fn view_of(world: &EtcdWorld, node: usize) -> View {
    world.nodes[node].process.as_ref().and_then(EtcdMembership::view).unwrap().clone()
}

fn life_of(world: &EtcdWorld, node: usize) -> Incarnation {
    world.nodes[node].process.as_ref().unwrap().incarnation()
}

fn has_lease(world: &EtcdWorld, node: usize) -> bool {
    world.nodes[node].process.as_ref().unwrap().has_lease(world.clock_ms(node))
}

#[test]
fn a_killed_node_that_is_back_in_time_is_the_same_member_and_else_a_new_life() {
    let mut world = begin(3, 1, None).unwrap();
    let (epoch, life) = (view_of(&world, 0).epoch, life_of(&world, 2));
    world.kill(2);
    world.run_until(world.now_ms + LEASE_MS / 2).unwrap();
    world.start(2, true).unwrap();
    world.run_while(1, |world| !world.is_whole()).unwrap();
    assert_eq!((view_of(&world, 0).epoch, life_of(&world, 2)), (epoch, life));

    world.kill(2);
    world.run_while(LOST_LEASES, |world| !world.is_whole()).unwrap();
    assert_eq!(view_of(&world, 0).members.len(), 2);
    world.start(2, true).unwrap();
    world.run_while(2, |world| !world.is_whole()).unwrap();
    assert!(life_of(&world, 2) > life, "an excluded life came back");
    assert!(view_of(&world, 2).epoch > Epoch(epoch.0 + 1));
}

/// A daemon that lost its state gets its old number, and waits until the old sign of life ends.
#[test]
fn a_node_that_forgot_all_replaces_its_old_life() {
    let mut world = begin(2, 2, None).unwrap();
    let (number, life) = (view_of(&world, 1).named(&name(1)).unwrap().number, life_of(&world, 1));
    world.kill(1);
    world.start(1, false).unwrap();
    world.run_while(LOST_LEASES, |world| !world.is_whole()).unwrap();
    let view = view_of(&world, 1);
    let member = view.named(&name(1)).unwrap();
    assert_eq!(member.number, number);
    assert!(member.incarnation > life);
    assert_eq!(world.clashes, []);
}

/// Etcd stops for longer than all leases: no node has a lease meanwhile, none is excluded, and all
/// continue as before.
#[test]
fn when_etcd_is_away_all_lose_the_lease_and_no_node_its_life() {
    let mut world = begin(3, 3, None).unwrap();
    let (view, lives) = (view_of(&world, 0), [0, 1, 2].map(|node| life_of(&world, node)));
    world.pause_etcd(10 * LEASE_MS);
    world.run_until(world.now_ms + 2 * LEASE_MS).unwrap();
    assert!((0..3).all(|node| !has_lease(&world, node)));
    assert_eq!(view_of(&world, 1), view);
    assert!(matches!(world.clashes.first(), Some(ClashError::Etcd { .. })), "somebody is told");
    world.run_until(world.now_ms + 8 * LEASE_MS).unwrap();
    world.run_while(2, |world| !world.is_whole()).unwrap();
    assert_eq!(view_of(&world, 0), view);
    assert_eq!([0, 1, 2].map(|node| life_of(&world, node)), lives);
}

#[test]
fn a_node_that_slept_for_longer_than_its_lease_is_out_and_comes_back() {
    let mut world = begin(3, 4, None).unwrap();
    let life = life_of(&world, 1);
    world.pause(1, 8 * LEASE_MS);
    world.run_until(world.now_ms + 7 * LEASE_MS).unwrap();
    assert!(!has_lease(&world, 1) && has_lease(&world, 0));
    assert_eq!(view_of(&world, 0).members.len(), 2);
    world.run_until(world.now_ms + LEASE_MS).unwrap();
    world.run_while(2, |world| !world.is_whole()).unwrap();
    assert!(life_of(&world, 1) > life);
}

#[test]
fn who_leaves_is_out_at_once_and_who_is_cut_off_is_not() {
    let mut world = begin(3, 5, None).unwrap();
    world.leave(2).unwrap();
    world.run_until(world.now_ms + LEASE_MS / 2).unwrap();
    assert!(world.nodes[2].has_left);
    assert_eq!(view_of(&world, 0).members.len(), 2);
    let former = view_of(&world, 0).former;
    assert!(former.iter().all(|former| former.has_left) && former.len() == 1);
    assert!(
        !world.environment.etcd.keys().contains(&Key::Node(name(2))),
        "{:?}",
        world.environment.etcd.keys()
    );
    world.environment.faults.cut.push(1);
    world.run_until(world.now_ms + LEASE_MS).unwrap();
    assert_eq!(view_of(&world, 0).members.len(), 2);
    world.run_while(LOST_LEASES, |world| view_of(world, 0).members.len() > 1).unwrap();
    assert!(!has_lease(&world, 1));
}

/// All daemons were killed and their state is lost: no member of the view remains to agree.
#[test]
fn new_lives_go_on_where_all_old_ones_ended() {
    let mut world = begin(3, 6, None).unwrap();
    let cluster = view_of(&world, 0).cluster;
    for node in 0..3 {
        world.kill(node);
    }
    for node in 0..3 {
        world.start(node, false).unwrap();
    }
    world.run_while(2 * LOST_LEASES, |world| !world.is_whole()).unwrap();
    assert_eq!(view_of(&world, 0).cluster, cluster);
}

/// An operator empties etcd, or restores an old backup: lives end, and no view is mistaken for
/// another one.
#[test]
fn when_etcd_forgets_all_begin_new_lives() {
    let mut world = begin(2, 7, None).unwrap();
    let backup = world.environment.etcd.backup();
    world.start(1, true).unwrap();
    world.kill(1);
    world.run_while(LOST_LEASES, |world| !world.is_whole()).unwrap();
    let (lives, epoch) = (life_of(&world, 0), view_of(&world, 0).epoch);
    // Etcd is down for longer than a lease when a backup is restored.
    world.pause_etcd(2 * LEASE_MS);
    world.run_until(world.now_ms + 2 * LEASE_MS - 1).unwrap();
    world.environment.etcd = backup;
    world.run_until(world.now_ms + 1).unwrap();
    world.run_while(LOST_LEASES, |world| !world.is_whole()).unwrap();
    assert!(life_of(&world, 0) > lives && view_of(&world, 0).epoch >= epoch);
    let cluster = view_of(&world, 0).cluster;
    world.environment.etcd.wipe();
    world
        .run_while(LOST_LEASES, |world| !world.is_whole() || view_of(world, 0).cluster == cluster)
        .unwrap();
}

#[test]
fn a_name_that_another_node_has_is_waited_for_and_announced() {
    let mut world = begin(1, 8, None).unwrap();
    let mut other = options(0, u64::MAX / 2, 9);
    other.address = "10.9.9.9:1".to_owned();
    let mut other = EtcdMembership::new(other, None, 0).unwrap();
    let mut clash = None;
    for now_ms in (0..20 * LEASE_MS).step_by(50) {
        let mut out = Vec::new();
        other.tick(now_ms, &mut out);
        let mut answers = Vec::new();
        for output in out.iter() {
            match output {
                EtcdOutput::Ask { id, request: EtcdRequest::Look { .. } } => {
                    let reply = EtcdReply::Looked(world.environment.etcd.look(Revision(0)));
                    other.on_response(*id, reply, now_ms, &mut answers);
                }
                EtcdOutput::Ask { request, .. } => panic!("it writes: {request:?}"),
                _ => {}
            }
        }
        for output in answers {
            if let EtcdOutput::Membership(Output::Clash(error)) = output {
                clash = Some(error);
            }
        }
        world.run_until(world.now_ms + 50).unwrap();
    }
    let address = "10.0.0.0:7000".to_owned();
    assert_eq!(clash, Some(ClashError::NameInUse { name: name(0), address }));
}

/// A member with a shorter lease excluded one with a longer one, which still had it.
#[test]
fn a_node_with_another_lease_is_not_let_in() {
    let mut world = EtcdWorld::new(3, 11);
    world.environment.other_lease = Some((2, 3 * LEASE_MS));
    for node in 0..3 {
        world.start(node, false).unwrap();
    }
    world.run_until(world.now_ms + 20 * LEASE_MS).unwrap();
    let view = view_of(&world, 0);
    assert_eq!(view.members.len(), 2, "{view:?}");
    assert!(has_lease(&world, 0) && world.nodes[2].process.as_ref().unwrap().view().is_none());
    let is_it = |clash: &ClashError| {
        let (own, theirs) = (3 * LEASE_MS, LEASE_MS);
        matches!(clash, ClashError::Lease { own_ms, theirs_ms, .. }
            if (*own_ms, *theirs_ms) == (own, theirs))
    };
    assert!(world.clashes.iter().any(is_it), "{:?}", world.clashes);
    // Started again as the rest, it is one of them.
    world.kill(2);
    world.environment.other_lease = None;
    world.start(2, false).unwrap();
    world.run_while(2 * LOST_LEASES, |world| !world.is_whole()).unwrap();
    assert_eq!(view_of(&world, 2).members.len(), 3);
}

#[test]
fn a_registration_of_an_earlier_version_has_no_lease() {
    let Options { name, address, info, incarnation, .. } = options(1, 7, 1);
    let node = JoinCandidate { name, incarnation, address, info };
    let record = NodeRecord { node, is_leaving: true, lease_ms: Some(500) };
    assert_eq!(NodeRecord::decode(&record.encode()), Some(record.clone()));
    let earlier = NodeRecord { lease_ms: None, ..record.clone() };
    assert_eq!(NodeRecord::decode(&earlier.encode()), Some(earlier.clone()));
    assert!(earlier.agrees_with(1) && record.agrees_with(500) && !record.agrees_with(501));
    // An earlier version reads ours.
    let read: (JoinCandidate, bool) = postcard::from_bytes(&record.encode()).unwrap();
    assert_eq!(read, (record.node, true));
}

#[test]
fn what_cannot_be_read_stops_nothing_else() {
    let mut world = begin(2, 10, None).unwrap();
    let view = view_of(&world, 0);
    world.environment.etcd.scribble(Key::Node("stranger".parse().unwrap()), b"\xff\xff");
    world.run_until(world.now_ms + 20 * LEASE_MS).unwrap();
    assert!(world.is_whole());
    assert_eq!(view_of(&world, 0), view);
    world.environment.etcd.scribble(Key::View, b"\xff");
    world.run_until(world.now_ms + 2 * LEASE_MS).unwrap();
    assert!(!has_lease(&world, 0), "a view that nobody can read gives no lease");
    let text = world.clashes.last().unwrap().to_string();
    assert!(text.contains("cannot be read"), "{text}");
}

/// A look lists a key that no look delivered: etcd has other data than before.
#[test]
fn a_look_that_does_not_continue_the_last_begins_again() {
    let mut node = EtcdMembership::new(options(0, 1, 1), None, 0).unwrap();
    let mut out = Vec::new();
    node.tick(0, &mut out);
    let Some(EtcdOutput::Ask { id, request }) =
        out.iter().find(|o| matches!(o, EtcdOutput::Ask { .. }))
    else {
        panic!("{out:?}")
    };
    assert_eq!(*request, EtcdRequest::Look { since: Revision(0) });
    let empty = EtcdSnapshot { revision: Revision(5), keys: Vec::new(), changed: Vec::new() };
    node.on_response(*id, EtcdReply::Looked(empty), 1, &mut Vec::new());
    let ask_at = |node: &mut EtcdMembership, now_ms| {
        let mut out = Vec::new();
        node.tick(now_ms, &mut out);
        out.into_iter()
            .find_map(|output| match output {
                EtcdOutput::Ask { id, request: EtcdRequest::Look { since } } => Some((id, since)),
                _ => None,
            })
            .unwrap()
    };
    let (id, since) = ask_at(&mut node, LEASE_MS);
    assert_eq!(since, Revision(6));
    let keys = vec![(Key::View, Revision(3))];
    let odd = EtcdSnapshot { revision: Revision(9), keys, changed: Vec::new() };
    node.on_response(id, EtcdReply::Looked(odd), LEASE_MS + 1, &mut Vec::new());
    let (_, since) = ask_at(&mut node, 2 * LEASE_MS);
    assert_eq!(since, Revision(0));
}

#[test]
fn looks_are_few_when_nothing_happens_and_limited_when_much_does() {
    let mut world = begin(3, 11, None).unwrap();
    let looks = world.environment.looks;
    world.run_until(world.now_ms + 10 * LEASE_MS).unwrap();
    let calm = world.environment.looks - looks;
    assert!(calm <= 3 * 10 * 5, "{calm} looks");
    let looks = world.environment.looks;
    for _ in 0..10_000 {
        world.environment.etcd.scribble(Key::Alive("noise".parse().unwrap()), b"");
        world.run_until(world.now_ms + 1).unwrap();
    }
    assert!(
        world.environment.looks - looks <= 3 * 10 * 66,
        "{} looks",
        world.environment.looks - looks
    );
}
