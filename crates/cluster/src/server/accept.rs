//! New connections.

use std::io;
use std::os::unix::net::UnixStream;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::Server;
use super::connection::ClientConnection;
use super::process::{self, watch};
use super::tokens::{LISTENER, SESSIONS};
use crate::protocol::SessionId;

/// Connections accepted in one turn. Each takes about as long as a short request, so connected and
/// connecting clients get equal parts of a turn.
const ACCEPTS_PER_TURN: usize = 8;

/// Without a free descriptor, new connections are tried again after this time. Not only connections
/// of clients release descriptors.
pub(super) const ACCEPT_AGAIN_MS: u64 = 250;

impl Server {
    /// Accepts some of the waiting connections. The rest follow in the next turn.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Most likely descriptors have run out.
                Err(error) => return self.cannot_accept(&error),
            };
            if let Err(error) = self.admit(stream) {
                return self.cannot_accept(&error);
            }
        }
    }

    /// Closes the connection that has been silent for the longest time, to reuse its descriptors.
    /// If there is none, new connections wait in the socket's queue until a connection is closed.
    pub(super) fn cannot_accept(&mut self, error: &io::Error) {
        let connections = self.connections.len();
        match self.state.first_silent() {
            Some(session) => {
                tracing::debug!(%error, connections, "a silent connection is closed for a new one");
                self.drop_connection(session);
            }
            None => {
                tracing::warn!(%error, connections, "a connection could not be accepted");
                self.set_accepting(false);
                self.accept_again_at_ms = Some(self.now_ms().saturating_add(ACCEPT_AGAIN_MS));
            }
        }
    }

    pub(super) fn admit(&mut self, stream: UnixStream) -> io::Result<()> {
        let credentials = process::credentials_of(&stream)?;
        if !self.state.has_room_for(&credentials) {
            return Ok(());
        }
        stream.set_nonblocking(true)?;
        // A stranger is refused and gets no slot, so its process need not be watched.
        let (peer, process) = match self.state.may_connect(&credentials) {
            false => (credentials, None),
            true => {
                let peer = process::with_start_time(credentials)?;
                (peer, watch(&peer)?)
            }
        };
        let session = SessionId(self.next_session);
        let token = SESSIONS + session.0 * 2;
        epoll::add(&self.poll, &stream, EventData::new_u64(token), EventFlags::IN)?;
        if let Some(process) = &process {
            epoll::add(&self.poll, process, EventData::new_u64(token + 1), EventFlags::IN)?;
        }
        self.next_session += 1;
        self.connections.insert(session, ClientConnection::new(stream, process, peer));
        self.state.opened(session, peer, self.now_ms());
        Ok(())
    }

    pub(super) fn accept_again(&mut self) {
        let now_ms = self.now_ms();
        if self.accept_again_at_ms.take_if(|at_ms| *at_ms <= now_ms).is_some() {
            self.set_accepting(true);
        }
    }

    pub(super) fn set_accepting(&mut self, is_accepting: bool) {
        if self.is_accepting == is_accepting {
            return;
        }
        let flags = if is_accepting { EventFlags::IN } else { EventFlags::empty() };
        let token = EventData::new_u64(LISTENER);
        if epoll::modify(&self.poll, &self.listener, token, flags).is_ok() {
            self.is_accepting = is_accepting;
        }
    }
}
