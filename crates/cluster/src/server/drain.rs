//! The shutdown of a daemon that another one replaces. Requests that have arrived are answered. The
//! client's kernel rejects later ones, so the client can send them to the next daemon.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use farrow_wire::{Reply, WireError};
use rustix::event::epoll;

use super::connection::{ClientConnection, ReadOutcome};
use super::handover::Handover;
use super::output::flush;
use super::{LoopEnd, REQUESTS_PER_CLIENT, Server};
use crate::protocol::{Action, SessionId};

/// Time limit for answering requests that have arrived. Clients that do not read their replies are
/// then disconnected.
const DRAIN_MAX: Duration = Duration::from_secs(2);

impl Server {
    /// Ends all connections except that of the next daemon. `None`: the next daemon has
    /// disconnected or its inheritance cannot be built. Then this daemon keeps running, and its
    /// clients reconnect.
    pub(super) fn hand_over(&mut self, session: SessionId, seq: u64) -> Option<LoopEnd> {
        let _span = tracing::info_span!("handover", session = session.0).entered();
        let is_stopped = self.drain(session);
        self.handover = None;
        if is_stopped {
            self.refuse(session, seq, WireError::Closing);
            return Some(LoopEnd::Requested);
        }
        let inheritance = match self.state.inheritance() {
            Ok(inheritance) => inheritance,
            Err(error) => {
                self.refuse(session, seq, WireError::Damaged(error.to_string()));
                return None;
            }
        };
        let connection = self.take_out(session)?;
        self.stop_sync();
        // Other nodes may have changed something meanwhile.
        let inheritance = self.state.inheritance().unwrap_or(inheritance);
        Some(LoopEnd::HandingOver(Box::new(Handover { connection, seq, inheritance })))
    }

    /// Answers all requests received until now and closes every connection but one. Returns true if
    /// the node was asked to stop meanwhile.
    fn drain(&mut self, except: SessionId) -> bool {
        let until = Instant::now() + DRAIN_MAX;
        let sessions: Vec<SessionId> =
            self.connections.keys().copied().filter(|session| *session != except).collect();
        let mut actions: Vec<Action> = Vec::new();
        self.state.finish_counts(self.now_ms(), &mut actions);
        let mut is_stopped = self.perform(actions);
        for session in sessions {
            let Some(connection) = self.connections.get_mut(&session) else {
                continue;
            };
            // From here on a write of the client fails as a whole. Earlier writes are in our queue,
            // followed by the end of the stream.
            let mut is_open = connection.stream.shutdown(Shutdown::Read).is_ok();
            while Instant::now() < until
                && let Some(connection) = self.connections.get_mut(&session)
            {
                while is_open && connection.wanted_bytes() > 0 {
                    is_open = matches!(connection.fill(), Ok(ReadOutcome::Open));
                }
                if !connection.has_request() || connection.is_closing {
                    break;
                }
                let mut actions: Vec<Action> = Vec::new();
                self.serve(session, REQUESTS_PER_CLIENT, &mut actions);
                self.state.finish_counts(self.now_ms(), &mut actions);
                is_stopped |= self.perform(actions);
                self.flush_waiting(session, until);
            }
            self.flush_waiting(session, until);
            self.drop_connection(session);
        }
        is_stopped
    }

    /// Writes the queued output and waits until the client has taken it.
    fn flush_waiting(&mut self, session: SessionId, until: Instant) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        let left = until.saturating_duration_since(Instant::now());
        if !connection.has_output() || left.is_zero() {
            return;
        }
        let _ = connection.stream.set_nonblocking(false);
        let _ = connection.stream.set_write_timeout(Some(left));
        let _ = flush(connection, &self.fabric);
        let _ = connection.stream.set_nonblocking(true);
    }

    fn refuse(&mut self, session: SessionId, seq: u64, error: WireError) {
        let reply = Reply { seq, body: Err(error) };
        self.perform(vec![
            Action::Send { session, reply, has_descriptors: false },
            Action::Close { session },
        ]);
    }

    fn take_out(&mut self, session: SessionId) -> Option<ClientConnection> {
        let connection = self.connections.remove(&session)?;
        let _ = epoll::delete(&self.poll, &connection.stream);
        if let Some(process) = &connection.process {
            let _ = epoll::delete(&self.poll, process);
        }
        self.state.closed(session, false, self.now_ms());
        Some(connection)
    }
}
