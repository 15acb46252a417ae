//! The command line of the daemon, shared by `farrowd` and `farrow node`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use farrow_memory::{CoherenceClass, Length};
use farrow_wire::{ALREADY_SERVING_CODE, Rule, paths};

use crate::certs::{self, NodeName, node_name};
use crate::config;
use crate::descriptors;
use crate::logging::{self, LogFormat, say};
use crate::metrics::MetricsAddress;
use crate::node::{
    ClusterConfig, EtcdConfig, EtcdPlace, EtcdTls, EtcdUser, EvictionKind, MemorySource,
    NetCompress, NetConfig, NetUse, Node, NodeError, NodeOptions, PeerTls, SpillTarget, StopSwitch,
};
use crate::protocol::Quotas;
use crate::supervisor::{self, Custody};
use crate::{leftovers, signals, size};

/// Lends memory to the processes of this user and stores their objects.
///
/// A small supervisor starts the daemon, holds its memory, and restarts it if it is killed, without
/// losing an object.
#[derive(Debug, Parser)]
#[command(name = "farrow node", version, after_help = EXIT_CODES)]
struct Arguments {
    /// Where clients connect [default: $FARROW_SOCKET, else this user's default socket]
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Memory to lend, such as 512MiB or 8G [default: a quarter of the available memory]
    #[arg(long, value_parser = size::parse)]
    memory: Option<Length>,
    /// Memory up to which --memory can be raised while the node serves (farrow node set --memory);
    /// its tables are sized for this [default: --memory]
    #[arg(long, value_name = "SIZE", value_parser = size::parse,
          conflicts_with_all = ["device", "region"])]
    memory_max: Option<Length>,
    /// The memory as one value: shm:SIZE, or device:PATH,SIZE[,OFFSET] for a file that can be
    /// mapped
    #[arg(long, value_name = "WHAT", value_parser = RegionArgument::parse,
          conflicts_with_all = ["memory", "device", "device_offset"])]
    region: Option<RegionArgument>,
    /// Folder for the memory, in a tmpfs [default: $FARROW_MEMORY_DIR, else a tmpfs with huge pages
    /// that the node mounts if it may, else /dev/shm]
    #[arg(long, conflicts_with = "device")]
    memory_dir: Option<PathBuf>,
    /// Lend a file that can be mapped (devdax, famfs, PCI BAR) instead of a tmpfs
    #[arg(long, value_name = "PATH", requires = "memory")]
    device: Option<PathBuf>,
    /// First byte of the device to use
    #[arg(long, value_parser = size::parse, requires = "device")]
    device_offset: Option<Length>,
    /// The device is cache-coherent only inside this machine
    #[arg(long)]
    node_local: bool,
    /// Limit on objects with a name, and on objects without
    #[arg(long)]
    objects_max: Option<u32>,
    /// Limit on clients
    #[arg(long)]
    clients_max: Option<u32>,
    /// Limit on the memory of one client, such as 512MiB [default: all]
    #[arg(long, value_parser = size::parse)]
    client_bytes: Option<Length>,
    /// Limit on the objects of one client; with it, each put needs a message to the node [default:
    /// all]
    #[arg(long)]
    client_objects: Option<u32>,
    /// Limit on the daemon's own memory for requests, replies and waits of all clients and other
    /// nodes, such as 64MiB; at least 16MiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "128MiB")]
    buffers_max: Length,
    /// End when the last client disconnects
    #[arg(long)]
    private: bool,
    /// With --private: end this many seconds after the last client has disconnected, if named
    /// objects are left
    #[arg(long, value_name = "SECONDS", default_value_t = 0, requires = "private",
        value_parser = clap::value_parser!(u64).range(..=LINGER_SECONDS_MAX))]
    linger: u64,
    /// Give the memory a name, and leave it in place at the end for a later node to adopt. Without
    /// this, --memory-dir and --device it has no name, and is freed with the last process that uses
    /// it
    #[arg(long)]
    keep: bool,
    /// Discard the memory of an earlier node instead of adopting it
    #[arg(long)]
    fresh: bool,
    /// Take over from the node that serves at this socket, without interrupting its clients; give
    /// the same options as to that node. Without such a node this is an ordinary start
    #[arg(long, conflicts_with = "fresh")]
    upgrade: bool,
    /// Serve Prometheus metrics: unix:PATH, 127.0.0.1:PORT or PORT of this machine [without an
    /// address: a Unix socket next to that of the node, with .metrics after its name]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "",
          value_parser = MetricsAddress::parse)]
    metrics: Option<MetricsAddress>,
    /// Record in this file who created and deleted objects and what was refused, one JSON object
    /// per line. Each put then needs a message to the node. A file that was moved is created again
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Format of the log on standard error: lines of text, or JSON with one object per line.
    /// FARROW_LOG sets levels: error, warn (the default), info, debug or trace, for all or by
    /// module
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Do not touch the pages before their use
    #[arg(long)]
    no_prepare: bool,
    /// Reaction to a shortage of memory: evict the least recently used objects, or refuse
    #[arg(long, value_enum, default_value = "lru")]
    evict: EvictionKind,
    /// Allow this user, by number, to connect too; may be given several times. A connected user can
    /// map the memory, and a malicious one could write to all of its data
    #[arg(long, value_name = "UID")]
    allow_uid: Vec<u32>,
    /// When memory is short, write the least recently used objects to files instead of evicting
    /// them; a get restores them. A folder, or a URL: s3:// for a bucket (configured by the AWS_
    /// variables of the environment), file:, memory:
    #[arg(long, value_name = "DIR|URL", value_parser = SpillTarget::parse,
          conflicts_with_all = ["evict", "device"])]
    spill: Option<SpillTarget>,
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Run the daemon without Farrow's own supervisor, where a service manager restarts it. Memory
    /// without a name is then freed with it, unless systemd stores it (FileDescriptorStoreMax=2)
    #[arg(long)]
    unsupervised: bool,
    /// Given by a supervisor to its daemon
    #[arg(long, hide = true)]
    supervised: bool,
    /// Read options from this file, in TOML: keys are options without their dashes
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A private node lingers a week at most.
const LINGER_SECONDS_MAX: u64 = 7 * 86_400;

