//! Flags of up to four nodes while views move them; the test controls clock and network. Messages
//! are delayed, lost and duplicated; nodes join and leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farrow_membership::Epoch;
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_store::{ClientSlot, Home, Layout, RegionOptions};
use farrow_wire::{Hello, PROTOCOL_VERSION, ReplyBody, Request, RequestBody, SyncAsk, WireError};

use super::moving::MoveMutant;
use super::requests::GRACE_MS;
use super::{Barriers, NameState};
use crate::protocol::cluster::{AgreementKind, Answer, ClusterOptions, Offer, PeerAction};
use crate::protocol::{Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId};

mod missed;
mod restarts;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const LEASE_MS: u64 = 1000;
const ROUND_MS: u64 = 10;
/// A wait for an outcome has ended by then.
const LONG_MS: u64 = GRACE_MS + 5 * LEASE_MS;
const CLIENT: SessionId = SessionId(1);
/// Number of flag words, so that each node owns some.
const WORDS: u64 = 12;

enum BarrierMessage {
    ToPeer { incarnation: u64, body: Vec<u8> },
    Question { incarnation: u64, token: u64, body: Vec<u8> },
    Answer { token: u64, answer: Result<Vec<u8>, String> },
}

struct OnTheWay {
    at_ms: u64,
    from: usize,
    to: usize,
    message: BarrierMessage,
}

struct BarrierCluster {
    nodes: BTreeMap<usize, NodeState>,
    now_ms: u64,
    messages: Vec<OnTheWay>,
    /// Questions by their number at the asked node: the asking node and its token.
    requested: BTreeMap<u64, (usize, u64)>,
    next_request: u64,
    /// Nodes between which no question is delivered for now.
    held: Option<(usize, usize)>,
    /// A node whose messages are all lost.
    cut: Option<usize>,
    /// Random state for delays, losses and duplicates.
    dice: Option<u64>,
    replies: Vec<(usize, u64, Result<ReplyBody, WireError>)>,
    next_seq: u64,
    mutant: Option<MoveMutant>,
    /// The wall clock of nodes that start; `None`: one that advances between the daemons of a life.
    clock: Option<u64>,
}

fn home(number: usize) -> Home {
    let mut options = RegionOptions::for_capacity(Length(256 << 10));
    (options.objects_max, options.clients_max) = (16, 4);
    let geometry = Layout::new(&options).unwrap().geometry;
    let fabric = Arc::new(ShmFabric::memfd(&format!("sync {number}"), geometry).unwrap());
    let region = Region::map(fabric, Access::Home, None).unwrap();
    Home::create(Arc::new(region), &options, 0).unwrap()
}

impl BarrierCluster {
    /// `count` nodes of one cluster, each with a client.
    fn new(count: usize, mutant: Option<MoveMutant>) -> Self {
        let mut world = Self {
            nodes: BTreeMap::new(),
            now_ms: 0,
            messages: Vec::new(),
            requested: BTreeMap::new(),
            next_request: 0,
            held: None,
            cut: None,
            dice: None,
            replies: Vec::new(),
            next_seq: 0,
            mutant,
            clock: None,
        };
        (0..count).for_each(|number| world.start(number));
        world.go_on_until(|world| world.is_whole(count));
        world
    }

    fn start(&mut self, number: usize) {
        self.start_daemon(number, home(number), AdoptedState::default());
        self.connect(number, CLIENT, None);
    }

