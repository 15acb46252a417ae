//! The lock that says a node serves a socket.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::node::{NodeError, failed};
use crate::paths;

/// An exclusive lock on a file that goes with its process, however that ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// The lock of a daemon that handed it over.
    pub(crate) fn inherited(file: File, socket: &Path) -> Self {
        Self { file, path: paths::lock_of(socket) }
    }

    /// The locked file, for another daemon, or for this one once more.
    pub(crate) fn into_file(self) -> File {
        self.file
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn take(socket: &Path) -> Result<Self, NodeError> {
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

    pub(crate) fn release(self) {
        let _ = fs::remove_file(&self.path);
        drop(self.file);
    }
}
