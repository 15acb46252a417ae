//! A node: its options, its start (creating or adopting the region), its end.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farrow_memory::{CoherenceClass, FabricError, HeldMemory, Length, MapError, WINDOW_BASE, sync};
use farrow_store::{ByHand, EvictionPolicy, FormatError, Lru, RegionUid, StoreError};
use farrow_wire::{Rule, paths};

use crate::certs::NodeName;
use crate::endpoint::Scraped;
use crate::lock::Lock;
use crate::memory::{OpenedStore, adopt_existing, find_or_make};
use crate::metrics::MetricsAddress;
use crate::net::Net;
use crate::peer_memory::{self, Devices};
use crate::peers::{self, PEER_BYTES_MIN, PeerLimits, PeerTimes, Peers, PeersOptions, StartError};
pub use crate::peers::{EtcdConfig, EtcdPlace, EtcdTls, EtcdUser, PeerTls};
use crate::place::RegionFolder;
pub use crate::place::{MemoryChoice, memory_choice};
use crate::prepare;
use crate::protocol::cluster::{AgreementKind, ClusterOptions, Offer};
use crate::protocol::{
    AdoptedState, BUFFERS_BYTES_DEFAULT, DaemonInfo, NodeState, Quotas, unfinished,
};
use crate::server::{Handover, LoopEnd, Remains, Server, ServerParts};
pub use crate::spill::SpillTarget;
use crate::spill::{SpillOwner, SpillStore, Worker};
use crate::supervisor::{Custody, Handles};
use crate::upgrade::{self, Succession, TakenOver, UpgradeState};

/// The address window has 64 places of 256 GiB, so that two nodes seldom choose the same one.
const WINDOW_PLACE_BYTES: u64 = 256 << 30;
const WINDOW_PLACES: u64 = 64;

/// Smallest useful heap: a few extents.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// The source of a node's memory.
#[derive(Debug, Clone)]
pub enum MemorySource {
    /// A tmpfs of the node's own with huge pages, if `/dev/shm` has none and the node may mount
    /// one. Otherwise `/dev/shm`.
    Automatic,
    /// Files in a tmpfs.
    Shm {
        /// The folder.
        dir: PathBuf,
    },
    /// A file that can be mapped, from `file_offset` on.
    Device {
        /// The file.
        path: PathBuf,
        /// First byte to use.
        file_offset: u64,
        /// Its coherence between machines.
        coherence: CoherenceClass,
    },
}

/// The reaction of a node to a request for memory that is not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum EvictionKind {
    /// Evicts the least recently used objects, unless they are held or pinned.
    Lru,
    /// Refuses the request. Objects are only removed by deletes and explicit evictions.
    None,
}

impl EvictionKind {
    fn policy(self) -> Box<dyn EvictionPolicy> {
        match self {
            Self::Lru => Box::new(Lru),
            Self::None => Box::new(ByHand),
        }
    }
}

impl MemorySource {
    /// The folder that `$FARROW_MEMORY_DIR` names, else the node's own choice.
    pub fn from_environment() -> Self {
        match paths::named_memory_dir() {
            Some(dir) => Self::Shm { dir },
            None => Self::Automatic,
        }
    }
}

