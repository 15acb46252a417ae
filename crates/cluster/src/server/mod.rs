//! The event loop of the daemon: one thread, one epoll instance, no blocking calls.

mod buffers;
mod by_net;
mod connection;
mod desertion;
mod handover;
mod process;
mod remote_sessions;
mod scrape;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farrow_memory::{Fabric, Section, family, sync};
use farrow_store::ClientSlot;
use farrow_wire::{Reply, ReplyBody, Request, SPIN, WireError};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::metrics::{self, Latencies};
use crate::net::Net;
use crate::peer_memory::Devices;
use crate::peers::Peers;
use crate::protocol::{Action, NodeState, PeerIdentity, SessionId};
use crate::spill::Worker;
use connection::{ClientConnection, ReadOutcome};
use desertion::Desertion;
pub(crate) use handover::Handover;

use process::{watch, watch_by};
use remote_sessions::{RemoteSessions, WATCHED};
pub(crate) use scrape::ScrapeListener;
use scrape::{SCRAPERS, Scrapers};

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const SCRAPE_LISTENER: u64 = 2;
const SPILL: u64 = 3;
const REMOTE_SESSIONS: u64 = 4;
const NET: u64 = 5;
/// Tokens of sessions start here: twice the session number, plus one for its process.
const SESSIONS: u64 = 1 << 8;
/// Tokens of client processes of an earlier daemon: this bit and the slot.
const ORPHANS: u64 = 1 << 63;

/// A connection that has not drained its last replies within this time is closed.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Connections accepted in one turn. Each takes about as long as a short request, so connected and
/// connecting clients get equal parts of a turn.
const ACCEPTS_PER_TURN: usize = 8;

/// Requests of all clients together that one turn serves: half a millisecond of short ones. Each
/// connection with requests has at least one served.
const REQUESTS_PER_TURN: usize = 128;

/// Requests of one client that one turn serves.
const REQUESTS_PER_CLIENT: usize = 32;

/// How the loop ended.
#[derive(Debug)]
pub(crate) enum LoopEnd {
    /// Requested by a signal, a message or a handle.
    Asked,
    /// A private node has lost its last client, and keeps nothing for a later one.
    Deserted,
    /// Another daemon takes over.
    HandingOver(Box<Handover>),
}

/// A process that could not be watched is tried again after this time.
const WATCH_AGAIN_MS: u64 = 1_000;

/// The parts of a server.
pub(crate) struct ServerParts {
    pub(crate) listener: UnixListener,
    /// Stops the server when it is readable.
    pub(crate) wake: UnixStream,
    pub(crate) started: Instant,
    /// For a private node: how long it keeps named objects after its last client.
    pub(crate) linger: Option<Duration>,
    /// Bytes of the heap whose pages are prepared.
    pub(crate) prepared: Arc<sync::AtomicU64>,
    /// Where scrapers connect.
    pub(crate) metrics: Option<ScrapeListener>,
    /// Writes and reads spilled objects.
    pub(crate) spill: Option<Worker>,
    /// The connections to other nodes, and the devices that those may lend.
    pub(crate) peers: Option<(Peers, Devices)>,
    /// Access to objects of other nodes over the network.
    pub(crate) net: Option<Net>,
}

/// The parts of a server that outlive it.
pub(crate) struct Remains {
    pub(crate) ended: LoopEnd,
    pub(crate) state: NodeState,
    pub(crate) listener: UnixListener,
    pub(crate) wake: UnixStream,
}

