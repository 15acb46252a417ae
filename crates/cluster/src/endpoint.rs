//! Listening sockets of a node: binding a port, and the socket for metrics.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::metrics::MetricsAddress;
use crate::node::{NodeError, check_socket_path, failed};
use crate::server::ScrapeListener;

/// The listening socket for metrics, and its address as text.
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

/// The kernel's range of ports for outgoing connections.
const OUTGOING_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Listens at an address. The error states whether the port is in the range of outgoing
/// connections: then it may be free later, and taken another time.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let Some((first, last)) = outgoing_ports() else {
            return error;
        };
        let port = address.port();
        if error.kind() != io::ErrorKind::AddrInUse || !(first..=last).contains(&port) {
            return error;
        }
        io::Error::new(
            error.kind(),
            format!(
                "{error}; this system gives the ports {first} to {last} to connections to \
                 elsewhere, one of which may have {port}: choose a port below {first}"
            ),
        )
    })
}

fn outgoing_ports() -> Option<(u16, u16)> {
    let text = fs::read_to_string(OUTGOING_PORTS).ok()?;
    let (first, last) = text.trim().split_once(char::is_whitespace)?;
    Some((first.parse().ok()?, last.trim().parse().ok()?))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_that_a_connection_may_have_is_said_to_be_one() {
        let Some((first, _)) = outgoing_ports() else {
            return;
        };
        // The system chooses this port from the range of outgoing connections.
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = listen(taken.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&format!("choose a port below {first}")), "{error}");
    }
}