const EXIT_CODES: &str = "Exit codes: 0 it was stopped, 1 an error, 2 wrong arguments, 3 another node \
                          serves at the socket.";

/// `shm:SIZE` or `device:PATH,SIZE[,OFFSET]`.
#[derive(Debug, Clone)]
struct RegionArgument {
    device: Option<PathBuf>,
    memory: Length,
    offset: u64,
}

impl RegionArgument {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(memory) = text.strip_prefix("shm:") {
            return Ok(Self { device: None, memory: size::parse(memory)?, offset: 0 });
        }
        let Some(rest) = text.strip_prefix("device:") else {
            return Err("neither shm:SIZE nor device:PATH,SIZE[,OFFSET]".to_owned());
        };
        let parts: Vec<&str> = rest.split(',').collect();
        let (path, memory, offset) = match *parts {
            [path, memory] => (path, memory, "0"),
            [path, memory, offset] => (path, memory, offset),
            _ => return Err("device:PATH,SIZE[,OFFSET] is expected".to_owned()),
        };
        let offset = if offset == "0" { 0 } else { size::parse(offset)?.0 };
        Ok(Self { device: Some(path.into()), memory: size::parse(memory)?, offset })
    }
}

/// Options of a node in a cluster.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "One of several nodes")]
struct ClusterArguments {
    /// Name of this node, unique in the cluster: 1 to 63 of a-z, 0-9 and -
    #[arg(long, value_name = "NAME", requires = "listen", value_parser = node_name)]
    name: Option<NodeName>,
    /// Where to listen for other nodes
    #[arg(long, value_name = "ADDRESS:PORT", requires = "name")]
    listen: Option<SocketAddr>,
    /// Where other nodes reach this one, if that differs from where it listens
    #[arg(long, value_name = "HOST:PORT", requires = "listen")]
    advertise: Option<String>,
    /// Another node of the cluster; give each node all others. Most of these addresses found the
    /// cluster. Without any the node founds one alone, unless it has been in one
    #[arg(long, value_name = "HOST:PORT", requires = "listen")]
    join: Vec<String>,
    /// Store the membership in this etcd, below the prefix /farrow or another one; the same for all
    /// nodes. etcds: with TLS [default: the nodes agree among themselves]
    #[arg(
        long,
        value_name = "etcd[s]://HOST:PORT[,HOST:PORT...][/PREFIX]",
        requires = "listen",
        conflicts_with = "join"
    )]
    membership: Option<EtcdPlace>,
    #[command(flatten)]
    etcd: EtcdArguments,
    /// A node without a sign of life for this many milliseconds is considered lost
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    lease_ms: u64,
    /// A device of this machine on which other nodes may lend memory, or a folder of such devices;
    /// the node's own device is always allowed. May be given several times
    #[arg(long, value_name = "PATH", requires = "listen")]
    allow_device: Vec<PathBuf>,
    /// Permissions of another node's clients for objects of a namespace in this node's memory:
    /// RIGHTS are read, write, delete with commas between, all, or none; * stands for all
    /// namespaces or all nodes, nothing for the default namespace. The most specific rule applies;
    /// without any, all is allowed. May be given several times
    #[arg(long, value_name = "NAMESPACE:NODE:RIGHTS", requires = "listen")]
    permit: Vec<Rule>,
    /// Folder with ca.pem, NAME.pem, NAME.key and, after a revocation, ca.crl, as created by `farrow
    /// certs`. The node reads them again when they change
    #[arg(long, value_name = "DIR", requires = "listen", conflicts_with = "plaintext")]
    certs: Option<PathBuf>,
    /// Use plain text between nodes: on loopback only
    #[arg(long, requires = "listen")]
    plaintext: bool,
    /// Where to listen for nodes that cannot map this node's memory and read its objects over the
    /// network [default: where it listens for other nodes, at any port]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "listen")]
    data_listen: Option<SocketAddr>,
    /// Where those nodes reach this one, if that differs from where it listens
    #[arg(long, value_name = "HOST[:PORT]", requires = "listen")]
    data_advertise: Option<String>,
    /// Limit on replicas of objects of nodes whose memory this one cannot map, such as 512MiB
    /// [default: the free memory; the least recently used are dropped first]
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "listen")]
    cache: Option<Length>,
    /// When objects are read over the network: where memory cannot be mapped, always (then no other
    /// node maps this node's memory), or never
    #[arg(long, value_enum, default_value = "auto", requires = "listen")]
    net: NetUse,
    /// When bytes of large objects are compressed on their way: where measurements of the link, the
    /// data and the processor say that it saves time, never, or where they become fewer. Both nodes
    /// must allow it
    #[arg(long, value_enum, default_value = "auto", requires = "listen")]
    net_compress: NetCompress,
    /// RDMA device, such as mlx5_0, by which large objects are read from the memory of other nodes
    /// that have this option too. Their bytes are not encrypted
    #[cfg(feature = "rdma")]
    #[arg(long, value_name = "DEVICE", requires = "listen")]
    rdma: Option<String>,
}

