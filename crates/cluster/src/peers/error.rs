//! What can go wrong between two daemons.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tonic::{Code, Status};

use crate::certs::NodeName;

/// Longest reason that is taken from a peer, in characters: it goes into logs.
const REASON_CHARS_MAX: usize = 200;

/// Why peers could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StartError {
    /// No TLS, and plain text was not asked for.
    #[error(
        "nodes speak TLS: give the certificates of `farrow certs` (`--certs`), or allow plain text \
         on loopback (`--plaintext`)"
    )]
    NoCertificates,
    /// Plain text would leave the machine.
    #[error("{address} is not a loopback address: it needs certificates (`--certs`)")]
    PlaintextOffLoopback { address: SocketAddr },
    /// Certificates and plain text at once.
    #[error("both `--certs` and `--plaintext` are given: choose one")]
    Both,
    /// A file of the certificates cannot be used.
    #[error("{}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    /// The certificate is another node's.
    #[error("the certificate {} is for node {found}, this is node {own}", path.display())]
    NotOwn { path: PathBuf, own: NodeName, found: NodeName },
    /// The key and the certificates do not go together.
    #[error("certificate and key: {0}")]
    Tls(String),
    /// Plain text to etcd would leave the machine.
    #[error(
        "etcd at {address} is not on loopback: use etcds://, or allow plain text \
         (`--etcd-plaintext`)"
    )]
    EtcdPlaintext { address: String },
    /// Options for etcd that do not go together.
    #[error("etcd: {0}")]
    EtcdOptions(&'static str),
    /// Etcd cannot be used.
    #[error("etcd at {place}: {reason}")]
    Etcd { place: String, reason: String },
    /// The address cannot be listened at, or the thread not be started.
    #[error("listening at {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
}

/// Why a call to a peer failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PeerError {
    /// There is no connection, and none can be made.
    #[error("{address} cannot be reached: {reason}")]
    Unreachable { address: String, reason: String },
    /// The address is not on loopback, and there are no certificates.
    #[error("{address} is not on loopback: it needs certificates (`--certs`)")]
    NotSecured { address: String },
    /// Somebody else answers at the address.
    #[error("{address} is not the expected node: {reason}")]
    WrongNode { address: String, reason: String },
    /// Nothing within the deadline. The peer may have done what it was asked.
    #[error("no answer within {deadline_ms} ms")]
    Deadline { deadline_ms: u64 },
    /// The peer did not want it, or was lost while it worked.
    #[error("{code:?}: {reason}")]
    Refused { code: Code, reason: String },
    /// Longer than may be sent.
    #[error("{bytes} B are more than the {max} B of one message")]
    TooLarge { bytes: usize, max: usize },
    /// As much as is allowed is under way to this peer.
    #[error("{max} {what} are under way to this peer")]
    Busy { what: &'static str, max: usize },
    /// The remote session's number is in use.
    #[error("this seat is taken")]
    RemoteSessionTaken,
}

impl From<Status> for PeerError {
    fn from(status: Status) -> Self {
        Self::Refused { code: status.code(), reason: shorten(status.message()) }
    }
}

pub(super) fn shorten(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect()
}
