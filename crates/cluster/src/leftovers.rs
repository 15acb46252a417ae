//! Files left by nodes that were killed with all of their processes, or that retained memory with a
//! name. They are detected by their owner's locks and by the kernel's record of open and mapped
//! files, and removed only when no process uses them.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use farrow_memory::{is_in_use, mount, survey};
use farrow_wire::paths;

use crate::lock::{Holder, lock_if_free};
use crate::spill::Orphans;

/// The kind of a leftover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftoverKind {
    /// The files of a region, in a tmpfs with other users.
    Region,
    /// A tmpfs that a node mounted for itself, as all nodes of earlier versions did.
    Mount,
    /// A socket without a listener, with its lock.
    Socket,
    /// State shared by clients of a node-local region.
    Marks,
    /// Spilled objects of memory that no longer exists.
    Spilled,
}

impl LeftoverKind {
    /// `"region"`, `"mount"`, `"socket"`, `"marks"` or `"spilled"`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Region => "region",
            Self::Mount => "mount",
            Self::Socket => "socket",
            Self::Marks => "marks",
            Self::Spilled => "spilled",
        }
    }
}

/// A leftover without a living owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Its kind.
    pub kind: LeftoverKind,
    /// A region without `.control` and `.data`, the folder of a mount or of spilled objects, or a
    /// socket.
    pub path: PathBuf,
    /// Bytes of memory or disk that it uses.
    pub bytes: u64,
    /// Its files.
    files: Vec<PathBuf>,
}

/// Searches the machine's shared memory, `$FARROW_MEMORY_DIR`, this user's folder of sockets, and
/// `dirs`. Root finds leftovers of all users, other users only their own.
pub fn find(dirs: &[PathBuf]) -> Vec<Leftover> {
    let named = paths::named_memory_dir();
    let mut memory_dirs = vec![PathBuf::from(paths::SHM_DIR)];
    memory_dirs.extend(named.into_iter().chain(dirs.iter().cloned()));
    let mut socket_dirs = vec![paths::runtime_dir()];
    socket_dirs.extend_from_slice(dirs);
    for all in [&mut memory_dirs, &mut socket_dirs] {
        all.sort();
        all.dedup();
    }
    let mut found = Vec::new();
    for dir in &memory_dirs {
        found.extend(regions(dir));
        found.extend(marks(dir));
    }
    // Before the sockets, whose locks show which spilled objects are left.
    for dir in dirs {
        let left = Orphans::left(dir).into_iter();
        found.extend(
            left.map(|one| leftover(LeftoverKind::Spilled, one.folder.clone(), one.files())),
        );
    }
    let mounts = survey::tmpfs_dirs().into_iter().filter(|tmpfs| tmpfs.is_of_node);
    found.extend(mounts.filter_map(|tmpfs| mounted(&tmpfs.dir)));
    for dir in &socket_dirs {
        found.extend(names(dir).filter_map(|name| socket(&dir.join(name))));
    }
    found
}

