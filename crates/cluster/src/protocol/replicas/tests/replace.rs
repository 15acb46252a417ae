//! Objects that take the place of others.

use std::sync::Mutex;

use super::*;
use crate::protocol::core::drain::state::IncomingMove;

/// No member has opened anything; counts how often each object is closed to them.
#[derive(Default)]
struct CountedCloses(Mutex<BTreeMap<ObjectId, i32>>);

impl CountedCloses {
    fn count(&self, object: ObjectId, change: i32) {
        *self.0.lock().unwrap().entry(object).or_default() += change;
    }

    fn closed(&self) -> Vec<ObjectId> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|(_, count)| **count != 0).map(|(object, _)| *object).collect()
    }
}

impl NetReaders for CountedCloses {
    fn publish_rules(&self, _: ReaderRules) {}

    fn take(&self, _: ObjectId) -> BTreeSet<MemberLife> {
        BTreeSet::new()
    }

    fn close(&self, object: ObjectId) -> BTreeSet<MemberLife> {
        self.count(object, 1);
        BTreeSet::new()
    }

    fn reopen(&self, object: ObjectId) {
        self.count(object, -1);
    }

    fn is_any(&self, _: ObjectId) -> bool {
        false
    }

    fn serve_replica(&self, _: ObjectId, _: ObjectId) -> Option<ReplicaKey> {
        Some(KEY)
    }

    fn hide_replica(&self, _: ObjectId) {}

    fn not_restored(&self, _: ObjectId, _: String) {}

    fn packed(&self) -> [[u64; 2]; 2] {
        Default::default()
    }

    fn served(&self) -> [u64; 2] {
        [0; 2]
    }
}
/// Node b has opened some objects.
#[derive(Default)]
struct OpenedByB(Mutex<BTreeSet<ObjectId>>);

impl NetReaders for OpenedByB {
    fn publish_rules(&self, _: ReaderRules) {}

    fn take(&self, _: ObjectId) -> BTreeSet<MemberLife> {
        BTreeSet::new()
    }

    fn close(&self, object: ObjectId) -> BTreeSet<MemberLife> {
        let is_opened = self.0.lock().unwrap().remove(&object);
        let b = MemberLife { name: "b".to_owned(), incarnation: INCARNATION };
        is_opened.then_some(b).into_iter().collect()
    }

    fn reopen(&self, _: ObjectId) {}

    fn is_any(&self, object: ObjectId) -> bool {
        self.0.lock().unwrap().contains(&object)
    }

    fn serve_replica(&self, _: ObjectId, _: ObjectId) -> Option<ReplicaKey> {
        Some(KEY)
    }

    fn hide_replica(&self, _: ObjectId) {}

    fn not_restored(&self, _: ObjectId, _: String) {}

    fn packed(&self) -> [[u64; 2]; 2] {
        Default::default()
    }

    fn served(&self) -> [u64; 2] {
        [0; 2]
    }
}

impl ReplicaNodes {
    /// A client of node a with a page of memory; the offset of the page.
    fn connect_writer(&mut self) -> u64 {
        let peer = PeerIdentity { pid: 7, start_time: 1, uid: 0, remote_client: None };
        self.nodes[0].opened(CLIENT, peer, self.now_ms);
        let (namespace, node) = (String::new(), String::new());
        let hello =
            Hello { version: PROTOCOL_VERSION, resume: None, namespace, node, maps_memory: true };
        let welcome = self.ask(CLIENT.0, RequestBody::Hello(hello));
        assert!(matches!(welcome, Ok(ReplyBody::Welcome(_))), "{welcome:?}");
        let grant = RequestBody::Grant { min: 4096, want: 4096, wait_ms: 0 };
        match self.ask(CLIENT.0, grant) {
            Ok(ReplyBody::Granted((start, _))) => start,
            other => panic!("{other:?}"),
        }
    }