/// Credentials of a node for etcd.
#[derive(Debug, clap::Args)]
struct EtcdArguments {
    /// Certificates of the authorities that may have issued etcd's certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "membership")]
    etcd_ca: Option<PathBuf>,
    /// This node's certificate for etcd, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"])]
    etcd_cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
    /// User of etcd
    #[arg(long, value_name = "NAME", requires_all = ["membership", "etcd_password_file"])]
    etcd_user: Option<String>,
    /// File with the password of that user
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
    /// Use plain text with an etcd that is not on this machine
    #[arg(long, requires = "membership")]
    etcd_plaintext: bool,
}

impl EtcdArguments {
    fn config(self, place: EtcdPlace) -> EtcdConfig {
        let identity = self.etcd_cert.zip(self.etcd_key);
        let user = self.etcd_user.zip(self.etcd_password_file);
        EtcdConfig {
            place,
            tls: self.etcd_ca.map(|ca| EtcdTls { ca, identity }),
            user: user.map(|(name, password)| EtcdUser { name, password }),
            is_plaintext_allowed: self.etcd_plaintext,
        }
    }
}

impl ClusterArguments {
    fn config(self) -> Option<ClusterConfig> {
        let (name, listen) = (self.name?, self.listen?);
        let tls = self.certs.map(|dir| PeerTls {
            ca: dir.join("ca.pem"),
            certificate: dir.join(format!("{name}.pem")),
            key: dir.join(format!("{name}.key")),
            revoked: dir.join(certs::REVOKED_FILE),
        });
        Some(ClusterConfig {
            name,
            listen,
            advertise: self.advertise,
            seeds: self.join,
            etcd: self.membership.map(|place| self.etcd.config(place)),
            lease: Duration::from_millis(self.lease_ms),
            devices: self.allow_device,
            tls,
            is_plaintext_allowed: self.plaintext,
            net: NetConfig {
                listen: self.data_listen,
                advertise: self.data_advertise,
                cache: self.cache,
                used: self.net,
                compress: self.net_compress,
                #[cfg(feature = "rdma")]
                rdma: self.rdma,
            },
        })
    }
}

