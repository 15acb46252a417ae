//! The event loop's state for other nodes: their requests, their clients here (remote clients), and
//! the remote sessions of forwarded clients of this node that use memory there.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Instant;

use farrow_wire::{self as wire, Reply};
use prost::bytes::Bytes;

use crate::metrics::cluster::{Direction, PeerMessageKind, Traffic};
use crate::peer_memory::Devices;
use crate::peers::{PeerAddress, Peers, RemoteSessionBytes, RemoteSessionId, RequestToken};
use crate::protocol::SessionId;

/// Limit on bytes of replies that wait until the remote client's node accepts them.
const REMOTE_CLIENT_OUT_BYTES_MAX: usize = 8 << 20;

/// An input buffer of a remote client that grew beyond this is freed.
pub(super) const REMOTE_CLIENT_INPUT_RETAINED_BYTES: usize = 64 << 10;

/// State of the event loop for other nodes.
pub(super) struct RemoteSessions {
    pub(super) peers: Peers,
    pub(super) devices: Devices,
    pub(super) remote_clients: BTreeMap<SessionId, RemoteSession>,
    /// Remote sessions in both directions.
    pub(super) remote_sessions: BTreeMap<RemoteSessionId, SessionId>,
    pub(super) requests: BTreeMap<u64, RequestToken>,
    pub(super) next_request: u64,
    pub(super) watched: VecDeque<WatchedProcess>,
    pub(super) next_watched: u64,
    /// When to check the memory of unreachable nodes.
    pub(super) unheard_at: Option<Instant>,
    pub(super) traffic: Traffic,
    /// The node that each outstanding request was sent to.
    pub(super) asking: BTreeMap<u64, String>,
}

/// A client of another node that uses memory of this one.
pub(super) struct RemoteSession {
    pub(super) remote_session: RemoteSessionId,
    pub(super) node: String,
    pub(super) input: Vec<u8>,
    /// Replies that its node has not accepted yet.
    pub(super) output: VecDeque<Bytes>,
    pub(super) output_bytes: usize,
    /// Unprocessed pieces of input. Its node sends no more until they are dropped.
    pub(super) is_stuffed: VecDeque<RemoteSessionBytes>,
}

pub(super) struct WatchedProcess {
    pub(super) number: u64,
    pub(super) token: u64,
    /// The node that asks.
    pub(super) node: String,
    pub(super) until: Instant,
    pub(super) process: OwnedFd,
}

impl RemoteSessions {
    pub(super) fn new((peers, devices): (Peers, Devices)) -> Self {
        Self {
            peers,
            devices,
            remote_clients: BTreeMap::new(),
            remote_sessions: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            watched: VecDeque::new(),
            next_watched: 0,
            unheard_at: None,
            traffic: Traffic::default(),
            asking: BTreeMap::new(),
        }
    }

    pub(super) fn wake(&self) -> &OwnedFd {
        &self.peers.wake
    }

    /// See [`Peers::buffered_bytes`].
    pub(super) fn buffered_bytes(&self) -> (usize, usize) {
        self.peers.buffered_bytes()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let watched = self.watched.front().map(|first| first.until);
        watched.into_iter().chain(self.unheard_at).min()
    }

    /// How many processes are watched for a node.
    pub(super) fn watched_for(&self, node: &str) -> usize {
        self.watched.iter().filter(|one| one.node == node).count()
    }

    /// Sends a reply to a remote client. Returns false if the client reads too slowly.
    pub(super) fn send(&mut self, session: SessionId, reply: &Reply) -> bool {
        let Some(remote_client) = self.remote_clients.get_mut(&session) else {
            return true;
        };
        let mut bytes = Vec::new();
        if let Err(error) = wire::encode(reply, &mut bytes) {
            tracing::error!(session = session.0, %error, "a reply exceeds the limit of a message");
            return false;
        }
        remote_client.output_bytes += bytes.len();
        remote_client.output.push_back(bytes.into());
        drain(&self.peers, remote_client, &mut self.traffic);
        remote_client.output_bytes <= REMOTE_CLIENT_OUT_BYTES_MAX
    }
}

/// Passes as much output to the transport as it accepts.
pub(super) fn drain(peers: &Peers, remote_client: &mut RemoteSession, traffic: &mut Traffic) {
    while let Some(bytes) = remote_client.output.pop_front() {
        let length = bytes.len();
        match peers.send(remote_client.remote_session, bytes) {
            Ok(()) => {
                remote_client.output_bytes = remote_client.output_bytes.saturating_sub(length);
                traffic.add(
                    &remote_client.node,
                    PeerMessageKind::RemoteSession,
                    Direction::Out,
                    length,
                );
            }
            Err(bytes) => {
                remote_client.output.push_front(bytes);
                return;
            }
        }
    }
}

impl RemoteSession {
    /// Bytes that the next request has by its head, if that has arrived.
    pub(super) fn announced_bytes(&self) -> Option<usize> {
        let pieces = self.is_stuffed.iter().flat_map(|piece| piece.bytes.iter());
        let mut head = [0; 4];
        let mut bytes = self.input.iter().chain(pieces);
        head.iter_mut().try_for_each(|byte| bytes.next().map(|next| *byte = *next))?;
        Some(u32::from_le_bytes(head) as usize)
    }

    /// Bytes that are buffered: unserved requests, and replies that its node has not accepted.
    pub(super) fn retained_bytes(&self) -> usize {
        let stuffed: usize = self.is_stuffed.iter().map(|piece| piece.bytes.len()).sum();
        self.input.capacity() + stuffed + self.output_bytes
    }
}

pub(super) fn parse(address: &str) -> Option<PeerAddress> {
    address
        .parse()
        .inspect_err(|error| tracing::warn!(%error, "the address of a node is invalid"))
        .ok()
}

/// An address at which the node of this name is expected.
pub(super) fn named(node: &str, address: &str) -> Option<PeerAddress> {
    let mut address = parse(address)?;
    address.name = node.parse().ok();
    Some(address)
}