    /// Node b reads the object "t" of node a by network, and has a replica from then on.
    fn replicate_at_b(&mut self, lo: u64) {
        let key = FetchKey::new(NetQuery::Name("t".to_owned()), Extent::Whole).unwrap();
        let waiter = FetchWaiter { key, session: CLIENT, seq: 1, until_ms: u64::MAX };
        let (now_ms, mut out) = (self.now_ms, Vec::new());
        assert_eq!(self.nodes[1].fetch(waiter, now_ms, &mut out), Ok(None));
        let (token, opened) = (opened_at("a", &out).unwrap(), described_as(&self.nodes[0], lo));
        let event = NetEvent::Opened { token, node: "a".to_owned(), result: Ok((9, opened)) };
        self.nodes[1].net_event(event, now_ms, &mut Vec::new());
        assert!(self.nodes[1].home().has_name("t").unwrap());
    }
}

/// What happens while a seal waits for the replicas of what it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    ClientEnds,
    /// The daemon is stopped for longer than its lease.
    LeaseEnds,
}

/// Regression test: one message replaced an object and created another one. The seal waited for the
/// name of the new one, and then nothing waited for the replicas of the replaced one: a reader of
/// another node found its old bytes after the put. And when the lease had ended meanwhile, names were
/// given that other members may have given away by then.
#[test]
fn a_seal_that_also_creates_names_waits_for_the_replicas_of_what_it_replaces() {
    for meanwhile in [Meanwhile::Nothing, Meanwhile::ClientEnds, Meanwhile::LeaseEnds] {
        // The first of two has the lease without the other.
        let mut pair = ReplicaNodes::of(3);
        let opened = Arc::new(OpenedByB::default());
        pair.nodes[0].set_net(Arc::clone(&opened) as _, "net", None);
        let start = pair.connect_writer();
        let item = |name: &str, number: u64| SealItem {
            name: Some(name.to_owned()),
            is_replacing: true,
            ..SealItem::bytes((start + 128 * number, 128), 9)
        };
        let seal = |items: Vec<SealItem>| RequestBody::Seal { items };
        let Ok(ReplyBody::Sealed(sealed)) = pair.ask(CLIENT.0, seal(vec![item("t", 0)])) else {
            panic!("not sealed")
        };
        let WireObjectId { hi, lo } = sealed[0].clone().unwrap();
        pair.replicate_at_b(lo);
        opened.0.lock().unwrap().insert(ObjectId { hi, lo });

        // Some of the names are those of node b to grant.
        let names: Vec<String> = (0..8).map(|number| format!("new{number}")).collect();
        let new = names.iter().zip(2..).map(|(name, number)| item(name, number));
        let items = new.chain([item("t", 1)]).collect();
        if meanwhile != Meanwhile::Nothing {
            let (request, mut out) = (Request { seq: 7, body: seal(items) }, Vec::new());
            pair.nodes[0].handle(CLIENT, request, pair.now_ms, 1, &mut out);
            pair.send(0, out);
            while pair.nodes[0].replicas.replacements.is_empty() {
                pair.deliver().expect("the seal waits for node b");
            }
            if meanwhile == Meanwhile::ClientEnds {
                pair.nodes[0].closed(CLIENT, false, pair.now_ms);
            } else {
                pair.now_ms += 10_000;
            }
            let mut later: Vec<Action> = Vec::new();
            // Nothing but the answer of b says how late it is.
            while meanwhile == Meanwhile::LeaseEnds
                && !pair.nodes[0].replicas.replacements.is_empty()
            {
                pair.messages.retain(|(_, _, message)| !matches!(message, NodeMessage::ToPeer(_)));
                later.extend(pair.deliver().expect("b answers"));
            }
            // The names are free when it is answered.
            (0..200).for_each(|_| later.extend(pair.round()));
            let is_cut_off = |action: &Action| {
                matches!(action, Action::Send { session: CLIENT, reply, .. }
                    if matches!(reply.body, Err(WireError::CutOff { .. })))
            };
            let is_refused = later.iter().any(is_cut_off);
            assert_eq!(is_refused, meanwhile == Meanwhile::LeaseEnds);
            assert!(!pair.nodes[0].home().has_name("new0").unwrap());
            let cluster = pair.nodes[0].cluster.0.as_ref().unwrap();
            assert_eq!(cluster.naming.held().collect::<Vec<_>>(), [""; 0]);
            assert_eq!(pair.nodes[0].home().find(Target::Name("t")).unwrap().id.lo, lo);
            continue;
        }
        let sealed = pair.ask(CLIENT.0, seal(items));
        let Ok(ReplyBody::Sealed(sealed)) = sealed else { panic!("{sealed:?}") };
        assert!(sealed.iter().all(Result::is_ok), "{sealed:?}");
        assert!(!pair.nodes[1].home().has_name("t").unwrap(), "a replica of the old object");
        assert_ne!(pair.nodes[0].home().find(Target::Name("t")).unwrap().id.lo, lo);
        (0..100).for_each(|_| drop(pair.round()));
        let cluster = pair.nodes[0].cluster.0.as_ref().unwrap();
        assert_eq!(cluster.naming.held().collect::<Vec<_>>(), [""; 0], "in flight");
    }
}

