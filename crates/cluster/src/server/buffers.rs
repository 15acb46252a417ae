//! Keeps what clients and other nodes make the daemon buffer within its total: who is beyond its share
//! is not read, then refused, and nobody else is.

use farrow_wire::{Reply, WireError};

use super::Server;
use super::connection::OUT_BYTES_MAX;
use crate::protocol::SessionId;

/// A request that gets no room for so long is refused: less than a client waits for an answer.
const STARVED_MS_MAX: u64 = 5_000;

/// Connections without room that are looked at in one turn.
const LOOKS_PER_TURN: usize = 64;

impl Server {
    /// Whether a connection may read now. One that may not is noted, and read again when there is
    /// room.
    pub(super) fn has_room_to_read(&mut self, session: SessionId) -> bool {
        let now_ms = self.now_ms();
        let Some(connection) = self.connections.get_mut(&session) else {
            return false;
        };
        let growth = connection.growth_bytes();
        if growth == 0 || self.state.may_buffer(session, growth) {
            return true;
        }
        let since_ms = *connection.starved_since_ms.get_or_insert(now_ms);
        self.starved.insert((since_ms, session));
        false
    }

    /// When a request that gets no room is refused.
    pub(super) fn next_starved_ms(&self) -> Option<u64> {
        self.starved.first().map(|(since_ms, _)| since_ms.saturating_add(STARVED_MS_MAX))
    }

    /// Once a turn: counts what was touched, makes room, and gives it to those that lack it.
    pub(super) fn settle_buffers(&mut self) {
        let touched: Vec<SessionId> = self.touched.iter().copied().collect();
        touched.into_iter().for_each(|session| self.note_buffered(session));
        if let Some(remote_sessions) = &self.remote_sessions {
            self.state.note_peers_buffered(remote_sessions.buffered_bytes());
        }
        while let Some((session, error)) = self.state.to_displace() {
            self.displace(session, error);
        }
        self.feed_starved();
    }

    fn note_buffered(&mut self, session: SessionId) {
        if let Some(connection) = self.connections.get_mut(&session) {
            self.state.note_buffered(session, connection.retained_bytes());
            connection.replies_max = self.state.replies_max(OUT_BYTES_MAX);
        } else if let Some(bytes) = self.remote_client_bytes(session) {
            self.state.note_buffered(session, bytes);
        }
    }

    /// Drops the request that one has begun, or its connection when it does not read its replies.
    fn displace(&mut self, session: SessionId, error: WireError) {
        tracing::warn!(session = session.0, %error, "a client is beyond its share");
        if self.is_remote_client(session) {
            // It may go on reading what it holds.
            return self.drop_remote_client(session, true);
        }
        let is_refused = self.refuse_begun(session, error);
        if !is_refused {
            self.drop_connection(session);
        }
        self.note_buffered(session);
    }

    /// Refuses a request that is not whole; false if there is none.
    fn refuse_begun(&mut self, session: SessionId, error: WireError) -> bool {
        let Some(connection) = self.connections.get_mut(&session) else {
            return false;
        };
        let Some(seq) = connection.drop_begun() else {
            return false;
        };
        if let Some(since_ms) = connection.starved_since_ms.take() {
            self.starved.remove(&(since_ms, session));
        }
        self.touched.insert(session);
        let reply = Reply { seq, body: Err(error) };
        connection.queue(&reply, false).is_ok() && super::flush(connection, &self.fabric).is_ok()
    }

    fn feed_starved(&mut self) {
        let now_ms = self.now_ms();
        let starved: Vec<(u64, SessionId)> =
            self.starved.iter().copied().take(LOOKS_PER_TURN).collect();
        for (since_ms, session) in starved {
            let Some(connection) = self.connections.get_mut(&session) else {
                self.starved.remove(&(since_ms, session));
                continue;
            };
            let growth = connection.growth_bytes();
            if self.state.may_buffer(session, growth) {
                connection.starved_since_ms = None;
                self.starved.remove(&(since_ms, session));
                self.touched.insert(session);
            } else if since_ms.saturating_add(STARVED_MS_MAX) <= now_ms {
                let error = self.state.no_room_to_buffer(session, growth);
                tracing::warn!(session = session.0, %error, "a request got no room");
                if !self.refuse_begun(session, error) {
                    self.drop_connection(session);
                }
                self.note_buffered(session);
            }
        }
    }
}
