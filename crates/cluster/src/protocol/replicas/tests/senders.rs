//! A node fetches a large object of node a. Node a names the sender; node c may be one.

use farrow_memory::{Length, Offset, Span};
use farrow_net::frame::Opened;
use farrow_store::{ObjectId, ObjectKind, SpillHead};
use farrow_wire::{Extent, ReplyBody, WireError};

use super::{CLIENT, INCARNATION, KEY, ReplicaNodes};
use crate::protocol::Action;
use crate::protocol::cluster::Question;
use crate::protocol::net::broadcast::{BROADCAST_BYTES_MIN, ReplicaKey, SenderAnswer, wait_max};
use crate::protocol::net::query::{Brought, NetQuery};
use crate::protocol::net::{NetAction, NetEvent, NetFault};
use crate::protocol::replicas::transfers::{FetchKey, FetchWaiter};

const BYTES: u64 = BROADCAST_BYTES_MIN;
/// The hold of the reader at the home.
const HOLD: u64 = 9;
/// Its hold at node c.
const HOLD_AT_C: u64 = 5;

/// Node b, which fetches an object of node a.
struct FetchingNode {
    pair: ReplicaNodes,
    origin: ObjectId,
}

/// An open that a node asks for.
#[derive(Debug, PartialEq)]
struct Open {
    token: u64,
    node: String,
    query: NetQuery,
}

fn opens(out: &[Action]) -> Vec<Open> {
    let open = |action: &Action| match action {
        Action::Net(NetAction::Open { token, node, want, .. }) => {
            let query = NetQuery::decode(want).unwrap();
            Some(Open { token: *token, node: node.clone(), query })
        }
        _ => None,
    };
    out.iter().filter_map(open).collect()
}

/// The sender of a transfer, the hold there, and the first byte of the object there.
fn load(out: &[Action]) -> Option<(String, u64, u64)> {
    out.iter().find_map(|action| match action {
        Action::Net(NetAction::Load { node, hold, pieces, .. }) => {
            let [(from, _)] = pieces[..] else { panic!("{pieces:?}") };
            assert_eq!(from.length, Length(BYTES), "no byte behind the object");
            Some((node.clone(), *hold, from.offset.0))
        }
        _ => None,
    })
}

fn releases(out: &[Action], of: &str) -> Vec<u64> {
    let release = |action: &Action| match action {
        Action::Net(NetAction::Release { node, hold }) if node == of => Some(*hold),
        _ => None,
    };
    out.iter().filter_map(release).collect()
}

fn is_answered(out: &[Action]) -> bool {
    out.iter().any(|action| {
        matches!(action, Action::Send { session: CLIENT, reply, .. }
            if matches!(reply.body, Ok(ReplyBody::Fetched(Some(_)))))
    })
}

fn from_home() -> Option<(String, u64, u64)> {
    Some(("a".to_owned(), HOLD, 0))
}

impl FetchingNode {
    /// It has opened the object, has room for it, and asks for a sender.
    fn new() -> (Self, Open) {
        let pair = ReplicaNodes::of(3);
        let origin = ObjectId { hi: pair.nodes[0].home().uid().0, lo: 1 << 32 };
        let mut reader = Self { pair, origin };
        let wish = NetQuery::Id(origin.hi, origin.lo);
        let key = FetchKey::new(wish, Extent::Whole).unwrap();
        let waiter = FetchWaiter { key, session: CLIENT, seq: 1, until_ms: u64::MAX };
        let (now_ms, mut out) = (reader.pair.now_ms, Vec::new());
        assert_eq!(reader.pair.nodes[1].fetch(waiter, now_ms, &mut out), Ok(None));
        let at_a = reader.question(&out);
        let out = reader.opened(&at_a, Ok((HOLD, reader.described())));
        let question = reader.question(&out);
        assert_eq!(question.query, NetQuery::Sender { hold: HOLD, failed: None });
        assert_eq!(load(&out), None, "nothing is on its way before the answer");
        (reader, question)
    }

