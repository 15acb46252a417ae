//! Single cases of membership, each with its story; and forged messages.

use crate::NODE_NAME_CHARS_MAX;
use proptest::prelude::*;

use super::message::{
    Ballot, Beat, Body, MESSAGE_BYTES_MAX, Message, Output, Reachability, Refusal, Sender,
};
use super::options::Options;
use super::simulation::{LEASE_MS, address, name};
use super::simulator::PeerWorld;
use super::state::{Membership, PeerState, next_random};
use super::tests::begin;
use super::types::*;
use super::view::{Former, JoinCandidate, Member, View};

fn view_of(world: &PeerWorld, node: usize) -> &View {
    world.nodes[node].process.as_ref().and_then(Membership::view).unwrap()
}

fn has_lease(world: &PeerWorld, node: usize) -> bool {
    world.nodes[node].process.as_ref().unwrap().has_lease(world.clock_ms(node))
}

fn options(node: usize, seeds: Vec<String>) -> Options {
    Options {
        name: name(node),
        address: address(node),
        info: Vec::new(),
        seeds,
        lease_ms: LEASE_MS,
        incarnation: Incarnation(1),
        seed: node as u64,
    }
}

#[test]
fn a_node_without_seeds_founds_at_once() {
    let mut node = Membership::new(options(0, Vec::new()), None, 5).unwrap();
    let mut out = Vec::new();
    node.tick(5, &mut out);
    node.tick(node.next_deadline_ms(), &mut out);
    assert!(node.has_lease(5) && node.view().unwrap().epoch == Epoch(1));
    assert_eq!(out.last(), Some(&Output::LeaseFound));
}

#[test]
fn options_out_of_their_limits_are_refused() {
    let new = |options| Membership::new(options, None, 0);
    new(Options { address: String::new(), ..options(0, Vec::new()) }).unwrap_err();
    new(Options { info: vec![0; 1025], ..options(0, Vec::new()) }).unwrap_err();
    new(Options { lease_ms: 99, ..options(0, Vec::new()) }).unwrap_err();
    new(options(0, (1..65).map(address).collect())).unwrap_err();
    new(options(0, (0..64).map(address).collect())).unwrap();
}

/// A process that was stopped may not act on a lease that ended meanwhile, whatever it does first.
#[test]
fn after_a_pause_the_lease_ends_before_all_else() {
    let mut node = Membership::new(options(0, Vec::new()), None, 0).unwrap();
    let mut out = Vec::new();
    node.tick(0, &mut out);
    node.tick(node.next_deadline_ms(), &mut out);
    out.clear();
    assert!(node.has_lease(900) && !node.has_lease(3000));
    node.tick(3000, &mut out);
    assert_eq!(out.first(), Some(&Output::LeaseLost));
    assert_eq!(out.last(), Some(&Output::LeaseFound));
}

#[test]
fn of_two_nodes_the_first_goes_on_and_the_other_does_not() {
    for (cut, goes_on) in [(1, 0), (0, 1)] {
        let mut world = begin(2, true, 7).unwrap();
        world.kill(cut);
        world.run_until(world.now_ms + 2 * LEASE_MS).unwrap();
        assert_eq!(has_lease(&world, goes_on), goes_on == 0);
        assert_eq!(view_of(&world, goes_on).members.len(), 1 + goes_on);
        world.start(cut, true).unwrap();
        world.run_while(4, |world| !world.is_whole()).unwrap();
    }
}

#[test]
fn who_leaves_is_out_at_once_and_its_lease_before() {
    for seed in 0..50 {
        let mut world = begin(3, true, seed).unwrap();
        world.leave(1).unwrap();
        assert!(!has_lease(&world, 1));
        world.run_until(world.now_ms + LEASE_MS / 2).unwrap();
        assert!(world.nodes[1].has_left && world.is_whole(), "{}", world.sketch());
        assert!(view_of(&world, 0).former.iter().all(|former| former.has_left));
    }
}

/// The founder has no seeds: killed and restarted without state, it founds a cluster of its own.
/// The others probe it, and it returns.
#[test]
fn a_founder_that_forgot_all_comes_home() {
    for seed in 0..50 {
        let mut world = begin(3, true, seed).unwrap();
        let cluster = view_of(&world, 1).cluster;
        world.kill(0);
        world.run_until(world.now_ms + seed * 100).unwrap();
        world.start(0, false).unwrap();
        assert_ne!(view_of(&world, 0).cluster, cluster);
        world.run_while(6, |world| !world.is_whole()).unwrap();
        assert_eq!(view_of(&world, 0).cluster, cluster);
    }
}

