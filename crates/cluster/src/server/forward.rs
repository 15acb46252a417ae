//! Forwarding of this node's clients that use memory of another one.

use std::sync::Arc;

use farrow_wire::{self as wire, FRAME_BYTES_MAX, Reply, ReplyBody, Request, WireError};
use prost::bytes::Bytes;

use super::Server;
use super::forwarded::{FirstMessage, ForwardedSession};
use super::output::open_for_client;
use super::remote_sessions::named;
use crate::metrics::cluster::{Direction, PeerMessageKind};
use crate::peer_memory;
use crate::peers::{RemoteProcess, RemoteSessionId};
use crate::protocol::SessionId;
use crate::protocol::cluster::MappablePeer;

impl Server {
    /// Opens a remote session at another node for a client of this one.
    pub(super) fn forward_client(
        &mut self,
        session: SessionId,
        (node, address): (String, &str),
        incarnation: u64,
        first: FirstMessage,
    ) {
        let FirstMessage { seq, body, maps_memory } = first;
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        remote_sessions.peers.set_incarnation(incarnation);
        let remote_session = RemoteSessionId::outgoing(session.0);
        let identity = connection.identity;
        let process =
            RemoteProcess { pid: identity.pid, start_time: identity.start_time, uid: identity.uid };
        let opened = match named(&node, address) {
            None => Err(format!("{address} is no address")),
            Some(address) => remote_sessions
                .peers
                .open_remote_session(remote_session, &address, process)
                .map_err(|e| e.to_string()),
        };
        let mut bytes = Vec::new();
        let request = Request { seq, body };
        let encoded = wire::encode(&request, &mut bytes).map_err(|error| error.to_string());
        if let Err(reason) = opened.and(encoded) {
            let reply = Reply { seq, body: Err(WireError::NoRemoteSession { node, reason }) };
            let _ = connection.queue(&reply, false);
            connection.is_closing = true;
            self.touched.insert(session);
            return;
        }
        connection.forwarded = Some(ForwardedSession {
            remote_session,
            node,
            first_seq: Some(seq),
            maps_memory,
            input: Vec::new(),
        });
        connection.is_introduced = true;
        remote_sessions.remote_sessions.insert(remote_session, session);
        // A newly opened remote session always accepts its first bytes.
        let _ = remote_sessions.peers.send(remote_session, bytes.into());
        self.pending.insert(session);
    }

    /// Forwards requests of a client of this node to the other node, at most `frames_max`. Returns
    /// their bytes.
    pub(super) fn carry_on(&mut self, session: SessionId, frames_max: usize) -> usize {
        let (Some(connection), Some(remote_sessions)) =
            (self.connections.get_mut(&session), &mut self.remote_sessions)
        else {
            return 0;
        };
        let Some(forwarded) = &connection.forwarded else {
            return 0;
        };
        let remote_session = forwarded.remote_session;
        let bytes = match connection.take_frames(frames_max) {
            Ok(bytes) if bytes.is_empty() => return 0,
            Ok(bytes) => bytes,
            Err(error) => {
                self.warn_of(session, "an invalid message", Some(&error));
                self.drop_connection(session);
                return 0;
            }
        };
        let length = bytes.len();
        if let Err(bytes) = remote_sessions.peers.send(remote_session, Bytes::from(bytes)) {
            // No more input is read from the client until there is room.
            connection.put_back(&bytes);
            connection.is_blocked = true;
            return 0;
        }
        if let Some(forwarded) = &connection.forwarded {
            remote_sessions.traffic.add(
                &forwarded.node,
                PeerMessageKind::RemoteSession,
                Direction::Out,
                length,
            );
        }
        if connection.has_request() {
            self.pending.insert(session);
        }
        length
    }

    /// Forwards replies of the other node to the client.
    pub(super) fn carry_back(&mut self, session: SessionId, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        self.touched.insert(session);
        let Some(forwarded) = &mut connection.forwarded else {
            return;
        };
        if forwarded.first_seq.is_none() {
            connection.queue_bytes(bytes);
            if connection.is_overfull() {
                self.warn_of(session, "a client does not read its replies", None);
                self.drop_connection(session);
            }
            return;
        }
        forwarded.input.extend_from_slice(bytes);
        let reply = match wire::decode::<Reply>(&forwarded.input) {
            Ok(None) if forwarded.input.len() <= FRAME_BYTES_MAX => return,
            Ok(Some((reply, used))) => {
                forwarded.input.drain(..used);
                reply
            }
            Ok(None) | Err(_) => {
                return self.end_both_sides(session, "its first answer cannot be read");
            }
        };
        forwarded.first_seq = None;
        let (node, rest) = (forwarded.node.clone(), std::mem::take(&mut forwarded.input));
        let memory = self.state.memory_of(&node).cloned();
        self.welcome_carried(session, reply, memory, &rest);
    }

