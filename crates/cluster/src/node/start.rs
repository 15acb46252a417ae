//! The parts of a node, each started from its options.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use farrow_memory::sync::{AtomicBool, AtomicU64};
use farrow_memory::{HeldMemory, Length, WINDOW_BASE};
use farrow_net::pack::PackMode;
use farrow_net::records::Credentials;
use farrow_store::{Lru, RegionUid};
use farrow_wire::{NodeSettings, paths};
use rustix::fs::{Mode, OFlags};

use super::error::{NodeError, failed};
use super::options::{ClusterConfig, EvictionKind, NetCompress, NetConfig, NetUse, NodeOptions};
use crate::audit::AuditLog;
use crate::host::own_host;
use crate::lock::Lock;
use crate::logging;
use crate::memory::OpenedStore;
use crate::net::{Net, NetOptions};
use crate::peer_memory;
use crate::peers::{PEER_BYTES_MIN, PeerLimits, PeerTimes, Peers, PeersOptions, StartError};
use crate::prepare::{self, HeapPages};
use crate::protocol::cluster::{AgreementKind, ClusterOptions, Offer};
use crate::protocol::{Action, NodeState, Preparation};
use crate::spill::{SpillOwner, SpillStore, SpillTarget, Worker};
use crate::supervisor::Handles;

/// The address window has 64 places of 256 GiB, so that two nodes seldom choose the same one.
const WINDOW_PLACE_BYTES: u64 = 256 << 30;
const WINDOW_PLACES: u64 = 64;

/// The descriptors that must outlive the daemon.
pub(super) fn handles_of(
    lock: &Lock,
    listener: &UnixListener,
    memory: Option<HeldMemory>,
) -> Result<Handles, NodeError> {
    let listener = listener.try_clone().map_err(failed("share the socket"))?;
    Ok(Handles { lock: Some(lock.share()?), listener: Some(listener), memory })
}

/// Listens for other nodes, and connects to the etcd that stores the membership, if configured.
pub(super) fn start_peers(
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
    check_reachable(config.listen, config.advertise.as_deref()).map_err(NodeError::Cluster)?;
    if let Some(etcd) = &config.etcd {
        peers.start_etcd(etcd, config.lease, is_probing).map_err(failed)?;
    }
    Ok(peers)
}

/// Checks that the address that all members get to know is one of this node: at `0.0.0.0` each of
/// them would call itself.
fn check_reachable(listen: SocketAddr, advertise: Option<&str>) -> Result<(), String> {
    if listen.ip().is_unspecified() && advertise.is_none() {
        let why = "stands for all addresses of this machine, and names it to no other one";
        return Err(format!("{listen} {why}: give other nodes an address by --advertise"));
    }
    Ok(())
}

