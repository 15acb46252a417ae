//! A node: its options, its start (making or adopting the region), its end.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use farrow_memory::{CoherenceClass, FabricError, Length, MapError, WINDOW_BASE, sync};
use farrow_store::{FormatError, RegionUid, StoreError};

use crate::lock::Lock;
use crate::memory::{find_or_make, unlink};
use crate::paths;
use crate::prepare;
use crate::protocol::NodeState;
use crate::server::{Ended, Server};

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

pub(crate) fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> NodeError {
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

/// The address at which all processes should map the region with this uid.
fn base_of(uid: RegionUid, length: Length) -> u64 {
    if length.0 > WINDOW_PLACE_BYTES {
        return WINDOW_BASE.0 as u64;
    }
    WINDOW_BASE.0 as u64 + (uid.0 % WINDOW_PLACES) * WINDOW_PLACE_BYTES
}