#[test]
fn a_restart_with_memory_is_the_same_life_and_changes_no_view() {
    for seed in 0..50 {
        let mut world = begin(3, false, seed).unwrap();
        let view = view_of(&world, 2).clone();
        world.kill(1);
        world.run_until(world.now_ms + LEASE_MS / 3).unwrap();
        world.start(1, true).unwrap();
        world.run_until(world.now_ms + LEASE_MS).unwrap();
        assert!(world.is_whole() && *view_of(&world, 1) == view, "{}", world.sketch());
    }
}

/// A twin of node 1 learns that its name is in use, whichever member it asks: node 1 itself did not
/// answer it once.
#[test]
fn a_name_that_is_used_elsewhere_is_a_clash() {
    for (target, incarnation) in [(0, 1 << 40), (1, 1 << 40), (1, 1)] {
        let mut world = begin(3, true, 3).unwrap();
        let mut twin = options(1, vec![address(target)]);
        (twin.address, twin.incarnation) = ("10.0.9.9:1".to_owned(), Incarnation(incarnation));
        let mut twin = Membership::new(twin, None, 0).unwrap();
        let (mut clashes, mut at_member) = (Vec::new(), 0);
        for now_ms in (0..6 * LEASE_MS).step_by(50) {
            world.run_until(world.now_ms + 50).unwrap();
            let mut out = Vec::new();
            twin.tick(now_ms, &mut out);
            for output in out {
                let Output::Send { message, .. } = output else { continue };
                let node = world.nodes[target].process.as_mut().unwrap();
                let mut answers = Vec::new();
                node.handle(message, node.now_ms, &mut answers);
                at_member += answers.iter().filter(|o| matches!(o, Output::Clash(_))).count();
                for answer in answers {
                    match answer {
                        Output::Send { address, message } if address == "10.0.9.9:1" => {
                            let mut out = Vec::new();
                            twin.handle(message, now_ms, &mut out);
                            out.retain(|output| matches!(output, Output::Clash(_)));
                            clashes.extend(out);
                        }
                        _ => {}
                    }
                }
            }
        }
        assert_eq!(clashes.len(), 1, "{target}: {clashes:?}");
        assert!(at_member > 0, "{target}");
        assert!(world.is_whole() && twin.view().is_none());
    }
}

/// A node was stopped in order while the other one was away, and both were started again with their
/// state. The life that was leaving was continued: it had no lease, left at last, and asked for no
/// admission. So the node served outside of its cluster, and nothing ended that.
#[test]
fn a_leave_without_a_response_is_over_with_its_process() {
    for seed in 0..50 {
        let mut world = begin(2, true, seed).unwrap();
        world.kill(0);
        world.leave(1).unwrap();
        world.run_until(world.now_ms + 2 * LEASE_MS).unwrap();
        assert!(!world.nodes[1].has_left, "no majority agrees on a view without it");
        world.kill(1);
        world.start(0, true).unwrap();
        world.start(1, true).unwrap();
        world.run_while(8, |world| !world.is_whole()).unwrap();
        assert_eq!(view_of(&world, 1).members.len(), 2);
    }
}

#[test]
fn silence_is_suspect_and_then_lost() {
    let mut world = begin(3, false, 1).unwrap();
    let number = view_of(&world, 0).named(&name(2)).unwrap().number;
    let reach = |world: &PeerWorld| world.nodes[0].process.as_ref().unwrap().reach(number);
    world.kill(2);
    let (mut seen, end_ms) = (vec![reach(&world)], world.now_ms + 2 * LEASE_MS);
    while world.now_ms < end_ms {
        world.run_until(world.now_ms + 1).unwrap();
        seen.push(reach(&world));
    }
    seen.dedup();
    assert_eq!(seen, [Reachability::Live, Reachability::Suspect, Reachability::Lost]);
}