impl Arguments {
    fn options(self) -> NodeOptions {
        let mut options = NodeOptions::new(self.socket.unwrap_or_else(paths::default_socket));
        let region = self.region;
        let memory = self.memory.or(region.as_ref().map(|region| region.memory));
        let offset = region.as_ref().map(|region| region.offset);
        let offset = self.device_offset.map(|offset| offset.0).or(offset).unwrap_or(0);
        if let Some(dir) = self.memory_dir {
            options.source = MemorySource::Shm { dir };
        }
        if let Some(path) = self.device.or(region.and_then(|region| region.device)) {
            options.source = MemorySource::Device {
                path,
                file_offset: offset,
                coherence: if self.node_local {
                    CoherenceClass::NodeLocal
                } else {
                    CoherenceClass::Coherent
                },
            };
        }
        options.memory = memory;
        options.memory_max = self.memory_max;
        options.objects_max = self.objects_max;
        options.clients_max = self.clients_max;
        options.quotas = Quotas {
            client_bytes_max: self.client_bytes.map(|bytes| bytes.0),
            client_objects_max: self.client_objects,
        };
        options.buffers_max = self.buffers_max;
        options.is_private = self.private;
        options.linger = Duration::from_secs(self.linger);
        options.is_keeping = self.keep;
        options.is_fresh = self.fresh;
        options.is_preparing = !self.no_prepare;
        options.is_upgrade = self.upgrade;
        options.metrics = self.metrics;
        options.audit_log = self.audit_log;
        options.eviction = self.evict;
        options.users = self.allow_uid;
        options.rules.clone_from(&self.cluster.permit);
        options.spill = self.spill;
        options.cluster = self.cluster.config();
        options
    }
}

/// Runs the daemon until it is stopped by SIGTERM, SIGINT, a message, or, if private, the end of
/// its last client. Returns the exit code: 0, 1 for an error (reported on standard error), 2 for
/// invalid arguments, 3 if another node serves at the socket.
///
/// If these are the last arguments of the program's own command line, the program is started again
/// as the daemon, and this process supervises it.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> i32 {
    if descriptors::open_closed().is_err() {
        // There is nowhere to say why.
        return 1;
    }
    let name = std::iter::once(OsString::from("farrow node"));
    let given: Vec<OsString> = arguments.into_iter().collect();
    let expanded = match config::expand(given.clone()) {
        Ok(expanded) => expanded,
        Err(error) => {
            say(&format!("farrow node: {error}"));
            return 2;
        }
    };
    let arguments = match Arguments::try_parse_from(name.chain(expanded.iter().cloned())) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return error.exit_code();
        }
    };
    let _log = logging::start(arguments.log_format);
    descriptors::raise_limit();
    let is_device = arguments.device.is_some()
        || arguments.region.as_ref().is_some_and(|one| one.device.is_some());
    if arguments.node_local && !is_device {
        say(
            "farrow node: --node-local is for a device: --device PATH or --region device:PATH,SIZE",
        );
        return 2;
    }
    if arguments.spill.is_some() && is_device {
        say("farrow node: --spill is for a tmpfs, not for a device");
        return 2;
    }
    let (is_supervised, is_alone) = (arguments.supervised, arguments.unsupervised);
    let options = arguments.options();
    let ended = match is_supervised || is_alone {
        true => serve(options, is_supervised).map(|()| 0),
        false => supervise(&given, &expanded, options),
    };
    ended.unwrap_or_else(|error| {
        say(&format!("farrow node: {error}"));
        match error {
            NodeError::AlreadyServing { .. } => ALREADY_SERVING_CODE,
            NodeError::Ended(_) if is_supervised => supervisor::ENDED_CODE,
            NodeError::EndedWithObjects { .. } if is_supervised => supervisor::RETAINED_CODE,
            NodeError::Cluster(_) if is_supervised => supervisor::CLUSTER_CODE,
            _ => 1,
        }
    })
}