/// The configuration of a node.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Where clients connect.
    pub socket: PathBuf,
    /// Heap size. `None`: a quarter of the available memory.
    pub memory: Option<Length>,
    /// The source of the memory.
    pub source: MemorySource,
    /// Limit on objects sealed through the node, and on those that clients seal themselves. `None`:
    /// by the size of the memory.
    pub objects_max: Option<u32>,
    /// Limit on clients. `None`: the store's default.
    pub clients_max: Option<u32>,
    /// Limits for one client.
    pub quotas: Quotas,
    /// Limit on the daemon's own memory for requests, replies and waits of clients and other nodes.
    pub buffers_max: Length,
    /// The node ends with its last client.
    pub is_private: bool,
    /// Leaves the memory in place at the end, for a later node to adopt.
    pub is_keeping: bool,
    /// Discards the memory of an earlier node instead of adopting it.
    pub is_fresh: bool,
    /// Prepares the heap's pages in the background.
    pub is_preparing: bool,
    /// Takes over from the node that serves at the socket, if one does.
    pub is_upgrade: bool,
    /// Where to serve metrics for Prometheus. `None`: nowhere.
    pub metrics: Option<MetricsAddress>,
    /// The reaction to a shortage of memory.
    pub eviction: EvictionKind,
    /// Users that may connect, in addition to the node's own and root.
    pub users: Vec<u32>,
    /// Permissions of other nodes' clients, applied at each start over the retained ones.
    pub rules: Vec<Rule>,
    /// Where objects are spilled instead of evicted. `None`: nowhere.
    pub spill: Option<SpillTarget>,
    /// The cluster of the node. `None`: the node is not in a cluster.
    pub cluster: Option<ClusterConfig>,
}

/// The configuration of a node in a cluster.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// Its name, unique in the cluster.
    pub name: NodeName,
    /// Where it listens for other nodes. With port 0 the kernel chooses.
    pub listen: SocketAddr,
    /// Where other nodes reach it, if that differs from `listen`.
    pub advertise: Option<String>,
    /// Addresses of other nodes. Without any the node founds a cluster, unless it has been in one.
    pub seeds: Vec<String>,
    /// The etcd that stores the membership. `None`: the nodes agree among themselves.
    pub etcd: Option<EtcdConfig>,
    /// A node without a sign of life for this long is considered lost.
    pub lease: Duration,
    /// Devices or folders on which other nodes may lend memory, in addition to the node's own.
    pub devices: Vec<PathBuf>,
    /// Its certificate, and that of the authority.
    pub tls: Option<PeerTls>,
    /// Whether plain text is allowed without a certificate, on loopback only.
    pub is_plaintext_allowed: bool,
    /// Access over the network for nodes that cannot map each other's memory.
    pub net: NetConfig,
}

/// How objects are read over the network.
#[derive(Debug, Clone, Default)]
pub struct NetConfig {
    /// Where to listen for data connections. `None`: where the node listens, at any port.
    pub listen: Option<SocketAddr>,
    /// Where other nodes reach that listener, if it differs: a host, or a host and a port.
    pub advertise: Option<String>,
    /// Limit on the bytes of replicas of other nodes' objects. `None`: the free memory.
    pub cache: Option<Length>,
    /// When objects are read over the network.
    pub used: NetUse,
}

/// When objects of other nodes are read over the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum NetUse {
    /// If memory cannot be mapped.
    #[default]
    Auto,
    /// Always: no other node maps this node's memory.
    Only,
    /// Never: objects whose memory cannot be mapped are not readable.
    Off,
}

impl NodeOptions {
    /// The default options for a node at `socket`.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            memory: None,
            source: MemorySource::from_environment(),
            objects_max: None,
            clients_max: None,
            quotas: Quotas::default(),
            buffers_max: Length(BUFFERS_BYTES_DEFAULT as u64),
            is_private: false,
            is_keeping: false,
            is_fresh: false,
            is_preparing: true,
            is_upgrade: false,
            metrics: None,
            cluster: None,
            eviction: EvictionKind::Lru,
            users: Vec::new(),
            rules: Vec::new(),
            spill: None,
        }
    }
}

