//! The owners of spill files of regions without a name. If a node was killed with all of its
//! processes, its memory is lost and no process can read these files. A marker file next to them
//! names the node's lock. A process that holds this lock knows that no earlier node of it is alive.
//!
//! Files of another boot may belong to another machine that shares the folder, so they are not
//! touched.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use farrow_store::RegionUid;
use farrow_wire::paths;
use rustix::fs::OFlags;

use crate::host::own_host;
use crate::lock::{Lock, lock_if_free};

/// First words of a marker, with the version of its format.
const SAID_FIRST: &str = "farrow-spill 1";

/// Limit on the length of a marker. A path has at most 4096 bytes.
const SAID_BYTES_MAX: u64 = 8 << 10;

/// Suffix of a marker, after the name of the region.
const SUFFIX: &str = ".node";

/// The node that owns a region's spill files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpillOwner {
    /// Device and inode of its lock file.
    lock: (u64, u64),
    path: PathBuf,
}

impl SpillOwner {
    pub(crate) fn of(lock: &Lock) -> io::Result<Self> {
        let found = rustix::fs::fstat(lock.as_fd())?;
        let path = std::path::absolute(lock.path())?;
        Ok(Self { lock: (found.st_dev, found.st_ino), path })
    }

    /// Writes the marker next to the files of a region.
    pub(super) fn write(&self, dir: &Path, uid: RegionUid) -> io::Result<()> {
        let (device, inode) = self.lock;
        let host = own_host();
        let path = self.path.display();
        let line = format!("{SAID_FIRST}\t{host}\t{device}\t{inode}\t{path}\n");
        fs::write(marker(dir, uid), line)
    }

    /// Reads a marker that this user wrote during this boot.
    fn read(marker: &Path) -> Option<Self> {
        let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).ok()?;
        let file = File::options().read(true).custom_flags(flags).open(marker).ok()?;
        let found = file.metadata().ok()?;
        if !found.is_file() || found.uid() != paths::own_uid() {
            return None;
        }
        let mut said = String::new();
        file.take(SAID_BYTES_MAX).read_to_string(&mut said).ok()?;
        let mut words = said.strip_suffix('\n')?.splitn(5, '\t');
        if words.next()? != SAID_FIRST || words.next()? != own_host() {
            return None;
        }
        let lock = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { lock, path: PathBuf::from(words.next()?) })
    }
}

fn marker(dir: &Path, uid: RegionUid) -> PathBuf {
    dir.join(format!("{:016x}{SUFFIX}", uid.0))
}

/// Removes the marker once the region's files are removed.
pub(super) fn forget(dir: &Path, uid: RegionUid) -> io::Result<()> {
    match fs::remove_file(marker(dir, uid)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Spill files that no process can read any more.
#[derive(Debug)]
pub(crate) struct Orphans {
    marker: PathBuf,
    pub(crate) folder: PathBuf,
    owner: SpillOwner,
}

impl Orphans {
    /// Spill files of regions in this folder that have an owner.
    fn all(dir: &Path) -> impl Iterator<Item = Self> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let region = name.strip_suffix(SUFFIX)?;
            let is_region = region.len() == 16 && u64::from_str_radix(region, 16).is_ok();
            let owner = SpillOwner::read(&entry.path()).filter(|_| is_region)?;
            Some(Self { marker: entry.path(), folder: entry.path().with_file_name(region), owner })
        })
    }

    /// Spill files of earlier nodes with the lock of this one, which has other memory.
    pub(super) fn of_earlier(dir: &Path, own: &SpillOwner, uid: RegionUid) -> Vec<Self> {
        let own_marker = marker(dir, uid);
        let all = Self::all(dir);
        all.filter(|one| one.owner.lock == own.lock && one.marker != own_marker).collect()
    }

    /// Spill files of nodes whose lock is free.
    pub(crate) fn left(dir: &Path) -> Vec<Self> {
        Self::all(dir).filter(|one| one.lock_owner().is_some()).collect()
    }

    /// Takes the lock of its node, if it is free.
    fn lock_owner(&self) -> Option<File> {
        let lock = lock_if_free(&self.owner.path)?;
        let found = lock.metadata().ok()?;
        ((found.dev(), found.ino()) == self.owner.lock).then_some(lock)
    }

    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// Removes the files, then the marker.
    pub(super) fn remove(&self) -> io::Result<()> {
        for file in self.files() {
            fs::remove_file(file)?;
        }
        match fs::remove_dir(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::remove_file(&self.marker),
        }
    }

    /// Removes the files unless their node runs again.
    pub(crate) fn remove_if_left(&self) -> io::Result<()> {
        let _locked = self.lock_owner().ok_or(io::ErrorKind::ResourceBusy)?;
        self.remove()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spilled(dir: &Path, uid: u64, owner: &SpillOwner) -> PathBuf {
        let folder = dir.join(format!("{uid:016x}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("object"), b"spilled").unwrap();
        owner.write(dir, RegionUid(uid)).unwrap();
        folder
    }

    /// Regression test: after a node was killed with its supervisor, its files were never removed.
    #[test]
    fn files_of_killed_nodes_go_with_the_next_and_by_clean() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["one.sock", "other.sock"].map(|name| {
            let lock = Lock::take(&dir.path().join(name)).unwrap();
            let owner = SpillOwner::of(&lock).unwrap();
            (lock, owner)
        });
        let spill = tempfile::tempdir().unwrap();
        let folders = [(1, &one.1), (2, &one.1), (3, &other.1)]
            .map(|(uid, owner)| spilled(spill.path(), uid, owner));
        // Without a marker the owner is unknown: memory with a name may be adopted later.
        fs::create_dir(spill.path().join(format!("{:016x}", 4))).unwrap();

        let earlier = Orphans::of_earlier(spill.path(), &one.1, RegionUid(2));
        assert_eq!(earlier.iter().map(|one| &one.folder).collect::<Vec<_>>(), [&folders[0]]);
        earlier[0].remove().unwrap();
        assert!(!folders[0].exists() && folders[1].exists() && folders[2].exists());

        assert!(Orphans::left(spill.path()).is_empty(), "both nodes live");
        drop(other);
        let left = Orphans::left(spill.path());
        assert_eq!(left.iter().map(|one| &one.folder).collect::<Vec<_>>(), [&folders[2]]);
        let again = Lock::take(&dir.path().join("other.sock")).unwrap();
        let refused = left[0].remove_if_left().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        drop(again);
        left[0].remove_if_left().unwrap();
        assert!(folders[1].exists() && !folders[2].exists());
        assert_eq!(fs::read_dir(spill.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_is_no_line_of_this_boot_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let at = marker(dir.path(), RegionUid(1));
        let host = own_host();
        for line in [
            String::new(),
            "farrow-spill 1\n".to_owned(),
            format!("farrow-spill 2\t{host}\t1\t2\t/n.sock.lock\n"),
            "farrow-spill 1\tanother boot\t1\t2\t/n.sock.lock\n".to_owned(),
            format!("farrow-spill 1\t{host}\t1\tx\t/n.sock.lock\n"),
            format!("farrow-spill 1\t{host}\t1\t2\t/cut/off"),
        ] {
            fs::write(&at, &line).unwrap();
            assert_eq!(SpillOwner::read(&at), None, "{line:?}");
        }
        fs::write(&at, format!("farrow-spill 1\t{host}\t1\t2\t/n.sock.lock\n")).unwrap();
        let said = SpillOwner { lock: (1, 2), path: PathBuf::from("/n.sock.lock") };
        assert_eq!(SpillOwner::read(&at), Some(said));
    }
}