/// Messages that each node sends in a lease: one to each other node in a quarter of it, and no
/// more.
#[test]
fn messages_grow_linearly() {
    for count in [2, 4, 8, 16, 32] {
        let mut world = begin(count, true, 5).unwrap();
        world.run_until(world.now_ms + 2 * LEASE_MS).unwrap();
        let before = world.environment.messages;
        world.run_until(world.now_ms + 10 * LEASE_MS).unwrap();
        let each = (world.environment.messages - before) / count as u64 / 10;
        let peer_count = count as u64 - 1;
        assert!(
            (4 * peer_count..=4 * peer_count + 4).contains(&each),
            "{count} nodes: {each} messages"
        );
    }
}

#[test]
fn the_largest_message_has_its_limit() {
    let text = |bytes: usize, n: u8| format!("{n:02}{}", "x".repeat(bytes - 2));
    let member = |number: NodeNumber| Member {
        number,
        name: NodeName::new(text(NODE_NAME_CHARS_MAX, number.get())).unwrap(),
        incarnation: Incarnation(u64::MAX),
        address: text(ADDRESS_BYTES_MAX, number.get()),
        info: vec![255; INFO_BYTES_MAX],
    };
    let members: Vec<Member> = NodeNumber::all().map(member).collect();
    let view = View {
        cluster: ClusterId(u64::MAX),
        epoch: Epoch(u64::MAX),
        members: members.clone(),
        former: Vec::new(),
    };
    let Member { name, incarnation, address, .. } = members[0].clone();
    let ballot = Ballot { round: u64::MAX, name: name.clone() };
    let message = Message {
        from: Sender { name, incarnation, address },
        cluster: Some(ClusterId(u64::MAX)),
        epoch: Epoch(u64::MAX),
        body: Body::Promise { ballot: ballot.clone(), accepted: Some((ballot, view)) },
    };
    assert!(message.is_sound());
    let bytes = postcard::to_stdvec(&message).unwrap();
    assert!(bytes.len() <= MESSAGE_BYTES_MAX && bytes.len() > MESSAGE_BYTES_MAX / 2);
}

/// Messages of a member from earlier epochs and lives are delivered again, by a link or by the
/// member. It is a member now, so its certificate is valid; but the messages contain their epoch
/// and life.
#[test]
fn what_a_member_said_in_an_earlier_epoch_or_life_changes_nothing() {
    let (mut epochs_old, mut lives_old) = (0, 0);
    for seed in 0..20 {
        let mut world = begin(3, false, seed).unwrap();
        for round in 0..5 {
            // It leaves, or is excluded; and returns as another life.
            let node = (seed + round) as usize % 3;
            match round {
                0 | 3 => world.leave(node).unwrap(),
                _ => world.kill(node),
            }
            world.run_until(world.now_ms + 2 * LEASE_MS).unwrap();
            world.start(node, round % 2 == 0).unwrap();
            world.run_while(8, |world| !world.is_whole()).unwrap();
        }
        let view = view_of(&world, 0).clone();
        assert!(view.epoch > Epoch(5), "{view:?}");
        for from in 0..3 {
            let life = world.nodes[from].process.as_ref().unwrap().incarnation();
            for message in world.environment.sent[from].clone() {
                let is_life_old = message.from.incarnation < life;
                if !is_life_old && message.epoch == view.epoch {
                    continue;
                }
                epochs_old += usize::from(!is_life_old && message.cluster.is_some());
                lives_old += usize::from(is_life_old);
                for to in (0..3).filter(|to| *to != from) {
                    assert_ignored(&mut world, to, message.clone(), is_life_old);
                }
            }
        }
        world.run_until(world.now_ms + LEASE_MS / 4).unwrap();
        assert!(world.is_whole(), "{}", world.sketch());
        assert_eq!(view_of(&world, 0), &view);
    }
    assert!(epochs_old > 1000 && lives_old > 1000, "{epochs_old} and {lives_old}");
}

