//! Events of the transport for the event loop.

use std::time::Duration;

use farrow_membership::etcd as membership;
use prost::bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::address::{RemoteSessionId, RequestToken};
use super::error::PeerError;
use super::limits::Permit;
use crate::certs::NodeName;

/// The client that uses a remote session at another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemoteProcess {
    pub(crate) pid: u32,
    /// In clock ticks since the boot of its machine.
    pub(crate) start_time: u64,
    pub(crate) uid: u32,
}

/// The answer of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerAnswer {
    /// The name in its certificate. `None` without TLS.
    pub(crate) from: Option<NodeName>,
    pub(crate) body: Bytes,
    /// Time since the request was given to an open connection.
    pub(crate) elapsed: Duration,
}

/// An event from a peer or from etcd.
#[derive(Debug)]
pub(crate) enum PeerEvent {
    /// A message. Without TLS, `from` is unverified in all events.
    Message { from: NodeName, incarnation: u64, body: Bytes },
    /// A request, to be answered by [`Peers::answer`] within the caller's deadline.
    Request { token: RequestToken, from: NodeName, incarnation: u64, body: Bytes },
    /// The result of [`Peers::ask`]: exactly one for each call.
    Response { token: u64, result: Result<PeerAnswer, PeerError> },
    /// A client of another node opens a remote session here.
    RemoteSessionOpened { remote_session: RemoteSessionId, from: NodeName, process: RemoteProcess },
    /// Bytes of the client protocol, in order.
    RemoteSessionData { remote_session: RemoteSessionId, bytes: RemoteSessionBytes },
    /// There is room again after [`Peers::send`] returned bytes.
    RemoteSessionWritable { remote_session: RemoteSessionId },
    /// The last event of a remote session, unless this side ended it. If the stream broke,
    /// `has_process_ended` is `None`: the client may be alive and reading.
    RemoteSessionEnded {
        remote_session: RemoteSessionId,
        has_process_ended: Option<bool>,
        reason: String,
    },
    /// Whether messages to an address arrive has changed. `None`: they do, else the cause.
    Delivery { address: String, why_not: Option<String> },
    /// The result of [`Peers::ask_etcd`]: exactly one for each call.
    EtcdResponse { id: u64, reply: membership::EtcdReply },
    /// Keys in etcd have changed, or may have.
    EtcdChanged,
}

/// Bytes of a remote session. They count as not taken until this is dropped, so keeping them stops
/// the peer.
#[derive(Debug)]
pub(crate) struct RemoteSessionBytes {
    pub(crate) bytes: Bytes,
    pub(super) _room: OwnedSemaphorePermit,
    pub(super) _of_peer: Option<[Permit; 2]>,
}