    fn start_daemon(&mut self, number: usize, home: Home, adopted: AdoptedState) {
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: 0 };
        let life = home.life();
        let mut node = NodeState::new(home, daemon, adopted, self.now_ms);
        node.barriers.moves.mutant = self.mutant;
        let options = ClusterOptions {
            net: None,
            name: NAMES[number].parse().unwrap(),
            address: number.to_string(),
            agreement: AgreementKind::Embedded,
            seeds: (0..2).filter(|one| *one != number).map(|one| one.to_string()).collect(),
            lease_ms: LEASE_MS,
            offer: Offer {
                host: "one machine".to_owned(),
                region_uid: number as u64,
                control_bytes: 1,
                data_bytes: 1,
                capacity: 1,
                base: 0,
                ways: Vec::new(),
            },
            incarnation: self.clock.unwrap_or(5 * life * life),
            seed: 7 + number as u64,
        };
        let mut out = Vec::new();
        node.join_cluster(options, self.now_ms, &mut out).unwrap();
        node.set_rules(vec!["*:*:all".parse().unwrap()]).unwrap();
        self.nodes.insert(number, node);
        self.perform(number, out);
    }

    /// A client connects, with the slot that it had if it was a client before.
    fn connect(&mut self, number: usize, client: SessionId, earlier: Option<ClientSlot>) {
        let node = self.nodes.get_mut(&number).unwrap();
        let peer = PeerIdentity { pid: 10, start_time: 1, uid: 0, remote_client: None };
        node.opened(client, peer, self.now_ms);
        let (uid, home) = (node.home().uid().0, node.home());
        let resume = earlier.map(|slot| (uid, slot.0, home.client(slot).unwrap().nonce));
        let (namespace, node) = (String::new(), String::new());
        let hello = Hello { version: PROTOCOL_VERSION, resume, namespace, node, maps_memory: true };
        self.request_of(number, client, RequestBody::Hello(hello));
        assert!(self.replies.pop().unwrap().2.is_ok());
    }

    fn is_whole(&self, count: usize) -> bool {
        let mut member_lists = self.nodes.values().map(NodeState::members);
        member_lists.all(|one| {
            let live = one.nodes.iter().filter(|node| node.reach == farrow_wire::Reach::Live);
            one.has_lease && live.count() == count
        })
    }

    /// A random number below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        let Some(dice) = &mut self.dice else { return sides - 1 };
        *dice ^= *dice << 13;
        *dice ^= *dice >> 7;
        *dice ^= *dice << 17;
        *dice % sides
    }

    fn request(&mut self, number: usize, body: RequestBody) -> u64 {
        self.request_of(number, CLIENT, body)
    }

    fn request_of(&mut self, number: usize, client: SessionId, body: RequestBody) -> u64 {
        self.next_seq += 1;
        let request = Request { seq: self.next_seq, body };
        let mut out = Vec::new();
        let now_ms = self.now_ms;
        self.nodes.get_mut(&number).unwrap().handle(client, request, now_ms, 1, &mut out);
        self.perform(number, out);
        self.next_seq
    }

    fn set_flags(&mut self, number: usize, word: u64, set: u64, clear: u64) -> u64 {
        let ask = SyncAsk::SetFlags { set, clear };
        self.request(number, RequestBody::Sync { name: format!("f{word}"), ask })
    }

    /// The reply to a request; `None`: there is none yet.
    fn reply(&self, seq: u64) -> Option<Result<ReplyBody, WireError>> {
        let found = self.replies.iter().find(|(_, of, _)| *of == seq);
        found.map(|(_, _, body)| body.clone())
    }

    fn send(&mut self, from: usize, to: usize, message: BarrierMessage) {
        if self.dice.is_some() && self.roll(8) == 0 {
            // Lost: the asking node learns it later.
            if let BarrierMessage::Question { token, .. } = message {
                let answer = Err("lost".to_owned());
                let at_ms = self.now_ms + 100;
                let message = BarrierMessage::Answer { token, answer };
                self.messages.push(OnTheWay { at_ms, from: to, to: from, message });
            }
            return;
        }
        let late_ms = if self.dice.is_some() { self.roll(60) } else { 0 };
        self.messages.push(OnTheWay { at_ms: self.now_ms + late_ms, from, to, message });
    }

    fn perform(&mut self, by: usize, actions: Vec<Action>) {
        let number_of = |address: &str| address.parse::<usize>().unwrap();
        for action in actions {
            match action {
                Action::Send { reply, .. } => {
                    self.replies.push((by, reply.seq, reply.body));
                }
                Action::Peer(PeerAction::Message { address, incarnation, body }) => {
                    self.send(
                        by,
                        number_of(&address),
                        BarrierMessage::ToPeer { incarnation, body },
                    );
                }
                Action::Peer(PeerAction::Ask { token, address, incarnation, body, .. }) => {
                    let message = BarrierMessage::Question { incarnation, token, body };
                    self.send(by, number_of(&address), message);
                }
                Action::Peer(PeerAction::Answer { token: number, body }) => {
                    let (to, token) = self.requested[&number];
                    let is_lost = self.dice.is_some() && self.roll(8) == 0;
                    let answer = if is_lost { Err("lost".to_owned()) } else { Ok(body) };
                    let at_ms = self.now_ms + if self.dice.is_some() { self.roll(60) } else { 0 };
                    let message = BarrierMessage::Answer { token, answer };
                    self.messages.push(OnTheWay { at_ms, from: by, to, message });
                }
                _ => {}
            }
        }
    }

    fn deliver(&mut self, one: OnTheWay) {
        let OnTheWay { from, to, message, .. } = one;
        let is_cut = [from, to].iter().any(|node| self.cut == Some(*node));
        let (now_ms, mut out) = (self.now_ms, Vec::new());
        if is_cut || !self.nodes.contains_key(&to) {
            if let BarrierMessage::Question { token, .. } = message {
                let answer = Err("cut off".to_owned());
                self.deliver_answer(from, token, answer);
            }
            return;
        }
        let Some(node) = self.nodes.get_mut(&to) else { return };
        match message {
            BarrierMessage::ToPeer { incarnation, body } => {
                node.on_message((NAMES[from], incarnation).into(), &body, now_ms, &mut out);
            }
            BarrierMessage::Question { incarnation, token, body } => {
                self.next_request += 1;
                self.requested.insert(self.next_request, (from, token));
                node.on_request(
                    self.next_request,
                    (NAMES[from], incarnation).into(),
                    &body,
                    now_ms,
                    &mut out,
                );
                if self.dice.is_some() && self.roll(8) == 0 {
                    // A duplicate, later.
                    let at_ms = now_ms + self.roll(2 * LEASE_MS);
                    let message = BarrierMessage::Question { incarnation, token, body };
                    self.messages.push(OnTheWay { at_ms, from, to, message });
                }
            }
            BarrierMessage::Answer { token, answer } => {
                return self.deliver_answer(to, token, answer);
            }
        }
        self.perform(to, out);
    }

    fn deliver_answer(&mut self, to: usize, token: u64, answer: Result<Vec<u8>, String>) {
        let mut out = Vec::new();
        if let Some(node) = self.nodes.get_mut(&to) {
            node.on_response(token, answer, self.now_ms, &mut out);
            self.perform(to, out);
        }
    }

    fn round(&mut self) {
        self.now_ms += ROUND_MS;
        let now_ms = self.now_ms;
        let held = self.held;
        let is_due = |one: &mut OnTheWay| {
            let is_question = matches!(one.message, BarrierMessage::Question { .. });
            let is_held = held.is_some_and(|(a, b)| {
                is_question && [(a, b), (b, a)].contains(&(one.from, one.to))
            });
            one.at_ms <= now_ms && !is_held
        };
        let due: Vec<OnTheWay> = self.messages.extract_if(.., is_due).collect();
        due.into_iter().for_each(|one| self.deliver(one));
        let numbers: Vec<usize> = self.nodes.keys().copied().collect();
        for number in numbers {
            let mut out = Vec::new();
            self.nodes.get_mut(&number).unwrap().tick(now_ms, &mut out);
            self.perform(number, out);
        }
    }

    fn go_on(&mut self, ms: u64) {
        (0..ms / ROUND_MS).for_each(|_| self.round());
    }

    fn go_on_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        let until_ms = self.now_ms + 10 * LONG_MS;
        while !is_so(self) {
            assert!(self.now_ms < until_ms, "it is not so after {} ms", self.now_ms);
            self.round();
        }
    }

    /// Pairs of running nodes of which the first one has the second one in its view.
    fn pairs(&self) -> BTreeSet<(usize, usize)> {
        let of = |(number, node): (&usize, &NodeState)| {
            let members = node.members();
            let is_member = |other: &usize| {
                let row = members.find(NAMES[*other]);
                row.is_some_and(|row| row.reach != farrow_wire::Reach::Lost)
            };
            let there: Vec<usize> = self.nodes.keys().copied().filter(is_member).collect();
            there.into_iter().map(|other| (*number, other)).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    /// An orderly leave of a node.
    fn leave(&mut self, number: usize) {
        let (now_ms, mut out) = (self.now_ms, Vec::new());
        self.nodes.get_mut(&number).unwrap().hand_over_sync(now_ms, &mut out);
        self.perform(number, out);
        self.go_on_until(|world| world.nodes[&number].has_handed_over());
        let (now_ms, mut out) = (self.now_ms, Vec::new());
        self.nodes.get_mut(&number).unwrap().leave_cluster(now_ms, &mut out);
        self.perform(number, out);
        self.go_on_until(|world| world.nodes[&number].has_left());
        self.nodes.remove(&number);
    }
}

fn flags(value: u64) -> Option<Result<ReplyBody, WireError>> {
    Some(Ok(ReplyBody::Flags { value, is_met: true }))
}

/// Requests for moved words, without an answer while the old owner hands over nothing. A mutant
/// gives wrong answers.
fn moved_words(mutant: Option<MoveMutant>) -> (Vec<u64>, BarrierCluster) {
    let mut world = BarrierCluster::new(2, mutant);
    let set: Vec<u64> = (0..WORDS).map(|word| world.set_flags(1, word, 29, 0)).collect();
    world.go_on(LEASE_MS);
    set.iter().for_each(|seq| assert_eq!(world.reply(*seq), flags(29)));
    world.held = Some((0, 2));
    world.start(2);
    world.go_on_until(|world| world.is_whole(3));
    let set: Vec<u64> = (0..WORDS).map(|word| world.set_flags(1, word, 64, 2)).collect();
    world.go_on(2 * LEASE_MS);
    let late: Vec<u64> = set.iter().copied().filter(|seq| world.reply(*seq).is_none()).collect();
    let right = set.iter().filter(|seq| world.reply(**seq) == flags(93)).count();
    let wrong = set.len() - right - late.len();
    assert_eq!(wrong > 0, mutant.is_some(), "{wrong} are wrong");
    (late, world)
}

/// Flags were 29, and a third node joined and became their owner while the state of the first one
/// was late. `set 64, clear 2` was answered with 64 by the new owner, and the next one with 93.
#[test]
fn a_new_owner_does_not_answer_before_it_has_what_was_retained() {
    let (late, mut world) = moved_words(None);
    assert!((1..WORDS as usize).contains(&late.len()), "{late:?} moved");
    world.held = None;
    world.go_on(LEASE_MS);
    late.iter().for_each(|seq| assert_eq!(world.reply(*seq), flags(93)));
    // All pending messages are over, so the next change has no old state to move.
    world.leave(0);
    let set: Vec<u64> = (0..WORDS).map(|word| world.set_flags(2, word, 2, 93)).collect();
    world.go_on(LEASE_MS);
    set.iter().for_each(|seq| assert_eq!(world.reply(*seq), flags(2)));
}

#[test]
fn a_owner_that_does_not_wait_is_found() {
    moved_words(Some(MoveMutant::AnswersAtOnce));
}

/// Waits for a member that hands nothing over end with an error, and in time.
#[test]
fn what_waits_for_a_member_that_does_not_hand_over_ends_in_time() {
    let (late, mut world) = moved_words(None);
    let own: Vec<u64> = (0..WORDS).map(|word| world.set_flags(2, word, 1, 0)).collect();
    world.go_on(LONG_MS);
    let errors = late.iter().map(|seq| world.reply(*seq).unwrap().unwrap_err());
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("\"a\" has not handed over"), "{text}");
    }
    let cut_off = own.iter().filter(|seq| {
        matches!(world.reply(**seq), Some(Err(WireError::CutOff { node, .. })) if node == "c")
    });
    assert_eq!(cut_off.count(), late.len());
}

