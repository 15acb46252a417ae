//! The state machine of a node without a transport, with requests of its own and of remote clients.

use std::sync::Arc;

use farrow_cluster::protocol::cluster::{AgreementKind, ClusterOptions, Offer};
use farrow_cluster::protocol::{
    Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId,
};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_store::{Home, Layout, RegionOptions, RemoteClient};
use farrow_wire::{
    Hello, PROTOCOL_VERSION, ReplyBody, Request, RequestBody, SealItem, Welcome, WireError,
    WireObjectId, WireTarget,
};

pub const OWNER: u32 = 1000;
pub const B: RemoteClient = RemoteClient { node: 0xb };
pub const C: RemoteClient = RemoteClient { node: 0xc };

pub type Answered = Result<ReplyBody, WireError>;

/// A node with local and remote clients.
pub struct RequestedNode {
    pub state: NodeState,
    pub sessions: u64,
    pub now_ms: u64,
}

impl RequestedNode {
    pub fn new() -> Self {
        let mut options = RegionOptions::for_capacity(Length(4 << 20));
        options.clients_max = 8;
        Self::over(&options)
    }

    /// A node of such a region.
    pub fn over(options: &RegionOptions) -> Self {
        let geometry = Layout::new(options).unwrap().geometry;
        let fabric = Arc::new(ShmFabric::memfd("denials-test", geometry).unwrap());
        let region = Arc::new(Region::map(fabric, Access::Home, None).unwrap());
        let home = Home::create(region, options, 0).unwrap();
        let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: OWNER };
        let state = NodeState::new(home, daemon, AdoptedState::default(), 0);
        Self { state, sessions: 0, now_ms: 0 }
    }

    /// A node that is the only member of its cluster.
    pub fn founded() -> Self {
        let mut requested = Self::new();
        let offer = Offer {
            host: "h".into(),
            region_uid: requested.state.home().uid().0,
            control_bytes: 1,
            data_bytes: 1,
            capacity: 1,
            base: 0,
            ways: Vec::new(),
        };
        let options = ClusterOptions {
            net: None,
            name: "a".parse().unwrap(),
            address: "127.0.0.1:1".into(),
            agreement: AgreementKind::Embedded,
            seeds: Vec::new(),
            lease_ms: 1000,
            offer,
            incarnation: 5,
            seed: 1,
        };
        requested.state.join_cluster(options, 0, &mut Vec::new()).unwrap();
        for _ in 0..10 {
            requested.now_ms += 100;
            requested.state.tick(requested.now_ms, &mut Vec::new());
        }
        requested
    }

    pub fn open(&mut self, pid: u32, uid: u32, remote_client: Option<RemoteClient>) -> SessionId {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        self.state.opened(
            session,
            PeerIdentity { pid, start_time: 1, uid, remote_client },
            self.now_ms,
        );
        session
    }

    /// The answer of a request, and the other actions for the server.
    pub fn all(
        &mut self,
        session: SessionId,
        body: RequestBody,
    ) -> (Option<Answered>, Vec<Action>) {
        let mut out = Vec::new();
        self.state.handle(session, Request { seq: 7, body }, self.now_ms, 1, &mut out);
        self.state.tick(self.now_ms, &mut out);
        let is_answer = |action: &Action| {
            matches!(action, Action::Send { session: to, reply, .. }
                if *to == session && reply.seq == 7)
        };
        let at = out.iter().position(is_answer);
        let answer = at.map(|at| match out.remove(at) {
            Action::Send { reply, .. } => reply.body,
            other => panic!("{other:?}"),
        });
        (answer, out)
    }

    pub fn ask(&mut self, session: SessionId, body: RequestBody) -> Answered {
        let (answer, _) = self.all(session, body);
        answer.expect("an answer")
    }

    pub fn join_as(
        &mut self,
        pid: u32,
        uid: u32,
        remote_client: Option<RemoteClient>,
    ) -> (SessionId, Welcome) {
        let session = self.open(pid, uid, remote_client);
        match self.ask(session, hello("", None, "")) {
            Ok(ReplyBody::Welcome(welcome)) => (session, welcome),
            other => panic!("{other:?}"),
        }
    }

    pub fn join_in(
        &mut self,
        namespace: &str,
        uid: u32,
        remote_client: Option<RemoteClient>,
    ) -> SessionId {
        let session = self.open(50, uid, remote_client);
        let answer = self.ask(session, hello(namespace, None, ""));
        assert!(matches!(answer, Ok(ReplyBody::Welcome(_))), "{answer:?}");
        session
    }

    pub fn grant(&mut self, session: SessionId, bytes: u64) -> (u64, u64) {
        let ask = RequestBody::Grant { min: bytes, want: bytes, wait_ms: 0 };
        match self.ask(session, ask) {
            Ok(ReplyBody::Granted(span)) => span,
            other => panic!("{other:?}"),
        }
    }

    pub fn seal(&mut self, session: SessionId, item: SealItem) -> Result<WireObjectId, WireError> {
        match self.ask(session, RequestBody::Seal { items: vec![item] }) {
            Ok(ReplyBody::Sealed(mut sealed)) => sealed.remove(0),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        }
    }

    pub fn change(&mut self, session: SessionId, body: RequestBody) -> Result<(), WireError> {
        match self.ask(session, body)? {
            ReplyBody::Deleted(mut results) | ReplyBody::Pinned(mut results) => results.remove(0),
            other => panic!("{other:?}"),
        }
    }

    /// Checks that the accounting balances, and a local client is served.
    pub fn assert_goes_on(&mut self) {
        self.state.home().check().unwrap();
        let stats = self.state.stats(self.now_ms).unwrap();
        let sum = stats.used + stats.free + stats.granted + stats.retiring;
        assert_eq!(stats.capacity, sum, "{stats:?}");
        let (session, _) = self.join_as(4000 + self.sessions as u32, OWNER, None);
        let span = self.grant(session, 4096);
        let id = self.seal(session, SealItem::bytes(span, 5)).unwrap();
        let targets = vec![WireTarget::Id(id)];
        assert_eq!(self.change(session, RequestBody::Delete { targets }), Ok(()));
        self.state.closed(session, false, self.now_ms);
    }
}

pub fn hello(namespace: &str, resume: Option<(u64, u32, u64)>, node: &str) -> RequestBody {
    RequestBody::Hello(Hello {
        version: PROTOCOL_VERSION,
        resume,
        namespace: namespace.into(),
        node: node.into(),
        maps_memory: true,
    })
}

pub fn is_denied(answer: &Answered) -> bool {
    matches!(answer, Err(WireError::Denied(_)))
}