    /// Queues the welcome of another node, with the descriptors by which this node maps its memory.
    pub(super) fn welcome_carried(
        &mut self,
        session: SessionId,
        mut reply: Reply,
        memory: Option<MappablePeer>,
        rest: &[u8],
    ) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        let mut has_descriptors = false;
        let maps_memory = connection.forwarded.as_ref().is_none_or(|one| one.maps_memory);
        if maps_memory && let Ok(ReplyBody::Welcome(welcome)) = &mut reply.body {
            match &memory {
                Some(memory) if memory.reader.uid().0 == welcome.region_uid => {
                    peer_memory::describe(memory, welcome);
                    connection.fabric = Some(Arc::clone(&memory.fabric));
                    has_descriptors = true;
                }
                _ => {
                    let node = connection.forwarded.as_ref().map(|one| one.node.clone());
                    let reason =
                        "the region mapped here is not the one that it lends now".to_owned();
                    let node = node.unwrap_or_default();
                    reply.body = Err(WireError::NodeLost { node, reason });
                }
            }
        }
        if has_descriptors {
            open_for_client(connection, &self.fabric, &mut reply);
        }
        connection.is_closing = reply.body.is_err();
        let has_descriptors = has_descriptors && reply.body.is_ok();
        if connection.queue(&reply, has_descriptors).is_err() {
            connection.is_closing = true;
        }
        connection.queue_bytes(rest);
    }

    /// Handles the end of a forwarded connection on the client's side.
    pub(super) fn end_forwarded(&mut self, forwarded: &ForwardedSession, has_process_ended: bool) {
        if let Some(remote_sessions) = &mut self.remote_sessions {
            remote_sessions.remote_sessions.remove(&forwarded.remote_session);
            remote_sessions.peers.end_remote_session(forwarded.remote_session, has_process_ended);
        }
    }

    /// Handles the end of a forwarded connection on the other node's side.
    pub(super) fn carried_ended(&mut self, session: SessionId, reason: &str) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        tracing::debug!(session = session.0, reason, "a forwarded connection ended");
        if let Some(forwarded) = connection.forwarded.take()
            && let Some(seq) = forwarded.first_seq
        {
            // The first message was not answered yet.
            let (node, reason) = (forwarded.node, reason.to_owned());
            let reply = Reply { seq, body: Err(WireError::NoRemoteSession { node, reason }) };
            let _ = connection.queue(&reply, false);
        }
        connection.is_closing = true;
        self.touched.insert(session);
    }

    /// Ends a forwarded connection at the client and at the other node.
    fn end_both_sides(&mut self, session: SessionId, reason: &str) {
        let connection = self.connections.get(&session);
        if let Some(forwarded) = connection.and_then(|one| one.forwarded.as_ref()).cloned() {
            self.end_forwarded(&forwarded, false);
        }
        self.carried_ended(session, reason);
    }

    /// Handles the loss of a node: clients stop waiting for its replies, and its own clients cannot
    /// continue before it is back.
    pub(super) fn cut_off(&mut self, node: &str, address: &str) {
        if let (Some(remote_sessions), Some(address)) =
            (&self.remote_sessions, named(node, address))
        {
            remote_sessions.peers.forget(&address);
        }
        let sessions = self.connections.iter();
        let sessions = sessions.filter(|(_, connection)| {
            connection.forwarded.as_ref().is_some_and(|forwarded| forwarded.node == node)
        });
        let sessions: Vec<SessionId> = sessions.map(|(session, _)| *session).collect();
        for session in sessions {
            self.end_both_sides(session, "it is lost");
        }
        let remote_clients =
            self.remote_sessions.iter().flat_map(|remote_sessions| &remote_sessions.remote_clients);
        let remote_clients = remote_clients.filter(|(_, remote_client)| remote_client.node == node);
        let remote_clients: Vec<SessionId> = remote_clients.map(|(session, _)| *session).collect();
        remote_clients.into_iter().for_each(|session| self.drop_remote_client(session));
    }
}
