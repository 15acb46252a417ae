//! The options of the transport.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::limits::{PeerLimits, PeerTimes};
use crate::certs::NodeName;

/// The options of the transport.
#[derive(Debug, Clone)]
pub(crate) struct PeersOptions {
    /// The name of this node.
    pub(crate) name: NodeName,
    /// The incarnation of this node.
    pub(crate) incarnation: u64,
    /// Where to listen. With port 0 the kernel chooses.
    pub(crate) listen: SocketAddr,
    /// Certificates. Without them only loopback is possible, if plain text is allowed.
    pub(crate) tls: Option<PeerTls>,
    /// Whether plain text on loopback is allowed.
    pub(crate) is_plaintext_allowed: bool,
    pub(crate) limits: PeerLimits,
    pub(crate) times: PeerTimes,
}

/// Files with the identity of this node, as [`crate::certs::issue`] writes them. They are read again
/// when they change.
#[derive(Debug, Clone)]
pub struct PeerTls {
    /// The certificate of the cluster's authority. Several: while one replaces another.
    pub ca: PathBuf,
    /// This node's certificate, and intermediate certificates if there are any.
    pub certificate: PathBuf,
    /// Its key. A mode that gives other users outside its group any access is refused.
    pub key: PathBuf,
    /// The authority's list of revoked certificates, as [`crate::certs::revoke`] writes it. It may
    /// be absent.
    pub revoked: PathBuf,
}