/// Why a node fails to start, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Another node has the lock. The program exits with
    /// [`ALREADY_SERVING_CODE`](farrow_wire::ALREADY_SERVING_CODE).
    #[error("a node already serves {}", socket.display())]
    AlreadyServing {
        /// Its socket.
        socket: PathBuf,
    },
    /// The path of the socket is too long for the system.
    #[error("the socket path {} is {bytes} B long, the system takes {max} B", socket.display())]
    SocketPath {
        /// The path.
        socket: PathBuf,
        /// Its length.
        bytes: usize,
        /// Limit.
        max: usize,
    },
    /// The memory is too small.
    #[error("{asked} B of memory asked, a node needs {min} B at least")]
    TooSmall {
        /// The requested size.
        asked: u64,
        /// The smallest size.
        min: u64,
    },
    /// The memory of an earlier node cannot be adopted.
    #[error("the memory {memory} cannot be adopted: {source}; --fresh throws it away")]
    NotAdopted {
        /// The memory.
        memory: String,
        /// The cause.
        source: StoreError,
    },
    /// A device or file has contents, and no region: it may be the wrong one.
    #[error(
        "{memory} is not memory of a node: its bytes {at} to {} are {}; --fresh overwrites them",
        at + 7, shown(*found)
    )]
    OtherData {
        /// Where it lies.
        memory: String,
        /// The first bytes that are not zero, from its start.
        at: u64,
        /// The word there.
        found: u64,
    },
    /// The serving node did not hand over.
    #[error("the node at {} did not hand over: {reason}", socket.display())]
    NotHandedOver {
        /// Its socket.
        socket: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The memory cannot be created or opened.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The memory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The store cannot be laid out.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The layout is not possible.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Communication with other nodes cannot start.
    #[error("the cluster: {0}")]
    Cluster(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The attempted operation.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

/// The bytes of a word in their order, as text where they are one.
fn shown(word: u64) -> String {
    let bytes = word.to_le_bytes();
    let is_text = bytes.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    let text = is_text.then(|| format!(" ({:?})", String::from_utf8_lossy(&bytes)));
    format!("{bytes:02x?}{}", text.unwrap_or_default())
}

pub(crate) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> NodeError {
    let what = what.into();
    move |source| NodeError::Io { what, source }
}

/// Both ends of the socket that stops a node. It exists before the node, so a signal during the
/// start is not lost.
#[derive(Debug)]
pub struct StopSwitch {
    stopper: UnixStream,
    wake: UnixStream,
}

impl StopSwitch {
    /// Creates a switch.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let (stopper, wake) = UnixStream::pair()?;
        Ok(Self { stopper, wake })
    }

    /// A handle that uses this switch.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn stopper(&self) -> io::Result<Stopper> {
        self.stopper.try_clone().map(Stopper)
    }
}

/// Stops a node from another thread.
#[derive(Debug)]
pub struct Stopper(UnixStream);

impl Stopper {
    /// Requests that the node ends.
    pub fn stop(&self) {
        // A full pipe contains an earlier request.
        let _ = (&self.0).write(&[1]);
    }

    /// A socket that stops the node when a byte is written to it, for signal handlers.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn wake_handle(&self) -> io::Result<UnixStream> {
        self.0.try_clone()
    }
}

/// A node that is ready to serve.
pub struct Node {
    server: Server,
    options: NodeOptions,
    /// `None`: on a device, which is permanent, or without a name.
    place: Option<RegionFolder>,
    /// The descriptors that keep the memory. The lock file states their numbers.
    handles: Handles,
    custody: Custody,
    lock: Lock,
    preparing: Option<JoinHandle<()>>,
    should_prepare: Arc<sync::AtomicBool>,
    stopper: UnixStream,
    /// Open until this daemon is confirmed to serve. If it ends before that, the previous daemon
    /// takes the region back.
    predecessor: Option<UnixStream>,
    /// A summary of the start.
    pub summary: Summary,
}

/// The results of a node's start.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Heap bytes.
    pub capacity: u64,
    /// A description of the memory.
    pub memory: String,
    /// Objects adopted from an earlier life.
    pub adopted: u32,
    /// Objects of an earlier life that could not be adopted, with reasons.
    pub dropped: Vec<String>,
    /// Objects of an earlier life that were retained without their damaged names, with reasons.
    pub unnamed: Vec<String>,
    /// The address of the metrics.
    pub metrics: Option<String>,
    /// The node's name and address in its cluster.
    pub cluster: Option<String>,
}

