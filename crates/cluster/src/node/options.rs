//! The options of a node and of its cluster.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use farrow_memory::{CoherenceClass, Length};
use farrow_store::{ByHand, EvictionPolicy, Lru};
use farrow_wire::{Rule, paths};

use crate::certs::NodeName;
use crate::metrics::MetricsAddress;
use crate::peers::{EtcdConfig, PeerTls};
use crate::protocol::{BUFFERS_BYTES_DEFAULT, Quotas};
use crate::spill::SpillTarget;

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
    pub(super) fn policy(self) -> Box<dyn EvictionPolicy> {
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
    /// Heap size up to which the memory can grow while the node serves. `None`: the heap size at
    /// the start.
    pub memory_max: Option<Length>,
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
    /// The node ends with its last client, or [`Self::linger`] later.
    pub is_private: bool,
    /// How long a private node keeps named objects after its last client.
    pub linger: Duration,
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
    /// Where to record who created and deleted what. `None`: nowhere. Each object is then sealed by
    /// a request.
    pub audit_log: Option<PathBuf>,
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
    /// When their bytes are compressed on the way.
    pub compress: NetCompress,
    /// The network card by which large objects are read one-sidedly, of nodes that have one too.
    #[cfg(feature = "rdma")]
    pub rdma: Option<String>,
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

/// When bytes of objects are compressed on their way over the network. Both nodes must allow it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum NetCompress {
    /// By LZ4, if measurements of the link, of the data and of the processor say that it saves time.
    #[default]
    Auto,
    /// Never.
    Off,
    /// By LZ4, if the bytes become fewer.
    Lz4,
}

impl NodeOptions {
    /// The default options for a node at `socket`.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            memory: None,
            memory_max: None,
            source: MemorySource::from_environment(),
            objects_max: None,
            clients_max: None,
            quotas: Quotas::default(),
            buffers_max: Length(BUFFERS_BYTES_DEFAULT as u64),
            is_private: false,
            linger: Duration::ZERO,
            is_keeping: false,
            is_fresh: false,
            is_preparing: true,
            is_upgrade: false,
            metrics: None,
            audit_log: None,
            cluster: None,
            eviction: EvictionKind::Lru,
            users: Vec::new(),
            rules: Vec::new(),
            spill: None,
        }
    }
}
