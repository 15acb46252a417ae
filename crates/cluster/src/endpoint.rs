//! The socket on which a node tells its numbers.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::metrics::MetricsAddress;
use crate::node::{NodeError, check_socket_path, failed};
use crate::server::ScrapeListener;

/// A listening socket and what to call it.
#[derive(Debug)]
pub(crate) struct Scraped {
    pub(crate) listener: ScrapeListener,
    pub(crate) address: String,
}

impl Scraped {
    pub(crate) fn bind(address: &MetricsAddress, socket: &Path) -> Result<Self, NodeError> {
        match (address, address.path(socket)) {
            (MetricsAddress::Tcp(address), _) => {
                let what = || format!("metrics at {address}");
                let listener = TcpListener::bind(address).map_err(failed(what()))?;
                listener.set_nonblocking(true).map_err(failed(what()))?;
                // The port may have been chosen by the system.
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

/// Takes the place of a socket that nobody listens to any more, and of nothing else.
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
