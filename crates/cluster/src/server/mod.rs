//! The event loop of the daemon: one thread, one epoll instance, no blocking calls.

mod accept;
mod audit;
mod buffers;
mod by_net;
mod connection;
mod desertion;
mod drain;
mod forward;
mod forwarded;
mod handover;
mod heap_trim;
mod leaving;
mod lost_pages;
mod orphans;
mod output;
mod peer_events;
mod process;
mod remote_clients;
mod remote_sessions;
mod requests;
mod scrape;
mod socket_file;
#[cfg(test)]
mod tests;
mod tokens;
mod turn;
mod warnings;
mod watched;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::{Fabric, sync};
use farrow_store::ClientSlot;
use farrow_wire::{BootTime, Spin};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::audit::AuditLog;
use crate::metrics::Latencies;
use crate::metrics::limits::Errors;
use crate::net::Net;
use crate::peer_memory::Devices;
use crate::peers::Peers;
use crate::protocol::net::NetAction;
use crate::protocol::{Action, NodeState, PeerIdentity, SessionId};
use crate::spill::Worker;
use audit::Audit;
use connection::ClientConnection;
use desertion::Desertion;
pub(crate) use handover::Handover;
use heap_trim::HeapTrim;
use lost_pages::LostPages;

use output::{flush, open_for_client};
use remote_sessions::RemoteSessions;
pub(crate) use scrape::ScrapeListener;
use scrape::Scrapers;
use socket_file::SocketFile;
use tokens::{LISTENER, NET, ORPHANS, REMOTE_SESSIONS, SCRAPE_LISTENER, SESSIONS, SPILL, WAKE};
use turn::FirstPending;
use warnings::Warnings;

/// A connection that has not drained its last replies within this time is closed.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// How the loop ended.
#[derive(Debug)]
pub(crate) enum LoopEnd {
    /// Requested by a signal, a message or a handle.
    Requested,
    /// A private node has lost its last client, and keeps nothing for a later one.
    Deserted,
    /// Another daemon takes over.
    HandingOver(Box<Handover>),
}

/// The parts of a server.
pub(crate) struct ServerParts {
    pub(crate) listener: UnixListener,
    /// The path of the listener.
    pub(crate) socket: PathBuf,
    /// Stops the server when it is readable.
    pub(crate) wake: UnixStream,
    pub(crate) started: BootTime,
    /// For a private node: how long it keeps named objects after its last client.
    pub(crate) linger: Option<Duration>,
    /// Bytes of the heap whose pages are prepared.
    pub(crate) prepared: Arc<sync::AtomicU64>,
    /// Where scrapers connect.
    pub(crate) metrics: Option<ScrapeListener>,
    /// Records who created and deleted what.
    pub(crate) audit: Option<AuditLog>,
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
    socket_file: SocketFile,
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
    /// The connections that have waited longest among those.
    first_pending: FirstPending,
    /// Connections that this turn worked on.
    touched: BTreeSet<SessionId>,
    next_session: u64,
    started: BootTime,
    /// Of a private node.
    desertion: Option<Desertion>,
    prepared: Arc<sync::AtomicU64>,
    is_accepting: bool,
    accept_again_at_ms: Option<u64>,
    /// The session of the daemon that takes over, and the sequence number of its request.
    handover: Option<(SessionId, u64)>,
    scrapers: Option<Scrapers>,
    latencies: Latencies,
    errors: Errors,
    warnings: Warnings,
    lost_pages: LostPages,
    audit: Option<Audit>,
    spill: Option<Worker>,
    remote_sessions: Option<RemoteSessions>,
    net: Option<Net>,
    /// Wakeups of the loop.
    turns: u64,
    /// Connections without room for input, by the time since when.
    starved: BTreeSet<(u64, SessionId)>,
    heap_trim: HeapTrim,
    /// Finished spill jobs are left to handle.
    has_spilled: bool,
    /// Events of the network fabric are left to handle.
    has_net_events: bool,
    /// The published time until which clients may use replicas.
    replicas_until_ns: u64,
}