pub(crate) struct Server {
    poll: OwnedFd,
    listener: UnixListener,
    wake: UnixStream,
    state: NodeState,
    fabric: Arc<dyn Fabric>,
    connections: BTreeMap<SessionId, ClientConnection>,
    orphans: BTreeMap<ClientSlot, (PeerIdentity, OwnedFd)>,
    /// Orphans whose processes could not be watched, and when that is tried again.
    unwatched: BTreeSet<ClientSlot>,
    watch_again_at_ms: Option<u64>,
    /// Connections with complete requests left over from the last turn.
    pending: BTreeSet<SessionId>,
    /// Connections that this turn worked on.
    touched: BTreeSet<SessionId>,
    next_session: u64,
    started: Instant,
    /// Of a private node.
    desertion: Option<Desertion>,
    prepared: Arc<sync::AtomicU64>,
    is_accepting: bool,
    /// The session of the daemon that takes over, and the sequence number of its request.
    handover: Option<(SessionId, u64)>,
    scrapers: Option<Scrapers>,
    latencies: Latencies,
    spill: Option<Worker>,
    remote_sessions: Option<RemoteSessions>,
    net: Option<Net>,
    /// Wakeups of the loop.
    turns: u64,
    /// Connections without room for input, by the time since when.
    starved: BTreeSet<(u64, SessionId)>,
    /// Finished spill jobs are left to handle.
    has_spilled: bool,
    /// Events of the network fabric are left to handle.
    has_net_events: bool,
    /// The published time until which clients may use replicas.
    replicas_until_ns: u64,
}

/// The sources that are readable in this turn.
#[derive(Debug, Default)]
struct Ready {
    sessions: BTreeSet<SessionId>,
    /// Clients are waiting to connect.
    has_newcomers: bool,
    /// Scrapers are waiting to connect.
    has_scrapers: bool,
    has_peers: bool,
    is_asked_to_stop: bool,
}

