//! The event loop's work with other nodes: their messages and requests, their clients here (remote
//! clients), and forwarded ("carried") clients of this node that use memory there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::Span;
use farrow_store::{ClientSlot, RemoteClient};
use farrow_wire::{
    self as wire, FRAME_BYTES_MAX, Reply, ReplyBody, Request, RequestBody, WireError,
};
use prost::bytes::Bytes;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::process::{watch, watch_by};
use super::{ORPHANS, REQUESTS_PER_CLIENT, Server, open_for_client};
use crate::metrics::cluster::{Direction, PeerMessageKind, Traffic};
use crate::peer_memory::{self, Devices};
use crate::peers::{
    AskedToken, PeerAddress, PeerEvent, Peers, RemoteProcess, RemoteSessionBytes, RemoteSessionId,
};
use crate::protocol::cluster::{Answer, MappablePeer, PeerAction, node_key};
use crate::protocol::{Action, NodeState, PeerIdentity, SessionId, span};

/// Tokens of processes watched for other nodes: this bit and a number.
pub(super) const WATCHED: u64 = 1 << 61;

/// Limit on processes watched for other nodes. Beyond it, a request is answered at once: the
/// process is alive.
const WATCHED_MAX: usize = 1024;

/// A request about a process that is still alive is answered after this time.
const WATCH_MAX: Duration = Duration::from_millis(800);

/// Limit on the wait of a leaving node for an acknowledgement of other nodes. They detect its
/// absence anyway.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// How often the memory of unreachable nodes is checked: it may have disappeared with their
/// processes.
const UNHEARD_PAUSE: Duration = Duration::from_millis(250);

/// Limit on bytes of replies that wait until the remote client's node accepts them.
const REMOTE_CLIENT_OUT_BYTES_MAX: usize = 8 << 20;

/// An input buffer of a remote client that grew beyond this is freed.
const REMOTE_CLIENT_INPUT_RETAINED_BYTES: usize = 64 << 10;

/// State of the event loop for other nodes.
pub(super) struct RemoteSessions {
    peers: Peers,
    devices: Devices,
    remote_clients: BTreeMap<SessionId, RemoteSession>,
    /// Remote sessions in both directions.
    remote_sessions: BTreeMap<RemoteSessionId, SessionId>,
    asked: BTreeMap<u64, AskedToken>,
    next_asked: u64,
    watched: VecDeque<WatchedProcess>,
    next_watched: u64,
    /// When to check the memory of unreachable nodes.
    unheard_at: Option<Instant>,
    pub(super) traffic: Traffic,
    /// The node that each outstanding request was sent to.
    asking: BTreeMap<u64, String>,
}

/// A client of another node that uses memory of this one.
struct RemoteSession {
    remote_session: RemoteSessionId,
    node: String,
    input: Vec<u8>,
    /// Replies that its node has not accepted yet.
    output: VecDeque<Bytes>,
    output_bytes: usize,
    /// Unprocessed pieces of input. Its node sends no more until they are dropped.
    is_stuffed: VecDeque<RemoteSessionBytes>,
}

struct WatchedProcess {
    number: u64,
    asked: u64,
    until: Instant,
    process: OwnedFd,
}

impl RemoteSessions {
    pub(super) fn new((peers, devices): (Peers, Devices)) -> Self {
        Self {
            peers,
            devices,
            remote_clients: BTreeMap::new(),
            remote_sessions: BTreeMap::new(),
            asked: BTreeMap::new(),
            next_asked: 0,
            watched: VecDeque::new(),
            next_watched: 0,
            unheard_at: None,
            traffic: Traffic::default(),
            asking: BTreeMap::new(),
        }
    }

    pub(super) fn wake(&self) -> &OwnedFd {
        &self.peers.wake
    }

    /// See [`Peers::buffered_bytes`].
    pub(super) fn buffered_bytes(&self) -> (usize, usize) {
        self.peers.buffered_bytes()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let watched = self.watched.front().map(|first| first.until);
        watched.into_iter().chain(self.unheard_at).min()
    }

