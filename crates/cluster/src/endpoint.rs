//! Listening at a port.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};

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