impl Node {
    /// Takes the lock, creates or adopts the region, and binds the socket.
    ///
    /// # Errors
    ///
    /// See [`NodeError`]. Everything created for this node is removed again.
    pub fn open(options: NodeOptions) -> Result<Self, NodeError> {
        Self::open_with(options, StopSwitch::new().map_err(failed("a pair of sockets"))?)
    }

    /// As [`Self::open`], but stopped by an existing switch.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_with(options: NodeOptions, switch: StopSwitch) -> Result<Self, NodeError> {
        Self::open_in(options, switch, Custody::alone())
    }

    /// As [`Self::open_with`], with a custody for the descriptors that must outlive this process.
    pub(crate) fn open_in(
        mut options: NodeOptions,
        switch: StopSwitch,
        mut custody: Custody,
    ) -> Result<Self, NodeError> {
        let started = Instant::now();
        let Handles { lock, listener, memory } = custody.take_start();
        if custody.is_restart() {
            // The first daemon of this supervisor has done this.
            (options.is_fresh, options.is_upgrade) = (false, false);
        }
        check_socket_path(&options.socket)?;
        // A spill target that is away at a restart is no reason to lose what is in memory.
        if let Some(target) = options.spill.as_ref().filter(|_| !custody.is_restart()) {
            // Before the node creates memory that a failure would leave behind.
            target.probe().map_err(failed(format!("reach {target}")))?;
        }
        paths::prepare_socket_dir(&options.socket)
            .map_err(failed(format!("the folder of {}", options.socket.display())))?;
        let region_name = paths::region_name(&options.socket);
        let mut memory = memory;
        if options.is_upgrade {
            match upgrade::take_over(&options, &region_name)? {
                TakenOver::All(inherited) => {
                    let beginning = Beginning { options, switch, custody, started };
                    return Self::follow(beginning, *inherited);
                }
                TakenOver::Nobody(left) => memory = memory.or(left),
            }
        }
        let lock = match lock {
            Some(file) => Lock::inherited(file, &options.socket),
            // A node that can no longer hand over, or whose socket is removed, may hold the lock
            // briefly.
            None if options.is_upgrade || !options.socket.exists() => {
                Lock::take_when_free(&options.socket)?
            }
            None => Lock::take(&options.socket)?,
        };
        // Before the node creates memory that a failure would leave behind. A restart does not
        // require that etcd is reachable.
        let start = |config| start_peers(config, options.buffers_max, !custody.is_restart());
        let peers = options.cluster.as_ref().map(start).transpose()?;
        let found = find_or_make(&options, &region_name, memory)?;
        let listener = match listener {
            Some(listener) => listener,
            None => bind(&options.socket, &options.users)?,
        };
        let beginning = Beginning { options, switch, custody, started };
        Self::build(beginning, lock, listener, found, peers)
    }

    /// Continues where another daemon stopped, or failed to take over.
    fn follow(beginning: Beginning, inherited: UpgradeState) -> Result<Self, NodeError> {
        let UpgradeState { listener, lock, memory, inheritance, predecessor } = inherited;
        let options = &beginning.options;
        let lock = Lock::inherited(lock, &options.socket);
        let name = paths::region_name(&options.socket);
        // A takeover does not require that etcd is reachable.
        let start = |config| start_peers(config, options.buffers_max, false);
        let peers = options.cluster.as_ref().map(start).transpose()?;
        let promised = inheritance.promised.clone();
        let unfinished = unfinished(inheritance);
        let mut found = adopt_existing(options, &name, &unfinished, memory.as_ref())?;
        found.promised = promised;
        found.predecessor = predecessor;
        Self::build(beginning, lock, listener, found, peers)
    }

    fn build(
        beginning: Beginning,
        lock: Lock,
        listener: UnixListener,
        found: OpenedStore,
        peers: Option<Peers>,
    ) -> Result<Self, NodeError> {
        let Beginning { options, switch, custody, started } = beginning;
        let offer = offer_of(&found, &options);
        let mut summary = Summary {
            capacity: found.home.layout().heap.length.0,
            memory: found.home.region().fabric().describe(),
            adopted: found.adopted,
            dropped: found.dropped,
            unnamed: found.unnamed,
            metrics: None,
            cluster: None,
        };
        let StopSwitch { stopper, wake } = switch;
        let region = Arc::clone(found.home.region());
        let heap = found.home.layout().heap;
        let base = base_of(found.home.uid(), region.length());
        let daemon = DaemonInfo { base, pid: std::process::id(), owner_uid: paths::own_uid() };
        let adopted = AdoptedState { orphans: found.clients, objects: found.adopted };
        let mut state = NodeState::new(found.home, daemon, adopted, 0);
        state.set_eviction_policy(options.eviction.policy());
        let spill = options.spill.as_ref();
        let is_nameless = found.held.as_ref().is_some_and(HeldMemory::is_nameless);
        let owner = is_nameless.then_some(&lock);
        let spill = spill.map(|target| start_spill(target, owner, &mut state)).transpose()?;
        state.set_quotas(options.quotas);
        let of_peers = peers.as_ref().map_or(0, |peers| peers.buffered_bytes().1 as u64);
        state.set_buffers_max(options.buffers_max.0.saturating_sub(of_peers));
        state.inherit_reservations(&found.promised);
        state.allow_users(&options.users);
        let ruled = state.set_rules(options.rules.clone());
        ruled.map_err(|error| NodeError::Cluster(error.to_string()))?;
        let prepared = Arc::new(sync::AtomicU64::new(0));
        let should_prepare = Arc::new(sync::AtomicBool::new(true));
        let preparing = options.is_preparing.then(|| {
            prepare::start(region, heap, Arc::clone(&prepared), Arc::clone(&should_prepare))
        });
        let is_private = options.is_private;
        let metrics = options.metrics.as_ref();
        let metrics = metrics.map(|address| Scraped::bind(address, &options.socket)).transpose()?;
        summary.metrics = metrics.as_ref().map(|bound| bound.address.clone());
        let metrics = metrics.map(|bound| bound.listener);
        let mut first = Vec::new();
        let mut net = None;
        if let (Some(config), Some(peers)) = (&options.cluster, &peers) {
            let served = start_net(config, peers, &mut state)?;
            let (served, address) = served.unzip();
            net = served;
            let cluster = cluster_options(config, peers, offer, address);
            let by = config.etcd.as_ref().map(|etcd| format!(", members by {}", etcd.place));
            let by = by.unwrap_or_default();
            summary.cluster = Some(format!("node {} at {}{by}", cluster.name, cluster.address));
            let joined = state.join_cluster(cluster, 0, &mut first);
            joined.map_err(|error| NodeError::Cluster(error.to_string()))?;
        }
        let allowed = options.cluster.as_ref().map_or(&[][..], |one| &one.devices);
        let devices = Devices::new(&options.source, allowed);
        let peers = peers.map(|peers| (peers, devices));
        let predecessor = found.predecessor;
        let handles = handles_of(&lock, &listener, found.held)?;
        // Before any other node learns where the memory is.
        custody.ready(&handles, predecessor.as_ref())?;
        let parts = ServerParts {
            listener,
            wake,
            started,
            is_private,
            prepared,
            metrics,
            spill,
            peers,
            net,
        };
        let server = Server::new(parts, state, first).map_err(failed("the event loop"))?;
        let preparing = preparing.flatten();
        let place = found.place;
        Ok(Self {
            server,
            options,
            place,
            handles,
            custody,
            lock,
            preparing,
            should_prepare,
            stopper,
            summary,
            predecessor,
        })
    }

    /// A handle that ends [`Self::run`].
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn stopper(&self) -> io::Result<Stopper> {
        self.stopper.try_clone().map(Stopper)
    }

    /// Serves until stopped, then releases everything, or until another daemon takes everything
    /// over.
    ///
    /// # Errors
    ///
    /// The event loop failed. The memory is left for the next node to adopt.
    pub fn run(self) -> Result<(), NodeError> {
        let mut node = self;
        while let Some(again) = node.serve()? {
            tracing::warn!("the next daemon failed; this one goes on");
            node = again;
        }
        Ok(())
    }

    /// Returns `Some` if another daemon failed to take over.
    fn serve(self) -> Result<Option<Self>, NodeError> {
        let Self { server, options, place, handles, custody, lock, preparing, .. } = self;
        let held = handles.memory;
        let (should_prepare, stopper) = (self.should_prepare, self.stopper);
        let ended = server.run();
        drop(self.predecessor);
        should_prepare.store(false, sync::Ordering::Relaxed);
        if let Some(thread) = preparing {
            let _ = thread.join();
        }
        let Remains { ended, state, listener, wake } = ended.map_err(failed("the event loop"))?;
        match ended {
            LoopEnd::HandingOver(handover) => {
                drop(state);
                let switch = StopSwitch { stopper, wake };
                let started = Instant::now();
                let beginning = Beginning { options, switch, custody, started };
                return Self::make_way(beginning, (lock, listener, held), *handover);
            }
            LoopEnd::Deserted => tracing::info!("the last client left"),
            LoopEnd::Asked => {}
        }
        let _ = fs::remove_file(&options.socket);
        if let Some(path) = options.metrics.as_ref().and_then(|it| it.path(&options.socket)) {
            let _ = fs::remove_file(path);
        }
        let uid = state.home().uid();
        let failure = state.failure().map(str::to_owned);
        drop(state);
        let is_nameless = held.as_ref().is_some_and(HeldMemory::is_nameless);
        // If the supervisor was killed, the daemon leaves the same things as a killed daemon.
        let is_staying = options.is_keeping || custody.is_orphaned();
        if is_nameless || (place.is_some() && !is_staying) {
            if let Some(target) = &options.spill {
                purge_spill(target, uid);
            }
            if let Some(place) = place {
                place.clear(&paths::region_name(&options.socket))?;
            }
        }
        lock.release();
        custody.ended();
        failure.map_or(Ok(None), |failure| Err(NodeError::Cluster(failure)))
    }

    /// Hands everything over, and takes it back if the next daemon fails before it serves.
    fn make_way(
        beginning: Beginning,
        (lock, listener, memory): (Lock, UnixListener, Option<HeldMemory>),
        handover: Handover,
    ) -> Result<Option<Self>, NodeError> {
        let inheritance = handover.inheritance().clone();
        let succession = match handover.pass_on(listener.as_fd(), lock.as_fd()) {
            Ok(successor) => upgrade::await_successor(successor, &beginning.switch.wake),
            Err(error) => {
                tracing::warn!(%error, "the next daemon went away before it had everything");
                Succession::Failed
            }
        };
        if succession == Succession::Over {
            return Ok(None);
        }
        let lock = lock.into_file();
        let back = UpgradeState { listener, lock, memory, inheritance, predecessor: None };
        let beginning = Beginning { started: Instant::now(), ..beginning };
        Self::follow(beginning, back).map(Some)
    }
}

