//! Clients of other nodes that use memory of this one.

use std::collections::VecDeque;

use farrow_store::RemoteClient;
use farrow_wire::{self as wire, Reply, Request};

use super::Server;
use super::connection::SERVED_BYTES_MAX;
use super::remote_sessions::{REMOTE_CLIENT_INPUT_RETAINED_BYTES, RemoteSession, drain};
use crate::metrics::cluster::{Direction, PeerMessageKind};
use crate::peers::{RemoteProcess, RemoteSessionBytes, RemoteSessionId};
use crate::protocol::{Action, PeerIdentity, SessionId, node_key};

impl Server {
    /// Bytes that this node buffers for a remote client. `None` if the session is not a remote
    /// client.
    pub(super) fn remote_client_bytes(&self, session: SessionId) -> Option<usize> {
        let remote_client = self.remote_sessions.as_ref()?.remote_clients.get(&session)?;
        Some(remote_client.retained_bytes())
    }

    pub(super) fn is_remote_client(&self, session: SessionId) -> bool {
        self.remote_sessions
            .as_ref()
            .is_some_and(|remote_sessions| remote_sessions.remote_clients.contains_key(&session))
    }

    pub(super) fn open_remote_client(
        &mut self,
        remote_session: RemoteSessionId,
        from: &str,
        process: RemoteProcess,
    ) {
        let now_ms = self.now_ms();
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        if !self.state.is_peer(from) {
            tracing::warn!(from, "a client of a node that is no member is rejected");
            remote_sessions.peers.end_remote_session(remote_session, false);
            return;
        }
        let session = SessionId(self.next_session);
        self.next_session += 1;
        let RemoteProcess { pid, start_time, uid } = process;
        let remote_client = Some(RemoteClient { node: node_key(from) });
        self.state.opened(session, PeerIdentity { pid, start_time, uid, remote_client }, now_ms);
        remote_sessions.remote_sessions.insert(remote_session, session);
        let remote_client = RemoteSession {
            remote_session,
            node: from.to_owned(),
            input: Vec::new(),
            output: VecDeque::new(),
            output_bytes: 0,
            is_stuffed: VecDeque::new(),
        };
        remote_sessions.remote_clients.insert(session, remote_client);
    }

    /// Stores input of a remote session. Returns the remote client that now has requests to serve.
    pub(super) fn remote_session_data(
        &mut self,
        remote_session: RemoteSessionId,
        bytes: RemoteSessionBytes,
    ) -> Option<SessionId> {
        let remote_sessions = self.remote_sessions.as_mut()?;
        let session = remote_sessions.remote_sessions.get(&remote_session).copied()?;
        let length = bytes.bytes.len();
        if let Some(remote_client) = remote_sessions.remote_clients.get_mut(&session) {
            remote_sessions.traffic.add(
                &remote_client.node,
                PeerMessageKind::RemoteSession,
                Direction::In,
                length,
            );
            remote_client.is_stuffed.push_back(bytes);
            Some(session)
        } else {
            if let Some(forwarded) =
                self.connections.get(&session).and_then(|c| c.forwarded.as_ref())
            {
                remote_sessions.traffic.add(
                    &forwarded.node,
                    PeerMessageKind::RemoteSession,
                    Direction::In,
                    length,
                );
            }
            self.carry_back(session, &bytes.bytes);
            None
        }
    }