/// Ballots restart in each epoch, so votes of two epochs differ only in the epoch. Old refusals
/// were counted once: they ended proposals, and spared silent members.
#[test]
fn a_vote_of_an_earlier_epoch_is_none() {
    for seed in 0..20 {
        let mut world = begin(3, false, seed).unwrap();
        let proposal =
            |world: &PeerWorld| world.nodes[0].process.as_ref().unwrap().proposal.is_some();
        world.kill(2);
        world.environment.network.delay_ms_max = LEASE_MS / 8;
        for _ in 0..3 * LEASE_MS {
            if proposal(&world) {
                break;
            }
            world.run_until(world.now_ms + 1).unwrap();
        }
        let process = world.nodes[0].process.as_ref().unwrap();
        let ballot = process.proposal.as_ref().unwrap().ballot.clone();
        let view = view_of(&world, 0).clone();
        let higher = Some(Ballot { round: ballot.round + 7, ..ballot.clone() });
        let hears = view.numbers();
        for body in [
            Body::Promise { ballot: ballot.clone(), accepted: None },
            Body::Accepted { ballot: ballot.clone() },
            Body::Nack { ballot: ballot.clone(), promised: higher, hears },
        ] {
            for node in [1, 2] {
                let member = view.named(&name(node)).unwrap();
                let Member { name, incarnation, address, .. } = member.clone();
                let from = Sender { name, incarnation, address };
                let epoch = Epoch(view.epoch.0 - 1);
                let cluster = Some(view.cluster).filter(|_| epoch > Epoch(0));
                let message = Message { from, cluster, epoch, body: body.clone() };
                assert_ignored(&mut world, 0, message, false);
            }
        }
    }
}

/// Asserts that a message has no effect but a reply with the current view. A message of the
/// sender's current life is a sign of that life; one of an old life is not.
fn assert_ignored(world: &mut PeerWorld, to: usize, message: Message, is_life_old: bool) {
    let now_ms = world.clock_ms(to);
    let process = world.nodes[to].process.as_mut().unwrap();
    let sketch = |process: &Membership| {
        let reaches: Vec<Reachability> =
            NodeNumber::all().map(|number| process.reach(number)).collect();
        let lease_ms = process.lease_left_ms(now_ms);
        let peer = |peer: &PeerState| {
            let heard_ms = if is_life_old { peer.heard_ms } else { 0 };
            (heard_ms, peer.spared_until_ms, peer.has_left, peer.has_ended)
        };
        let peers: Vec<_> = process.peers.values().map(peer).collect();
        let proposal = format!("{:?} {}", process.proposal, process.round_seen);
        let candidates = process.candidates.len();
        (process.retained.clone(), candidates, reaches, lease_ms, peers, proposal)
    };
    // Work due at this time is not a reply.
    let mut out = Vec::new();
    process.tick(now_ms, &mut out);
    out.clear();
    let before = sketch(process);
    process.handle(message.clone(), now_ms, &mut out);
    let is_word = |output: &Output| match output {
        Output::Send { message, .. } => matches!(
            message.body,
            Body::Decided { .. } | Body::Probe { .. } | Body::Refused(Refusal::Stale { .. })
        ),
        _ => false,
    };
    assert!(out.iter().all(is_word), "{message:?} led to {out:?}");
    assert_eq!(sketch(process), before, "{message:?}");
}

/// Messages with any content, with plausible names, clusters, epochs and views.
struct MessageForger<'a> {
    random: u64,
    world: &'a PeerWorld,
}