impl Server {
    /// `first` is performed before anything else.
    pub(crate) fn new(
        parts: ServerParts,
        state: NodeState,
        first: Vec<Action>,
    ) -> io::Result<Self> {
        let ServerParts { listener, wake, started, linger, prepared, metrics, spill, peers, net } =
            parts;
        let remote_sessions = peers.map(RemoteSessions::new);
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        listener.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        epoll::add(&poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&poll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let scrapers = metrics.map(Scrapers::new);
        if let Some(scrapers) = &scrapers {
            let token = EventData::new_u64(SCRAPE_LISTENER);
            epoll::add(&poll, scrapers.listener(), token, EventFlags::IN)?;
        }
        if let Some(spill) = &spill {
            epoll::add(&poll, &spill.wake, EventData::new_u64(SPILL), EventFlags::IN)?;
        }
        if let Some(net) = &net {
            epoll::add(&poll, &net.wake, EventData::new_u64(NET), EventFlags::IN)?;
        }
        if let Some(remote_sessions) = &remote_sessions {
            epoll::add(
                &poll,
                remote_sessions.wake(),
                EventData::new_u64(REMOTE_SESSIONS),
                EventFlags::IN,
            )?;
        }
        let fabric = Arc::clone(state.home().region().fabric());
        let mut server = Self {
            poll,
            listener,
            wake,
            state,
            fabric,
            connections: BTreeMap::new(),
            orphans: BTreeMap::new(),
            unwatched: BTreeSet::new(),
            watch_again_at_ms: None,
            pending: BTreeSet::new(),
            touched: BTreeSet::new(),
            next_session: 0,
            started,
            desertion: linger.map(|linger| Desertion::new(linger, started)),
            prepared,
            is_accepting: true,
            handover: None,
            scrapers,
            latencies: Latencies::new(),
            spill,
            remote_sessions,
            net,
            turns: 0,
            starved: BTreeSet::new(),
            has_spilled: false,
            has_net_events: false,
            replicas_until_ns: 0,
        };
        if server.state.was_read_by_net() {
            // The client slot records that other nodes read this region. The record must survive a
            // restart before they have heard of this one.
            if let Err(error) = server.join_net() {
                tracing::error!(%error, "no place for nodes that read by network");
            }
        }
        server.watch_orphans();
        server.perform(first);
        Ok(server)
    }

    fn watch_orphans(&mut self) {
        let orphans: Vec<(ClientSlot, PeerIdentity)> = self.state.orphans().collect();
        // The state watches those of other nodes.
        for (slot, peer) in orphans.into_iter().filter(|(_, peer)| peer.remote_client.is_none()) {
            self.watch_orphan(slot, &peer);
        }
        self.observe_clients();
    }

    fn watch_orphan(&mut self, slot: ClientSlot, peer: &PeerIdentity) {
        match watch_by(self.poll.as_fd(), peer, ORPHANS | u64::from(slot.0)) {
            Ok(Some(fd)) => drop(self.orphans.insert(slot, (*peer, fd))),
            Err(error) => self.watch_later(slot, &error),
            // The client ended while no daemon was running.
            Ok(None) => self.state.orphan_died(slot, self.now_ms()),
        }
    }

    /// The client may still read the objects that it holds, so its slot is retained.
    fn watch_later(&mut self, slot: ClientSlot, error: &io::Error) {
        tracing::error!(slot = slot.0, %error, "a client is not watched");
        // A watch of an earlier client in this slot does not apply to this one.
        self.orphans.remove(&slot);
        self.unwatched.insert(slot);
        self.watch_again_at_ms = Some(self.now_ms().saturating_add(WATCH_AGAIN_MS));
    }

    fn watch_again(&mut self) {
        if self.watch_again_at_ms.is_none_or(|at_ms| at_ms > self.now_ms()) {
            return;
        }
        self.watch_again_at_ms = None;
        let unwatched = std::mem::take(&mut self.unwatched);
        let orphans = self.state.orphans().filter(|(slot, _)| unwatched.contains(slot));
        let orphans = orphans.filter(|(_, peer)| peer.remote_client.is_none());
        for (slot, peer) in orphans.collect::<Vec<_>>() {
            self.watch_orphan(slot, &peer);
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Serves until the node stops. Replies queued by then are flushed.
    pub(crate) fn run(mut self) -> io::Result<Remains> {
        let mut events = Vec::with_capacity(64);
        let mut spin_until = self.started;
        let ended = loop {
            let timeout = if spin_until > Instant::now() {
                std::thread::yield_now();
                Some(Timespec { tv_sec: 0, tv_nsec: 0 })
            } else {
                self.timeout()
            };
            match epoll::wait(
                &self.poll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(0) if self.is_idle() && spin_until > Instant::now() => continue,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.turns += 1;
            self.state.set_progress(self.prepared.load(sync::Ordering::Relaxed), self.turns);
            let mut actions = Vec::new();
            if !events.is_empty() {
                spin_until = Instant::now() + SPIN;
            }
            let is_asked = self.turn(&mut events, &mut actions);
            self.state.tick(self.now_ms(), &mut actions);
            self.tell_lease();
            self.tick_remote_sessions();
            self.tick_unheard();
            self.watch_again();
            if let Some(scrapers) = &mut self.scrapers {
                scrapers
                    .tick(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX));
            }
            let is_stopped = self.perform(actions);
            self.settle_buffers();
            self.set_interests();
            if is_asked || is_stopped {
                break LoopEnd::Asked;
            }
            if let Some((session, seq)) = self.handover
                && let Some(ended) = self.hand_over(session, seq)
            {
                break ended;
            }
            if self.is_deserted() {
                break LoopEnd::Deserted;
            }
        };
        if !matches!(ended, LoopEnd::HandingOver(_)) {
            self.finish();
        }
        let Self { state, listener, wake, spill, net, .. } = self;
        // From here on nothing else touches the region.
        drop((spill, net));
        Ok(Remains { ended, state, listener, wake })
    }

    /// Whether nothing is left over from the last turn.
    fn is_idle(&self) -> bool {
        self.pending.is_empty() && !self.has_spilled && !self.has_net_events
    }

    fn timeout(&self) -> Option<Timespec> {
        if !self.is_idle() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let now_ms = self.now_ms();
        let scrape_ms = self.scrapers.as_ref().and_then(Scrapers::next_deadline_ms);
        let state_ms = self.state.next_deadline_ms();
        let deadlines = [state_ms, scrape_ms, self.next_starved_ms(), self.watch_again_at_ms];
        let mut at_ms = deadlines.into_iter().flatten().min();
        let watched = self.remote_sessions.as_ref().and_then(RemoteSessions::next_deadline);
        for at in [watched, self.deserted_at()].into_iter().flatten() {
            let left = at.saturating_duration_since(self.started).as_millis() + 1;
            let left = u64::try_from(left).unwrap_or(u64::MAX);
            at_ms = Some(at_ms.map_or(left, |earlier| earlier.min(left)));
        }
        let wait_ms = at_ms?.saturating_sub(now_ms).min(i32::MAX as u64);
        Timespec::try_from(Duration::from_millis(wait_ms)).ok()
    }

    fn observe_clients(&mut self) {
        if let Some(desertion) = &mut self.desertion {
            desertion.observe(self.state.clients() > 0);
        }
    }

    fn deserted_at(&self) -> Option<Instant> {
        self.desertion.as_ref()?.deadline(self.state.home().names() > 0)
    }

    fn is_deserted(&mut self) -> bool {
        self.observe_clients();
        self.deserted_at().is_some_and(|at| Instant::now() >= at)
    }

    /// Collects the readable sources, then gives each its part of the turn. Other nodes are first,
    /// so that a flood of clients delays no heartbeat. Clients follow, then new connections.
    fn turn(&mut self, events: &mut Vec<epoll::Event>, actions: &mut Vec<Action>) -> bool {
        let mut ready = Ready { sessions: std::mem::take(&mut self.pending), ..Ready::default() };
        for event in events.drain(..) {
            self.sort(event, &mut ready);
        }
        if ready.has_peers {
            self.take_from_remote_sessions(&mut ready.sessions, actions);
        }
        if self.has_spilled {
            self.take_spilled(actions);
        }
        if self.has_net_events {
            self.take_net_events(actions);
        }
        self.touched.extend(&ready.sessions);
        let each = REQUESTS_PER_TURN / ready.sessions.len().max(1);
        let each = each.clamp(1, REQUESTS_PER_CLIENT);
        for session in ready.sessions {
            self.serve(session, each, actions);
        }
        if ready.has_newcomers {
            self.accept();
        }
        if ready.has_scrapers {
            let now_ms = self.now_ms();
            if let Some(scrapers) = &mut self.scrapers {
                scrapers.accept(self.poll.as_fd(), now_ms);
            }
        }
        ready.is_asked_to_stop
    }

    fn sort(&mut self, event: epoll::Event, ready: &mut Ready) {
        match event.data.u64() {
            LISTENER => ready.has_newcomers = true,
            WAKE => {
                let mut bytes = [0; 64];
                ready.is_asked_to_stop |= self.wake.read(&mut bytes).is_ok();
            }
            SCRAPE_LISTENER => ready.has_scrapers = true,
            SPILL => self.has_spilled = true,
            REMOTE_SESSIONS => ready.has_peers = true,
            NET => self.has_net_events = true,
            token if token & ORPHANS != 0 => {
                let slot = ClientSlot((token & !ORPHANS) as u32);
                let watched = self.orphans.remove(&slot).map(|(peer, _)| (slot, peer));
                // The watched client may have returned and given its slot up to another one.
                if self.state.orphans().any(|orphan| Some(orphan) == watched) {
                    self.state.orphan_died(slot, self.now_ms());
                }
            }
            token if token & SCRAPERS != 0 => self.scrape(token),
            token if token & WATCHED != 0 => self.watched_gone(token & !WATCHED),
            token => {
                let number = token - SESSIONS;
                let session = SessionId(number / 2);
                if number % 2 == 1 {
                    self.process_died(session);
                } else {
                    self.ready(session, event.flags, &mut ready.sessions);
                }
            }
        }
    }

    /// Handles a limited number of finished spill jobs in one turn.
    fn take_spilled(&mut self, actions: &mut Vec<Action>) {
        let now_ms = self.now_ms();
        let Some(spill) = &self.spill else {
            return;
        };
        let (done, has_more) = spill.finished();
        for done in done {
            self.state.spill_done(done, now_ms, actions);
        }
        self.has_spilled = has_more;
    }

    /// Accepts some of the waiting connections. The rest follow in the next turn.
    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Most likely descriptors have run out.
                Err(error) => return self.cannot_accept(&error),
            };
            if let Err(error) = self.admit(stream) {
                return self.cannot_accept(&error);
            }
        }
    }

