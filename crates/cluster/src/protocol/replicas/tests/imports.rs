//! Objects of node b that its clients have brought to node a.

use super::*;
use crate::protocol::action::answer_peer;
use crate::protocol::core::drain::incoming::TakeRequest;
use crate::protocol::replicas::transfers::STEP_MS_MAX;

/// The client of node b, with its connection to node a.
const WRITER: u64 = 10;
const WRITER_AGAIN: u64 = 11;
/// A client of node a.
const READER: u64 = 99;
const HOLD: u64 = 9;
const HOLD_OF_READER: u64 = 10;

struct Imports {
    pair: ReplicaNodes,
    origin: ObjectId,
    /// Free bytes of node a before the import.
    free: Length,
    next: u64,
}

impl Imports {
    /// A client has reserved the name "t" at node a.
    fn new() -> Self {
        let mut pair = ReplicaNodes::new();
        pair.connect(WRITER, 42, None);
        assert_eq!(pair.reserve(WRITER, "t"), Ok(ReplyBody::Done));
        let origin = ObjectId { hi: pair.nodes[1].home().uid().0, lo: 1 << 32 };
        let (free, _) = pair.nodes[0].home().free_bytes();
        Self { pair, origin, free, next: 100 }
    }

    fn node(&mut self) -> &mut NodeState {
        &mut self.pair.nodes[0]
    }

    /// A step of the import; the actions that follow from it.
    fn import(&mut self, step: ImportStep) -> Vec<Action> {
        self.import_over(WRITER, step)
    }

    /// The same over the next connection.
    fn import_again(&mut self, step: ImportStep) -> Vec<Action> {
        self.import_over(WRITER_AGAIN, step)
    }

    fn import_over(&mut self, session: u64, step: ImportStep) -> Vec<Action> {
        self.next += 1;
        let origin = self.origin.into();
        let body = RequestBody::Import { origin, step, wait_ms: 60_000 };
        let (request, now_ms) = (Request { seq: self.next, body }, self.pair.now_ms);
        let mut out = Vec::new();
        self.node().handle(SessionId(session), request, now_ms, 1, &mut out);
        out
    }

    /// A client of node a asks for the object.
    fn read(&mut self) -> Vec<Action> {
        let wish = NetQuery::Id(self.origin.hi, self.origin.lo);
        let key = FetchKey::new(wish, Extent::Whole).unwrap();
        let waiter = FetchWaiter { key, session: SessionId(READER), seq: 1, until_ms: u64::MAX };
        let (now_ms, mut out) = (self.pair.now_ms, Vec::new());
        assert_eq!(self.node().fetch(waiter, now_ms, &mut out), Ok(None));
        out
    }

    /// Node b has opened its object. Its bytes are not in the answer.
    fn opened(&mut self, token: u64, hold: u64) -> Vec<Action> {
        let opened = Opened { inline: Vec::new(), ..described(&self.pair.nodes[1]) };
        let result = Ok((hold, opened));
        self.event(NetEvent::Opened { token, node: "b".to_owned(), result })
    }

    fn loaded(&mut self, result: Result<(), NetFault>) -> Vec<Action> {
        let origin = self.origin;
        self.event(NetEvent::Loaded { origin, result })
    }

    fn event(&mut self, event: NetEvent) -> Vec<Action> {
        let (now_ms, mut out) = (self.pair.now_ms, Vec::new());
        self.node().net_event(event, now_ms, &mut out);
        out
    }

    /// The client was killed.
    fn end_client(&mut self) {
        let now_ms = self.pair.now_ms;
        self.node().closed(SessionId(WRITER), false, now_ms);
    }

    /// The connection of the client ended, and it made another one.
    fn reconnect(&mut self) {
        let now_ms = self.pair.now_ms;
        self.node().closed(SessionId(WRITER), true, now_ms);
        self.pair.connect(WRITER_AGAIN, 42, None);
    }

    fn check_nothing_is_left(&mut self) {
        let free = self.free;
        let node = self.node();
        assert!(node.replicas.loading.is_empty() && node.replicas.openings.is_empty());
        assert_eq!(node.home().free_bytes().0, free);
    }

    /// An import whose bytes are on their way.
    fn begun(step: ImportStep) -> Self {
        let mut imports = Self::new();
        let out = imports.import(step);
        let out = imports.opened(opened_at("b", &out).unwrap(), HOLD);
        assert!(out.iter().any(is_load), "{out:?}");
        imports
    }
}

