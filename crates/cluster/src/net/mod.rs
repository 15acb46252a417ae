//! The network fabric of a node: lends objects to nodes that cannot map its memory, and reads
//! objects of nodes whose memory it cannot map.
//!
//! The event loop decides ([`crate::protocol::replicas`]). Blocking calls run on threads of this
//! module, and their results return as [`NetEvent`].

#[cfg(test)]
mod connect_test;
mod event_sender;
mod faults;
mod lazy;
#[cfg(test)]
mod notes_test;
mod part;
mod pool;
#[cfg(test)]
mod queries_test;
mod readers;
mod serving;
mod source;
mod tickets;
mod transfer;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farrow_memory::sync::AtomicU64;
use farrow_memory::{FileMap, Length, Offset, Region, Section, Span};
use farrow_net::pack::{PackMode, PackingOptions};
use farrow_net::peer::{Peer, PeerOptions, Piece};
use farrow_net::records::Credentials;
#[cfg(feature = "rdma")]
use farrow_net::server::RdmaHome;
use farrow_net::server::{DataServer, ServerOptions};
use farrow_net::source::{HoldId, MemberLife, Source};
use farrow_net::ticket::Ticket;

use crate::endpoint;
use crate::protocol::SessionId;
use crate::protocol::net::{NetAction, NetEvent, NetFault, NetReaders};
use event_sender::EventSender;
use lazy::{LazyFiles, LazySource};
use pool::{WaitGroup, WorkerPool};
use source::{RegionSource, lock};
use tickets::{PeerControl, TicketWaits};
use transfer::{ReplicaMemory, TransferCost};
use workers::{NetJob, PeerWorkers};

/// Most threads that wait for the end of connections, each to one node.
const ENDING_THREADS: usize = 16;

/// Time limit for ending the connections of a lost member. After a timeout its holds stay.
const CUT_MAX: Duration = Duration::from_secs(20);

/// Events handled in one turn of the event loop.
const EVENTS_PER_TURN: usize = 64;

/// Addresses of a name that are tried, each with its own time limit.
const ADDRESSES_MAX: usize = 4;

/// What has ended, and waits for its threads.
struct Ending {
    /// A member whose connections here end, and whose holds are released then.
    member: Option<MemberLife>,
    /// Already lost, so that its threads end.
    peer: Option<Arc<Peer>>,
}

/// State shared by the threads.
struct NetShared {
    memory: ReplicaMemory,
    server: DataServer,
    source: Arc<RegionSource>,
    event_sender: EventSender,
    /// `"net"` or `"net+TLS"`.
    kind: &'static str,
    packing: PackingOptions,
    #[cfg(feature = "rdma")]
    rdma: Option<String>,
    /// Nodes of which the name of the data server is being resolved.
    resolving: Mutex<BTreeSet<String>>,
}

impl NetShared {
    /// How a transfer from a peer was made.
    fn way(&self, peer: &Peer) -> &'static str {
        #[cfg(feature = "rdma")]
        if peer.is_by_rdma() {
            return if self.kind == "net" { "net+rdma" } else { "net+TLS+rdma" };
        }
        let _ = peer;
        self.kind
    }
}

/// Options of the network fabric.
pub(crate) struct NetOptions {
    /// Address of the data server. Port 0 means any port.
    pub(crate) listen: SocketAddr,
    pub(crate) credentials: Credentials,
    /// When objects are compressed on their way.
    pub(crate) packing: PackMode,
    /// The network card for one-sided reads.
    #[cfg(feature = "rdma")]
    pub(crate) rdma: Option<String>,
}

