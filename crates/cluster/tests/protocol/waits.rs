//! Waits for objects, subscribers, and evictions: each ends by its event, its deadline, or the end of
//! the node.

use farrow_cluster::protocol::{SpillDone, SpillJob, WriteFault};

use super::*;

#[test]
fn a_wait_ends_by_its_seal_by_its_time_or_with_the_node() {
    let mut options = RegionOptions::for_capacity(Length(1 << 20));
    options.clients_max = 4;
    let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: 1000 };
    let mut state = NodeState::new(region(&options), daemon, AdoptedState::default(), 0);
    let session = SessionId(0);
    let peer = PeerIdentity { pid: 9, start_time: 1, uid: 1000, remote_client: None };
    let mut out = Vec::new();
    state.opened(session, peer, 0);
    let hello = RequestBody::Hello(Hello {
        version: PROTOCOL_VERSION,
        resume: None,
        namespace: String::new(),
        node: String::new(),
        maps_memory: true,
    });
    state.handle(session, Request { seq: 1, body: hello }, 0, 0, &mut out);
    let wait = |seq, timeout_ms| Request {
        seq,
        body: RequestBody::Wait {
            targets: vec![WireTarget::Name("n".into())],
            count: 1,
            timeout_ms,
        },
    };
    out.clear();
    state.handle(session, wait(2, 50), 100, 0, &mut out);
    state.handle(session, wait(3, 5000), 100, 0, &mut out);
    assert_eq!(out, []);
    assert!(state.next_deadline_ms().is_some_and(|at| at <= 150));
    state.tick(149, &mut out);
    assert_eq!(out, [], "too early");
    state.tick(150, &mut out);
    let ready = |action: &Action| match action {
        Action::Send { reply, .. } => match &reply.body {
            Ok(ReplyBody::Ready(ready)) => Some((reply.seq, ready.clone())),
            _ => None,
        },
        _ => None,
    };
    assert_eq!(out.iter().filter_map(ready).collect::<Vec<_>>(), [(2, vec![false])]);
    out.clear();
    let grant = RequestBody::Grant { min: 4096, want: 4096, wait_ms: 0 };
    state.handle(session, Request { seq: 4, body: grant }, 200, 0, &mut out);
    let Some(Action::Send { reply, .. }) = out.pop() else { panic!("no answer") };
    let Ok(ReplyBody::Granted(primary)) = reply.body else { panic!("no grant") };
    let item = SealItem { name: Some("n".into()), ..SealItem::bytes(primary, 5) };
    let seal = RequestBody::Seal { items: vec![item] };
    state.handle(session, Request { seq: 5, body: seal }, 200, 0, &mut out);
    assert_eq!(out.iter().filter_map(ready).collect::<Vec<_>>(), [(3, vec![true])]);
    out.clear();
    let never = RequestBody::Wait {
        targets: vec![WireTarget::Name("never".into())],
        count: 1,
        timeout_ms: 5000,
    };
    state.handle(session, Request { seq: 6, body: never }, 300, 0, &mut out);
    state.stop(&mut out);
    assert!(matches!(&out[..], [Action::Send { reply, .. }]
        if reply.seq == 6 && reply.body == Err(WireError::Closing)));
}

/// A node with one client, and with a second connection of it that listens.
struct Listening {
    state: NodeState,
    out: Vec<Action>,
}

const CLIENT: SessionId = SessionId(0);
const LISTENER: SessionId = SessionId(1);