    /// Serves the requests of a remote client, at most `requests_max`; `usize::MAX`: all of them.
    /// Returns their bytes.
    pub(super) fn serve_remote_client(
        &mut self,
        session: SessionId,
        requests_max: usize,
        actions: &mut Vec<Action>,
    ) -> usize {
        let bytes_max = if requests_max == usize::MAX { usize::MAX } else { SERVED_BYTES_MAX };
        let Some(remote_client) = self
            .remote_sessions
            .as_mut()
            .and_then(|remote_sessions| remote_sessions.remote_clients.get_mut(&session))
        else {
            return 0;
        };
        let mut requests = Vec::new();
        let mut nonsense = None;
        let mut used = 0;
        while requests.len() < requests_max && used < bytes_max {
            match wire::decode::<Request>(remote_client.input.get(used..).unwrap_or(&[])) {
                Ok(Some((request, bytes))) => {
                    used += bytes;
                    requests.push(request);
                }
                Ok(None) => match remote_client.is_stuffed.pop_front() {
                    Some(more) => remote_client.input.extend_from_slice(&more.bytes),
                    None => break,
                },
                Err(error) => {
                    nonsense = Some(error);
                    break;
                }
            }
        }
        remote_client.input.drain(..used);
        if remote_client.input.capacity() > REMOTE_CLIENT_INPUT_RETAINED_BYTES
            && remote_client.input.is_empty()
        {
            remote_client.input = Vec::new();
        }
        if requests.len() == requests_max || used >= bytes_max {
            self.pending.insert(session);
        }
        self.handle_all(session, requests, actions);
        if let Some(error) = nonsense {
            self.warn_of(session, "an invalid message of a remote client", Some(&error));
            self.drop_remote_client(session);
        }
        used
    }

    /// The remote session accepts bytes again. Returns the client of this node whose requests were
    /// left in its connection.
    pub(super) fn remote_session_writable(
        &mut self,
        remote_session: RemoteSessionId,
    ) -> Option<SessionId> {
        let remote_sessions = self.remote_sessions.as_mut()?;
        let session = remote_sessions.remote_sessions.get(&remote_session).copied()?;
        if let Some(remote_client) = remote_sessions.remote_clients.get_mut(&session) {
            drain(&remote_sessions.peers, remote_client, &mut remote_sessions.traffic);
            return None;
        }
        self.connections.get_mut(&session)?.is_blocked = false;
        Some(session)
    }

    /// Serves the requests that a remote client sent before its remote session ended, above all its
    /// goodbye. A remote session buffers so little that one turn can serve all of it.
    pub(super) fn serve_rest(
        &mut self,
        remote_session: RemoteSessionId,
        actions: &mut Vec<Action>,
    ) {
        let session = self.remote_sessions.as_ref().and_then(|remote_sessions| {
            remote_sessions.remote_sessions.get(&remote_session).copied()
        });
        if let Some(session) = session.filter(|session| self.is_remote_client(*session)) {
            self.serve_remote_client(session, usize::MAX, actions);
        }
    }

    pub(super) fn remote_session_ended(
        &mut self,
        remote_session: RemoteSessionId,
        has_process_ended: Option<bool>,
        reason: &str,
    ) {
        let now_ms = self.now_ms();
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        let Some(session) = remote_sessions.remote_sessions.remove(&remote_session) else {
            return;
        };
        if remote_sessions.remote_clients.remove(&session).is_some() {
            self.audit_closed(session);
            tracing::debug!(session = session.0, reason, "a remote session ended");
            // A process whose end is uncertain counts as alive: the state keeps watching it.
            self.state.closed(session, has_process_ended != Some(true), now_ms);
            return;
        }
        if has_process_ended.is_none()
            && let Some(forwarded) =
                self.connections.get(&session).and_then(|c| c.forwarded.as_ref())
        {
            remote_sessions.traffic.fail(&forwarded.node);
        }
        self.carried_ended(session, reason);
    }

    /// Closes a remote client's remote session. The client may reconnect, unless it said goodbye.
    pub(super) fn drop_remote_client(&mut self, session: SessionId) {
        let now_ms = self.now_ms();
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        let Some(remote_client) = remote_sessions.remote_clients.remove(&session) else {
            return;
        };
        remote_sessions.remote_sessions.remove(&remote_client.remote_session);
        remote_sessions.peers.end_remote_session(remote_client.remote_session, false);
        self.audit_closed(session);
        self.state.closed(session, true, now_ms);
    }

    /// Sends a reply to a remote client.
    pub(super) fn reply_to_remote_client(&mut self, session: SessionId, reply: &Reply) {
        self.touched.insert(session);
        let is_taken = self
            .remote_sessions
            .as_mut()
            .is_none_or(|remote_sessions| remote_sessions.send(session, reply));
        if !is_taken {
            self.warn_of(session, "a remote client does not read its replies", None);
            self.drop_remote_client(session);
        }
    }
}