fn seal() -> ImportStep {
    ImportStep::Seal { name: Some("t".to_owned()), metadata: None, is_pinned: false }
}

fn is_load(action: &Action) -> bool {
    matches!(action, Action::Net(NetAction::Load { .. }))
}

fn releases(actions: &[Action]) -> Vec<u64> {
    let hold = |action: &Action| match action {
        Action::Net(NetAction::Release { hold, .. }) => Some(*hold),
        _ => None,
    };
    actions.iter().filter_map(hold).collect()
}

fn answer_of(actions: &[Action], to: u64) -> Option<Result<ReplyBody, WireError>> {
    actions.iter().find_map(|action| match action {
        Action::Send { session, reply, .. } if *session == SessionId(to) => {
            Some(reply.body.clone())
        }
        _ => None,
    })
}

/// Regression test: a client of the target read an object that a drain was moving there. It got the
/// answers of the one that moved it: that its bytes are there, which is no answer to a fetch, or why
/// that one failed.
#[test]
fn a_reader_of_an_object_that_is_imported_gets_no_answer_of_the_import() {
    for is_brought in [true, false] {
        let mut imports = Imports::begun(ImportStep::Bring);
        let out = imports.read();
        let out = imports.opened(opened_at("b", &out).unwrap(), HOLD_OF_READER);
        assert_eq!(releases(&out), [HOLD_OF_READER], "one transfer of an object at a time");
        assert!(!out.iter().any(is_load) && answer_of(&out, READER).is_none(), "{out:?}");

        let end = if is_brought { Ok(()) } else { Err(NetFault::Other("it failed".to_owned())) };
        let mut out = imports.loaded(end);
        assert_eq!(answer_of(&out, WRITER).unwrap().is_ok(), is_brought, "{out:?}");
        if is_brought {
            assert_eq!(answer_of(&out, READER), None, "the import is not over");
            out = imports.import(seal());
            let sealed = answer_of(&out, WRITER);
            assert!(matches!(sealed, Some(Ok(ReplyBody::Fetched(Some(_))))), "{sealed:?}");
        }
        assert_eq!(answer_of(&out, READER), None);
        let token = opened_at("b", &out).expect("its object is asked for again");
        let out = imports.opened(token, HOLD_OF_READER + 1);
        assert!(out.iter().any(is_load), "{out:?}");
        let out = imports.loaded(Ok(()));
        let read = answer_of(&out, READER);
        assert!(matches!(read, Some(Ok(ReplyBody::Fetched(Some(_))))), "{read:?}");
    }
}

/// Regression test: a client was killed while the bytes of its object were on their way. They stayed
/// in memory, and the hold at the home, for as long as both nodes ran.
#[test]
fn an_import_ends_with_its_client() {
    // Its object is being opened.
    let mut imports = Imports::new();
    let out = imports.import(ImportStep::Bring);
    imports.end_client();
    assert!(imports.node().replicas.openings.is_empty());
    let out = imports.opened(opened_at("b", &out).unwrap(), HOLD);
    assert_eq!(releases(&out), [HOLD]);
    assert!(!out.iter().any(is_load), "{out:?}");

    // Its bytes are on their way.
    for step in [ImportStep::Bring, seal()] {
        for result in [Ok(()), Err(NetFault::Other("it failed".to_owned()))] {
            let mut imports = Imports::begun(step.clone());
            let free = imports.free;
            assert!(imports.node().home().free_bytes().0 < free, "its memory is taken");
            imports.end_client();
            let out = imports.loaded(result);
            assert_eq!(releases(&out), [HOLD]);
            imports.check_nothing_is_left();
        }
    }

    // They are here, or wait for room.
    for is_brought in [true, false] {
        let mut imports = Imports::begun(ImportStep::Bring);
        if is_brought {
            imports.loaded(Ok(()));
        } else {
            let origin = imports.origin;
            imports.node().home.abort_replica(origin).unwrap();
            imports.node().replicas.loading.get_mut(&origin).unwrap().is_on_its_way = false;
        }
        imports.end_client();
        assert_eq!(releases(&imports.pair.round()), [HOLD]);
        imports.check_nothing_is_left();
    }
}

