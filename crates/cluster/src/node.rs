//! A node: its options, its start (making or adopting the region), its end.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use farrow_memory::device::DeviceFabric;
use farrow_memory::shm::ShmFabric;
use farrow_memory::{
    Access, CoherenceClass, Fabric, FabricError, Length, MapError, Region, WINDOW_BASE, sync,
};
use farrow_store::{
    ClientSlot, Dropped, FormatError, Home, Layout, RegionOptions, RegionUid, StoreError,
};
use rustix::fs::{FlockOperation, flock};

use crate::paths;
use crate::prepare;
use crate::protocol::{NodeState, PeerIdentity};
use crate::server::{Ended, Server};
use crate::size::human;

/// The window is cut into 64 places of 256 GiB, so that two nodes seldom want the same.
const WINDOW_PLACE_BYTES: u64 = 256 << 30;
const WINDOW_PLACES: u64 = 64;

/// Smallest heap that makes sense: a few extents.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// Where the memory comes from.
#[derive(Debug, Clone)]
pub enum MemorySource {
    /// Files in a tmpfs.
    Shm {
        /// The folder.
        dir: PathBuf,
    },
    /// Any file that can be mapped; its bytes from `file_offset` on.
    Device {
        /// The file.
        path: PathBuf,
        /// First byte of it that is ours.
        file_offset: u64,
        /// What it guarantees between machines.
        coherence: CoherenceClass,
    },
}

/// How a node is made.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Where clients connect.
    pub socket: PathBuf,
    /// Heap size; `None`: a quarter of what is available.
    pub memory: Option<Length>,
    /// Where the memory comes from.
    pub source: MemorySource,
    /// Most objects; `None`: by the size.
    pub objects_max: Option<u32>,
    /// Most clients at a time; `None`: the store's default.
    pub clients_max: Option<u32>,
    /// Ends with its last client.
    pub is_private: bool,
    /// Leaves the memory in place at the end, for a later node to adopt.
    pub is_keeping: bool,
    /// Throws away what an earlier node left, instead of adopting it.
    pub is_fresh: bool,
    /// Makes the heap's pages ready in the background.
    pub is_preparing: bool,
}

impl NodeOptions {
    /// Defaults for a node at `socket`.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            memory: None,
            source: MemorySource::Shm { dir: paths::default_memory_dir() },
            objects_max: None,
            clients_max: None,
            is_private: false,
            is_keeping: false,
            is_fresh: false,
            is_preparing: true,
        }
    }
}

/// Why a node does not start or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Another daemon has the lock.
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
    /// Too little memory to be of use.
    #[error("{asked} B of memory asked, a node needs {min} B at least")]
    TooSmall {
        /// Asked.
        asked: u64,
        /// Least.
        min: u64,
    },
    /// What an earlier node left cannot be adopted.
    #[error("the memory {memory} cannot be adopted: {source}; --fresh throws it away")]
    NotAdopted {
        /// Where it lies.
        memory: String,
        /// Why.
        source: StoreError,
    },
    /// The memory cannot be had.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The memory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The store cannot be laid out.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The layout is impossible.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// How it failed.
        source: io::Error,
    },
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> NodeError {
    let what = what.into();
    move |source| NodeError::Io { what, source }
}

/// Both ends of the wire that stops a node. Made before the node, so that a signal that comes
/// while it starts is not lost.
#[derive(Debug)]
pub struct StopSwitch {
    stopper: UnixStream,
    wake: UnixStream,
}

impl StopSwitch {
    /// A new one.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let (stopper, wake) = UnixStream::pair()?;
        Ok(Self { stopper, wake })
    }

    /// A handle that uses it.
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
    /// Asks the node to end.
    pub fn stop(&self) {
        // A full pipe means that it was asked already.
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
    region_name: String,
    lock: Lock,
    preparing: Option<JoinHandle<()>>,
    should_prepare: Arc<sync::AtomicBool>,
    stopper: UnixStream,
    /// What is worth telling at start.
    pub summary: Summary,
}

/// What a node found and made at its start.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Heap bytes.
    pub capacity: u64,
    /// Where the memory lies.
    pub memory: String,
    /// Objects adopted from an earlier life.
    pub adopted: u32,
    /// Objects of an earlier life that could not be adopted, with reasons.
    pub dropped: Vec<String>,
}

impl Node {
    /// Takes the lock, makes or adopts the region, binds the socket.
    ///
    /// # Errors
    ///
    /// See [`NodeError`]; what was made for this node is taken away again.
    pub fn open(options: NodeOptions) -> Result<Self, NodeError> {
        Self::open_with(options, StopSwitch::new().map_err(failed("a pair of sockets"))?)
    }