    /// Sends a reply to a remote client. Returns false if the client reads too slowly.
    fn send(&mut self, session: SessionId, reply: &Reply) -> bool {
        let Some(remote_client) = self.remote_clients.get_mut(&session) else {
            return true;
        };
        let mut bytes = Vec::new();
        if let Err(error) = wire::encode(reply, &mut bytes) {
            tracing::error!(session = session.0, %error, "a reply does not fit");
            return false;
        }
        remote_client.output_bytes += bytes.len();
        remote_client.output.push_back(bytes.into());
        drain(&self.peers, remote_client, &mut self.traffic);
        remote_client.output_bytes <= REMOTE_CLIENT_OUT_BYTES_MAX
    }
}

/// Passes as much output to the transport as it accepts.
fn drain(peers: &Peers, remote_client: &mut RemoteSession, traffic: &mut Traffic) {
    while let Some(bytes) = remote_client.output.pop_front() {
        let length = bytes.len();
        match peers.send(remote_client.remote_session, bytes) {
            Ok(()) => {
                remote_client.output_bytes = remote_client.output_bytes.saturating_sub(length);
                traffic.add(
                    &remote_client.node,
                    PeerMessageKind::RemoteSession,
                    Direction::Out,
                    length,
                );
            }
            Err(bytes) => {
                remote_client.output.push_front(bytes);
                return;
            }
        }
    }
}

impl RemoteSession {
    /// Bytes that are buffered: unserved requests, and replies that its node has not accepted.
    fn retained_bytes(&self) -> usize {
        let stuffed: usize = self.is_stuffed.iter().map(|piece| piece.bytes.len()).sum();
        self.input.capacity() + stuffed + self.output_bytes
    }
}

impl Server {
    /// Bytes that this node buffers for a remote client. `None` if the session is not a remote
    /// client.
    pub(super) fn remote_client_bytes(&self, session: SessionId) -> Option<usize> {
        let remote_client = self.remote_sessions.as_ref()?.remote_clients.get(&session)?;
        Some(remote_client.retained_bytes())
    }

    pub(super) fn is_remote_client(&self, session: SessionId) -> bool {
        self.remote_sessions
            .as_ref()
            .is_some_and(|remote_sessions| remote_sessions.remote_clients.contains_key(&session))
    }

    /// Handles a limited number of events from other nodes. Inserts the sessions of remote clients
    /// with requests to serve into `ready`.
    pub(super) fn take_from_remote_sessions(
        &mut self,
        ready: &mut BTreeSet<SessionId>,
        actions: &mut Vec<Action>,
    ) {
        let Some(remote_sessions) = &self.remote_sessions else {
            return;
        };
        let events: Vec<PeerEvent> = remote_sessions.peers.events().collect();
        for event in events {
            let now_ms = self.now_ms();
            match event {
                PeerEvent::Told { from, incarnation, body } => {
                    self.count(from.as_str(), PeerMessageKind::Message, Direction::In, body.len());
                    self.state.told((from.as_str(), incarnation), &body, now_ms, actions);
                }
                PeerEvent::Asked { token, from, incarnation, body } => {
                    self.count(from.as_str(), PeerMessageKind::Question, Direction::In, body.len());
                    let Some(remote_sessions) = &mut self.remote_sessions else { return };
                    let asked = remote_sessions.next_asked;
                    remote_sessions.next_asked += 1;
                    remote_sessions.asked.insert(asked, token);
                    let from = (from.as_str(), incarnation);
                    self.state.asked(asked, from, &body, now_ms, actions);
                }
                PeerEvent::Answered { token, result } => {
                    if let Some(remote_sessions) = &mut self.remote_sessions
                        && let Some(node) = remote_sessions.asking.remove(&token)
                        && result.is_err()
                    {
                        remote_sessions.traffic.fail(&node);
                    }
                    let answer = result.map(|answer| answer.body.to_vec());
                    let answer = answer.map_err(|error| error.to_string());
                    self.state.answered(token, answer, now_ms, actions);
                }
                PeerEvent::Delivery { address, why_not } => {
                    self.state.delivery_changed(address, why_not)
                }
                PeerEvent::EtcdAnswered { id, reply } => {
                    self.state.etcd_answered(id, reply, now_ms, actions);
                }
                PeerEvent::EtcdChanged => self.state.etcd_changed(now_ms, actions),
                PeerEvent::RemoteSessionOpened { remote_session, from, process } => {
                    self.open_remote_client(remote_session, from.as_str(), process);
                }
                PeerEvent::RemoteSessionData { remote_session, bytes } => {
                    ready.extend(self.remote_session_data(remote_session, bytes))
                }
                PeerEvent::RemoteSessionWritable { remote_session } => {
                    ready.extend(self.remote_session_writable(remote_session))
                }
                PeerEvent::RemoteSessionEnded { remote_session, is_process_gone, reason } => {
                    self.serve_rest(remote_session, actions);
                    self.remote_session_ended(remote_session, is_process_gone, &reason);
                }
            }
        }
    }

