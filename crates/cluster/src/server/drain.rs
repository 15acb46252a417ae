//! The shutdown of a daemon that another one replaces. Requests that have arrived are answered. The
//! client's kernel rejects later ones, so the client can send them to the next daemon.

use std::collections::BTreeSet;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use farrow_wire::{Reply, WireError};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::connection::{ClientConnection, ReadOutcome};
use super::handover::Handover;
use super::output::flush;
use super::turn::REQUESTS_PER_CLIENT;
use super::{LoopEnd, Server};
use crate::protocol::{Action, SessionId};

/// Time limit for answering requests that have arrived. Clients that do not read their replies are
/// then disconnected.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Longest wait for clients to read, before all connections are looked at again.
const WRITABLE_MAX: Duration = Duration::from_millis(10);

impl Server {
    /// Ends all connections except that of the next daemon. `None`: the next daemon has
    /// disconnected or its inheritance cannot be built. Then this daemon keeps running, and its
    /// clients reconnect.
    pub(super) fn hand_over(&mut self, session: SessionId, seq: u64) -> Option<LoopEnd> {
        let _span = tracing::info_span!("handover", session = session.0).entered();
        self.state.begin_handover();
        let ended = self.try_hand_over(session, seq);
        if !matches!(ended, Some(LoopEnd::HandingOver(_))) {
            self.state.cancel_handover();
        }
        ended
    }

    fn try_hand_over(&mut self, session: SessionId, seq: u64) -> Option<LoopEnd> {
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
        let mut actions: Vec<Action> = Vec::new();
        self.state.finish_counts(self.now_ms(), &mut actions);
        let mut is_stopped = self.perform(actions);
        let mut open = BTreeSet::new();
        for (session, connection) in self.connections.iter().filter(|(one, _)| **one != except) {
            // From here on a write of the client fails as a whole. Earlier writes are in our queue,
            // followed by the end of the stream.
            if connection.stream.shutdown(Shutdown::Read).is_ok() {
                open.insert(*session);
            }
        }
        let all = self.connections.keys().copied();
        let mut left: Vec<SessionId> = all.filter(|session| *session != except).collect();
        while !left.is_empty() && Instant::now() < until {
            left.retain(|session| {
                if Instant::now() >= until {
                    return true;
                }
                let (has_more, stops) = self.serve_last(*session, &mut open);
                is_stopped |= stops;
                has_more
            });
            self.await_writable(&left, until);
        }
        left.into_iter().for_each(|session| self.drop_connection(session));
        is_stopped
    }

    /// Serves some of what a client has sent, without a wait for the client. Once all of it is
    /// answered, the connection is closed. Returns whether more is left, and whether the node was
    /// asked to stop.
    fn serve_last(&mut self, session: SessionId, open: &mut BTreeSet<SessionId>) -> (bool, bool) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return (false, false);
        };
        while open.contains(&session) && connection.wanted_bytes() > 0 {
            if !matches!(connection.fill(), Ok(ReadOutcome::Open)) {
                open.remove(&session);
            }
        }
        let mut stops = false;
        if connection.has_request() && !connection.is_closing {
            let mut actions: Vec<Action> = Vec::new();
            self.serve(session, REQUESTS_PER_CLIENT, &mut actions);
            self.state.finish_counts(self.now_ms(), &mut actions);
            stops = self.perform(actions);
        }
        let Some(connection) = self.connections.get_mut(&session) else {
            return (false, stops);
        };
        let is_there = flush(connection, &self.fabric).is_ok();
        // What the kernel still has was read only as far as the requests before it left room.
        let may_read = open.contains(&session) && connection.wanted_bytes() > 0;
        let has_request = (connection.has_request() || may_read) && !connection.is_closing;
        let has_more = is_there && (has_request || connection.has_output());
        if !has_more {
            self.drop_connection(session);
        }
        (has_more, stops)
    }

    /// Waits until a client takes more of its output, for a short time.
    pub(super) fn await_writable(&self, sessions: &[SessionId], until: Instant) {
        let connections = sessions.iter().filter_map(|session| self.connections.get(session));
        let waiting = connections.filter(|connection| connection.has_output());
        let mut waiting: Vec<PollFd<'_>> =
            waiting.map(|one| PollFd::new(&one.stream, PollFlags::OUT)).collect();
        if sessions.len() > waiting.len() {
            // Another one has requests that can be served.
            return;
        }
        let wait = until.saturating_duration_since(Instant::now()).min(WRITABLE_MAX);
        let _ = poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as i64 }));
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