    fn described(&self) -> Opened {
        let head = SpillHead {
            id: self.origin,
            kind: ObjectKind::Bytes,
            size: Length(BYTES),
            descriptor_bytes: 0,
            metadata_bytes: 0,
            origins: vec![Span::new(Offset(4096), Length(BYTES))],
        };
        let brought = Brought {
            head: head.encode(),
            name: Some("t".to_owned()),
            descriptor: Vec::new(),
            descriptor_crc: 0,
            metadata: Vec::new(),
            metadata_crc: 0,
            sealed_at_ns: 1,
        };
        let blocks = vec![Span::new(Offset(0), Length(BYTES))];
        Opened { blocks, entry: brought.encode().unwrap(), inline: Vec::new() }
    }

    /// The replica at node c, whose block begins at another place. It has more bytes behind: those
    /// that say of which object it is.
    fn replica(&self) -> Opened {
        let entry = postcard::to_allocvec(&(self.origin.hi, self.origin.lo)).unwrap();
        let blocks = vec![Span::new(Offset(1 << 20), Length(BYTES + 64))];
        Opened { blocks, entry, inline: Vec::new() }
    }

    fn event(&mut self, event: NetEvent) -> Vec<Action> {
        let (now_ms, mut out) = (self.pair.now_ms, Vec::new());
        self.pair.nodes[1].net_event(event, now_ms, &mut out);
        out
    }

    fn opened(&mut self, open: &Open, result: Result<(u64, Opened), NetFault>) -> Vec<Action> {
        self.event(NetEvent::Opened { token: open.token, node: open.node.clone(), result })
    }

    /// The home answers a question.
    fn answered(&mut self, question: &Open, answer: &SenderAnswer) -> Vec<Action> {
        let entry = postcard::to_allocvec(answer).unwrap();
        self.opened(question, Ok((77, Opened { entry, ..Opened::default() })))
    }

    fn loaded(&mut self, result: Result<(), NetFault>) -> Vec<Action> {
        self.event(NetEvent::Loaded { origin: self.origin, result })
    }

    /// The one question to the home.
    fn question(&self, out: &[Action]) -> Open {
        let mut opens = opens(out);
        assert_eq!(opens.len(), 1, "{opens:?}");
        let open = opens.pop().unwrap();
        assert_eq!(open.node, "a");
        open
    }

    /// Node a names node c, and the reader opens the replica there.
    fn at_c(&mut self, question: &Open) -> Open {
        let answer = SenderAnswer::Member { name: "c".to_owned(), key: KEY };
        let out = self.answered(question, &answer);
        assert_eq!(releases(&out, "a"), [77], "the question holds nothing");
        let mut opens = opens(&out);
        let open = opens.pop().unwrap();
        let ObjectId { hi, lo } = self.origin;
        assert_eq!((&*open.node, &open.query), ("c", &NetQuery::Replica { hi, lo, key: KEY }));
        open
    }

    /// After a failure of node c the home is told so, and sends the object whatever it answers.
    fn falls_back(&mut self, out: &[Action]) {
        let question = self.question(out);
        let failed = Some("c".to_owned());
        assert_eq!(question.query, NetQuery::Sender { hold: HOLD, failed });
        assert!(!is_answered(out));
        let out = self.answered(&question, &SenderAnswer::Wait);
        assert_eq!(load(&out), from_home());
        self.completes();
    }

    /// The transfer ends well, and the home is told so before its hold ends.
    fn completes(&mut self) -> Vec<Action> {
        let out = self.loaded(Ok(()));
        assert!(is_answered(&out), "{out:?}");
        let reported = self.question(&out);
        assert_eq!(reported.query, NetQuery::Complete { hold: HOLD, key: KEY });
        assert_eq!(releases(&out, "a"), [0; 0]);
        let later = self.answered(&reported, &SenderAnswer::Home);
        assert_eq!(releases(&later, "a"), [77, HOLD]);
        out
    }
}

#[test]
fn the_home_sends_an_object_if_it_says_so() {
    let (mut reader, question) = FetchingNode::new();
    let out = reader.answered(&question, &SenderAnswer::Home);
    assert_eq!(load(&out), from_home());
    reader.completes();
}

/// An earlier version does not understand the question.
#[test]
fn a_home_of_an_earlier_version_sends_each_object_itself() {
    let (mut reader, question) = FetchingNode::new();
    let fault = NetFault::Other("a query of 3 B: unknown".to_owned());
    let out = reader.opened(&question, Err(fault.clone()));
    assert_eq!(load(&out), from_home());
    let out = reader.loaded(Ok(()));
    assert!(is_answered(&out));
    let reported = reader.question(&out);
    let out = reader.opened(&reported, Err(fault));
    assert_eq!(releases(&out, "a"), [HOLD], "the hold ends also if the notice is rejected");
}