    /// As [`Self::open`], stopped by a switch that was made before.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_with(options: NodeOptions, switch: StopSwitch) -> Result<Self, NodeError> {
        let started = Instant::now();
        check_socket_path(&options.socket)?;
        paths::prepare_socket_dir(&options.socket)
            .map_err(failed(format!("the folder of {}", options.socket.display())))?;
        let lock = Lock::take(&options.socket)?;
        let region_name = paths::region_name(&options.socket);
        let found = find_or_make(&options, &region_name)?;
        let summary = Summary {
            capacity: found.home.layout().heap.length.0,
            memory: found.home.region().fabric().describe(),
            adopted: found.adopted,
            dropped: found.dropped,
        };
        let listener = bind(&options.socket)?;
        let StopSwitch { stopper, wake } = switch;
        let region = Arc::clone(found.home.region());
        let heap = found.home.layout().heap;
        let base = base_of(found.home.uid(), region.length());
        let uid = paths::own_uid();
        let state = NodeState::new(
            found.home,
            base,
            std::process::id(),
            uid,
            found.clients,
            found.adopted,
            0,
        );
        let prepared = Arc::new(sync::AtomicU64::new(0));
        let should_prepare = Arc::new(sync::AtomicBool::new(true));
        let preparing = options.is_preparing.then(|| {
            prepare::start(region, heap, Arc::clone(&prepared), Arc::clone(&should_prepare))
        });
        let server = Server::new(listener, wake, state, started, options.is_private, prepared)
            .map_err(failed("the event loop"))?;
        Ok(Self {
            server,
            options,
            region_name,
            lock,
            preparing: preparing.flatten(),
            should_prepare,
            stopper,
            summary,
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

    /// Serves until stopped, then gives everything back.
    ///
    /// # Errors
    ///
    /// The event loop failed; the memory is then left for the next node to adopt.
    pub fn run(self) -> Result<(), NodeError> {
        let Self { server, options, region_name, lock, preparing, should_prepare, .. } = self;
        let ended = server.run();
        should_prepare.store(false, sync::Ordering::Relaxed);
        if let Some(thread) = preparing {
            let _ = thread.join();
        }
        let (ended, state) = ended.map_err(failed("the event loop"))?;
        if ended == Ended::Deserted {
            tracing::info!("the last client left");
        }
        let _ = fs::remove_file(&options.socket);
        drop(state);
        if let (false, MemorySource::Shm { dir }) = (options.is_keeping, &options.source) {
            unlink(dir, &region_name)?;
        }
        lock.release();
        Ok(())
    }
}

fn check_socket_path(socket: &Path) -> Result<(), NodeError> {
    let bytes = socket.as_os_str().len();
    let max = paths::SOCKET_PATH_BYTES_MAX;
    if bytes == 0 || bytes > max {
        return Err(NodeError::SocketPath { socket: socket.to_owned(), bytes, max });
    }
    Ok(())
}

fn bind(socket: &Path) -> Result<UnixListener, NodeError> {
    match fs::remove_file(socket) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(format!("remove {}", socket.display()))(error)),
    }
    let listener =
        UnixListener::bind(socket).map_err(failed(format!("bind {}", socket.display())))?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600))
        .map_err(failed(format!("chmod {}", socket.display())))?;
    Ok(listener)
}

/// A store over its region, new or adopted.
struct Found {
    home: Home,
    /// Objects of an earlier life.
    adopted: u32,
    clients: Vec<(ClientSlot, PeerIdentity)>,
    dropped: Vec<String>,
}

fn find_or_make(options: &NodeOptions, name: &str) -> Result<Found, NodeError> {
    match &options.source {
        MemorySource::Shm { dir } => {
            if options.is_fresh {
                unlink(dir, name)?;
            }
            match ShmFabric::open(dir, name) {
                Ok(fabric) => adopt(Arc::new(fabric)),
                Err(FabricError::NotFound { .. }) => {
                    let memory = match options.memory {
                        Some(memory) => memory,
                        None => default_memory(dir, options.is_private),
                    };
                    let region_options = region_options(options, memory)?;
                    let geometry = Layout::new(&region_options)?.geometry;
                    let fabric = ShmFabric::create(dir, name, geometry)?;
                    let made = make(Arc::new(fabric), &region_options);
                    if made.is_err() {
                        let _ = ShmFabric::unlink(dir, name);
                    }
                    made
                }
                Err(error) => Err(error.into()),
            }
        }
        MemorySource::Device { path, file_offset, coherence } => {
            let memory = options.memory.unwrap_or(Length(MEMORY_BYTES_MIN));
            let region_options = region_options(options, memory)?;
            let geometry = Layout::new(&region_options)?.geometry;
            let fabric = DeviceFabric::open(path, *file_offset, geometry, *coherence)?;
            let fabric: Arc<dyn Fabric> = Arc::new(fabric);
            if !options.is_fresh {
                match adopt(Arc::clone(&fabric)) {
                    Ok(found) => return Ok(found),
                    // Nobody has laid out a region there yet.
                    Err(NodeError::NotAdopted {
                        source: StoreError::Format(FormatError::BadMagic { .. }),
                        ..
                    }) => {}
                    Err(error) => return Err(error),
                }
            }
            make(fabric, &region_options)
        }
    }
}