    /// Closes the connection that has been silent for the longest time, to reuse its descriptors.
    /// If there is none, new connections wait in the socket's queue until a connection is closed.
    fn cannot_accept(&mut self, error: &io::Error) {
        let connections = self.connections.len();
        match self.state.first_silent() {
            Some(session) => {
                tracing::debug!(%error, connections, "a silent connection makes way");
                self.drop_connection(session);
            }
            None => {
                tracing::warn!(%error, connections, "a connection could not be taken");
                self.set_accepting(false);
            }
        }
    }

    fn admit(&mut self, stream: UnixStream) -> io::Result<()> {
        let credentials = process::credentials_of(&stream)?;
        if !self.state.has_room_for(&credentials) {
            return Ok(());
        }
        stream.set_nonblocking(true)?;
        // A stranger is refused and gets no slot, so its process need not be watched.
        let (peer, process) = match self.state.may_connect(&credentials) {
            false => (credentials, None),
            true => {
                let peer = process::with_start_time(credentials)?;
                (peer, watch(&peer)?)
            }
        };
        let session = SessionId(self.next_session);
        let token = SESSIONS + session.0 * 2;
        epoll::add(&self.poll, &stream, EventData::new_u64(token), EventFlags::IN)?;
        if let Some(process) = &process {
            epoll::add(&self.poll, process, EventData::new_u64(token + 1), EventFlags::IN)?;
        }
        self.next_session += 1;
        self.connections.insert(session, ClientConnection::new(stream, process, peer));
        self.state.opened(session, peer, self.now_ms());
        Ok(())
    }

