//! The file of the node's socket, by which clients find the node.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The path of the socket, and the device and inode of its file at the start.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// `None`: the file was missing at the start, as it can be for a later daemon of a supervisor.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    pub(super) fn new(path: PathBuf) -> Self {
        let identity = identity_of(&path).ok();
        Self { path, identity }
    }

    /// Whether a new client finds the node by this file; otherwise the reason.
    pub(super) fn check(&self) -> Result<(), String> {
        let path = self.path.display();
        match identity_of(&self.path) {
            Ok(found) if self.identity == Some(found) => Ok(()),
            Ok(_) => {
                Err(format!("no client can connect: {path} is not this node's socket any more"))
            }
            Err(error) => Err(format!("no client can connect: the socket {path}: {error}")),
        }
    }
}

fn identity_of(path: &Path) -> io::Result<(u64, u64)> {
    let about = std::fs::metadata(path)?;
    Ok((about.dev(), about.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_that_was_removed_or_replaced_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let file = SocketFile::new(path.clone());
        assert_eq!(file.check(), Ok(()));
        let aside = dir.path().join("aside");
        std::fs::rename(&path, &aside).unwrap();
        let removed = file.check().unwrap_err();
        assert!(removed.contains("n.sock: No such file"), "{removed}");
        let of_next_daemon = SocketFile::new(path.clone());
        let _other = UnixListener::bind(&path).unwrap();
        for file in [&file, &of_next_daemon] {
            let replaced = file.check().unwrap_err();
            assert!(replaced.contains("n.sock is not this node's socket"), "{replaced}");
        }
        std::fs::rename(&aside, &path).unwrap();
        assert_eq!(file.check(), Ok(()));
    }
}