impl MessageForger<'_> {
    fn below(&mut self, limit: u64) -> u64 {
        next_random(&mut self.random) % limit
    }

    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => next_random(&mut self.random),
            1 => u64::MAX - self.below(2),
            _ => self.below(5),
        }
    }

    fn near(&mut self, number: u64) -> u64 {
        match self.below(3) {
            0 => self.number(),
            1 => number,
            _ => number.wrapping_add(self.below(3)).wrapping_sub(1),
        }
    }

    fn node(&mut self) -> usize {
        self.below(5) as usize
    }

    fn life(&mut self, node: usize) -> Incarnation {
        let process = self.world.nodes.get(node).and_then(|node| node.process.as_ref());
        let life = process.map_or(1, |process| process.incarnation().0);
        Incarnation(self.near(life))
    }

    fn view(&mut self) -> View {
        let mut view = view_of(self.world, 0).clone();
        if self.below(8) == 0 {
            view.cluster.0 = self.number();
        }
        view.epoch.0 = self.near(view.epoch.0 + 1);
        for _ in 0..self.below(3) {
            let node = self.node();
            let number = NodeNumber::new(self.below(64) as u8).unwrap();
            let (name, address) = (name(node), address(node));
            let incarnation = self.life(node);
            match self.below(3) {
                0 => view.members.retain(|member| member.name != name),
                1 => {
                    let info = Vec::new();
                    view.members.push(Member { number, name, incarnation, address, info });
                }
                _ => view.former.push(Former {
                    number,
                    name,
                    incarnation,
                    address,
                    since: Epoch(1),
                    has_left: false,
                }),
            }
        }
        view.members.sort_by_key(|member| member.number);
        view
    }

    fn body(&mut self) -> Body {
        let node = self.node();
        let ballot = Ballot { round: self.number(), name: name(self.node()) };
        let electorate = self.near(view_of(self.world, 0).cluster.0);
        let value = self.view();
        match self.below(12) {
            0 => Body::Ask { info: vec![7; 9], echo: self.number() },
            1 => Body::Wait { echo: self.number() },
            2 => Body::Refused(Refusal::Stale { known: self.life(node) }),
            3 => Body::Forward(JoinCandidate {
                name: name(node),
                incarnation: self.life(node),
                address: address(node),
                info: Vec::new(),
            }),
            4 => Body::Beat(Beat {
                beat: self.number(),
                ack: Some(self.number()),
                is_urgent: self.below(2) == 0,
                is_leaving: self.below(2) == 0,
            }),
            5 => Body::Probe { is_answer: self.below(2) == 0 },
            6 => Body::Prepare { ballot, electorate, without: NodeSet(self.number()) },
            7 => Body::Promise { accepted: Some((ballot.clone(), value)), ballot },
            8 => Body::Accept { ballot, electorate, value, is_adopted: self.below(2) == 0 },
            9 => Body::Accepted { ballot },
            10 => {
                let hears = NodeSet(self.number());
                Body::Nack { promised: Some(ballot.clone()), ballot, hears }
            }
            _ => Body::Decided { view: value, is_live: true },
        }
    }

    /// From a stranger, or from a life of a member that is over.
    fn outsider(&mut self) -> Sender {
        match self.below(2) {
            0 => Sender { name: name(9), incarnation: self.life(9), address: address(9) },
            _ => {
                let node = self.below(3) as usize;
                Sender { name: name(node), incarnation: Incarnation(0), address: address(node) }
            }
        }
    }

    fn anybody(&mut self) -> Sender {
        let node = self.node();
        Sender { name: name(node), incarnation: self.life(node), address: address(self.node()) }
    }

    fn message(&mut self, from: Sender) -> Message {
        let view = view_of(self.world, 0);
        let (cluster, epoch) = (view.cluster.0, view.epoch.0);
        let cluster = ClusterId(self.near(cluster));
        Message { from, cluster: Some(cluster), epoch: Epoch(self.near(epoch)), body: self.body() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A node that is not a member changes nothing: not the view, not the lease.
    #[test]
    fn messages_from_outside_change_nothing(seed: u64) {
        let mut world = begin(3, false, seed).unwrap();
        let view = view_of(&world, 0).clone();
        for turn in 0..200 {
            let mut forger = MessageForger { random: seed ^ turn, world: &world };
            let from = forger.outsider();
            let message = forger.message(from);
            world.receive((turn % 3) as usize, message).unwrap();
            world.run_until(world.now_ms + 20).unwrap();
            prop_assert!(world.is_whole(), "{}", world.sketch());
        }
        prop_assert_eq!(view_of(&world, 0), &view);
    }

    /// A lying member may split a cluster. It causes no panic, and messages stay small.
    #[test]
    fn messages_from_any_sender_make_no_node_panic(seed: u64) {
        let healthy = begin(3, false, seed).unwrap();
        let mut world = begin(3, false, seed).unwrap();
        for turn in 0..300 {
            let mut forger = MessageForger { random: seed ^ turn, world: &healthy };
            let from = forger.anybody();
            let message = forger.message(from);
            // The damage is not checked, but the messages have their limits.
            let _ = world.receive((turn % 3) as usize, message);
            let _ = world.run_until(world.now_ms + 10);
        }
        prop_assert!(world.environment.bytes_max <= MESSAGE_BYTES_MAX);
    }

    #[test]
    fn bytes_that_are_a_message_make_no_node_panic(bytes: Vec<u8>, seed: u64) {
        if let Ok(message) = postcard::from_bytes::<Message>(&bytes) {
            let mut node = Membership::new(options(0, vec![address(1)]), None, seed >> 1).unwrap();
            node.handle(message, seed >> 1, &mut Vec::new());
        }
    }
}