    /// Counts a message if it is from a member: without TLS any process can claim any name.
    fn count(&mut self, node: &str, kind: PeerMessageKind, way: Direction, bytes: usize) {
        if self.state.is_peer(node)
            && let Some(remote_sessions) = &mut self.remote_sessions
        {
            remote_sessions.traffic.add(node, kind, way, bytes);
        }
    }

    fn open_remote_client(
        &mut self,
        remote_session: RemoteSessionId,
        from: &str,
        process: RemoteProcess,
    ) {
        let now_ms = self.now_ms();
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        if !self.state.is_peer(from) {
            tracing::warn!(from, "a client of a node that is no member");
            remote_sessions.peers.end_remote_session(remote_session, false);
            return;
        }
        let session = SessionId(self.next_session);
        self.next_session += 1;
        let RemoteProcess { pid, start_time, uid } = process;
        let remote_client = Some(RemoteClient { node: node_key(from) });
        self.state.opened(session, PeerIdentity { pid, start_time, uid, remote_client }, now_ms);
        remote_sessions.remote_sessions.insert(remote_session, session);
        let remote_client = RemoteSession {
            remote_session,
            node: from.to_owned(),
            input: Vec::new(),
            output: VecDeque::new(),
            output_bytes: 0,
            is_stuffed: VecDeque::new(),
        };
        remote_sessions.remote_clients.insert(session, remote_client);
    }

    /// Stores input of a remote session. Returns the remote client that now has requests to serve.
    fn remote_session_data(
        &mut self,
        remote_session: RemoteSessionId,
        bytes: RemoteSessionBytes,
    ) -> Option<SessionId> {
        let remote_sessions = self.remote_sessions.as_mut()?;
        let session = remote_sessions.remote_sessions.get(&remote_session).copied()?;
        let length = bytes.bytes.len();
        if let Some(remote_client) = remote_sessions.remote_clients.get_mut(&session) {
            remote_sessions.traffic.add(
                &remote_client.node,
                PeerMessageKind::RemoteSession,
                Direction::In,
                length,
            );
            remote_client.is_stuffed.push_back(bytes);
            Some(session)
        } else {
            if let Some(carried) = self.connections.get(&session).and_then(|c| c.carried.as_ref()) {
                remote_sessions.traffic.add(
                    &carried.node,
                    PeerMessageKind::RemoteSession,
                    Direction::In,
                    length,
                );
            }
            self.carry_back(session, &bytes.bytes);
            None
        }
    }

    /// Serves the requests of a remote client, at most `requests_max`.
    pub(super) fn serve_remote_client(
        &mut self,
        session: SessionId,
        requests_max: usize,
        actions: &mut Vec<Action>,
    ) {
        let Some(remote_client) = self
            .remote_sessions
            .as_mut()
            .and_then(|remote_sessions| remote_sessions.remote_clients.get_mut(&session))
        else {
            return;
        };
        let mut requests = Vec::new();
        let mut nonsense = None;
        let mut used = 0;
        while requests.len() < requests_max {
            match wire::decode::<Request>(remote_client.input.get(used..).unwrap_or(&[])) {
                Ok(Some((request, bytes))) => {
                    used += bytes;
                    requests.push(request);
                }
                Ok(None) => match remote_client.is_stuffed.pop_front() {
                    Some(more) => remote_client.input.extend_from_slice(&more.bytes),
                    None => break,
                },
                Err(error) => {
                    nonsense = Some(error);
                    break;
                }
            }
        }
        remote_client.input.drain(..used);
        if remote_client.input.capacity() > REMOTE_CLIENT_INPUT_RETAINED_BYTES
            && remote_client.input.is_empty()
        {
            remote_client.input = Vec::new();
        }
        if requests.len() == requests_max {
            self.pending.insert(session);
        }
        self.handle_all(session, requests, actions);
        if let Some(error) = nonsense {
            tracing::warn!(session = session.0, %error, "a guest sent nonsense");
            // The client may still read the objects that it holds.
            self.drop_remote_client(session, true);
        }
    }

