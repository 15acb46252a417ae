//! Arbitrary client messages to a node that also has an honest client, which holds an object and is
//! writing another one. All memory that the node grants to the others is overwritten, which reveals
//! wrong grants.

use std::cell::RefCell;
use std::sync::Arc;

use farrow_cluster::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId,
};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Offset, Region};
use farrow_store::{Held, HoldTable, Home, Layout, Lru, ObjectId, Reader, Target};
use farrow_wire::{
    self as wire, Extent, Hello, NamespaceSpec, PROTOCOL_VERSION, ReplyBody, Request, RequestBody,
    SealItem, SyncAsk, Watch, WireSpan, WireTarget,
};

use super::nodes::options;

const OWNER: u32 = 1000;
const HONEST: SessionId = SessionId(0);
/// The others, and the namespaces in which they begin.
const OTHERS: [(SessionId, &str); 2] = [(SessionId(1), ""), (SessionId(2), "few")];
/// What an honest client does within this is no fuzzer's business.
const STEPS_MAX: usize = 64;
/// Bytes that are the honest client's, and what all others write.
const HELD: u8 = 0xa5;
const DRAFT: u8 = 0x5a;
const OTHER: u8 = 0xee;
const PAGE: u64 = 4096;

thread_local! {
    /// Mapped once as the home and as a client have it; each run lays it out again.
    static REGIONS: RefCell<Option<[Arc<Region>; 2]>> = const { RefCell::new(None) };
}

fn regions() -> [Arc<Region>; 2] {
    REGIONS.with_borrow_mut(|retained| {
        let make = || {
            let geometry = Layout::new(&options()).unwrap().geometry;
            let fabric = Arc::new(ShmFabric::memfd("fuzzed-clients", geometry).unwrap());
            [Access::Home, Access::Client]
                .map(|access| Arc::new(Region::map(fabric.clone(), access, None).unwrap()))
        };
        retained.get_or_insert_with(make).clone()
    })
}

/// A node, its honest client, and whoever else there is.
pub struct FuzzedClients {
    state: NodeState,
    region: Arc<Region>,
    now_ms: u64,
    held: Option<Held>,
    id: ObjectId,
    object: WireSpan,
    draft: WireSpan,
}

