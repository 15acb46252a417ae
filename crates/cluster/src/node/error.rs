//! Errors of a node's start and end.

use std::io;
use std::path::{Path, PathBuf};

use farrow_memory::{FabricError, MapError};
use farrow_store::{FormatError, StoreError};
use farrow_wire::paths;

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
    #[error("{requested} B of memory asked, a node needs {min} B at least")]
    TooSmall {
        /// The requested size.
        requested: u64,
        /// The smallest size.
        min: u64,
    },
    /// The memory is larger than the most that it may grow to.
    #[error("{requested} B of memory asked, above the {max} B of --memory-max")]
    AboveMax {
        /// The requested size.
        requested: u64,
        /// The largest size.
        max: u64,
    },
    /// The files of the memory would lie on a disk.
    #[error(
        "{} is in no tmpfs, so no supervisor can hold the memory; name a folder in one, such as \
         /dev/shm, or a file with --device",
        dir.display()
    )]
    OnDisk {
        /// The folder.
        dir: PathBuf,
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
    /// The node ended in order since it cannot be a member of its cluster, and removed everything: a
    /// restart cannot help.
    #[error("the cluster: {0}")]
    Ended(String),
    /// As [`Self::Ended`], of a node that had adopted objects. They stay where they are, for the next
    /// node.
    #[error("the cluster: {reason}; {objects} objects that this node had adopted are not removed")]
    EndedWithObjects {
        /// The cause.
        reason: String,
        /// Number of the adopted objects.
        objects: u32,
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
    /// Settings that were changed while an earlier daemon served cannot be resumed.
    #[error("the settings: {0}")]
    Settings(String),
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

pub(crate) fn check_socket_path(socket: &Path) -> Result<(), NodeError> {
    let bytes = socket.as_os_str().len();
    let max = paths::SOCKET_PATH_BYTES_MAX;
    if bytes == 0 || bytes > max {
        return Err(NodeError::SocketPath { socket: socket.to_owned(), bytes, max });
    }
    Ok(())
}