impl Server {
    /// `first` is performed before anything else.
    pub(crate) fn new(
        parts: ServerParts,
        state: NodeState,
        first: Vec<Action>,
    ) -> io::Result<Self> {
        let ServerParts { listener, socket, wake, started, linger, prepared, metrics, .. } = parts;
        let ServerParts { audit, spill, peers, net, .. } = parts;
        let remote_sessions = peers.map(RemoteSessions::new);
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        listener.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let scrapers = metrics.map(Scrapers::new);
        let wakes = [
            (LISTENER, Some(listener.as_fd())),
            (WAKE, Some(wake.as_fd())),
            (SCRAPE_LISTENER, scrapers.as_ref().map(Scrapers::listener)),
            (SPILL, spill.as_ref().map(|one| one.wake.as_fd())),
            (NET, net.as_ref().map(|one| one.wake.as_fd())),
            (REMOTE_SESSIONS, remote_sessions.as_ref().map(|one| one.wake().as_fd())),
        ];
        for (token, wake) in wakes {
            let Some(wake) = wake else { continue };
            epoll::add(&poll, wake, EventData::new_u64(token), EventFlags::IN)?;
        }
        let fabric = Arc::clone(state.home().region().fabric());
        let mut server = Self {
            poll,
            listener,
            socket_file: SocketFile::new(socket),
            wake,
            state,
            fabric,
            connections: BTreeMap::new(),
            orphans: BTreeMap::new(),
            unwatched: BTreeSet::new(),
            watch_again_at_ms: None,
            pending: BTreeSet::new(),
            first_pending: FirstPending::default(),
            touched: BTreeSet::new(),
            next_session: 0,
            started,
            desertion: linger.map(|linger| Desertion::new(linger, Instant::now())),
            prepared,
            is_accepting: true,
            accept_again_at_ms: None,
            handover: None,
            scrapers,
            latencies: Latencies::new(),
            errors: Errors::default(),
            warnings: Warnings::default(),
            lost_pages: LostPages::default(),
            audit: audit.map(Audit::new),
            spill,
            remote_sessions,
            net,
            turns: 0,
            starved: BTreeSet::new(),
            heap_trim: HeapTrim::default(),
            has_spilled: false,
            has_net_events: false,
            replicas_until_ns: 0,
        };
        if server.state.was_read_by_net() {
            // The client slot records that other nodes read this region. The record must survive a
            // restart before they have heard of this one.
            if let Err(error) = server.join_net() {
                tracing::error!(%error, "no slot is free for nodes that read by network");
            }
        }
        server.watch_orphans();
        server.audit_node("start");
        server.perform(first);
        Ok(server)
    }

    /// The node's time. Leases are measured with it.
    fn now_ms(&self) -> u64 {
        BootTime::now().ms_since(self.started)
    }

    /// Warns of a client, at most once a second for each kind.
    fn warn_of(&mut self, session: SessionId, kind: &'static str, error: Option<&dyn Display>) {
        let now_ms = self.now_ms();
        self.warnings.warn_of(session, kind, error, now_ms);
    }