impl FuzzedClients {
    pub fn new() -> Self {
        let [home, region] = regions();
        let home = Home::create(home, &options(), 0).unwrap();
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: OWNER };
        let mut state = NodeState::new(home, daemon, AdoptedState::default(), 0);
        state.set_eviction_policy(Box::new(Lru));
        let id = ObjectId { hi: 0, lo: 0 };
        let (object, draft) = ((0, 0), (0, 0));
        let mut world = Self { state, region, now_ms: 0, held: None, id, object, draft };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let spec = NamespaceSpec {
            name: "few".into(),
            bytes_max: Some(64 << 10),
            objects_max: Some(3),
            writers: None,
        };
        let welcome = self.join(HONEST, "");
        let Some(ReplyBody::Welcome(welcome)) = welcome else { panic!("{welcome:?}") };
        self.ask(HONEST, RequestBody::CreateNamespace(spec));
        self.object = self.grant(HONEST, PAGE);
        self.draft = self.grant(HONEST, PAGE);
        self.fill(self.object, HELD);
        self.fill(self.draft, DRAFT);
        let item = SealItem { name: Some("honest".into()), ..SealItem::bytes(self.object, PAGE) };
        let Some(ReplyBody::Sealed(sealed)) =
            self.ask(HONEST, RequestBody::Seal { items: vec![item] })
        else {
            panic!("no seal")
        };
        self.id = sealed[0].clone().unwrap().into();
        let blocks: Vec<_> = welcome.hold_blocks.iter().map(|span| self::span(*span)).collect();
        let holds = Arc::new(HoldTable::new(Arc::clone(&self.region), &blocks).unwrap());
        let reader = Reader::open(Arc::clone(&self.region)).unwrap();
        self.held = reader.hold(&holds, Target::Id(self.id)).unwrap();
        assert!(self.held.is_some());
        for (session, namespace) in OTHERS {
            self.join(session, namespace);
            self.grant(session, 8 * PAGE);
        }
    }

    fn join(&mut self, session: SessionId, namespace: &str) -> Option<ReplyBody> {
        let pid = 10 + session.0 as u32;
        let peer = PeerIdentity { pid, start_time: 1, uid: OWNER, remote_client: None };
        self.state.opened(session, peer, self.now_ms);
        let hello = Hello {
            version: PROTOCOL_VERSION,
            resume: None,
            namespace: namespace.to_owned(),
            node: String::new(),
            maps_memory: true,
        };
        self.ask(session, RequestBody::Hello(hello))
    }

    fn grant(&mut self, session: SessionId, bytes: u64) -> WireSpan {
        match self.ask(session, RequestBody::Grant { min: bytes, want: bytes, wait_ms: 0 }) {
            Some(ReplyBody::Granted(span)) => span,
            other => panic!("{bytes} B: {other:?}"),
        }
    }

    /// The answer, if there is one at once.
    fn ask(&mut self, session: SessionId, body: RequestBody) -> Option<ReplyBody> {
        let mut out = Vec::new();
        self.state.handle(session, Request { seq: 0, body }, self.now_ms, 1, &mut out);
        let answer = out.iter().find_map(|action| match action {
            Action::Send { session: to, reply, .. } if *to == session => reply.body.clone().ok(),
            _ => None,
        });
        self.perform(out);
        answer
    }

    /// What the server would do, and what a client does with what it is given.
    fn perform(&mut self, mut actions: Vec<Action>) {
        self.state.tick(self.now_ms, &mut actions);
        for action in actions {
            match action {
                Action::Close { session } => drop(self.state.closed(session, false, self.now_ms)),
                Action::Send { session, reply, .. } if session != HONEST => match reply.body {
                    Ok(ReplyBody::Granted(span)) => self.fill(span, OTHER),
                    Ok(ReplyBody::Welcome(welcome)) => {
                        welcome.grants.iter().for_each(|span| self.fill(*span, OTHER));
                    }
                    _ => {}
                },
                _ => {}
            }
        }
    }

    fn fill(&self, (offset, length): WireSpan, byte: u8) {
        self.region.write_by_call(Offset(offset), &vec![byte; length as usize]).unwrap();
    }

    fn is_all(&self, (offset, length): WireSpan, byte: u8) -> bool {
        let mut bytes = vec![0; length as usize];
        self.region.copy_out(Offset(offset), &mut bytes).unwrap();
        bytes.iter().all(|found| *found == byte)
    }

    /// A frame of one of the others, or time, or the end of a connection and a new one.
    fn take(&mut self, kind: u8, body: &[u8]) {
        let (session, namespace) = OTHERS[usize::from(kind & 1)];
        match kind >> 1 & 3 {
            0 | 1 => {
                let mut frame = (body.len() as u32).to_le_bytes().to_vec();
                frame.extend_from_slice(body);
                self.now_ms += 3;
                if let Ok(Some((request, _))) = wire::decode::<Request>(&frame) {
                    self.ask(session, request.body);
                }
            }
            2 => self.now_ms += 1 << (body.first().copied().unwrap_or_default() & 15),
            _ => {
                self.state.closed(session, kind & 8 != 0, self.now_ms);
                self.join(session, namespace);
            }
        }
        self.perform(Vec::new());
    }

    /// The honest client lets go of what it holds: for the canary.
    pub fn let_go(&mut self) {
        self.held = None;
    }

    /// The sums of bytes balance, and what is the honest client's is as it left it, when others have taken
    /// all that they can get.
    pub fn assert_sound(&mut self) {
        self.state.home().check().unwrap();
        for session in OTHERS.map(|(session, _)| session) {
            while let Some(ReplyBody::Granted(_)) =
                self.ask(session, RequestBody::Grant { min: 128, want: 1 << 20, wait_ms: 0 })
            {
            }
        }
        assert!(self.is_all(self.object, HELD), "what is held has changed");
        assert!(self.is_all(self.draft, DRAFT), "what is being written has changed");
        let home = self.state.home();
        let slot = home.clients().find(|client| client.pid == 10).map(|client| client.client);
        let grants = home.grants_of(slot.expect("the honest client has lost its place"));
        assert!(grants.iter().any(|grant| grant.contains(span(self.draft))), "{grants:?}");
        let stats = self.state.stats(self.now_ms).unwrap();
        assert_eq!(stats.capacity, stats.used + stats.free + stats.granted + stats.retiring);
        assert!(stats.holds > 0 && stats.used + stats.retiring >= PAGE, "{stats:?}");
        // Nothing is left of anybody but what was sealed.
        self.held = None;
        for session in [HONEST].into_iter().chain(OTHERS.map(|(session, _)| session)) {
            self.state.closed(session, false, self.now_ms);
        }
        self.perform(Vec::new());
        self.state.home().check().unwrap();
    }
}

fn span((offset, length): WireSpan) -> farrow_memory::Span {
    farrow_memory::Span::new(Offset(offset), Length(length))
}

/// Steps: a byte that says who does what, one with the length, and bytes of that length.
pub fn run(data: &[u8]) {
    run_with(data, |_| {});
}

/// The same after something else.
pub fn run_with(data: &[u8], first: impl FnOnce(&mut FuzzedClients)) {
    let mut world = FuzzedClients::new();
    first(&mut world);
    for (kind, body) in steps(data) {
        world.take(kind, body);
    }
    world.assert_sound();
}

/// Steps that are whole requests.
pub fn understood(data: &[u8]) -> usize {
    let is_request = |body: &[u8]| postcard::from_bytes::<Request>(body).is_ok();
    steps(data).iter().filter(|(kind, body)| kind >> 1 & 3 < 2 && is_request(body)).count()
}