pub(super) fn offer_of(found: &OpenedStore, options: &NodeOptions) -> Offer {
    let home = &found.home;
    let geometry = home.layout().geometry;
    let dir = found.place.as_ref().map(|place| place.dir.as_path());
    Offer {
        host: own_host(),
        region_uid: home.uid().0,
        control_bytes: geometry.control.0,
        data_bytes: geometry.data.0,
        capacity: home.capacity().0,
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
    let credentials = match peers.credentials() {
        Some(credentials) => credentials.data().map_err(failed)?,
        None => Credentials::Plain,
    };
    let region = Arc::clone(state.home().region());
    let options = NetOptions {
        listen,
        credentials,
        packing: match config.net.compress {
            NetCompress::Auto => PackMode::Auto,
            NetCompress::Off => PackMode::Off,
            NetCompress::Lz4 => PackMode::Lz4,
        },
        #[cfg(feature = "rdma")]
        rdma: config.net.rdma.clone(),
    };
    let net = Net::start(&region, options).map_err(failed)?;
    state.set_net(net.readers(), net.kind(), cache.map(|bytes| bytes.0));
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
pub(super) fn with_port(text: &str, port: u16) -> String {
    let is_bare_ipv6 = !text.starts_with('[') && text.matches(':').count() > 1;
    match text.rsplit_once(':') {
        _ if is_bare_ipv6 => format!("[{text}]:{port}"),
        Some((_, end)) if end.parse::<u16>().is_ok() => text.to_owned(),
        _ => format!("{text}:{port}"),
    }
}

/// What a node that founds a cluster says: if it was in one and lost its memory, that is a mistake.
const FOUNDS: &str = ", founds a cluster: it has no --join and remembers none";

/// Whether a node founds a cluster of its own.
fn is_founder(config: &ClusterConfig, was_in_cluster: bool) -> bool {
    config.seeds.is_empty() && config.etcd.is_none() && !was_in_cluster
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
        // Assumes that the clock does not go back between two starts of a node without memory.
        incarnation: nanos,
        seed: nanos ^ offer.region_uid,
        offer,
        net,
    }
}

/// A node's part in its cluster.
pub(super) struct StartedCluster {
    /// Serves the objects over the network.
    pub(super) net: Option<Net>,
    /// The node's name and address, for the user.
    pub(super) summary: String,
    /// The first actions of the membership.
    pub(super) actions: Vec<Action>,
}

/// Serves the node's objects to its cluster, and joins or founds it.
pub(super) fn join_cluster(
    config: &ClusterConfig,
    peers: &Peers,
    offer: Offer,
    was_in_cluster: bool,
    state: &mut NodeState,
) -> Result<StartedCluster, NodeError> {
    let (net, address) = start_net(config, peers, state)?.unzip();
    let cluster = cluster_options(config, peers, offer, address);
    let by = config.etcd.as_ref().map(|etcd| format!(", members by {}", etcd.place));
    let by = by.unwrap_or_default();
    let founds = if is_founder(config, was_in_cluster) { FOUNDS } else { "" };
    let summary = format!("node {} at {}{by}{founds}", cluster.name, cluster.address);
    let mut actions = Vec::new();
    let joined = state.join_cluster(cluster, 0, &mut actions);
    joined.map_err(|error| NodeError::Cluster(error.to_string()))?;
    Ok(StartedCluster { net, summary, actions })
}

/// The thread that touches the pages of the heap before clients do.
pub(super) struct HeapPreparation {
    /// `None`: no pages are prepared.
    pub(super) thread: Option<JoinHandle<()>>,
    pub(super) should_go_on: Arc<AtomicBool>,
    /// Bytes of the heap whose pages are prepared.
    pub(super) prepared: Arc<AtomicU64>,
}

/// Starts to prepare the pages of the heap, if the options say so.
pub(super) fn start_preparing(is_preparing: bool, state: &mut NodeState) -> HeapPreparation {
    let prepared = Arc::new(AtomicU64::new(0));
    let should_go_on = Arc::new(AtomicBool::new(true));
    let thread = is_preparing.then(|| {
        let is_running = Arc::default();
        let preparation = Preparation { should_go_on: Arc::clone(&should_go_on), is_running };
        state.set_preparation(preparation.clone());
        let home = state.home();
        let region = Arc::clone(home.region());
        let pages = HeapPages { region, heap: home.layout().heap, lent: home.lent() };
        prepare::start(pages, Arc::clone(&prepared), preparation)
    });
    HeapPreparation { thread: thread.flatten(), should_go_on, prepared }
}

/// Opens the audit log of the options.
pub(super) fn open_audit(
    options: &NodeOptions,
    is_restart: bool,
    state: &mut NodeState,
) -> Result<Option<AuditLog>, NodeError> {
    let Some(path) = options.audit_log.as_deref() else { return Ok(None) };
    state.set_audited();
    let what = format!("the audit log {}", path.display());
    AuditLog::open(path, is_restart).map_err(failed(what)).map(Some)
}

/// Notes the settings of the options, or resumes those of the daemon before.
pub(super) fn begin_settings(
    options: &NodeOptions,
    state: &mut NodeState,
    is_successor: bool,
) -> Result<(), NodeError> {
    let (log, control) = logging::control().unzip();
    let started = NodeSettings {
        client_bytes: options.quotas.client_bytes_max,
        client_objects: options.quotas.client_objects_max,
        cache: options.cluster.as_ref().and_then(|one| one.net.cache).map(|bytes| bytes.0),
        is_evicting: options.eviction == EvictionKind::Lru,
        log: log.unwrap_or_default(),
        memory: options.memory.map_or(0, |bytes| bytes.0),
    };
    let begun = state.begin_settings(started, control, is_successor);
    begun.map_err(|error| NodeError::Settings(error.to_string()))
}

/// Starts the spill thread and sets up spilling in the state. `owner` is the lock of a node whose
/// memory has no name.
pub(super) fn start_spill(
    target: &SpillTarget,
    owner: Option<&Lock>,
    is_restart: bool,
    state: &mut NodeState,
) -> Result<Worker, NodeError> {
    let home = state.home();
    let region = Arc::clone(home.region());
    let open = || format!("the spill files of region {}", home.uid());
    // At a restart, a folder that fails is no reason to lose what is in memory.
    let store = match (SpillStore::open(target, home.uid()), target) {
        (Err(error), SpillTarget::Folder(dir)) if is_restart => {
            tracing::error!(
                folder = %dir.display(), %error,
                "the spill folder cannot be used: no object is spilled or restored"
            );
            SpillStore::without_folder(dir, home.uid())
        }
        (opened, _) => opened,
    };
    let store = store.map_err(failed(open()))?;
    if let Some(lock) = owner {
        match SpillOwner::of(lock).and_then(|owner| store.belongs_to(&owner)) {
            Err(error) if is_restart => {
                tracing::warn!(
                    %error,
                    "the marker of the spill files cannot be written: the files may be left"
                );
            }
            other => other.map_err(failed(open()))?,
        }
    }
    let retained = home.spilled_ids()?;
    let label = store.label().to_owned();
    let worker = Worker::start(store, region, &retained).map_err(failed("the spill thread"))?;
    state.set_eviction_policy(Box::new(Lru));
    state.set_spill(label);
    Ok(worker)
}

/// Removes the spill files of a region that no longer exists.
pub(super) fn purge_spill(target: &SpillTarget, uid: RegionUid) {
    let store = match SpillStore::open(target, uid) {
        Ok(store) => store,
        Err(error) => return tracing::warn!(%target, %error, "spill files are left"),
    };
    if let Err(error) = store.purge() {
        let prefix = store.label();
        tracing::warn!(prefix, %error, "spill files are left: remove all with this prefix");
    }
}

/// Binds the socket, which appears when it listens, in place of one of an earlier daemon. The node
/// admits users by their kernel credentials, so with other users allowed, any user may connect.
pub(super) fn bind(socket: &Path, users: &[u32]) -> Result<UnixListener, NodeError> {
    let listener =
        listen_beside(socket, users).map_err(failed(format!("listen at {}", socket.display())))?;
    if !users.is_empty() {
        paths::open_runtime_dir(socket)
            .map_err(failed(format!("open the folder of {}", socket.display())))?;
    }
    Ok(listener)
}

/// A socket has a name before it listens, so it begins with another one.
fn listen_beside(socket: &Path, users: &[u32]) -> io::Result<UnixListener> {
    let dir = socket.parent().filter(|dir| !dir.as_os_str().is_empty());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir.unwrap_or(Path::new(".")), flags, Mode::empty())?;
    // Through the folder's descriptor: a path of a socket has at most 107 bytes. The lock of the node
    // covers the name.
    let name = paths::region_name(socket);
    let made = format!("/proc/self/fd/{}/.{name}", dir.as_raw_fd());
    let made = Path::new(&made);
    match fs::remove_file(made) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(made)?;
    let mode = if users.is_empty() { 0o600 } else { 0o666 };
    let placed = fs::set_permissions(made, fs::Permissions::from_mode(mode))
        .and_then(|()| fs::rename(made, socket));
    if placed.is_err() {
        let _ = fs::remove_file(made);
    }
    placed.map(|()| listener)
}