/// Regression test: one message replaced an object that was just moving here and created another
/// one. It waited for the move, and then asked for no name: it was refused as taken.
#[test]
fn a_seal_that_waited_for_a_move_asks_for_its_new_names() {
    let mut pair = ReplicaNodes::new();
    let start = pair.connect_writer();
    let item = |name: &str, number: u64| SealItem {
        name: Some(name.to_owned()),
        is_replacing: true,
        ..SealItem::bytes((start + 128 * number, 128), 9)
    };
    let first = RequestBody::Seal { items: vec![item("t", 0)] };
    let Ok(ReplyBody::Sealed(sealed)) = pair.ask(CLIENT.0, first) else { panic!("not sealed") };
    let b = pair.nodes[1].home().uid().0;
    pair.nodes[0].drain.record.incoming.push(IncomingMove {
        origin: WireObjectId { hi: b, lo: 7 },
        from: "b".to_owned(),
        name: "t".to_owned(),
        id: sealed[0].clone().ok(),
        number: 1,
    });
    let names: Vec<String> = (0..8).map(|number| format!("new{number}")).collect();
    let new = names.iter().zip(2..).map(|(name, number)| item(name, number));
    let items = new.chain([item("t", 1)]).collect();
    let (request, mut out) = (Request { seq: 7, body: RequestBody::Seal { items } }, Vec::new());
    pair.nodes[0].handle(CLIENT, request, pair.now_ms, 1, &mut out);
    let mut later = pair.send(0, out);
    // As if node b had confirmed the move.
    pair.nodes[0].drain.record.incoming.clear();
    (0..50).for_each(|_| later.extend(pair.round()));
    let sealed = later.iter().find_map(|action| match action {
        Action::Send { session: CLIENT, reply, .. } => Some(reply.body.clone()),
        _ => None,
    });
    let Some(Ok(ReplyBody::Sealed(sealed))) = sealed else { panic!("{sealed:?}") };
    assert!(sealed.len() == 9 && sealed.iter().all(Result::is_ok), "{sealed:?}");
}

/// Regression test: one message sealed two objects in the place of the same one. It was refused, and
/// the object stayed closed to other nodes: none of them could read it any more.
#[test]
fn a_refused_replacement_leaves_no_object_closed() {
    let mut pair = ReplicaNodes::new();
    let counted = Arc::new(CountedCloses::default());
    pair.nodes[0].set_net(Arc::clone(&counted) as _, "net", None);
    let start = pair.connect_writer();
    let mut seal = |names: &[&str]| {
        let items = names.iter().zip(0..).map(|(name, number)| SealItem {
            name: Some((*name).to_owned()),
            is_replacing: true,
            ..SealItem::bytes((start + 1024 * names.len() as u64 + 128 * number, 128), 9)
        });
        let items = items.collect();
        match pair.ask(CLIENT.0, RequestBody::Seal { items }) {
            Ok(ReplyBody::Sealed(sealed)) => sealed.iter().all(Result::is_ok),
            Err(_) => false,
            other => panic!("{other:?}"),
        }
    };
    let long = "n".repeat(300);
    assert!(seal(&["x"]), "nothing to replace");
    assert!(!seal(&["x", "x"]), "one name for two objects");
    assert_eq!(counted.closed(), []);
    assert!(!seal(&["x", &long, "x"]), "no name");
    assert_eq!(counted.closed(), []);
}