fn steps(mut rest: &[u8]) -> Vec<(u8, &[u8])> {
    let mut steps = Vec::new();
    while let Some(([kind, length], body)) = rest.split_first_chunk::<2>()
        && steps.len() < STEPS_MAX
    {
        let (body, after) = body.split_at(usize::from(*length).min(body.len()));
        steps.push((*kind, body));
        rest = after;
    }
    steps
}

fn step(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, u8::try_from(body.len()).unwrap()], body].concat()
}

/// What clients that mean well ask, and some that do not.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let world = FuzzedClients::new();
    let (object, draft) = (world.object, world.draft);
    let id = world.id.into();
    // The first page of each of the others comes behind those of the honest one.
    let own = [draft.0 + PAGE, draft.0 + 9 * PAGE];
    let named = |number: usize| format!("n{number}");
    let honest = || vec![WireTarget::Id(id), WireTarget::Name("honest".into())];
    let seal = |start: u64, number: usize| SealItem {
        name: number.is_multiple_of(2).then(|| named(number)),
        ..SealItem::bytes((start + 128 * number as u64, 128), 100)
    };
    let ask = |who: u8, body: RequestBody| {
        step(who, &postcard::to_allocvec(&Request { seq: 1, body }).unwrap())
    };
    let all = |bodies: Vec<RequestBody>| {
        let both = |body: &RequestBody| [ask(0, body.clone()), ask(1, body.clone())].concat();
        bodies.iter().map(both).collect::<Vec<_>>().concat()
    };
    let watch = Watch { after: 0, prefix: "n".into(), kinds: u8::MAX, timeout_ms: 10 };
    let hello = |resume| Hello {
        version: PROTOCOL_VERSION,
        resume,
        namespace: String::new(),
        node: String::new(),
        maps_memory: true,
    };
    let away = all(vec![
        RequestBody::Pin { targets: honest(), is_pinned: false },
        RequestBody::Evict { bytes: 1 << 20 },
        RequestBody::Delete { targets: honest() },
        RequestBody::Reclaim,
        RequestBody::Grant { min: PAGE, want: 1 << 20, wait_ms: 0 },
        RequestBody::Confirm { ids: vec![id] },
        RequestBody::ConfirmEarlier,
    ]);
    let theirs = all(vec![
        RequestBody::Release { spans: vec![object, draft] },
        RequestBody::Seal { items: vec![SealItem::bytes(draft, 5), SealItem::bytes(object, 5)] },
        RequestBody::Seal {
            items: vec![SealItem { extra: vec![object], ..SealItem::bytes((own[0], 128), 5) }],
        },
        RequestBody::Unreserve { names: vec!["honest".into()] },
        RequestBody::Hello(hello(Some((1, 0, 2)))),
        RequestBody::DropNamespace { name: "few".into() },
    ]);
    let life = [
        all(vec![
            RequestBody::Reserve { names: vec![named(2)] },
            RequestBody::ReserveObjects { objects: 2, wait_ms: 5 },
            RequestBody::EntryPages { count: 1 },
            RequestBody::HoldBlock,
        ]),
        ask(0, RequestBody::Seal { items: (0..2).map(|n| seal(own[0], n)).collect() }),
        ask(1, RequestBody::Seal { items: (0..2).map(|n| seal(own[1], n)).collect() }),
        ask(0, RequestBody::Release { spans: vec![(own[0] + PAGE, 2 * PAGE)] }),
        all(vec![
            RequestBody::UnreserveObjects { objects: 1 },
            RequestBody::ReservedObjects { objects: 1 },
            RequestBody::Renew { names: vec![named(3)], are_all: true },
            RequestBody::Delete { targets: vec![WireTarget::Name(named(0))] },
        ]),
        step(6, &[]),
        ask(0, RequestBody::Stats),
        step(15, &[]),
        ask(1, RequestBody::Goodbye),
        step(7, &[]),
    ]
    .concat();
    let waits = [
        all(vec![
            RequestBody::Grant { min: 1 << 18, want: 1 << 18, wait_ms: 50 },
            RequestBody::Grant { min: PAGE, want: PAGE, wait_ms: 0 },
            RequestBody::ReserveObjects { objects: 3, wait_ms: 50 },
            RequestBody::ReserveObjects { objects: 1, wait_ms: 50 },
            RequestBody::Wait { targets: honest(), count: 3, timeout_ms: 20 },
            RequestBody::Watch(watch),
        ]),
        step(4, &[5]),
        all(vec![
            RequestBody::Sync {
                name: named(1),
                ask: SyncAsk::Arrive { parties: 3, timeout_ms: 10 },
            },
            RequestBody::Restore { id },
            RequestBody::Overview { cells: 4, held_max: 4 },
            RequestBody::Namespaces,
            RequestBody::FindLost { name: named(1) },
            RequestBody::Fetch {
                target: WireTarget::Name(named(1)),
                extent: Extent::Metadata,
                wait_ms: 1,
            },
            RequestBody::Shutdown,
        ]),
        step(4, &[7]),
    ]
    .concat();
    vec![("away", away), ("theirs", theirs), ("life", life), ("waits", waits)]
}
