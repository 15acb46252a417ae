//! Errors between two daemons.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tonic::{Code, Status};

use crate::certs::NodeName;

/// Limit on a peer's reason in characters, since it is logged.
const REASON_CHARS_MAX: usize = 200;

/// Why the transport could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum StartError {
    /// There are no certificates, and plain text was not requested.
    #[error(
        "nodes speak TLS: give the certificates of `farrow certs` (`--certs`), or allow plain text \
         on loopback (`--plaintext`)"
    )]
    NoCertificates,
    /// Plain text would leave the machine.
    #[error("{address} is not a loopback address: it needs certificates (`--certs`)")]
    PlaintextOffLoopback { address: SocketAddr },
    /// Both certificates and plain text are configured.
    #[error("both `--certs` and `--plaintext` are given: choose one")]
    Both,
    /// A certificate file cannot be used.
    #[error("{}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    /// The certificate belongs to another node.
    #[error("the certificate {} is for node {found}, this is node {own}", path.display())]
    NotOwn { path: PathBuf, own: NodeName, found: NodeName },
    /// The key and the certificates do not match.
    #[error("certificate and key: {0}")]
    Tls(String),
    /// Plain text to etcd would leave the machine.
    #[error(
        "etcd at {address} is not on loopback: use etcds://, or allow plain text \
         (`--etcd-plaintext`)"
    )]
    EtcdPlaintext { address: String },
    /// The options for etcd contradict each other.
    #[error("etcd: {0}")]
    EtcdOptions(&'static str),
    /// Etcd cannot be used.
    #[error("etcd at {place}: {reason}")]
    Etcd { place: String, reason: String },
    /// Listening at the address fails, or the thread cannot be started.
    #[error("listening at {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
}

/// Why a call to a peer failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PeerError {
    /// There is no connection, and none can be opened.
    #[error("{address} cannot be reached: {reason}")]
    Unreachable { address: String, reason: String },
    /// The address is not on loopback, and there are no certificates.
    #[error("{address} is not on loopback: it needs certificates (`--certs`)")]
    NotSecured { address: String },
    /// Another node answers at the address.
    #[error("{address} is not the expected node: {reason}")]
    WrongNode { address: String, reason: String },
    /// There was no answer within the deadline. The peer may have done the work.
    #[error("no answer within {deadline_ms} ms")]
    Deadline { deadline_ms: u64 },
    /// The peer refused the call, or was lost during it.
    #[error("{code:?}: {reason}")]
    Refused { code: Code, reason: String },
    /// The body is too long.
    #[error("{bytes} B are more than the {max} B of one message")]
    TooLarge { bytes: usize, max: usize },
    /// The limit of calls in progress to this peer is reached.
    #[error("{max} {what} are under way to this peer")]
    Busy { what: &'static str, max: usize },
    /// The remote session's number is in use.
    #[error("this remote session is in use")]
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