impl Listening {
    fn new() -> Self {
        let mut options = RegionOptions::for_capacity(Length(1 << 20));
        options.events_max = 8;
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: 1000 };
        let mut state = NodeState::new(region(&options), daemon, AdoptedState::default(), 0);
        let peer = PeerIdentity { pid: 9, start_time: 1, uid: 1000, remote_client: None };
        state.opened(CLIENT, peer, 0);
        state.opened(LISTENER, peer, 0);
        let mut this = Self { state, out: Vec::new() };
        let hello = RequestBody::Hello(Hello {
            version: PROTOCOL_VERSION,
            resume: None,
            namespace: String::new(),
            node: String::new(),
            maps_memory: true,
        });
        let welcome = this.ask(CLIENT, 0, hello);
        let [(_, Ok(ReplyBody::Welcome(welcome)))] = &welcome[..] else { panic!("{welcome:?}") };
        let listen = Listen {
            version: PROTOCOL_VERSION,
            region_uid: welcome.region_uid,
            slot: welcome.slot,
            nonce: welcome.nonce,
            node: String::new(),
        };
        let early = this.ask(LISTENER, 0, Self::watch(0, "", 1));
        assert!(matches!(early[..], [(_, Err(WireError::Invalid(_)))]), "{early:?}");
        let listen = RequestBody::Listen(listen);
        assert_eq!(this.ask(LISTENER, 0, listen.clone()), [(0, Ok(ReplyBody::Done))]);
        let twice = this.ask(LISTENER, 0, listen);
        assert!(matches!(twice[..], [(_, Err(WireError::Invalid(_)))]), "{twice:?}");
        let stats = this.ask(LISTENER, 0, RequestBody::Stats);
        assert!(matches!(stats[..], [(_, Err(WireError::Invalid(_)))]), "{stats:?}");
        this
    }

    fn watch(after: u64, prefix: &str, timeout_ms: u64) -> RequestBody {
        RequestBody::Watch(Watch { after, prefix: prefix.into(), kinds: u8::MAX, timeout_ms })
    }

    /// All that is answered to anybody at time 100, by sequence number.
    fn ask(
        &mut self,
        session: SessionId,
        seq: u64,
        body: RequestBody,
    ) -> Vec<(u64, Result<ReplyBody, WireError>)> {
        self.state.handle(session, Request { seq, body }, 100, 7, &mut self.out);
        self.answers()
    }

    fn answers(&mut self) -> Vec<(u64, Result<ReplyBody, WireError>)> {
        let answer = |action| match action {
            Action::Send { reply, .. } => Some((reply.seq, reply.body)),
            _ => None,
        };
        self.out.drain(..).filter_map(answer).collect()
    }

    /// Seals objects, and returns what others were answered.
    fn seal(&mut self, names: &[&str]) -> Vec<(u64, Result<ReplyBody, WireError>)> {
        let mut items = Vec::new();
        for name in names {
            let grant = RequestBody::Grant { min: 128, want: 128, wait_ms: 0 };
            let granted = self.ask(CLIENT, 900, grant);
            let [(900, Ok(ReplyBody::Granted(primary)))] = granted[..] else {
                panic!("{granted:?}")
            };
            let primary = (primary.0, 128);
            items.push(SealItem { name: Some((*name).into()), ..SealItem::bytes(primary, 5) });
        }
        let mut answers = self.ask(CLIENT, 901, RequestBody::Seal { items });
        answers.retain(|(seq, _)| *seq != 901);
        answers
    }
}

fn watched(next: u64) -> Result<ReplyBody, WireError> {
    Ok(ReplyBody::Watched { next })
}

#[test]
fn a_subscriber_receives_what_it_asked_for_and_nothing_else() {
    let mut node = Listening::new();
    assert_eq!(node.ask(LISTENER, 1, Listening::watch(0, "b", 500)), []);
    assert_eq!(node.ask(LISTENER, 2, Listening::watch(0, "", 5000)), []);
    assert_eq!(node.seal(&["a"]), [(2, watched(0))]);
    // The others go on waiting, and are told how far they need not look.
    assert_eq!(node.seal(&["c", "bb", "b"]), [(1, watched(2))]);
    assert_eq!(node.ask(LISTENER, 3, Listening::watch(3, "b", 500)), [(3, watched(3))]);
    assert_eq!(node.ask(LISTENER, 4, Listening::watch(0, "a", 0)), [(4, watched(0))]);
    assert_eq!(node.ask(LISTENER, 5, Listening::watch(1, "a", 0)), [(5, watched(4))]);
    // One kind alone.
    let deleted = farrow_store::EventKind::Deleted.bit();
    let watch = Watch { after: 0, prefix: "b".into(), kinds: deleted, timeout_ms: 500 };
    assert_eq!(node.ask(LISTENER, 6, RequestBody::Watch(watch)), []);
    let targets = vec![WireTarget::Name("a".into()), WireTarget::Name("b".into())];
    let answers = node.ask(CLIENT, 7, RequestBody::Delete { targets });
    assert!(answers.contains(&(6, watched(5))), "{answers:?}");

    // Time, the end of a connection, the end of the node.
    assert_eq!(node.ask(LISTENER, 8, Listening::watch(6, "", 50)), []);
    assert_eq!(node.ask(CLIENT, 9, Listening::watch(6, "", 5000)), []);
    assert!(node.state.next_deadline_ms().is_some_and(|at| at <= 150));
    let mut out = Vec::new();
    node.state.tick(149, &mut out);
    assert_eq!(out, []);
    node.state.tick(150, &mut out);
    node.out = out;
    assert_eq!(node.answers(), [(8, watched(6))]);
    assert_eq!(node.ask(LISTENER, 10, Listening::watch(6, "", 5000)), []);
    node.state.closed(LISTENER, true, 200);
    let mut out = Vec::new();
    node.state.stop(&mut out);
    node.out = out;
    assert_eq!(node.answers(), [(9, Err(WireError::Closing))]);
}