/// The event loop's handle on the network fabric.
pub(crate) struct Net {
    shared: Arc<NetShared>,
    credentials: Credentials,
    /// Peers by name, with their addresses.
    peers: BTreeMap<String, (BTreeSet<SocketAddr>, Arc<Peer>)>,
    tickets: Arc<TicketWaits>,
    pools: BTreeMap<String, PeerWorkers>,
    files: LazyFiles,
    /// What ends the threads that serve page faults, by the connections of their clients.
    faults: BTreeMap<SessionId, Arc<OwnedFd>>,
    /// Bytes that these threads have brought since they were last asked for.
    faulted_bytes: Arc<AtomicU64>,
    /// `None`: the fabric ends.
    endings: Option<WorkerPool<Ending>>,
    /// What no thread could be started for.
    unended: Vec<Ending>,
    group: Arc<WaitGroup>,
    events: Receiver<NetEvent>,
    /// Readable when there are events.
    pub(crate) wake: UnixStream,
}

fn words(error: impl Display) -> String {
    error.to_string()
}

impl Net {
    /// Serves a region.
    pub(crate) fn start(region: &Arc<Region>, options: NetOptions) -> Result<Self, String> {
        let NetOptions { listen, credentials, packing, .. } = options;
        let (wake, wake_writer) = UnixStream::pair().map_err(words)?;
        wake.set_nonblocking(true).map_err(words)?;
        wake_writer.set_nonblocking(true).map_err(words)?;
        let (sender, events) = channel();
        let event_sender = EventSender::new(sender, wake_writer);
        let source = RegionSource::new(region, event_sender.clone())?;
        let listener = endpoint::listen(listen).map_err(|error| format!("{listen}: {error}"))?;
        let reads: Arc<dyn Source> = Arc::clone(&source) as _;
        let map = writable_map(region)?;
        let packing = PackingOptions { packing, counts: Arc::clone(&source.packed) };
        let of_server = ServerOptions {
            packing: packing.clone(),
            #[cfg(feature = "rdma")]
            rdma: options.rdma.clone().map(|device| RdmaHome { device, map: Arc::clone(&map) }),
            ..ServerOptions::default()
        };
        let server = DataServer::start(listener, of_server, credentials.clone(), reads, None)
            .map_err(words)?;
        let shared = Arc::new(NetShared {
            memory: ReplicaMemory::new(Arc::clone(region), map),
            server,
            source,
            event_sender,
            kind: credentials.as_str(),
            packing,
            #[cfg(feature = "rdma")]
            rdma: options.rdma,
            resolving: Mutex::default(),
        });
        let (of_threads, group) = (Arc::clone(&shared), Arc::default());
        let endings = WorkerPool::new(&group, ENDING_THREADS, move |job| end(&of_threads, job));
        Ok(Self {
            shared,
            credentials,
            peers: BTreeMap::new(),
            tickets: Arc::default(),
            pools: BTreeMap::new(),
            files: LazyFiles::default(),
            faults: BTreeMap::new(),
            faulted_bytes: Arc::default(),
            endings: Some(endings),
            unended: Vec::new(),
            group,
            events,
            wake,
        })
    }

    /// The address of this node's data server.
    pub(crate) fn address(&self) -> Result<SocketAddr, String> {
        self.shared.server.address().map_err(words)
    }