/// Regression test: a daemon was stopped for longer than its lease while the bytes of an object were
/// on their way. It gave the object its name before it noticed, when other members may have given
/// that away.
#[test]
fn an_import_gets_no_name_without_a_lease() {
    let mut imports = Imports::begun(seal());
    imports.pair.now_ms += 10_000;
    let out = imports.loaded(Ok(()));
    let answer = answer_of(&out, WRITER);
    assert!(matches!(answer, Some(Err(WireError::NodeLost { .. }))), "{answer:?}");
    assert_eq!(releases(&out), [HOLD]);
    assert!(!imports.node().home().has_name("t").unwrap());
    imports.check_nothing_is_left();
}

/// Regression test: the target of a drain remembered each object that it took, for a question that
/// only clients that seal ask again.
#[test]
fn a_taken_object_is_not_remembered_for_its_client() {
    let mut imports = Imports::begun(ImportStep::Bring);
    imports.loaded(Ok(()));
    let (object, now_ms) = (imports.origin.lo, imports.pair.now_ms);
    let ask = TakeRequest { from: "b", object, number: 1, name: "u", is_pinned: false };
    let taken = imports.node().take_object(&ask, now_ms, &mut Vec::new());
    let id = taken.unwrap();
    let named = imports.node().home().find(Target::Name("u")).unwrap();
    assert_eq!(named.id, ObjectId::from(id));
    assert!(imports.node().replicas.imported.is_empty());
    assert_eq!(imports.node().take_object(&ask, now_ms, &mut Vec::new()), Ok(id));
}

/// It failed as if its node were closing, or lost: neither was the cause.
#[test]
fn an_import_of_an_object_that_is_deleted_meanwhile_does_not_find_it() {
    for is_on_its_way in [false, true] {
        let mut imports = Imports::begun(seal());
        let (origin, now_ms) = (imports.origin, imports.pair.now_ms);
        let mut out = Vec::new();
        if is_on_its_way {
            let (replicas, mut context) = imports.node().replicas(now_ms, &mut out);
            replicas.on_invalidation("b", &[origin.lo], &mut context);
            out.extend(imports.loaded(Ok(())));
        } else {
            // It waits for room.
            imports.node().home.abort_replica(origin).unwrap();
            imports.node().replicas.loading.get_mut(&origin).unwrap().is_on_its_way = false;
            let (replicas, mut context) = imports.node().replicas(now_ms, &mut out);
            replicas.on_invalidation("b", &[origin.lo], &mut context);
        }
        let answer = answer_of(&out, WRITER);
        assert!(matches!(answer, Some(Err(WireError::NotFound { .. }))), "{answer:?}");
        assert_eq!(releases(&out), [HOLD]);
        imports.check_nothing_is_left();
    }
}

/// Its client was stopped before the next step, and the reader waited without a limit.
#[test]
fn a_reader_gets_an_object_whose_import_has_stalled() {
    let mut imports = Imports::begun(ImportStep::Bring);
    imports.loaded(Ok(()));
    let out = imports.read();
    imports.opened(opened_at("b", &out).unwrap(), HOLD_OF_READER);
    let begun_ms = imports.pair.now_ms;
    let deadline_ms = imports.node().next_deadline_ms().unwrap();
    assert!(deadline_ms <= begun_ms + STEP_MS_MAX, "{deadline_ms}");
    // The nodes stay in touch.
    let token = loop {
        let out = imports.pair.round();
        if let Some(token) = opened_at("b", &out) {
            assert_eq!(releases(&out), [HOLD]);
            break token;
        }
        assert!(imports.pair.now_ms <= begun_ms + 2 * STEP_MS_MAX, "the reader still waits");
    };
    assert!(imports.pair.now_ms >= begun_ms + STEP_MS_MAX);
    imports.opened(token, HOLD_OF_READER + 1);
    let read = answer_of(&imports.loaded(Ok(())), READER);
    assert!(matches!(read, Some(Ok(ReplyBody::Fetched(Some(_))))), "{read:?}");

    // The client continues: its import begins again.
    let out = imports.import(seal());
    imports.opened(opened_at("b", &out).unwrap(), HOLD + 10);
    let sealed = answer_of(&imports.loaded(Ok(())), WRITER);
    assert!(matches!(sealed, Some(Ok(ReplyBody::Fetched(Some(_))))), "{sealed:?}");
    assert!(imports.node().home().has_name("t").unwrap());
}

