//! The socket of a node for its metrics.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::error::{NodeError, check_socket_path, failed};
use crate::endpoint::listen;
use crate::metrics::MetricsAddress;
use crate::server::ScrapeListener;

/// The listening socket for metrics, and its address as text.
#[derive(Debug)]
pub(super) struct Scraped {
    pub(super) listener: ScrapeListener,
    pub(super) address: String,
}

impl Scraped {
    pub(super) fn bind(address: &MetricsAddress, socket: &Path) -> Result<Self, NodeError> {
        match (address, address.path(socket)) {
            (MetricsAddress::Tcp(address), _) => {
                let what = || format!("metrics at {address}");
                let listener = listen(*address).map_err(failed(what()))?;
                listener.set_nonblocking(true).map_err(failed(what()))?;
                // The system may have chosen the port.
                let bound = listener.local_addr().map_err(failed(what()))?;
                let address = format!("http://{bound}/metrics");
                Ok(Self { listener: ScrapeListener::Tcp(listener), address })
            }
            (_, path) => {
                let path = path.unwrap_or_default();
                check_socket_path(&path)?;
                let what = || format!("metrics at {}", path.display());
                let listener = bind_unix(&path).map_err(failed(what()))?;
                let address = format!("unix:{}", path.display());
                Ok(Self { listener: ScrapeListener::Unix(listener), address })
            }
        }
    }
}

/// Replaces a socket without a listener, and no other file.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() && UnixStream::connect(path).is_err() => {
            fs::remove_file(path)?;
        }
        Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