/// A node without any connection: the others start its words from zero, as documented. It answers
/// its own client for none of them.
fn answers_of_a_node_that_is_cut_off(mutant: Option<MoveMutant>) -> usize {
    let mut world = BarrierCluster::new(3, mutant);
    let set: Vec<u64> = (0..WORDS).map(|word| world.set_flags(0, word, 1, 0)).collect();
    world.go_on(LEASE_MS);
    set.iter().for_each(|seq| assert_eq!(world.reply(*seq), flags(1)));
    world.cut = Some(0);
    let is_alone = |world: &BarrierCluster| {
        !world.nodes[&1].members().find("a").is_some_and(|a| a.reach != farrow_wire::Reach::Lost)
    };
    world.go_on_until(is_alone);
    let there: Vec<u64> = (0..WORDS).map(|word| world.set_flags(1, word, 2, 0)).collect();
    let here: Vec<u64> = (0..WORDS).map(|word| world.set_flags(0, word, 4, 0)).collect();
    world.go_on(LONG_MS);
    let there = there.iter().map(|seq| world.reply(*seq));
    let lost = there.filter(|reply| *reply == flags(2)).count();
    assert!((1..WORDS as usize).contains(&lost), "{lost} were lost");
    here.iter().filter(|seq| world.reply(**seq).is_some_and(|reply| reply.is_ok())).count()
}