#[test]
fn the_bytes_come_from_the_replica_that_the_home_names() {
    let (mut reader, question) = FetchingNode::new();
    let at_c = reader.at_c(&question);
    let out = reader.opened(&at_c, Ok((HOLD_AT_C, reader.replica())));
    assert_eq!(load(&out), Some(("c".to_owned(), HOLD_AT_C, 1 << 20)));
    let out = reader.completes();
    assert_eq!(releases(&out, "c"), [HOLD_AT_C]);
}

#[test]
fn a_replica_that_is_not_there_costs_a_question() {
    let (mut reader, question) = FetchingNode::new();
    let at_c = reader.at_c(&question);
    let out = reader.opened(&at_c, Err(NetFault::NotFound));
    reader.falls_back(&out);
}

#[test]
fn a_sender_that_dies_half_way_costs_a_question() {
    let (mut reader, question) = FetchingNode::new();
    let at_c = reader.at_c(&question);
    reader.opened(&at_c, Ok((HOLD_AT_C, reader.replica())));
    let out = reader.loaded(Err(NetFault::Lost("killed".to_owned())));
    assert_eq!(releases(&out, "c"), [HOLD_AT_C]);
    reader.falls_back(&out);
}

#[test]
fn a_replica_of_another_object_or_length_is_not_read() {
    for change in [
        (|opened: &mut Opened, origin: ObjectId| {
            opened.entry = postcard::to_allocvec(&(origin.hi, origin.lo + (1 << 32))).unwrap();
        }) as fn(&mut Opened, ObjectId),
        |opened: &mut Opened, origin: ObjectId| {
            opened.entry = postcard::to_allocvec(&(origin.hi + 1, origin.lo)).unwrap();
        },
        |opened: &mut Opened, _| opened.entry.clear(),
        |opened: &mut Opened, _| opened.blocks[0].length.0 -= 128,
        |opened: &mut Opened, _| opened.blocks.clear(),
        |opened: &mut Opened, _| opened.blocks.push(Span::new(Offset(0), Length(64))),
    ] {
        let (mut reader, question) = FetchingNode::new();
        let at_c = reader.at_c(&question);
        let mut replica = reader.replica();
        change(&mut replica, reader.origin);
        let out = reader.opened(&at_c, Ok((HOLD_AT_C, replica)));
        assert_eq!((load(&out), releases(&out, "c")), (None, vec![HOLD_AT_C]));
        reader.falls_back(&out);
    }
}

#[test]
fn a_node_that_is_not_reached_is_no_sender() {
    let (mut reader, question) = FetchingNode::new();
    let key = ReplicaKey([1; 32]);
    let out = reader.answered(&question, &SenderAnswer::Member { name: "nowhere".into(), key });
    let question = reader.question(&out);
    let failed = Some("nowhere".to_owned());
    assert_eq!(question.query, NetQuery::Sender { hold: HOLD, failed });
    let out = reader.answered(&question, &SenderAnswer::Home);
    assert_eq!(load(&out), from_home());
}

#[test]
fn a_reader_waits_for_its_turn_and_not_for_ever() {
    let (mut reader, mut question) = FetchingNode::new();
    let mut requested = 0;
    let end_ms = reader.pair.now_ms + wait_max(BYTES).as_millis() as u64 + 5_000;
    loop {
        let mut out = reader.answered(&question, &SenderAnswer::Wait);
        while reader.pair.now_ms < end_ms && opens(&out).is_empty() && load(&out).is_none() {
            out = reader.pair.round();
        }
        if load(&out).is_some() {
            assert_eq!(load(&out), from_home());
            break;
        }
        question = reader.question(&out);
        assert_eq!(question.query, NetQuery::Sender { hold: HOLD, failed: None });
        requested += 1;
    }
    assert!(requested > 10, "asked {requested} times");
    reader.completes();
}

