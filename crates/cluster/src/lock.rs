//! The lock of the node that serves a socket.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farrow_memory::HeldMemory;
use farrow_wire::paths;
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::node::{NodeError, failed};

/// Attempts to take the lock. A process that only checks it holds it for some microseconds.
const LOOKS_MAX: u32 = 5;
/// Attempts while a node is shutting down: 5 s.
const ENDING_LOOKS_MAX: u32 = 500;
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// An exclusive file lock, which the kernel releases however its process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// A lock that a daemon handed over.
    pub(crate) fn inherited(file: File, socket: &Path) -> Self {
        Self { file, path: paths::lock_of(socket) }
    }

    /// The locked file, for another daemon or for reuse in this one.
    pub(crate) fn into_file(self) -> File {
        self.file
    }

    /// Another descriptor of the locked file, which also keeps the lock.
    pub(crate) fn share(&self) -> Result<File, NodeError> {
        self.file.try_clone().map_err(failed("share the lock"))
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn take(socket: &Path) -> Result<Self, NodeError> {
        Self::take_within(socket, LOOKS_MAX)
    }

    /// Takes the lock of a node that is about to end.
    pub(crate) fn take_when_free(socket: &Path) -> Result<Self, NodeError> {
        Self::take_within(socket, ENDING_LOOKS_MAX)
    }

    fn take_within(socket: &Path, looks_max: u32) -> Result<Self, NodeError> {
        let path = paths::lock_of(socket);
        let what = || format!("lock {}", path.display());
        // A node that ends may remove the file between open and flock. Then the loop retries.
        for _ in 0..=looks_max {
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(LOCK_MODE)
                .open(&path)
                .map_err(failed(what()))?;
            match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // Another process may be checking whether a node serves.
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    std::thread::sleep(LOOK_PAUSE);
                    continue;
                }
                Err(error) => return Err(failed(what())(error.into())),
            }
            let ours = file.metadata().map_err(failed(what()))?.ino();
            if fs::metadata(&path).is_ok_and(|there| there.ino() == ours) {
                // Of an earlier version it has the mode of the umask, and others of this user's
                // processes would not trust it.
                let mode = Permissions::from_mode(LOCK_MODE);
                file.set_permissions(mode).map_err(failed(what()))?;
                return Ok(Self { file, path });
            }
        }
        Err(NodeError::AlreadyServing { socket: socket.to_owned() })
    }

    /// Whether its file is still at its path. Otherwise another node may serve there.
    pub(crate) fn is_current(&self) -> bool {
        is_at(&self.file, &self.path)
    }

    pub(crate) fn release(self) {
        if self.is_current() {
            let _ = fs::remove_file(&self.path);
        }
        drop(self.file);
    }
}

/// Takes the lock of a node. `None` if a node has it, or this process may not open it.
pub(crate) fn lock_if_free(lock: &Path) -> Option<File> {
    let file = File::open(lock).ok()?;
    flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive).ok()?;
    is_at(&file, lock).then_some(file)
}

/// Whether a file has this path.
fn is_at(file: &File, path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| {
        file.metadata().is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
    })
}

/// Only this user writes to a lock file, whatever the umask: others take its words for those of the
/// node.
const LOCK_MODE: u32 = 0o600;

/// First words of a lock file, with the version of its format.
const SAID_FIRST: &str = "farrow 1";

/// Length of the line in a lock file. It is padded with spaces, so one write replaces all of it.
const SAID_BYTES: usize = 64;

/// The process that holds a node's descriptors, as named in the lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    /// Numbers of its control and data descriptors, if the memory has no name.
    pub(crate) memory: Option<(u32, u32)>,
}

impl Holder {
    /// Writes the holder to the lock file.
    pub(crate) fn publish(&self, lock: &File) {
        let memory = self.memory.map(|(control, data)| format!(" {control} {data}"));
        let said = format!("{SAID_FIRST} {}{}", self.pid, memory.unwrap_or_default());
        let line = format!("{said:<width$}\n", width = SAID_BYTES - 1);
        if let Err(error) = lock.write_all_at(line.as_bytes(), 0) {
            // Other nodes then cannot map the memory, and report it.
            tracing::warn!(%error, "the lock file does not name the holder of the memory");
        }
    }

    /// Reads the lock file at this path. Another node may have supplied the path, so the file may
    /// be of any kind.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        let is_closed = found.mode() & 0o022 == 0;
        if !found.is_file() || found.uid() != paths::own_uid() || !is_closed {
            return Err(format!("{} is not a lock of this user's alone", path.display()));
        }
        let mut said = String::new();
        file.take(SAID_BYTES as u64).read_to_string(&mut said).map_err(failed)?;
        Self::parse(&said).ok_or_else(|| {
            format!("{} does not name the process that holds the memory", path.display())
        })
    }

    fn parse(said: &str) -> Option<Self> {
        let mut numbers =
            said.strip_prefix(SAID_FIRST)?.strip_prefix(' ')?.split_ascii_whitespace();
        let pid = numbers.next()?.parse().ok()?;
        let memory = match (numbers.next(), numbers.next(), numbers.next()) {
            (None, ..) => None,
            (Some(control), Some(data), None) => Some((control.parse().ok()?, data.parse().ok()?)),
            _ => return None,
        };
        Some(Self { pid, memory })
    }

    /// Opens the memory without a name that this process holds. `None` if it holds none.
    pub(crate) fn open_memory(&self) -> Result<Option<HeldMemory>, String> {
        let Some((control, data)) = self.memory else {
            return Ok(None);
        };
        let opened = HeldMemory::of_process(self.pid, control, data);
        opened.map(Some).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_says_who_holds_the_memory_and_nothing_else_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n.lock");
        let file = File::create(&path).unwrap();
        assert!(Holder::read(&path).unwrap_err().contains("does not name"));
        for memory in [Some((7, 8)), None, Some((u32::MAX, 0))] {
            let holder = Holder { pid: 1234, memory };
            holder.publish(&file);
            assert_eq!(Holder::read(&path), Ok(holder));
        }
        let parsed = |said: &str| Holder::parse(said);
        for said in [
            "",
            "farrow 1",
            "farrow 1 x",
            "farrow 1 1 2",
            "farrow 1 1 2 3 4",
            "farrow 2 1",
            "farrow 12",
            "farrow 10 2",
        ] {
            assert_eq!(parsed(said), None, "{said}");
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Holder::read(&link).is_err(), "a link leads anywhere");
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(Holder::read(&pipe).unwrap_err().contains("not a lock"), "nobody waits for it");
        let modes = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs::set_permissions(&path, modes).unwrap();
        assert!(Holder::read(&path).is_err(), "others may write it");
    }
}