#[test]
fn a_node_that_is_cut_off_answers_for_no_flags() {
    assert_eq!(answers_of_a_node_that_is_cut_off(None), 0);
}

#[test]
fn a_node_that_answers_without_a_lease_is_found() {
    assert!(answers_of_a_node_that_is_cut_off(Some(MoveMutant::NeedsNoLease)) > 0);
}

/// Nodes join and leave in order while one client after another changes flags. Each change is made
/// once, on top of the one before. A change may or may not be made if its owner left before the
/// answer arrived. Returns the first wrong answer.
///
/// So many messages in a row may be lost that the others exclude a node. Its flags are lost then,
/// as documented, and the run ends.
fn run(seed: u64, mutant: Option<MoveMutant>) -> Result<u64, String> {
    let mut world = BarrierCluster::new(2, mutant);
    world.dice = Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut known = vec![BTreeSet::from([0_u64]); WORDS as usize];
    let mut under_way: BTreeMap<u64, (u64, BTreeSet<u64>)> = BTreeMap::new();
    let (mut changes, mut changed_ms, mut answers) = (0, world.now_ms, 0);
    let mut order = [2, 3].into_iter();
    let mut pairs = world.pairs();
    for step in 0..600 {
        world.round();
        let earlier = std::mem::replace(&mut pairs, world.pairs());
        let nodes = &world.nodes;
        let is_running = |(a, b): &(usize, usize)| nodes.contains_key(a) && nodes.contains_key(b);
        if earlier.into_iter().any(|pair| is_running(&pair) && !pairs.contains(&pair)) {
            break;
        }
        let ended = under_way.extract_if(.., |_, (seq, _)| world.reply(*seq).is_some());
        for (word, (seq, values)) in ended {
            match world.reply(seq) {
                Some(Ok(ReplyBody::Flags { value, .. })) if values.contains(&value) => {
                    known[word as usize] = BTreeSet::from([value]);
                    answers += 1;
                }
                Some(Err(WireError::NodeLost { .. })) => known[word as usize].extend(values),
                other => {
                    return Err(format!("seed {seed}, {step}, f{word}: {other:?}: {values:?}"));
                }
            }
        }
        let word = world.roll(WORDS);
        under_way.entry(word).or_insert_with(|| {
            // From a node that stays.
            let (set, clear) = (1 << world.roll(16), 1 << world.roll(16));
            let values = known[word as usize].iter().map(|value| value & !clear | set);
            (world.set_flags(1, word, set, clear), values.collect())
        });
        if world.now_ms - changed_ms > LEASE_MS && changes < 4 {
            changed_ms = world.now_ms;
            changes += 1;
            match (order.next(), world.nodes.contains_key(&0)) {
                (Some(next), _) => world.start(next),
                (None, true) => world.leave(0),
                (None, false) => world.leave(2),
            }
        }
    }
    Ok(answers)
}