/// The address at which all processes should map the region with this uid.
pub(super) fn base_of(uid: RegionUid, length: Length) -> u64 {
    if length.0 > WINDOW_PLACE_BYTES {
        return WINDOW_BASE.0 as u64;
    }
    WINDOW_BASE.0 as u64 + (uid.0 % WINDOW_PLACES) * WINDOW_PLACE_BYTES
}

#[cfg(test)]
mod tests {
    use farrow_memory::sync::Ordering;

    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

    use super::*;

    /// Regression test: a socket had its name before it listened, and a script that waited for the
    /// file was refused.
    #[test]
    fn a_socket_listens_and_has_its_mode_when_it_appears() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("n".repeat(100 - dir.path().as_os_str().len()));
        let address = SocketAddrUnix::new(&socket).unwrap();
        let connect = || {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            match rustix::net::connect(&stream, &address) {
                Ok(()) | Err(Errno::AGAIN) => Ok(()),
                Err(error) => Err(error),
            }
        };
        let is_over = AtomicBool::new(false);
        let mut listeners = vec![bind(&socket, &[]).unwrap()];
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    connect().unwrap();
                }
            });
            for _ in 0..200 {
                listeners.push(bind(&socket, &[]).unwrap());
                assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
            }
            is_over.store(true, Ordering::Release);
            client.join().unwrap();
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// Regression test: such a node named `0.0.0.0` to all members as its address.
    #[test]
    fn a_node_that_listens_at_all_addresses_must_name_one() {
        for listen in ["0.0.0.0:7420", "[::]:7420"] {
            let refused = check_reachable(listen.parse().unwrap(), None).unwrap_err();
            assert!(refused.contains("--advertise"), "{refused}");
            assert_eq!(check_reachable(listen.parse().unwrap(), Some("a.example:7420")), Ok(()));
        }
        assert_eq!(check_reachable("10.0.0.7:7420".parse().unwrap(), None), Ok(()));
    }

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