/// The state of a node before it has any resources.
struct Beginning {
    options: NodeOptions,
    switch: StopSwitch,
    custody: Custody,
    started: Instant,
}

/// The descriptors that must outlive the daemon.
fn handles_of(
    lock: &Lock,
    listener: &UnixListener,
    memory: Option<HeldMemory>,
) -> Result<Handles, NodeError> {
    let listener = listener.try_clone().map_err(failed("share the socket"))?;
    Ok(Handles { lock: Some(lock.share()?), listener: Some(listener), memory })
}

/// Listens for other nodes, and connects to the etcd that stores the membership, if configured.
fn start_peers(
    config: &ClusterConfig,
    buffers_max: Length,
    is_probing: bool,
) -> Result<Peers, NodeError> {
    let quarter = usize::try_from(buffers_max.0 / 4).unwrap_or(usize::MAX);
    let bytes_max = quarter.clamp(PEER_BYTES_MIN, u32::MAX as usize);
    let options = PeersOptions {
        name: config.name.clone(),
        incarnation: 0,
        listen: config.listen,
        tls: config.tls.clone(),
        is_plaintext_allowed: config.is_plaintext_allowed,
        limits: PeerLimits { bytes_max, ..PeerLimits::default() },
        times: PeerTimes::for_lease(config.lease),
    };
    let failed = |error: StartError| NodeError::Cluster(error.to_string());
    let mut peers = Peers::start(options).map_err(failed)?;
    if let Some(etcd) = &config.etcd {
        peers.start_etcd(etcd, config.lease, is_probing).map_err(failed)?;
    }
    Ok(peers)
}