    fn set_accepting(&mut self, is_accepting: bool) {
        if self.is_accepting == is_accepting {
            return;
        }
        let flags = if is_accepting { EventFlags::IN } else { EventFlags::empty() };
        let token = EventData::new_u64(LISTENER);
        if epoll::modify(&self.poll, &self.listener, token, flags).is_ok() {
            self.is_accepting = is_accepting;
        }
    }

    fn ready(&mut self, session: SessionId, flags: EventFlags, ready: &mut BTreeSet<SessionId>) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        if flags.intersects(EventFlags::OUT) && flush(connection, &self.fabric).is_err() {
            {
                self.drop_connection(session);
                return;
            }
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            let is_over = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            if !self.has_room_to_read(session) {
                match is_over {
                    true => self.drop_connection(session),
                    false => drop(ready.insert(session)),
                }
                return;
            }
            let Some(connection) = self.connections.get_mut(&session) else {
                return;
            };
            match connection.fill() {
                Ok(ReadOutcome::Open) => {}
                Ok(ReadOutcome::Ended) | Err(_) => {
                    self.drop_connection(session);
                    return;
                }
            }
        }
        ready.insert(session);
    }

    /// Serves the requests of a client, at most `requests_max`.
    fn serve(&mut self, session: SessionId, requests_max: usize, actions: &mut Vec<Action>) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return self.serve_remote_client(session, requests_max, actions);
        };
        if connection.is_closing {
            return;
        }
        if connection.carried.is_some() {
            return self.carry_on(session, requests_max);
        }
        let requests = match connection.requests(requests_max) {
            Ok(requests) => requests,
            Err(error) => {
                match connection.is_introduced {
                    true => tracing::warn!(session = session.0, %error, "a client sent nonsense"),
                    // Any process can connect, and could fill the log.
                    false => tracing::debug!(session = session.0, %error, "no first message"),
                }
                self.drop_connection(session);
                return;
            }
        };
        if connection.has_request() && !connection.is_stuffed() {
            self.pending.insert(session);
        }
        self.handle_all(session, requests, actions);
    }

    fn handle_all(
        &mut self,
        session: SessionId,
        requests: Vec<Request>,
        actions: &mut Vec<Action>,
    ) {
        let wall_ns = wall_clock_ns();
        let now_ms = self.now_ms();
        for request in requests {
            let kind = request.body.kind();
            let _span = tracing::debug_span!("request", session = session.0, kind).entered();
            let began = Instant::now();
            self.state.handle(session, request, now_ms, wall_ns, actions);
            self.latencies.entry(kind).or_default().add(began.elapsed());
        }
        self.observe_clients();
        if let Some(connection) = self.connections.get_mut(&session)
            && !connection.is_introduced
        {
            connection.is_introduced = self.state.is_introduced(session);
        }
    }

    fn scrape(&mut self, token: u64) {
        let now_ms = self.now_ms();
        let Self { scrapers: Some(scrapers), state, latencies, poll, remote_sessions, .. } = self
        else {
            return;
        };
        let readiness = state.readiness(now_ms);
        scrapers.ready(poll.as_fd(), token, now_ms, readiness, || {
            let _span = tracing::debug_span!("scrape").entered();
            match state.current_stats(now_ms) {
                Ok(stats) => {
                    let numbers = state.cluster_numbers(now_ms);
                    let traffic =
                        remote_sessions.as_ref().map(|remote_sessions| &remote_sessions.traffic);
                    metrics::text::write(&stats, latencies, numbers.as_ref().zip(traffic))
                }
                Err(error) => {
                    tracing::error!(%error, "no numbers");
                    String::new()
                }
            }
        });
    }

    /// Performs actions. Returns true if the node is to stop.
    fn perform(&mut self, actions: Vec<Action>) -> bool {
        let mut is_stopped = false;
        for action in actions {
            match action {
                Action::Send { session, reply, .. } if self.is_remote_client(session) => {
                    self.reply_to_remote_client(session, &reply);
                }
                Action::Close { session } if self.is_remote_client(session) => {
                    self.drop_remote_client(session, false);
                }
                Action::Peer(action) => self.perform_with_remote_sessions(action),
                Action::Net(action) => self.perform_by_net(action),
                Action::Send { session, mut reply, has_descriptors } => {
                    let Some(connection) = self.connections.get_mut(&session) else {
                        continue;
                    };
                    open_for_client(connection, &self.fabric, &mut reply);
                    connection.is_closing |= has_descriptors && reply.body.is_err();
                    let has_descriptors = has_descriptors && reply.body.is_ok();
                    if let Err(error) = connection.queue(&reply, has_descriptors) {
                        tracing::error!(session = session.0, %error, "a reply does not fit");
                        connection.is_closing = true;
                    }
                    self.touched.insert(session);
                }
                Action::Close { session } => {
                    if let Some(connection) = self.connections.get_mut(&session) {
                        connection.is_closing = true;
                        self.touched.insert(session);
                    }
                }
                Action::Spill(job) => {
                    if let Some(spill) = &self.spill {
                        spill.push(job);
                    }
                }
                Action::Stop => is_stopped = true,
                Action::HandOver { session, seq } => self.handover = Some((session, seq)),
            }
        }
        let mut broken = Vec::new();
        for session in &self.touched {
            let Some(connection) = self.connections.get_mut(session) else {
                continue;
            };
            if flush(connection, &self.fabric).is_err()
                || (connection.is_closing && !connection.has_output())
            {
                broken.push(*session);
            }
        }
        for session in broken {
            self.drop_connection(session);
        }
        is_stopped
    }

    /// Sets the epoll interest of each touched connection.
    fn set_interests(&mut self) {
        let mut broken = Vec::new();
        for session in std::mem::take(&mut self.touched) {
            let Some(connection) = self.connections.get_mut(&session) else {
                continue;
            };
            let is_reading = connection.is_listened_to();
            let wish = (is_reading, connection.has_output());
            if wish == connection.interest {
                continue;
            }
            let mut flags = EventFlags::empty();
            flags.set(EventFlags::IN, wish.0);
            flags.set(EventFlags::OUT, wish.1);
            let token = EventData::new_u64(SESSIONS + session.0 * 2);
            match epoll::modify(&self.poll, &connection.stream, token, flags) {
                Ok(()) => connection.interest = wish,
                Err(_) => broken.push(session),
            }
            if wish.0 && !connection.is_blocked && connection.has_request() {
                self.pending.insert(session);
            }
        }
        for session in broken {
            self.drop_connection(session);
        }
    }

    fn process_died(&mut self, session: SessionId) {
        if let Some(process) =
            self.connections.get_mut(&session).and_then(|connection| connection.process.take())
        {
            let _ = epoll::delete(&self.poll, &process);
        }
        self.drop_connection(session);
    }

    fn drop_connection(&mut self, session: SessionId) {
        let Some(mut connection) = self.connections.remove(&session) else {
            return;
        };
        let _ = epoll::delete(&self.poll, &connection.stream);
        self.pending.remove(&session);
        if let Some(since_ms) = connection.starved_since_ms {
            self.starved.remove(&(since_ms, session));
        }
        self.set_accepting(true);
        let is_alive = connection.process.is_some() && !connection.has_unheard_goodbye();
        if let Some(carried) = connection.carried.take() {
            self.end_carried(&carried, !is_alive);
        }
        let orphan = self.state.closed(session, is_alive, self.now_ms());
        let Some(process) = connection.process else {
            return;
        };
        let Some(slot) = orphan else {
            let _ = epoll::delete(&self.poll, &process);
            return;
        };
        let token = EventData::new_u64(ORPHANS | u64::from(slot.0));
        match epoll::modify(&self.poll, &process, token, EventFlags::IN) {
            Ok(()) => drop(self.orphans.insert(slot, (connection.identity, process))),
            Err(error) => self.watch_later(slot, &error.into()),
        }
    }

    /// Answers waiting clients and lets the sockets drain, for a limited time.
    fn finish(&mut self) {
        self.part_from_remote_sessions();
        let mut actions = Vec::new();
        self.state.stop(&mut actions);
        self.perform(actions);
        let until = Instant::now() + CLOSE_GRACE;
        for connection in self.connections.values_mut().take_while(|_| Instant::now() < until) {
            let _ = connection.stream.set_nonblocking(false);
            let _ = connection.stream.set_write_timeout(Some(CLOSE_GRACE));
            let _ = flush(connection, &self.fabric);
        }
    }
}