    /// Serves until the node stops. Replies queued by then are flushed.
    pub(crate) fn run(mut self) -> io::Result<Remains> {
        let mut events = Vec::with_capacity(64);
        let mut spin = Spin::default();
        let ended = loop {
            let may_spin = self.is_idle() && !self.state.has_work_left();
            let timeout = if may_spin && spin.goes_on() {
                spin.give_way();
                Some(Timespec { tv_sec: 0, tv_nsec: 0 })
            } else {
                self.timeout()
            };
            match epoll::wait(
                &self.poll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(0) if may_spin && spin.goes_on() => continue,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.turns += 1;
            self.state.set_progress(self.prepared.load(sync::Ordering::Relaxed), self.turns);
            let mut actions = Vec::new();
            if !events.is_empty() {
                spin = Spin::begin();
            }
            let is_queried = self.turn(&mut events, &mut actions);
            self.state.tick(self.now_ms(), &mut actions);
            self.publish_lease();
            self.tick_remote_sessions();
            self.tick_unheard();
            self.watch_again();
            self.accept_again();
            let now_ms = self.now_ms();
            if let Some(scrapers) = &mut self.scrapers {
                scrapers.tick(self.poll.as_fd(), now_ms);
            }
            let is_stopped = self.perform(actions);
            self.settle_buffers();
            self.set_interests();
            self.audit_turn();
            self.lost_pages.report(now_ms);
            if is_queried || is_stopped {
                break LoopEnd::Requested;
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
        let is_handing_over = matches!(ended, LoopEnd::HandingOver(_));
        if !is_handing_over {
            self.finish();
        }
        self.audit_node(if is_handing_over { "hand_over" } else { "end" });
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
        let more = [self.accept_again_at_ms, self.heap_trim.at_ms];
        let mut at_ms = deadlines.into_iter().chain(more).flatten().min();
        let watched = self.remote_sessions.as_ref().and_then(RemoteSessions::next_deadline);
        for at in [watched, self.deserted_at()].into_iter().flatten() {
            let left_ms = at.saturating_duration_since(Instant::now()).as_millis() + 1;
            let then_ms = now_ms.saturating_add(u64::try_from(left_ms).unwrap_or(u64::MAX));
            at_ms = Some(at_ms.map_or(then_ms, |earlier| earlier.min(then_ms)));
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

    /// Performs actions. Returns true if the node is to stop.
    fn perform(&mut self, mut actions: Vec<Action>) -> bool {
        self.state.confirm_names(self.now_ms(), &mut actions);
        let (mut is_stopped, mut releases) = (false, Vec::new());
        for action in actions {
            if let Action::Send { reply, .. } = &action {
                reply.errors().for_each(|error| self.errors.add(error));
            }
            if let Action::Send { session, reply, .. } | Action::SendFile { session, reply, .. } =
                &action
            {
                self.audit_reply(*session, reply);
            }
            match action {
                Action::Send { session, reply, .. } if self.is_remote_client(session) => {
                    self.reply_to_remote_client(session, &reply);
                }
                Action::Close { session } if self.is_remote_client(session) => {
                    self.drop_remote_client(session);
                }
                Action::Peer(action) => self.perform_with_remote_sessions(action),
                // They wake threads, which would take the cores of the clients that wait for replies.
                Action::Net(action @ NetAction::Release { .. }) => releases.push(action),
                Action::Net(action) => self.perform_by_net(action),
                Action::Send { session, mut reply, has_descriptors } => {
                    let Some(connection) = self.connections.get_mut(&session) else {
                        continue;
                    };
                    open_for_client(connection, &self.fabric, &mut reply);
                    if has_descriptors && reply.body.is_err() {
                        self.state.refused(session);
                        connection.is_closing = true;
                    }
                    let has_descriptors = has_descriptors && reply.body.is_ok();
                    if let Err(error) = connection.queue(&reply, has_descriptors) {
                        tracing::error!(
                            session = session.0, %error,
                            "a reply exceeds the limit of a message"
                        );
                        connection.is_closing = true;
                    }
                    self.touched.insert(session);
                }
                Action::SendFile { session, reply, file } => self.send_file(session, reply, file),
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
                Action::Scraped(stats) => self.scraped(stats),
                Action::Stop => is_stopped = true,
                Action::HandOver { session, seq } => self.handover = Some((session, seq)),
            }
        }
        self.flush_touched();
        for action in releases {
            self.perform_by_net(action);
        }
        is_stopped
    }

    /// Writes the replies to the clients that this turn worked on.
    fn flush_touched(&mut self) {
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
        self.audit_closed(session);
        let may_live =
            connection.process.is_some() || !process::is_identified(&connection.identity);
        let is_alive = may_live && !connection.has_unheard_goodbye();
        if let Some(forwarded) = connection.forwarded.take() {
            self.end_forwarded(&forwarded, !is_alive);
        }
        if let Some(net) = &mut self.net {
            net.end_faults(session);
        }
        let orphan = self.state.closed(session, is_alive, self.now_ms());
        let Some(process) = connection.process else {
            if let Some(slot) = orphan {
                self.watch_orphan(slot, &connection.identity);
            }
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
        let mut left: Vec<SessionId> = self.connections.keys().copied().collect();
        while !left.is_empty() && Instant::now() < until {
            left.retain(|session| {
                self.connections.get_mut(session).is_some_and(|connection| {
                    flush(connection, &self.fabric).is_ok() && connection.has_output()
                })
            });
            self.await_writable(&left, until);
        }
    }
}