fn offer_of(found: &OpenedStore, options: &NodeOptions) -> Offer {
    let home = &found.home;
    let geometry = home.layout().geometry;
    let dir = found.place.as_ref().map(|place| place.dir.as_path());
    Offer {
        host: peer_memory::own_host(),
        region_uid: home.uid().0,
        control_bytes: geometry.control.0,
        data_bytes: geometry.data.0,
        capacity: home.layout().heap.length.0,
        base: base_of(home.uid(), home.region().length()),
        ways: match &options.cluster {
            Some(config) if config.net.used == NetUse::Only => Vec::new(),
            _ => peer_memory::ways(options, dir),
        },
    }
}

/// Serves the node's objects over the network, and returns the address.
fn start_net(
    config: &ClusterConfig,
    peers: &Peers,
    state: &mut NodeState,
) -> Result<Option<(Net, String)>, NodeError> {
    if config.net.used == NetUse::Off {
        return Ok(None);
    }
    let failed = |why: String| NodeError::Cluster(format!("the data server: {why}"));
    let NetConfig { listen, advertise, cache, .. } = &config.net;
    let listen = listen.unwrap_or_else(|| SocketAddr::new(config.listen.ip(), 0));
    if config.tls.is_none() && !listen.ip().is_loopback() {
        return Err(failed(format!("plain text at {listen}, which is not on loopback")));
    }
    let credentials = peers::data_credentials(config.tls.as_ref()).map_err(failed)?;
    let region = Arc::clone(state.home().region());
    let rules = Arc::default();
    let net = Net::start(&region, listen, credentials, Arc::clone(&rules)).map_err(failed)?;
    state.set_net(net.interests(), rules, net.kind(), cache.map(|bytes| bytes.0));
    let bound = net.address().map_err(failed)?;
    let host = config.advertise.as_ref().and_then(|it| it.rsplit_once(':')).map(|(host, _)| host);
    let address = match (advertise, host) {
        (Some(host), _) => with_port(host, bound.port()),
        (None, Some(host)) => format!("{host}:{}", bound.port()),
        (None, None) => SocketAddr::new(peers.local_address().ip(), bound.port()).to_string(),
    };
    Ok(Some((net, address)))
}