impl Leftover {
    /// Removes it, unless a process has begun to use it.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` if it is in use, or the error of the system call.
    pub fn remove(&self) -> io::Result<()> {
        match self.kind {
            LeftoverKind::Socket => return self.remove_socket(),
            LeftoverKind::Spilled => return self.remove_spilled(),
            _ if self.files.iter().any(|file| is_used(file)) => {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            _ => {}
        }
        self.files.iter().try_for_each(|file| remove(file))?;
        if self.kind == LeftoverKind::Mount {
            mount::unmount(&self.path).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn remove_spilled(&self) -> io::Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new(""));
        let left = Orphans::left(dir).into_iter().find(|one| one.folder == self.path);
        left.ok_or(io::ErrorKind::ResourceBusy)?.remove_if_left()
    }

    /// Holds the lock meanwhile, so that no node starts there.
    fn remove_socket(&self) -> io::Result<()> {
        let lock = paths::lock_of(&self.path);
        let Some(_locked) = lock_if_free(&lock) else {
            return Err(io::ErrorKind::ResourceBusy.into());
        };
        self.files.iter().try_for_each(|file| remove(file))
    }
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn names(dir: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// A file whose use cannot be determined counts as used.
fn is_used(file: &Path) -> bool {
    match is_in_use(file) {
        Ok(is_used) => is_used,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Bytes that a file occupies. Linux counts blocks of 512 bytes on every file system.
fn bytes_of(file: &Path) -> u64 {
    fs::symlink_metadata(file).map_or(0, |found| found.blocks() * 512)
}

/// Whether a name is `prefix`, the id of a user whose files may be removed, `-` and a rest.
fn is_own(name: &str, prefix: &str) -> bool {
    let rest = name.strip_prefix(prefix).and_then(|rest| rest.split_once('-'));
    let Some(user) = rest.and_then(|(user, _)| user.parse::<u32>().ok()) else {
        return false;
    };
    let own = paths::own_uid();
    own == 0 || user == own
}

/// Regions in a folder without users: both files of each, or one if its creator was killed in
/// between.
fn regions(dir: &Path) -> Vec<Leftover> {
    let mut stems: Vec<String> = names(dir)
        .filter(|name| is_own(name, "farrow-"))
        .filter_map(|name| {
            let stem = name.strip_suffix(".control").or_else(|| name.strip_suffix(".data"));
            stem.map(str::to_owned)
        })
        .collect();
    stems.sort();
    stems.dedup();
    let made = stems.into_iter().map(|stem| {
        let files = ["control", "data"].map(|part| dir.join(format!("{stem}.{part}")));
        leftover(LeftoverKind::Region, dir.join(stem), files.to_vec())
    });
    made.filter(|one| !one.files.iter().any(|file| is_used(file))).collect()
}

fn marks(dir: &Path) -> Vec<Leftover> {
    let own = names(dir).filter(|name| is_own(name, "farrow-refreshed-"));
    let files = own.map(|name| dir.join(name));
    let made = files.map(|file| leftover(LeftoverKind::Marks, file.clone(), vec![file]));
    made.filter(|one| !one.files.iter().any(|file| is_used(file))).collect()
}

/// A node's own mount, if none of its files is in use.
fn mounted(dir: &Path) -> Option<Leftover> {
    let files: Vec<PathBuf> = names(dir).map(|name| dir.join(name)).collect();
    let is_free = mount::is_own_mount(dir) && !files.iter().any(|file| is_used(file));
    is_free.then(|| leftover(LeftoverKind::Mount, dir.to_owned(), files))
}

fn leftover(kind: LeftoverKind, path: PathBuf, files: Vec<PathBuf>) -> Leftover {
    let bytes = files.iter().map(|file| bytes_of(file)).sum();
    Leftover { kind, path, bytes, files }
}

/// The socket of this lock, if it is a free lock of a node.
fn socket(lock: &Path) -> Option<Leftover> {
    let socket = PathBuf::from(lock.to_str()?.strip_suffix(".lock")?);
    let is_socket =
        |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let is_empty =
        fs::symlink_metadata(lock).is_ok_and(|found| found.is_file() && found.len() == 0);
    // Earlier versions left the lock file empty.
    let is_of_node = Holder::read(lock).is_ok() || (is_empty && is_socket(&socket));
    let is_free = is_of_node && lock_if_free(lock).is_some();
    is_free.then(|| {
        let metrics = PathBuf::from(format!("{}.metrics", socket.display()));
        let sockets = [socket.clone(), metrics].into_iter().filter(|path| is_socket(path));
        // The lock is removed last, since it identifies the sockets.
        let files = sockets.chain([lock.to_owned()]).collect();
        leftover(LeftoverKind::Socket, socket, files)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use farrow_memory::shm::ShmFabric;
    use farrow_memory::{Geometry, Length};

    use super::*;
    use crate::lock::Lock;

    const GEOMETRY: Geometry = Geometry { control: Length(1 << 20), data: Length(2 << 20) };

    fn found_in(dir: &Path) -> Vec<(LeftoverKind, PathBuf, u64)> {
        let found = find(&[dir.to_owned()]).into_iter();
        let found = found.filter(|one| one.path.starts_with(dir));
        found.map(|one| (one.kind, one.path, one.bytes)).collect()
    }

    #[test]
    fn a_region_is_left_when_no_process_serves_holds_or_opens_it() {
        let dir = tempfile::tempdir_in(paths::SHM_DIR).unwrap();
        let name = paths::region_name(Path::new("/somewhere/n.sock"));
        let region = (LeftoverKind::Region, dir.path().join(&name), 3 << 20);
        let home = ShmFabric::create(dir.path(), &name, GEOMETRY).unwrap();
        let held = home.hold().unwrap();
        assert_eq!(found_in(dir.path()), []);
        drop(home);
        assert_eq!(found_in(dir.path()), [], "a supervisor holds it");
        drop(held);
        assert_eq!(found_in(dir.path()), std::slice::from_ref(&region));
        let reader = ShmFabric::inspect(dir.path(), &name).unwrap();
        assert_eq!(found_in(dir.path()), [], "a reader has it");
        drop(reader);
        let [left] = find(&[dir.path().to_owned()])
            .into_iter()
            .filter(|one| one.path == region.1)
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let reader = ShmFabric::inspect(dir.path(), &name).unwrap();
        assert_eq!(left.remove().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(reader);
        left.remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_of_others_are_no_leftovers() {
        let dir = tempfile::tempdir_in(paths::SHM_DIR).unwrap();
        let own = paths::own_uid();
        for name in ["a.lock", "farrow-x-1.control", "farrow.data", "n.sock", "b.control"] {
            fs::write(dir.path().join(name), b"theirs").unwrap();
        }
        fs::write(dir.path().join("empty.lock"), b"").unwrap();
        assert_eq!(found_in(dir.path()), []);
        // A creator that is killed leaves one of the two files.
        let stem = dir.path().join(format!("farrow-{own}-1"));
        fs::write(stem.with_extension("data"), vec![1; 4096]).unwrap();
        assert_eq!(found_in(dir.path()), [(LeftoverKind::Region, stem, 4096)]);
    }

    #[test]
    fn a_socket_is_left_when_no_process_has_its_lock() {
        let dir = tempfile::tempdir_in(paths::SHM_DIR).unwrap();
        let at = dir.path().join("n.sock");
        let lock = Lock::take(&at).unwrap();
        drop(UnixListener::bind(&at).unwrap());
        assert_eq!(found_in(dir.path()), []);
        drop(lock);
        let left: Vec<Leftover> = find(&[dir.path().to_owned()]);
        let left: Vec<&Leftover> = left.iter().filter(|one| one.path == at).collect();
        assert_eq!(left.len(), 1);
        let again = Lock::take(&at).unwrap();
        assert_eq!(left[0].remove().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(again);
        left[0].remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