    /// `"net"` or `"net+TLS"`.
    pub(crate) fn kind(&self) -> &'static str {
        self.shared.kind
    }

    /// A limited number of events, and whether there may be more.
    pub(crate) fn events(&self) -> (Vec<NetEvent>, bool) {
        let mut bytes = [0; 64];
        // Less than there is room for was all. Later events wake the loop again.
        while io::Read::read(&mut &self.wake, &mut bytes).is_ok_and(|count| count == bytes.len()) {}
        let events: Vec<NetEvent> = self.events.try_iter().take(EVENTS_PER_TURN).collect();
        let has_more = events.len() == EVENTS_PER_TURN;
        (events, has_more)
    }

    /// Whether other nodes can hold objects here: see [`Net::add_hold_block`].
    pub(crate) fn is_ready(&self) -> bool {
        self.shared.source.is_ready()
    }

    /// Whether the members may hold more objects than the hold blocks have places for.
    pub(crate) fn needs_hold_block(&self) -> bool {
        self.shared.source.needs_hold_block()
    }

    /// Adds a hold block of the client slot that other nodes share.
    pub(crate) fn add_hold_block(&self, block: Span) -> Result<(), String> {
        self.shared.source.add_hold_block(block)
    }

    /// The threads that serve other nodes, for the decisions.
    pub(crate) fn readers(&self) -> Arc<dyn NetReaders> {
        Arc::clone(&self.shared.source) as _
    }

    /// Issues a ticket for a connection of a member, whose daemon has this life.
    pub(crate) fn issue_ticket(&self, member: &MemberLife, life: u64) -> Result<[u8; 32], String> {
        self.hear_of_life(member, life)?;
        let ticket = self.shared.server.issue_ticket(member).map_err(words)?;
        Ok(*ticket.as_bytes())
    }

    /// Notes the life of a member's daemon. If it follows another one, ends what that one reads.
    fn hear_of_life(&self, member: &MemberLife, life: u64) -> Result<(), String> {
        let Self { shared, .. } = self;
        match shared.source.life_of(member) {
            Some(known) if known > life => {
                Err(format!("daemon {life} of {member} has ended, number {known} follows it"))
            }
            Some(known) if known == life => Ok(()),
            _ => {
                // First: what their threads open from now on is released by them.
                shared.server.disconnect(member, &format!("daemon {life} of {member} follows"));
                shared.source.end_reads_before(member, life);
                Ok(())
            }
        }
    }

    /// The descriptors that a client needs for an object whose pages are brought one by one: the
    /// file, and the device for page faults if this process may open it.
    pub(crate) fn file_descriptors(&mut self, file: u64) -> Result<Vec<OwnedFd>, String> {
        self.files.descriptors(file)
    }

    /// Performs an action or queues it for a thread.
    pub(crate) fn perform(&mut self, action: NetAction) {
        match action {
            NetAction::Connect { node, addresses, section } => {
                if let Err(why) = self.connect(&node, &addresses, section) {
                    tracing::warn!(node, ?addresses, %why, "a node cannot be reached by network");
                }
            }
            NetAction::Cut { node, incarnation, is_lost } => {
                self.cut(MemberLife { name: node, incarnation }, is_lost);
            }
            NetAction::EndReads { node, incarnation, life: None } => {
                let member = MemberLife { name: node, incarnation };
                // First: what its threads open from now on is released by them.
                self.shared.server.disconnect(&member, "this node was excluded from its cluster");
                self.shared.source.end_reads(&member);
            }
            NetAction::EndReads { node, incarnation, life: Some(life) } => {
                let member = MemberLife { name: node, incarnation };
                if let Err(why) = self.hear_of_life(&member, life) {
                    tracing::debug!(%why, "a message of an earlier incarnation is ignored");
                }
            }
            NetAction::Open { token, node, want, part } => match self.peer(&node) {
                Ok(peer) => self.push(&node, NetJob::Open { token, peer, want, part }),
                Err(fault) => {
                    let result = Err(fault);
                    self.shared.event_sender.send(NetEvent::Opened { token, node, result });
                }
            },
            NetAction::Load { origin, node, hold, pieces } => match self.peer(&node) {
                Ok(peer) => {
                    let control = self.shared.memory.region.geometry().control.0;
                    let in_data = |to: Offset| Offset(to.0.wrapping_sub(control));
                    let pieces = pieces.into_iter();
                    let pieces = pieces.map(|(from, to)| Piece { from, to: in_data(to) }).collect();
                    self.push(&node, NetJob::Load { origin, peer, hold, pieces });
                }
                Err(fault) => {
                    let result = Err(fault);
                    self.shared.event_sender.send(NetEvent::Loaded { origin, result });
                }
            },
            NetAction::OpenFile { file, key, node, hold, blocks } => {
                self.files.open(file, key, LazySource { node, hold, blocks });
            }
            NetAction::CloseFile { file } => self.files.close(file),
            NetAction::Pages { token, file, node, hold, ranges } => {
                let object = self.files.object(file).map_err(NetFault::Other);
                match object.and_then(|object| Ok((object, self.peer(&node)?))) {
                    Ok((object, peer)) => {
                        self.push(&node, NetJob::Pages { token, peer, hold, object, ranges });
                    }
                    Err(fault) => {
                        self.shared
                            .event_sender
                            .send(NetEvent::Pages { token, result: Err(fault) });
                    }
                }
            }
            NetAction::Release { node, hold } => {
                self.shared.memory.release(&node, hold);
                if let Some((_, peer)) = self.peers.get(&node) {
                    // If it cannot be sent now, the next connection sends it.
                    peer.release(HoldId(hold));
                }
            }
            NetAction::Ticket { number, result } => {
                self.tickets.deliver(number, result.map(Ticket::from_bytes));
            }
            // Handled by the event loop, which has the state.
            NetAction::IssueTicket { .. } => {}
        }
    }

    /// Ends the connections in both directions with an incarnation that has ended.
    fn cut(&mut self, member: MemberLife, is_lost: bool) {
        let peer = if is_lost { self.peers.remove(&member.name) } else { None };
        let peer = peer.map(|(_, peer)| peer);
        if let Some(peer) = &peer {
            // At once, so that its jobs fail and its threads become free.
            peer.lose(&format!("{member} is no member any more"));
            self.pools.remove(&member.name);
        }
        self.end_later(Ending { member: Some(member), peer });
    }

    fn connect(&mut self, node: &str, addresses: &[String], section: u64) -> Result<(), String> {
        let mut parsed = Vec::with_capacity(addresses.len());
        for address in addresses {
            let Ok(at) = address.parse::<SocketAddr>() else {
                // Name resolution may block, and may be asked for again meanwhile.
                if lock(&self.shared.resolving).insert(node.to_owned()) {
                    let (of_job, address) = (node.to_owned(), address.to_owned());
                    self.push(node, NetJob::Resolve { node: of_job, address, section });
                }
                return Ok(());
            };
            parsed.push(at);
        }
        let Some(first) = parsed.first() else { return Err("it has no address".to_owned()) };
        // Resolvers return the same addresses in another order now and then.
        let all: BTreeSet<SocketAddr> = parsed.iter().copied().collect();
        let known = self.peers.get(node);
        if known.is_some_and(|(at, peer)| *at == all && peer.section().0 == section) {
            return Ok(());
        }
        let of_peer = PeerOptions::new(node, *first, Length(section));
        let options = PeerOptions {
            addresses: parsed,
            packing: self.shared.packing.clone(),
            #[cfg(feature = "rdma")]
            rdma: self.shared.rdma.clone(),
            ..of_peer
        };
        let control = Arc::new(PeerControl {
            node: node.to_owned(),
            event_sender: self.shared.event_sender.clone(),
            tickets: Arc::clone(&self.tickets),
        });
        let peer = Peer::start(options, self.credentials.clone(), control).map_err(words)?;
        let peer = (all, Arc::new(peer));
        if let Some((_, earlier)) = self.peers.insert(node.to_owned(), peer) {
            earlier.lose("it listens elsewhere, or has other memory now");
            self.end_later(Ending { member: None, peer: Some(earlier) });
        }
        Ok(())
    }

    fn peer(&self, node: &str) -> Result<Arc<Peer>, NetFault> {
        let peer = self.peers.get(node).map(|(_, peer)| Arc::clone(peer));
        peer.ok_or_else(|| NetFault::Lost(format!("{node} is not reached by network")))
    }

    fn push(&mut self, node: &str, job: NetJob) {
        let of_node = self.pools.entry(node.to_owned()).or_insert_with(|| {
            PeerWorkers::new(|threads| {
                let shared = Arc::clone(&self.shared);
                WorkerPool::new(&self.group, threads, move |job| work(&shared, job))
            })
        });
        if let Err((job, error)) = of_node.pool_of(&job).push(job) {
            tracing::error!(node, %error, "a network thread cannot be started");
            fail(&self.shared, job, &error);
        }
    }

    fn end_later(&mut self, ending: Ending) {
        self.unended.push(ending);
        let Some(endings) = &self.endings else { return };
        while let Some(ending) = self.unended.pop() {
            if let Err((ending, error)) = endings.push(ending) {
                tracing::error!(%error, "no thread can end connections: holds stay until later");
                return self.unended.push(ending);
            }
        }
    }
}

