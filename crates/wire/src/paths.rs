//! Paths of a node: the socket, the lock and the memory of a user.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use farrow_membership::fnv::{BASIS, fnv};

/// Names the socket of the node to use.
pub const SOCKET_VARIABLE: &str = "FARROW_SOCKET";
/// Size of the memory of a private node.
pub const MEMORY_VARIABLE: &str = "FARROW_MEMORY";
/// Seconds for which a private node keeps named objects after its last client.
pub const LINGER_VARIABLE: &str = "FARROW_LINGER";
/// Directory (a tmpfs) that contains the memory of a node.
pub const MEMORY_DIR_VARIABLE: &str = "FARROW_MEMORY_DIR";

/// `$FARROW_SOCKET`, else the default socket of this user's node.
pub fn default_socket() -> PathBuf {
    match std::env::var_os(SOCKET_VARIABLE) {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => runtime_dir().join("node.sock"),
    }
}

/// `$XDG_RUNTIME_DIR/farrow`, else a folder of this user below `/tmp`.
pub fn runtime_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() && Path::new(&dir).is_dir() => {
            PathBuf::from(dir).join("farrow")
        }
        _ => PathBuf::from(format!("/tmp/farrow-{}", own_uid())),
    }
}

/// The tmpfs of every Linux system.
pub const SHM_DIR: &str = "/dev/shm";

/// `$FARROW_MEMORY_DIR`, if it is set.
pub fn named_memory_dir() -> Option<PathBuf> {
    let dir = std::env::var_os(MEMORY_DIR_VARIABLE)?;
    (!dir.is_empty()).then(|| PathBuf::from(dir))
}

/// Effective user of this process.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Creates the directory of a socket, and refuses one in which another user could create a socket.
///
/// # Errors
///
/// The directory cannot be created, or [`runtime_dir`] belongs to another user or is writable by
/// others.
pub fn prepare_socket_dir(socket: &Path) -> io::Result<()> {
    let Some(dir) = socket.parent().filter(|dir| !dir.as_os_str().is_empty()) else {
        return Ok(());
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    check_runtime_dir(socket)
}

/// Lets other users reach the socket in this user's default directory, but not list the directory
/// or write in it. Other directories stay unchanged: their mode is the choice of the administrator.
///
/// # Errors
///
/// The mode of the directory cannot be changed.
pub fn open_runtime_dir(socket: &Path) -> io::Result<()> {
    let dir = runtime_dir();
    if socket.parent() != Some(&dir) {
        return Ok(());
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o711))
}

/// Refuses a socket in this user's default directory if another user could have created it.
///
/// # Errors
///
/// The directory belongs to another user, or others may write in it.
pub fn check_runtime_dir(socket: &Path) -> io::Result<()> {
    let dir = runtime_dir();
    if socket.parent() != Some(&dir) {
        return Ok(());
    }
    let found = match fs::symlink_metadata(&dir) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let uid = own_uid();
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{} belongs to user {} with mode {:o}; user {uid} needs a folder of its own",
                dir.display(),
                found.uid(),
                found.mode() & 0o7777
            ),
        ));
    }
    Ok(())
}

/// The lock that the node serving `socket` holds.
pub fn lock_of(socket: &Path) -> PathBuf {
    with_suffix(socket, ".lock")
}

/// Mount point of the tmpfs of the node at `socket`; the next node at this socket finds it there.
pub fn memory_mount_of(socket: &Path) -> PathBuf {
    let absolute = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    with_suffix(&absolute, ".memory")
}

/// Name of the memory of the node at `socket`; it stays the same after a restart.
pub fn region_name(socket: &Path) -> String {
    let absolute = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let hash = fnv(BASIS, absolute.as_os_str().as_encoded_bytes());
    format!("farrow-{}-{hash:016x}", own_uid())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Longest path of a Unix socket in bytes, without the terminating NUL (unix(7)).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_named_by_its_socket_alone() {
        let one = region_name(Path::new("/run/a.sock"));
        assert_eq!(one, region_name(Path::new("/run/a.sock")));
        assert_ne!(one, region_name(Path::new("/run/b.sock")));
    }
}