/// Takes the memory away; that there is none is as well.
fn unlink(dir: &Path, name: &str) -> Result<(), NodeError> {
    match ShmFabric::unlink(dir, name) {
        Ok(()) | Err(FabricError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn region_options(options: &NodeOptions, memory: Length) -> Result<RegionOptions, NodeError> {
    if memory.0 < MEMORY_BYTES_MIN {
        return Err(NodeError::TooSmall { asked: memory.0, min: MEMORY_BYTES_MIN });
    }
    let mut region = RegionOptions::for_capacity(memory);
    if let Some(objects_max) = options.objects_max {
        region.objects_max = objects_max;
    }
    if let Some(clients_max) = options.clients_max {
        region.clients_max = clients_max;
    }
    Ok(region)
}

fn make(fabric: Arc<dyn Fabric>, options: &RegionOptions) -> Result<Found, NodeError> {
    let region = Arc::new(Region::map(fabric, Access::Home, None)?);
    region.advise_huge();
    let home = Home::create(region, options, wall_ns())?;
    Ok(Found { home, adopted: 0, clients: Vec::new(), dropped: Vec::new() })
}

fn adopt(fabric: Arc<dyn Fabric>) -> Result<Found, NodeError> {
    let memory = fabric.describe();
    let region = Arc::new(Region::map(fabric, Access::Home, None)?);
    region.advise_huge();
    let (home, report) =
        Home::adopt(region).map_err(|source| NodeError::NotAdopted { memory, source })?;
    let clients = report
        .clients
        .iter()
        .map(|client| {
            let peer =
                PeerIdentity { pid: client.pid, start_time: client.start_time, uid: client.uid };
            (client.client, peer)
        })
        .collect();
    let dropped = report.dropped.iter().map(describe_dropped).collect();
    Ok(Found { home, adopted: report.objects, clients, dropped })
}

fn describe_dropped(dropped: &Dropped) -> String {
    match dropped.id {
        Some(id) => format!("object {id}: {}", dropped.reason),
        None => dropped.reason.clone(),
    }
}

/// The address at which all processes should map the region with this uid.
fn base_of(uid: RegionUid, length: Length) -> u64 {
    if length.0 > WINDOW_PLACE_BYTES {
        return WINDOW_BASE.0 as u64;
    }
    WINDOW_BASE.0 as u64 + (uid.0 % WINDOW_PLACES) * WINDOW_PLACE_BYTES
}

/// Most memory of a private node that nobody gave a size: it is committed while the first client
/// waits, in some 0.2 s a GiB.
const PRIVATE_BYTES_MAX: u64 = 4 << 30;

/// A quarter of the memory that is available, and no more than half of what `dir` has free.
fn default_memory(dir: &Path, is_private: bool) -> Length {
    let available = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        })
        .map_or(1 << 30, |kib| kib * 1024);
    let free = rustix::fs::statvfs(dir).map_or(u64::MAX, |stat| stat.f_bavail * stat.f_frsize);
    let most = if is_private { PRIVATE_BYTES_MAX } else { u64::MAX };
    let memory = (available / 4).min(free / 2).min(most).max(MEMORY_BYTES_MIN);
    tracing::info!(memory = %human(memory), "no size was given");
    Length(memory & !((2 << 20) - 1)).max(Length(MEMORY_BYTES_MIN))
}

fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// An exclusive lock on a file that goes with its process, however that ends.
#[derive(Debug)]
struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    fn take(socket: &Path) -> Result<Self, NodeError> {
        let path = paths::lock_of(socket);
        let what = || format!("lock {}", path.display());
        // The file may be removed by a node that ends between open and flock: then again.
        for _ in 0..100 {
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .map_err(failed(what()))?;
            match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(NodeError::AlreadyServing { socket: socket.to_owned() });
                }
                Err(error) => return Err(failed(what())(error.into())),
            }
            let ours = file.metadata().map_err(failed(what()))?.ino();
            if fs::metadata(&path).is_ok_and(|there| there.ino() == ours) {
                return Ok(Self { file, path });
            }
        }
        Err(NodeError::AlreadyServing { socket: socket.to_owned() })
    }

    fn release(self) {
        let _ = fs::remove_file(&self.path);
        drop(self.file);
    }
}