impl Drop for Net {
    /// After this, no thread accesses the region.
    fn drop(&mut self) {
        for (_, peer) in self.peers.values() {
            peer.lose("this node ends");
        }
        self.pools.clear();
        self.endings = None;
        self.faults.values().for_each(|stop| faults::end(stop));
        self.group.wait();
    }
}

/// The data section of a region, for the bytes of transfers.
fn writable_map(region: &Region) -> Result<Arc<FileMap>, String> {
    let (file, file_offset) = region
        .fabric()
        .write_fd(Section::Data)
        .ok_or_else(|| "the region cannot be written".to_owned())?;
    let file = file.try_clone_to_owned().map_err(words)?;
    let map = FileMap::new(file, file_offset, region.geometry().data, true).map_err(words)?;
    Ok(Arc::new(map))
}

fn work(shared: &NetShared, job: NetJob) {
    match job {
        NetJob::Open { token, peer, want, part } => {
            let result = shared.memory.open(&peer, &want, part.as_ref());
            let node = peer.name().to_owned();
            shared.event_sender.send(NetEvent::Opened { token, node, result });
        }
        NetJob::Load { origin, peer, hold, pieces } => {
            let result = shared.memory.load(&peer, hold, pieces);
            let result = result.map(|TransferCost { bytes, elapsed_us }| {
                let (node, way) = (peer.name().to_owned(), shared.way(&peer));
                shared.event_sender.send(NetEvent::Transferred { node, bytes, way, elapsed_us });
            });
            shared.event_sender.send(NetEvent::Loaded { origin, result });
        }
        NetJob::Pages { token, peer, hold, object, ranges } => {
            let result = transfer::bring(&peer, &object, hold, &ranges);
            // Before the event: after it the file may be closed.
            drop(object);
            shared.event_sender.send(NetEvent::Pages { token, result });
        }
        NetJob::Resolve { node, address, section } => {
            let found = address.to_socket_addrs();
            lock(&shared.resolving).remove(&node);
            match found.map(|all| all.take(ADDRESSES_MAX).collect::<Vec<_>>()) {
                Ok(at) if at.is_empty() => {
                    tracing::warn!(node, address, "a data server's name has no address");
                }
                Ok(at) => shared.event_sender.send(NetEvent::Resolved { node, at, section }),
                Err(error) => {
                    tracing::warn!(node, address, %error, "a data server's name is not resolved")
                }
            }
        }
    }
}

/// Reports a job that no thread performs.
fn fail(shared: &NetShared, job: NetJob, error: &io::Error) {
    let fault = NetFault::Busy(error.to_string());
    match job {
        NetJob::Open { token, peer, .. } => {
            let node = peer.name().to_owned();
            shared.event_sender.send(NetEvent::Opened { token, node, result: Err(fault) });
        }
        NetJob::Load { origin, .. } => {
            shared.event_sender.send(NetEvent::Loaded { origin, result: Err(fault) });
        }
        NetJob::Pages { token, .. } => {
            shared.event_sender.send(NetEvent::Pages { token, result: Err(fault) });
        }
        NetJob::Resolve { node, .. } => drop(lock(&shared.resolving).remove(&node)),
    }
}

fn end(shared: &NetShared, Ending { member, peer }: Ending) {
    if let Some(member) = member {
        match shared.server.cut(&member, CUT_MAX) {
            Ok(()) => shared.source.forget(&member),
            Err(error) => tracing::error!(%member, %error, "the holds of a node stay"),
        }
    }
    // Waits for its threads, unless jobs still use it.
    drop(peer);
}