#[test]
fn a_subscriber_that_is_far_behind_has_to_look_by_itself() {
    let mut node = Listening::new();
    assert_eq!(node.ask(LISTENER, 1, Listening::watch(0, "never", 5000)), []);
    // More than the ring holds, in one message.
    let names: Vec<String> = (0..20).map(|n| format!("n{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(node.seal(&names), [(1, watched(0))]);
    assert_eq!(node.ask(LISTENER, 2, Listening::watch(3, "never", 5000)), [(2, watched(3))]);
    let long = "x".repeat(256);
    let answers = node.ask(LISTENER, 3, Listening::watch(20, &long, 5000));
    assert!(matches!(answers[..], [(3, Err(WireError::TooMany { max: 255, .. }))]), "{answers:?}");
    for seq in 0..16 {
        assert_eq!(node.ask(LISTENER, seq, Listening::watch(u64::MAX, "", 5000)), []);
    }
    let answers = node.ask(LISTENER, 16, Listening::watch(20, "", 5000));
    assert!(matches!(answers[..], [(16, Err(WireError::TooMany { max: 16, .. }))]), "{answers:?}");
    assert_eq!(node.seal(&["one"]).len(), 16);
}

#[test]
fn an_eviction_whose_objects_were_not_even_begun_says_that_files_cannot_be_written() {
    let mut node = Listening::new();
    node.state.set_spill("a folder".to_owned());
    // Two more than are written at a time.
    let names: Vec<String> = (0..18).map(|n| format!("n{n}")).collect();
    node.seal(&names.iter().map(String::as_str).collect::<Vec<_>>());
    node.state.handle(
        CLIENT,
        Request { seq: 1, body: RequestBody::Evict { bytes: u64::MAX } },
        100,
        7,
        &mut node.out,
    );
    let written = node.out.iter().filter_map(|action| match action {
        Action::Spill(SpillJob::Write { head, .. }) => Some(head.id),
        _ => None,
    });
    let written: Vec<_> = written.collect();
    assert_eq!(written.len(), 16);
    assert_eq!(node.answers(), []);
    assert_eq!(node.ask(CLIENT, 2, RequestBody::Evict { bytes: 1 }), []);
    let mut under_way = 1;
    let refused = loop {
        let answers = node.ask(CLIENT, 100 + under_way, RequestBody::Evict { bytes: u64::MAX });
        match &answers[..] {
            [] => under_way += 1,
            [(_, refused)] => break refused.clone(),
            _ => panic!("{answers:?}"),
        }
        assert!(under_way < 100, "no limit");
    };
    assert!(matches!(refused, Err(WireError::TooMany { max: 8, .. })), "{refused:?}");
    for seq in 101..100 + under_way {
        node.ask(CLIENT, 200 + seq, RequestBody::Cancel { seq });
    }
    let fault = WriteFault { is_full: true, reason: "No space left on device".to_owned() };
    let done = SpillDone::Written { id: written[0], result: Err(fault) };
    let mut out = Vec::new();
    node.state.spill_done(done, 100, &mut out);
    node.state.tick(100, &mut out);
    node.out = out;
    let answers = node.answers();
    assert!(matches!(answers[..], [(2, Err(WireError::NotSpilled(_)))]), "{answers:?}");
}