/// Writes as many bytes as the client accepts, with the descriptors of its memory.
fn flush(connection: &mut ClientConnection, own: &Arc<dyn Fabric>) -> io::Result<()> {
    if !connection.has_output() {
        return Ok(());
    }
    let fabric = connection.fabric.clone().unwrap_or_else(|| Arc::clone(own));
    // Put back below if it was not sent.
    let data_read = connection.data_read.take();
    let data = data_read.as_ref().map(AsFd::as_fd);
    let flushed = connection.flush(&descriptors(fabric.as_ref(), data));
    if connection.has_descriptors() {
        connection.data_read = data_read;
    }
    flushed
}

/// Attaches a descriptor to a welcome that shows for how long the slot's client reads.
fn open_for_client(connection: &mut ClientConnection, own: &Arc<dyn Fabric>, reply: &mut Reply) {
    let Ok(ReplyBody::Welcome(welcome)) = &reply.body else {
        return;
    };
    let fabric = connection.fabric.as_ref().unwrap_or(own);
    match family::open_for_client(fabric.as_ref(), welcome.slot) {
        Ok(opened) => connection.data_read = Some(opened),
        Err(error) => {
            let what = format!("the region cannot be opened for place {}: {error}", welcome.slot);
            tracing::error!(%what);
            reply.body = Err(WireError::Damaged(what));
        }
    }
}

fn descriptors<'a>(fabric: &'a dyn Fabric, data: Option<BorrowedFd<'a>>) -> Vec<BorrowedFd<'a>> {
    let control = fabric.read_fd(Section::Control).0;
    let data = data.unwrap_or(fabric.read_fd(Section::Data).0);
    let writable = fabric.write_fd(Section::Data).map(|(fd, _)| fd);
    [Some(control), Some(data), writable].into_iter().flatten().collect()
}

fn wall_clock_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