/// An address as it is, or a host with a port. An IPv6 host may be without brackets.
fn with_port(text: &str, port: u16) -> String {
    let is_bare_ipv6 = !text.starts_with('[') && text.matches(':').count() > 1;
    match text.rsplit_once(':') {
        _ if is_bare_ipv6 => format!("[{text}]:{port}"),
        Some((_, end)) if end.parse::<u16>().is_ok() => text.to_owned(),
        _ => format!("{text}:{port}"),
    }
}

fn cluster_options(
    config: &ClusterConfig,
    peers: &Peers,
    offer: Offer,
    net: Option<String>,
) -> ClusterOptions {
    let address = config.advertise.clone();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    ClusterOptions {
        name: config.name.clone(),
        address: address.unwrap_or_else(|| peers.local_address().to_string()),
        agreement: match config.etcd {
            None => AgreementKind::Embedded,
            Some(_) => AgreementKind::Etcd,
        },
        seeds: config.seeds.clone(),
        lease_ms: u64::try_from(config.lease.as_millis()).unwrap_or(u64::MAX),
        // Assumes that the clock does not go back between two starts.
        incarnation: nanos,
        seed: nanos ^ offer.region_uid,
        offer,
        net,
    }
}

/// Starts the spill thread and sets up spilling in the state. `owner` is the lock of a node whose
/// memory has no name.
fn start_spill(
    target: &SpillTarget,
    owner: Option<&Lock>,
    state: &mut NodeState,
) -> Result<Worker, NodeError> {
    let home = state.home();
    let region = Arc::clone(home.region());
    let open = || format!("the spill files of region {}", home.uid());
    let store = SpillStore::open(target, home.uid()).map_err(failed(open()))?;
    if let Some(lock) = owner {
        let told = SpillOwner::of(lock).and_then(|owner| store.belongs_to(&owner));
        told.map_err(failed(open()))?;
    }
    let retained = home.spilled_ids()?;
    let label = store.label().to_owned();
    let worker = Worker::start(store, region, &retained).map_err(failed("the spill thread"))?;
    state.set_eviction_policy(Box::new(Lru));
    state.set_spill(label);
    Ok(worker)
}