    /// The remote session accepts bytes again. Returns the client of this node whose requests were
    /// left in its connection.
    fn remote_session_writable(&mut self, remote_session: RemoteSessionId) -> Option<SessionId> {
        let remote_sessions = self.remote_sessions.as_mut()?;
        let session = remote_sessions.remote_sessions.get(&remote_session).copied()?;
        if let Some(remote_client) = remote_sessions.remote_clients.get_mut(&session) {
            drain(&remote_sessions.peers, remote_client, &mut remote_sessions.traffic);
            return None;
        }
        self.connections.get_mut(&session)?.is_blocked = false;
        Some(session)
    }

    /// Serves the requests that a remote client sent before its remote session ended, above all its
    /// goodbye. A remote session buffers so little that one turn can serve all of it.
    fn serve_rest(&mut self, remote_session: RemoteSessionId, actions: &mut Vec<Action>) {
        let session = self.remote_sessions.as_ref().and_then(|remote_sessions| {
            remote_sessions.remote_sessions.get(&remote_session).copied()
        });
        if let Some(session) = session.filter(|session| self.is_remote_client(*session)) {
            self.serve_remote_client(session, usize::MAX, actions);
        }
    }

    fn remote_session_ended(
        &mut self,
        remote_session: RemoteSessionId,
        is_process_gone: Option<bool>,
        reason: &str,
    ) {
        let now_ms = self.now_ms();
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        let Some(session) = remote_sessions.remote_sessions.remove(&remote_session) else {
            return;
        };
        if remote_sessions.remote_clients.remove(&session).is_some() {
            tracing::debug!(session = session.0, reason, "a guest's seat ended");
            // A process whose end is uncertain counts as alive: the state keeps watching it.
            self.state.closed(session, is_process_gone != Some(true), now_ms);
            return;
        }
        if is_process_gone.is_none()
            && let Some(carried) = self.connections.get(&session).and_then(|c| c.carried.as_ref())
        {
            remote_sessions.traffic.fail(&carried.node);
        }
        self.carried_ended(session, reason);
    }

