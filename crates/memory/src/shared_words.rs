//! A small array of words shared by the processes of one user on one machine, outside any region.
//!
//! The words are in a file on a tmpfs that only this user may open. Processes of one user can read
//! and write each other's memory anyway, so the words are trusted as much as these processes.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::error::FabricError;
use crate::fabric::files::{self, Contents, PageSource, system};
use crate::mapping::Mapping;
use crate::sync::AtomicU64;
use crate::units::Length;

const WORD_BYTES: usize = 8;

/// Number of tries, and pause between them, while another process removes the file.
const TRIES_MAX: u32 = 50;
const PAUSE: Duration = Duration::from_millis(1);

/// Words in a file. The last user of the file removes it. A file left by a killed process is
/// removed when a process of the same user next opens any file with the same prefix.
#[derive(Debug)]
pub struct SharedWords {
    mapping: Mapping,
    count: usize,
    /// Has a shared lock as long as it is open.
    file: OwnedFd,
    path: PathBuf,
}

impl SharedWords {
    /// Opens or creates the file `name` in `dir` with `count` words, initially zero. `name` must
    /// begin with `prefix`. Other files with this prefix that no process uses are removed.
    ///
    /// # Errors
    /// [`FabricError::NotPrivate`] if other users may open the file, [`FabricError::NoSpace`],
    /// [`FabricError::Locked`] if another process keeps removing it, and errors of system calls.
    pub fn open(dir: &Path, prefix: &str, name: &str, count: usize) -> Result<Self, FabricError> {
        let path = dir.join(name);
        sweep(dir, prefix, name);
        let length = Length((count * WORD_BYTES) as u64);
        let mut tries = 0;
        let file = loop {
            if let Some(file) = try_open(&path)? {
                break file;
            }
            tries += 1;
            if tries == TRIES_MAX {
                return Err(FabricError::Locked { path });
            }
            thread::sleep(PAUSE);
        };
        // Allocate every page now: a store into a full tmpfs would raise SIGBUS.
        rustix::fs::ftruncate(&file, length.0)
            .map_err(|errno| system("ftruncate", &path, errno))?;
        let room = PageSource::of(dir, file.as_fd());
        files::commit_pages(file.as_fd(), 0, length, &room, Contents::Retained)?;
        let mapping = Mapping::of_file(file.as_fd(), 0, length, true)
            .map_err(|errno| system("mmap", &path, errno))?;
        Ok(Self { mapping, count, file, path })
    }

    /// Number of words.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The word at `index`; `None` if it is out of range.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.count {
            return None;
        }
        let at = self.mapping.pointer((index * WORD_BYTES) as u64).cast::<AtomicU64>();
        // SAFETY: the mapping is writable, page-aligned, has `count` words and lives as long as
        // `self`. All accesses by all processes are atomic.
        Some(unsafe { &*at.cast_const() })
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // A forked child shares its parent's lock and must not remove the file.
        if !self.mapping.is_ours() {
            return;
        }
        // The exclusive lock fails if another process has the file open, since that one has a lock.
        if rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_at(&self.file, &self.path)
        {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Opens and locks the file; `None` if another process is removing it.
fn try_open(path: &Path) -> Result<Option<OwnedFd>, FabricError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| system("open", path, errno))?;
    files::check_private(file.as_fd(), path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(is_at(&file, path).then_some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(system("flock", path, errno)),
    }
}

/// Whether the path still refers to this file.
fn is_at(file: &OwnedFd, path: &Path) -> bool {
    match (rustix::fs::fstat(file), rustix::fs::lstat(path)) {
        (Ok(own), Ok(there)) => (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino),
        _ => false,
    }
}

/// Removes files left by killed processes. Errors are ignored: the next process tries again.
fn sweep(dir: &Path, prefix: &str, own: &str) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(prefix) && *name != own)
        else {
            continue;
        };
        let path = dir.join(name);
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()) else {
            continue;
        };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && is_at(&file, &path)
        {
            let _ = rustix::fs::unlink(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::sync::Ordering;

    fn open(dir: &Path, name: &str) -> Result<SharedWords, FabricError> {
        SharedWords::open(dir, "words-", name, 1000)
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn what_one_stores_the_other_loads_and_the_last_one_takes_it_away() {
        let dir = tempfile::tempdir().unwrap();
        let one = open(dir.path(), "words-a").unwrap();
        let two = open(dir.path(), "words-a").unwrap();
        assert_eq!((one.len(), one.is_empty()), (1000, false));
        assert_eq!(two.get(999).unwrap().load(Ordering::Acquire), 0);
        one.get(999).unwrap().store(7, Ordering::Release);
        assert_eq!(two.get(999).unwrap().load(Ordering::Acquire), 7);
        assert!(two.get(1000).is_none());
        drop(one);
        assert_eq!(names(dir.path()), ["words-a"]);
        let three = open(dir.path(), "words-a").unwrap();
        assert_eq!(three.get(999).unwrap().load(Ordering::Acquire), 7);
        drop((two, three));
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn unused_parts_are_swept_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        for left in ["words-left", "other"] {
            fs::write(dir.path().join(left), b"left").unwrap();
        }
        let used = open(dir.path(), "words-used").unwrap();
        let mut found = names(dir.path());
        found.sort_unstable();
        assert_eq!(found, ["other", "words-used"]);
        let also = open(dir.path(), "words-also").unwrap();
        used.get(0).unwrap().store(1, Ordering::Release);
        assert_eq!(names(dir.path()).len(), 3, "what is used stays");
        drop((used, also));
        assert_eq!(names(dir.path()), ["other"]);
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words-a");
        fs::write(&path, b"").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(open(dir.path(), "words-a"), Err(FabricError::NotPrivate { .. })));
        assert!(matches!(
            open(&dir.path().join("none"), "words-a"),
            Err(FabricError::System { .. })
        ));
    }
}