/// A delete of the object while its reader waits, opens a replica, or is sent it.
#[test]
fn a_recalled_object_becomes_no_replica_at_any_step() {
    for step in 0..3 {
        let (mut reader, question) = FetchingNode::new();
        let invalidated = Question::Invalidate { objects: vec![reader.origin.lo] };
        let invalidated = postcard::to_allocvec(&invalidated).unwrap();
        let recall = |reader: &mut FetchingNode| {
            let (now_ms, mut out) = (reader.pair.now_ms, Vec::new());
            reader.pair.nodes[1].on_request(
                0,
                ("a", INCARNATION).into(),
                &invalidated,
                now_ms,
                &mut out,
            );
        };
        let out = if step == 0 {
            recall(&mut reader);
            reader.answered(&question, &SenderAnswer::Wait)
        } else {
            let at_c = reader.at_c(&question);
            if step == 1 {
                recall(&mut reader);
                reader.opened(&at_c, Ok((HOLD_AT_C, reader.replica())))
            } else {
                reader.opened(&at_c, Ok((HOLD_AT_C, reader.replica())));
                recall(&mut reader);
                reader.loaded(Ok(()))
            }
        };
        assert!(!is_answered(&out) && load(&out).is_none(), "step {step}: {out:?}");
        assert!(releases(&out, "a").contains(&HOLD), "step {step}: {out:?}");
        let at_c = if step == 0 { vec![] } else { vec![HOLD_AT_C] };
        assert_eq!(releases(&out, "c"), at_c, "step {step}");
        assert!(reader.pair.nodes[1].replicas.made.len() == 0, "step {step}");
    }
}

/// An answer to a question of an earlier fetch of the same object changes nothing.
#[test]
fn a_late_answer_is_ignored() {
    let (mut reader, question) = FetchingNode::new();
    reader.answered(&question, &SenderAnswer::Home);
    let late = SenderAnswer::Member { name: "c".to_owned(), key: KEY };
    let out = reader.answered(&question, &late);
    assert_eq!((opens(&out), load(&out), releases(&out, "a")), (vec![], None, vec![77]));
    reader.completes();
}

/// Regression test: a node without a lease dropped what had arrived and fetched it again, object by
/// object and without a pause, until it had its lease back.
#[test]
fn without_a_lease_no_transfer_begins() {
    let (mut reader, question) = FetchingNode::new();
    reader.answered(&question, &SenderAnswer::Home);
    // It was stopped for longer than its lease.
    reader.pair.now_ms += 2_000;
    let out = reader.loaded(Ok(()));
    assert!(!is_answered(&out), "the object may be deleted by now: {out:?}");
    assert_eq!(releases(&out, "a"), [HOLD]);
    let mut open = reader.question(&out);
    let out = reader.opened(&open, Ok((HOLD, reader.described())));
    assert_eq!((opens(&out), load(&out)), (vec![], None));
    let is_question = |open: &Open| matches!(open.query, NetQuery::Sender { .. });
    for round in 0.. {
        assert!(round < 1_000, "no transfer after the lease");
        let out = reader.pair.round();
        let Some(next) = opens(&out).pop() else { continue };
        assert!(reader.pair.nodes[1].members().has_lease, "{next:?}");
        open = next;
        if is_question(&open) {
            break;
        }
        let out = reader.opened(&open, Ok((HOLD, reader.described())));
        if let Some(next) = opens(&out).pop() {
            open = next;
            break;
        }
    }
    assert!(is_question(&open), "{open:?}");
    let out = reader.answered(&open, &SenderAnswer::Home);
    assert_eq!(load(&out), from_home());
    reader.completes();
}

/// Regression test: a connection was lost during each transfer, soon after it began. The object was
/// opened again at once and with a new limit each time, so the client never had an answer.
#[test]
fn a_transfer_that_always_fails_ends_with_an_error() {
    let is_lost = |action: &Action| {
        matches!(action, Action::Send { session: CLIENT, reply, .. }
            if matches!(reply.body, Err(WireError::NodeLost { .. })))
    };
    let (mut reader, mut question) = FetchingNode::new();
    for tries in 1.. {
        assert!(tries < 200, "it goes on and on");
        reader.answered(&question, &SenderAnswer::Home);
        let out = reader.loaded(Err(NetFault::Lost("reset".to_owned())));
        if out.iter().any(is_lost) {
            assert!(tries > 5, "its node may be restarting");
            break;
        }
        assert_eq!(opens(&out), [], "not without a pause");
        let open = loop {
            if let Some(open) = opens(&reader.pair.round()).pop() {
                break open;
            }
        };
        let out = reader.opened(&open, Ok((HOLD, reader.described())));
        question = reader.question(&out);
    }
}