fn supervise(
    given: &[OsString],
    expanded: &[OsString],
    options: NodeOptions,
) -> Result<i32, NodeError> {
    if let MemorySource::Shm { dir } = &options.source
        && let Ok(false) = farrow_memory::is_in_tmpfs(dir)
    {
        return Err(NodeError::OnDisk { dir: dir.clone() });
    }
    if let Some(code) = supervisor::supervise(given, expanded, &options, say)? {
        return Ok(code);
    }
    say("farrow node: the program has other arguments than the node: it has no supervisor");
    serve(options, false).map(|()| 0)
}

fn serve(options: NodeOptions, is_supervised: bool) -> Result<(), NodeError> {
    farrow_memory::grow_heap_in_large_steps();
    let socket = options.socket.display().to_string();
    let io = |what: &str| {
        let what = what.to_owned();
        move |source| NodeError::Io { what, source }
    };
    // Before any memory is mapped.
    farrow_memory::survive_lost_pages().map_err(io("a handler of SIGBUS"))?;
    let switch = StopSwitch::new().map_err(io("the stop pipe"))?;
    let stopper = switch.stopper().map_err(io("the stop pipe"))?;
    let handle = stopper.wake_handle().map_err(io("the stop pipe"))?;
    signals::write_to(&handle).map_err(io("a signal handler"))?;
    let custody = match is_supervised {
        false => Custody::alone(),
        true => {
            let stopper = switch.stopper().map_err(io("the stop pipe"))?;
            Custody::supervised(stopper).map_err(io("the supervisor at standard input"))?
        }
    };
    let is_restart = custody.is_restart();
    let node = Node::open_in(options, switch, custody)?;
    let summary = &node.summary;
    say(&format!("farrow node: {} at {}", size::human(summary.capacity), summary.memory));
    if summary.adopted > 0 || !summary.dropped.is_empty() {
        say(&format!("farrow node: adopted {} objects", summary.adopted));
    }
    for dropped in &summary.dropped {
        say(&format!("farrow node: lost {dropped}"));
    }
    for unnamed in &summary.unnamed {
        say(&format!("farrow node: kept without its name: {unnamed}"));
    }
    if let Some(metrics) = &summary.metrics {
        say(&format!("farrow node: metrics at {metrics}"));
    }
    if let Some(cluster) = &summary.cluster {
        say(&format!("farrow node: {cluster}"));
    }
    if !is_restart {
        say_what_is_left();
    }
    say(&format!("farrow node: listening on {socket}"));
    node.run()
}

/// Prints one line about leftovers of other nodes, if there are any.
fn say_what_is_left() {
    let left = leftovers::find(&[]);
    if left.is_empty() {
        return;
    }
    let bytes = size::human(left.iter().map(|one| one.bytes).sum());
    let what = if left.len() == 1 { "thing" } else { "things" };
    let count = left.len();
    say(&format!(
        "farrow node: {count} {what} left by nodes that ended, {bytes} of memory: see farrow clean"
    ));
}