/// Removes the spill files of a region that no longer exists.
fn purge_spill(target: &SpillTarget, uid: RegionUid) {
    let purged = SpillStore::open(target, uid).and_then(|store| store.purge());
    if let Err(error) = purged {
        tracing::warn!(%error, "spill files are left");
    }
}

pub(crate) fn check_socket_path(socket: &Path) -> Result<(), NodeError> {
    let bytes = socket.as_os_str().len();
    let max = paths::SOCKET_PATH_BYTES_MAX;
    if bytes == 0 || bytes > max {
        return Err(NodeError::SocketPath { socket: socket.to_owned(), bytes, max });
    }
    Ok(())
}

/// Binds the socket. The node admits users by their kernel credentials, so with other users
/// allowed, any user may connect.
fn bind(socket: &Path, users: &[u32]) -> Result<UnixListener, NodeError> {
    match fs::remove_file(socket) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(format!("remove {}", socket.display()))(error)),
    }
    let listener =
        UnixListener::bind(socket).map_err(failed(format!("bind {}", socket.display())))?;
    let mode = if users.is_empty() { 0o600 } else { 0o666 };
    fs::set_permissions(socket, fs::Permissions::from_mode(mode))
        .map_err(failed(format!("chmod {}", socket.display())))?;
    if !users.is_empty() {
        paths::open_runtime_dir(socket)
            .map_err(failed(format!("open the folder of {}", socket.display())))?;
    }
    Ok(listener)
}

/// The address at which all processes should map the region with this uid.
fn base_of(uid: RegionUid, length: Length) -> u64 {
    if length.0 > WINDOW_PLACE_BYTES {
        return WINDOW_BASE.0 as u64;
    }
    WINDOW_BASE.0 as u64 + (uid.0 % WINDOW_PLACES) * WINDOW_PLACE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_gets_a_port_and_an_ipv6_host_brackets() {
        for (text, expected) in [
            ("a.example", "a.example:7"),
            ("a.example:80", "a.example:80"),
            ("10.0.0.1", "10.0.0.1:7"),
            ("fd00::1", "[fd00::1]:7"),
            ("fd00::abcd", "[fd00::abcd]:7"),
            ("::1", "[::1]:7"),
            ("fe80::1%eth0", "[fe80::1%eth0]:7"),
            ("[fd00::1]", "[fd00::1]:7"),
            ("[fd00::1]:80", "[fd00::1]:80"),
        ] {
            assert_eq!(with_port(text, 7), expected);
        }
    }
}
