//! Limits the bytes that the daemon buffers for clients and other nodes. A client above its share
//! is first not read, then refused. Other clients are not affected.

use farrow_wire::{Reply, WireError};

use super::Server;
use super::connection::OUT_BYTES_MAX;
use super::output::flush;
use crate::protocol::SessionId;

/// A request without room is refused after this time, which is shorter than a client waits for a
/// reply.
const STARVED_MS_MAX: u64 = 5_000;

/// Connections without room that one turn checks.
const LOOKS_PER_TURN: usize = 64;

impl Server {
    /// Whether a connection may read now. If not, it is recorded and read once there is room.
    pub(super) fn has_room_to_read(&mut self, session: SessionId) -> bool {
        let now_ms = self.now_ms();
        let Some(connection) = self.connections.get_mut(&session) else {
            return false;
        };
        let growth = connection.growth_bytes();
        if growth == 0 || self.state.buffers().may_buffer(session, growth) {
            return true;
        }
        let since_ms = *connection.starved_since_ms.get_or_insert(now_ms);
        self.starved.insert((since_ms, session));
        false
    }

    /// When the next request without room is refused.
    pub(super) fn next_starved_ms(&self) -> Option<u64> {
        self.starved.first().map(|(since_ms, _)| since_ms.saturating_add(STARVED_MS_MAX))
    }

    /// Runs once a turn: counts the bytes of touched connections, frees room, and gives it to
    /// connections that lack it.
    pub(super) fn settle_buffers(&mut self) {
        let touched: Vec<SessionId> = self.touched.iter().copied().collect();
        touched.into_iter().for_each(|session| self.note_buffered(session));
        if let Some(remote_sessions) = &self.remote_sessions {
            self.state.buffers_mut().note_peers(remote_sessions.buffered_bytes());
        }
        while let Some((session, error)) = self.state.buffers().to_displace() {
            self.displace(session, error);
        }
        self.feed_starved();
        let (bytes, _) = self.state.buffers().totals();
        let now_ms = self.now_ms();
        if self.heap_trim.note(bytes, now_ms) {
            farrow_memory::trim_heap();
        }
    }

    fn note_buffered(&mut self, session: SessionId) {
        if let Some(connection) = self.connections.get_mut(&session) {
            self.state.note_buffered(session, connection.retained_bytes());
            connection.replies_max = self.state.buffers().replies_max(OUT_BYTES_MAX);
        } else if let Some(bytes) = self.remote_client_bytes(session) {
            self.state.note_buffered(session, bytes);
        }
    }

    /// Drops the incomplete request of a client, or its connection if it does not read its replies.
    fn displace(&mut self, session: SessionId, error: WireError) {
        self.warn_of(session, "a client exceeds its share of buffers", Some(&error));
        if self.is_remote_client(session) {
            // The client may still read the objects that it holds.
            return self.drop_remote_client(session);
        }
        let is_refused = self.refuse_begun(session, error);
        if !is_refused {
            self.drop_connection(session);
        }
        self.note_buffered(session);
    }

    /// Refuses an incomplete request. Returns false if there is none.
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
        self.errors.add(&error);
        let reply = Reply { seq, body: Err(error) };
        connection.queue(&reply, false).is_ok() && flush(connection, &self.fabric).is_ok()
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
            if self.state.buffers().may_buffer(session, growth) {
                connection.starved_since_ms = None;
                self.starved.remove(&(since_ms, session));
                self.touched.insert(session);
            } else if since_ms.saturating_add(STARVED_MS_MAX) <= now_ms {
                let error = self.state.buffers().refused(session, growth);
                self.warn_of(session, "no buffer is free for a request", Some(&error));
                if !self.refuse_begun(session, error) {
                    self.drop_connection(session);
                }
                self.note_buffered(session);
            }
        }
    }
}