    /// Handles the end of a forwarded connection on the other node's side.
    fn carried_ended(&mut self, session: SessionId, reason: &str) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        tracing::debug!(session = session.0, reason, "a carried connection ended");
        if let Some(carried) = connection.carried.take()
            && let Some(seq) = carried.first_seq
        {
            // The first message was not answered yet.
            let (node, reason) = (carried.node, reason.to_owned());
            let reply = Reply { seq, body: Err(WireError::NoRemoteSession { node, reason }) };
            let _ = connection.queue(&reply, false);
        }
        connection.is_closing = true;
        self.touched.insert(session);
    }

    /// Closes a remote client's remote session. The client may reconnect.
    pub(super) fn drop_remote_client(&mut self, session: SessionId, is_alive: bool) {
        let now_ms = self.now_ms();
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        let Some(remote_client) = remote_sessions.remote_clients.remove(&session) else {
            return;
        };
        remote_sessions.remote_sessions.remove(&remote_client.remote_session);
        remote_sessions.peers.end_remote_session(remote_client.remote_session, false);
        self.state.closed(session, is_alive, now_ms);
    }

    /// Sends a reply to a remote client.
    pub(super) fn reply_to_remote_client(&mut self, session: SessionId, reply: &Reply) {
        self.touched.insert(session);
        let is_taken = self
            .remote_sessions
            .as_mut()
            .is_none_or(|remote_sessions| remote_sessions.send(session, reply));
        if !is_taken {
            tracing::warn!(session = session.0, "a guest takes no replies");
            self.drop_remote_client(session, true);
        }
    }

    /// Performs an action of the state that involves other nodes.
    pub(super) fn perform_with_remote_sessions(&mut self, action: PeerAction) {
        match action {
            PeerAction::Tell { address, incarnation, body } => {
                if let Some(node) = self.state.node_at(&address).map(str::to_owned) {
                    self.count(&node, PeerMessageKind::Message, Direction::Out, body.len());
                }
                if let (Some(remote_sessions), Some(address)) =
                    (&self.remote_sessions, parse(&address))
                {
                    remote_sessions.peers.set_incarnation(incarnation);
                    remote_sessions.peers.tell(&address, body.into());
                }
            }
            PeerAction::Ask { token, node, address, incarnation, body, timeout_ms } => {
                self.ask_other(token, (&node, &address), incarnation, body, timeout_ms);
            }
            PeerAction::Answer { token, body } => self.answer_other(token, body),
            PeerAction::Map { node, offer } => {
                if let Some(remote_sessions) = &self.remote_sessions {
                    let memory = peer_memory::map(&offer, &remote_sessions.devices);
                    self.state.mapped(&node, memory);
                }
            }
            PeerAction::Bridge { session, seq, node, address, incarnation, first, maps_memory } => {
                let first = FirstMessage { seq, body: first, maps_memory };
                self.carry(session, (node, &address), incarnation, first);
            }
            PeerAction::CutOff { node, address } => self.cut_off(&node, &address),
            PeerAction::WatchProcess { token, pid, start_time } => {
                self.watch_for_other(token, pid, start_time);
            }
            PeerAction::WatchRemoteClient { slot } => self.watch_remote_client(slot),
            PeerAction::AskEtcd { id, request } => {
                if let Some(remote_sessions) = &self.remote_sessions {
                    remote_sessions.peers.ask_etcd(id, request);
                }
            }
            PeerAction::Clean { token, node, spans } => {
                let spans: Vec<Span> = spans.into_iter().map(span).collect();
                let cleaned = match self.state.memory_of(&node) {
                    Some(memory) => peer_memory::clean(memory, &spans),
                    None => Err(format!("the memory of {node} is not mapped")),
                };
                let answer = cleaned.map_or_else(Answer::No, |()| Answer::Done);
                self.answer_other(token, postcard::to_allocvec(&answer).unwrap_or_default());
            }
        }
    }

    fn ask_other(
        &mut self,
        token: u64,
        (node, address): (&str, &str),
        incarnation: u64,
        body: Vec<u8>,
        timeout_ms: u64,
    ) {
        self.count(node, PeerMessageKind::Question, Direction::Out, body.len());
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        remote_sessions.peers.set_incarnation(incarnation);
        let timeout = Duration::from_millis(timeout_ms);
        let failed = match named(node, address) {
            None => Some(format!("{address} is no address")),
            Some(address) => {
                let asked = remote_sessions.peers.ask(token, &address, body.into(), timeout);
                asked.err().map(|error| error.to_string())
            }
        };
        match &failed {
            Some(_) => remote_sessions.traffic.fail(node),
            None => drop(remote_sessions.asking.insert(token, node.to_owned())),
        }
        if let Some(reason) = failed {
            let mut actions = Vec::new();
            self.state.answered(token, Err(reason), self.now_ms(), &mut actions);
            // A client may wait for the answer. Otherwise only a later retry follows.
            self.perform(actions);
        }
    }

    fn answer_other(&mut self, token: u64, body: Vec<u8>) {
        if let Some(remote_sessions) = &mut self.remote_sessions
            && let Some(asked) = remote_sessions.asked.remove(&token)
            && let Err(error) = remote_sessions.peers.answer(asked, body.into())
        {
            tracing::error!(%error, "an answer to another node");
        }
    }

    /// Opens a remote session at another node for a client of this one.
    fn carry(
        &mut self,
        session: SessionId,
        (node, address): (String, &str),
        incarnation: u64,
        first: FirstMessage,
    ) {
        let FirstMessage { seq, body, maps_memory } = first;
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        remote_sessions.peers.set_incarnation(incarnation);
        let remote_session = RemoteSessionId::outgoing(session.0);
        let identity = connection.identity;
        let process =
            RemoteProcess { pid: identity.pid, start_time: identity.start_time, uid: identity.uid };
        let opened = match named(&node, address) {
            None => Err(format!("{address} is no address")),
            Some(address) => remote_sessions
                .peers
                .open_remote_session(remote_session, &address, process)
                .map_err(|e| e.to_string()),
        };
        let mut bytes = Vec::new();
        let request = Request { seq, body };
        let encoded = wire::encode(&request, &mut bytes).map_err(|error| error.to_string());
        if let Err(reason) = opened.and(encoded) {
            let reply = Reply { seq, body: Err(WireError::NoRemoteSession { node, reason }) };
            let _ = connection.queue(&reply, false);
            connection.is_closing = true;
            self.touched.insert(session);
            return;
        }
        connection.carried = Some(Carried {
            remote_session,
            node,
            first_seq: Some(seq),
            maps_memory,
            input: Vec::new(),
        });
        connection.is_introduced = true;
        remote_sessions.remote_sessions.insert(remote_session, session);
        // A newly opened remote session always accepts its first bytes.
        let _ = remote_sessions.peers.send(remote_session, bytes.into());
        self.pending.insert(session);
    }

    /// Forwards requests of a client of this node to the other node, at most `frames_max`.
    pub(super) fn carry_on(&mut self, session: SessionId, frames_max: usize) {
        let (Some(connection), Some(remote_sessions)) =
            (self.connections.get_mut(&session), &mut self.remote_sessions)
        else {
            return;
        };
        let Some(carried) = &connection.carried else {
            return;
        };
        let remote_session = carried.remote_session;
        let bytes = match connection.take_frames(frames_max) {
            Ok(bytes) if bytes.is_empty() => return,
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(session = session.0, %error, "a client sent nonsense");
                self.drop_connection(session);
                return;
            }
        };
        let length = bytes.len();
        if let Err(bytes) = remote_sessions.peers.send(remote_session, Bytes::from(bytes)) {
            // No more input is read from the client until there is room.
            connection.put_back(&bytes);
            connection.is_blocked = true;
            return;
        }
        if let Some(carried) = &connection.carried {
            remote_sessions.traffic.add(
                &carried.node,
                PeerMessageKind::RemoteSession,
                Direction::Out,
                length,
            );
        }
        if connection.has_request() {
            self.pending.insert(session);
        }
    }

    /// Forwards replies of the other node to the client.
    fn carry_back(&mut self, session: SessionId, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        self.touched.insert(session);
        let Some(carried) = &mut connection.carried else {
            return;
        };
        if carried.first_seq.is_none() {
            connection.queue_bytes(bytes);
            if connection.is_overfull() {
                tracing::warn!(session = session.0, "a client takes no replies");
                self.drop_connection(session);
            }
            return;
        }
        carried.input.extend_from_slice(bytes);
        let reply = match wire::decode::<Reply>(&carried.input) {
            Ok(None) if carried.input.len() <= FRAME_BYTES_MAX => return,
            Ok(Some((reply, used))) => {
                carried.input.drain(..used);
                reply
            }
            Ok(None) | Err(_) => {
                self.carried_ended(session, "its first answer cannot be read");
                return;
            }
        };
        carried.first_seq = None;
        let (node, rest) = (carried.node.clone(), std::mem::take(&mut carried.input));
        let memory = self.state.memory_of(&node).cloned();
        self.welcome_carried(session, reply, memory, &rest);
    }

    /// Queues the welcome of another node, with the descriptors by which this node maps its memory.
    fn welcome_carried(
        &mut self,
        session: SessionId,
        mut reply: Reply,
        memory: Option<MappablePeer>,
        rest: &[u8],
    ) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        let mut has_descriptors = false;
        let maps_memory = connection.carried.as_ref().is_none_or(|one| one.maps_memory);
        if maps_memory && let Ok(ReplyBody::Welcome(welcome)) = &mut reply.body {
            match &memory {
                Some(memory) if memory.reader.uid().0 == welcome.region_uid => {
                    peer_memory::describe(memory, welcome);
                    connection.fabric = Some(Arc::clone(&memory.fabric));
                    has_descriptors = true;
                }
                _ => {
                    let node = connection.carried.as_ref().map(|one| one.node.clone());
                    let reason = "another region is mapped here than it lends now".to_owned();
                    let node = node.unwrap_or_default();
                    reply.body = Err(WireError::NodeLost { node, reason });
                }
            }
        }
        if has_descriptors {
            open_for_client(connection, &self.fabric, &mut reply);
        }
        connection.is_closing = reply.body.is_err();
        let has_descriptors = has_descriptors && reply.body.is_ok();
        if connection.queue(&reply, has_descriptors).is_err() {
            connection.is_closing = true;
        }
        connection.queue_bytes(rest);
    }

    /// Handles the end of a forwarded connection on the client's side.
    pub(super) fn end_carried(&mut self, carried: &Carried, is_process_gone: bool) {
        if let Some(remote_sessions) = &mut self.remote_sessions {
            remote_sessions.remote_sessions.remove(&carried.remote_session);
            remote_sessions.peers.end_remote_session(carried.remote_session, is_process_gone);
        }
    }

    /// Handles the loss of a node: clients stop waiting for its replies, and its own clients cannot
    /// continue before it is back.
    fn cut_off(&mut self, node: &str, address: &str) {
        if let (Some(remote_sessions), Some(address)) =
            (&self.remote_sessions, named(node, address))
        {
            remote_sessions.peers.forget(&address);
        }
        let sessions = self.connections.iter();
        let sessions = sessions.filter(|(_, connection)| {
            connection.carried.as_ref().is_some_and(|carried| carried.node == node)
        });
        let sessions: Vec<SessionId> = sessions.map(|(session, _)| *session).collect();
        for session in sessions {
            if let Some(carried) =
                self.connections.get(&session).and_then(|one| one.carried.as_ref()).cloned()
            {
                self.end_carried(&carried, false);
            }
            self.carried_ended(session, "it is lost");
        }
        let remote_clients =
            self.remote_sessions.iter().flat_map(|remote_sessions| &remote_sessions.remote_clients);
        let remote_clients = remote_clients.filter(|(_, remote_client)| remote_client.node == node);
        let remote_clients: Vec<SessionId> = remote_clients.map(|(session, _)| *session).collect();
        remote_clients.into_iter().for_each(|session| self.drop_remote_client(session, true));
    }

    /// Hands over the state that this node manages for other nodes, announces that it leaves, and
    /// waits for acknowledgements, each for a limited time.
    pub(super) fn part_from_remote_sessions(&mut self) {
        let mut actions = Vec::new();
        self.state.hand_over_sync(self.now_ms(), &mut actions);
        self.go_on_until(|state| state.has_handed_over(), actions);
        let mut actions = Vec::new();
        self.state.leave_cluster(self.now_ms(), &mut actions);
        self.go_on_until(|state| state.has_left(), actions);
    }

    /// Handles only other nodes until the condition holds, for at most [`LEAVE_MAX`].
    fn go_on_until(&mut self, is_so: impl Fn(&NodeState) -> bool, mut actions: Vec<Action>) {
        let until = Instant::now() + LEAVE_MAX;
        while !is_so(&self.state) && Instant::now() < until {
            self.perform(std::mem::take(&mut actions));
            let Some(remote_sessions) = &self.remote_sessions else {
                return;
            };
            let wait = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let _ = poll(&mut [PollFd::new(remote_sessions.wake(), PollFlags::IN)], Some(&wait));
            let mut ready = BTreeSet::new();
            self.take_from_remote_sessions(&mut ready, &mut actions);
            for session in ready {
                self.serve(session, REQUESTS_PER_CLIENT, &mut actions);
            }
            self.state.tick(self.now_ms(), &mut actions);
        }
        self.perform(actions);
    }

    fn watch_for_other(&mut self, token: u64, pid: u32, start_time: u64) {
        let identity = PeerIdentity { pid, start_time, uid: 0, remote_client: None };
        let process = watch(&identity);
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        // A process whose end is uncertain counts as alive: the other node asks again.
        let is_there = !matches!(process, Ok(None));
        if let Ok(Some(process)) = process
            && remote_sessions.watched.len() < WATCHED_MAX
        {
            let number = remote_sessions.next_watched;
            remote_sessions.next_watched += 1;
            let event = EventData::new_u64(WATCHED | number);
            if epoll::add(&self.poll, &process, event, EventFlags::IN).is_ok() {
                let until = Instant::now() + WATCH_MAX;
                remote_sessions.watched.push_back(WatchedProcess {
                    number,
                    asked: token,
                    until,
                    process,
                });
                return;
            }
        }
        self.say_is_there(token, is_there);
    }

    fn say_is_there(&mut self, token: u64, is_there: bool) {
        let answer = Answer::IsThere(is_there);
        self.answer_other(token, postcard::to_allocvec(&answer).unwrap_or_default());
    }

    /// Answers a request about a watched process that has ended.
    pub(super) fn watched_gone(&mut self, number: u64) {
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        let Some(at) = remote_sessions.watched.iter().position(|one| one.number == number) else {
            return;
        };
        if let Some(gone) = remote_sessions.watched.remove(at) {
            let _ = epoll::delete(&self.poll, &gone.process);
            self.say_is_there(gone.asked, false);
        }
    }

    /// Answers requests about watched processes that have waited long enough.
    pub(super) fn tick_remote_sessions(&mut self) {
        let now = Instant::now();
        while let Some(remote_sessions) = &mut self.remote_sessions
            && remote_sessions.watched.front().is_some_and(|first| first.until <= now)
            && let Some(first) = remote_sessions.watched.pop_front()
        {
            let _ = epoll::delete(&self.poll, &first.process);
            self.say_is_there(first.asked, true);
        }
    }

    /// Unmaps memory that disappeared with the last process of its node, so that the kernel can
    /// free it. Clients that read it keep their mappings.
    pub(super) fn tick_unheard(&mut self) {
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        let now = Instant::now();
        if remote_sessions.unheard_at.is_some_and(|at| now < at) {
            return;
        }
        let unheard: Vec<(String, bool)> = self
            .state
            .unheard_memory()
            .map(|(name, memory)| (name.to_owned(), peer_memory::is_gone(memory)))
            .collect();
        let is_any_left = unheard.iter().any(|(_, is_gone)| !is_gone);
        remote_sessions.unheard_at = is_any_left.then(|| now + UNHEARD_PAUSE);
        for (node, _) in unheard.iter().filter(|(_, is_gone)| *is_gone) {
            let why = "its processes have ended, and its memory with them";
            self.state.mapped(node, Err(why.to_owned()));
        }
    }

    /// Watches the process of a client of another node that runs on this machine.
    fn watch_remote_client(&mut self, slot: ClientSlot) {
        let identity = self.state.orphans().find(|(of, _)| *of == slot).map(|(_, peer)| peer);
        let token = ORPHANS | u64::from(slot.0);
        let now_ms = self.now_ms();
        let Some(peer) = identity else {
            return self.state.orphan_died(slot, now_ms);
        };
        match watch_by(self.poll.as_fd(), &peer, token) {
            Ok(Some(fd)) => drop(self.orphans.insert(slot, (peer, fd))),
            Ok(None) => self.state.orphan_died(slot, now_ms),
            Err(_) => self.state.watch_later(slot, now_ms),
        }
    }
}

/// The first message of a client that goes to another node.
struct FirstMessage {
    seq: u64,
    body: RequestBody,
    maps_memory: bool,
}

/// A client's connection whose requests go to another node.
#[derive(Debug, Clone)]
pub(super) struct Carried {
    pub(super) remote_session: RemoteSessionId,
    pub(super) node: String,
    /// The sequence number of its first message, until that is answered.
    first_seq: Option<u64>,
    /// False: the client sends requests and maps no memory of that node.
    maps_memory: bool,
    /// The first answer, in pieces.
    input: Vec<u8>,
}

impl Carried {
    /// Bytes that are buffered.
    pub(super) fn retained_bytes(&self) -> usize {
        self.input.capacity()
    }
}

fn parse(address: &str) -> Option<PeerAddress> {
    address.parse().inspect_err(|error| tracing::warn!(%error, "an address")).ok()
}

/// An address at which the node of this name is expected.
fn named(node: &str, address: &str) -> Option<PeerAddress> {
    let mut address = parse(address)?;
    address.name = node.parse().ok();
    Some(address)
}
