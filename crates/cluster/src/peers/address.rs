//! Addresses of peers, and the numbers that identify calls and remote sessions.

use std::fmt;
use std::str::FromStr;

use crate::certs::NodeName;

/// Where a peer listens and, if known, its expected name: `[NAME@]HOST:PORT`.
///
/// With certificates, a peer is certified for NAME, or without one for HOST.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerAddress {
    pub(crate) name: Option<NodeName>,
    /// An IP address or a DNS name. An IPv6 address is without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// A text that is not the address of a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address of a node: [NAME@]HOST:PORT")]
pub(crate) struct PeerAddressError(String);

impl FromStr for PeerAddress {
    type Err = PeerAddressError;

    fn from_str(text: &str) -> Result<Self, PeerAddressError> {
        let parse = || {
            let (name, rest) = match text.split_once('@') {
                Some((name, rest)) => (Some(name.parse().ok()?), rest),
                None => (None, text),
            };
            let (host, port) = rest.rsplit_once(':')?;
            let host = match host.strip_prefix('[') {
                Some(inner) => inner.strip_suffix(']')?,
                None if host.contains(':') => return None,
                None => host,
            };
            let port = port.parse().ok().filter(|port| *port != 0)?;
            (!host.is_empty()).then(|| Self { name, host: host.to_owned(), port })
        };
        parse().ok_or_else(|| PeerAddressError(text.chars().take(300).collect()))
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}@")?;
        }
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// The id of a remote session on this node. Sessions opened by other nodes have the uppermost bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RemoteSessionId(u64);

impl RemoteSessionId {
    const INCOMING: u64 = 1 << 63;

    /// The id of a remote session at another node. The caller chooses the number; the uppermost bit
    /// is ignored.
    pub(crate) const fn outgoing(number: u64) -> Self {
        Self(number & !Self::INCOMING)
    }

    pub(super) const fn incoming(number: u64) -> Self {
        Self(number | Self::INCOMING)
    }

    /// Whether a client of another node uses memory here.
    pub(crate) const fn is_incoming(self) -> bool {
        self.0 & Self::INCOMING != 0
    }
}

/// A request of another node, which waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestToken(pub(super) u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_the_same() {
        for text in ["a@10.0.0.1:7000", "host.example:1", "[::1]:65535", "b@[fe80::1]:7"] {
            assert_eq!(text.parse::<PeerAddress>().unwrap().to_string(), text);
        }
        for text in ["", ":1", "a:0", "a", "::1:7", "A@b:1", "a@:1", "[::1:7", "a:65536"] {
            assert!(text.parse::<PeerAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn remote_sessions_of_both_sides_never_have_the_same_number() {
        assert_ne!(RemoteSessionId::incoming(7), RemoteSessionId::outgoing(7));
        assert!(RemoteSessionId::incoming(7).is_incoming());
        assert!(!RemoteSessionId::outgoing(u64::MAX).is_incoming());
    }
}