/// Regression test: a client whose connection ended before the answer, as when certificates are
/// replaced, could not know whether its object was sealed, and its put failed.
#[test]
fn a_client_asks_over_its_next_connection_whether_its_import_was_sealed() {
    let mut imports = Imports::begun(seal());
    let sealed = answer_of(&imports.loaded(Ok(())), WRITER).unwrap();
    assert!(matches!(sealed, Ok(ReplyBody::Fetched(Some(_)))), "{sealed:?}");
    imports.reconnect();
    for _ in 0..2 {
        let out = imports.import_again(ImportStep::Bring);
        assert_eq!(answer_of(&out, WRITER_AGAIN), Some(sealed.clone()));
    }
}

#[test]
fn an_import_begins_again_over_the_next_connection_when_the_transfer_for_the_last_one_has_ended() {
    let mut imports = Imports::begun(seal());
    imports.reconnect();
    let out = imports.import_again(ImportStep::Bring);
    assert_eq!(answer_of(&out, WRITER_AGAIN), Some(Ok(ReplyBody::Fetching)));
    let out = imports.loaded(Ok(()));
    assert_eq!(releases(&out), [HOLD]);
    imports.check_nothing_is_left();

    let out = imports.import_again(ImportStep::Bring);
    imports.opened(opened_at("b", &out).unwrap(), HOLD + 1);
    let out = imports.loaded(Ok(()));
    assert_eq!(answer_of(&out, WRITER_AGAIN), Some(Ok(ReplyBody::Done)));
    assert_eq!(imports.pair.reserve(WRITER_AGAIN, "t"), Ok(ReplyBody::Done));
    let sealed = answer_of(&imports.import_again(seal()), WRITER_AGAIN);
    assert!(matches!(sealed, Some(Ok(ReplyBody::Fetched(Some(_))))), "{sealed:?}");
}

/// Regression test: a daemon was stopped for longer than its lease between the check of a name and the
/// write of its entry, in an import or a move. Another member may have granted the name meanwhile.
#[test]
fn an_import_whose_name_was_written_after_the_lease_is_undone_before_its_answer() {
    let mut imports = Imports::begun(seal());
    let mut out = imports.loaded(Ok(()));
    assert!(matches!(answer_of(&out, WRITER), Some(Ok(ReplyBody::Fetched(Some(_))))), "{out:?}");
    let late_ms = imports.pair.now_ms + 10_000;
    imports.node().confirm_names(late_ms, &mut out);
    assert_eq!(answer_of(&out, WRITER), None);
    assert!(out.contains(&Action::Close { session: SessionId(WRITER) }), "{out:?}");
    assert!(!imports.node().home().has_name("t").unwrap());
    assert!(imports.node().replicas.imported.is_empty());
    imports.check_nothing_is_left();
}

#[test]
fn a_move_whose_name_was_written_after_the_lease_is_undone_before_its_answer() {
    let mut imports = Imports::begun(ImportStep::Bring);
    imports.loaded(Ok(()));
    let (object, now_ms) = (imports.origin.lo, imports.pair.now_ms);
    let ask = TakeRequest { from: "b", object, number: 1, name: "u", is_pinned: true };
    let mut out = Vec::new();
    let taken = imports.node().take_object(&ask, now_ms, &mut out);
    out.push(answer_peer(7, &Answer::Took(taken)));
    imports.node().confirm_names(now_ms + 10_000, &mut out);
    let is_answer = |action: &Action| matches!(action, Action::Peer(PeerAction::Answer { .. }));
    assert!(!out.iter().any(is_answer), "{out:?}");
    assert!(!imports.node().home().has_name("u").unwrap());
    imports.check_nothing_is_left();
    // The old home asks again, when this node has its lease again.
    let again = imports.node().take_object(&ask, now_ms, &mut Vec::new());
    assert!(matches!(again, Err(WireError::NotMoved(_))), "{again:?}");
}

/// As after every turn of the server.
#[test]
fn names_that_were_written_with_the_lease_stay() {
    let mut imports = Imports::begun(seal());
    let mut out = imports.loaded(Ok(()));
    let now_ms = imports.pair.now_ms;
    imports.node().confirm_names(now_ms, &mut out);
    assert!(answer_of(&out, WRITER).unwrap().is_ok());
    assert!(imports.node().home().has_name("t").unwrap());
}