#[test]
fn changes_are_made_once_in_order_while_nodes_come_and_go() {
    let seeds = 1..=20;
    let answers: u64 = seeds.clone().map(|seed| run(seed, None).unwrap()).sum();
    assert!(answers > 200 * seeds.count() as u64, "{answers} answers");
}

#[test]
fn the_simulator_finds_an_owner_that_does_not_wait() {
    let found = (1..=40).find_map(|seed| run(seed, Some(MoveMutant::AnswersAtOnce)).err());
    assert!(found.is_some());
}

/// A member drops the names that a request confirms. A late request of an earlier epoch would drop
/// those that were set aside since.
fn page_after_a_late_request(mutant: Option<MoveMutant>) -> Vec<(String, NameState)> {
    let mut barriers = Barriers::default();
    barriers.moves.epoch = Some(Epoch(5));
    barriers.moves.mutant = mutant;
    let state = NameState { flags: 1, members: Vec::new() };
    barriers.moves.set_aside.entry("d".to_owned()).or_default().insert("f1".to_owned(), state);
    let late = barriers.hand_over("d", Epoch(3), Some(&"f3".to_owned()));
    assert_eq!(late.is_err(), mutant.is_none());
    match barriers.hand_over("d", Epoch(5), None).unwrap() {
        Answer::HandedOver(page) => page,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_late_request_of_an_earlier_epoch_drops_no_state() {
    assert_eq!(page_after_a_late_request(None).len(), 1);
    assert!(page_after_a_late_request(Some(MoveMutant::HandsOverInAnyEpoch)).is_empty());
}

/// Regression test: the owners of flags kept the waits of clients that had ended until their timeouts.
/// Clients that were restarted in a loop filled the table for all others.
#[test]
fn owners_forget_the_waits_for_flags_of_clients_that_have_ended() {
    let mut world = BarrierCluster::new(3, None);
    for word in 0..WORDS {
        let ask = SyncAsk::WaitFlags { mask: 1, timeout_ms: 3_600_000 };
        world.request(0, RequestBody::Sync { name: format!("f{word}"), ask });
    }
    let has_waits = |world: &BarrierCluster, number: usize| {
        world.nodes[&number].barriers.table.next_deadline_ms().is_some()
    };
    world.go_on(LEASE_MS);
    assert!((0..3).all(|number| has_waits(&world, number)), "each node owns some");
    let now_ms = world.now_ms;
    world.nodes.get_mut(&0).unwrap().closed(CLIENT, false, now_ms);
    world.go_on(LEASE_MS);
    assert!((0..3).all(|number| !has_waits(&world, number)), "their client has ended");
}
