//! Opens of one connection whose objects are not in memory yet. A thread asks the source again and
//! again, so that the connection serves its other requests meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use super::ServerShared;
use super::connection::refuse;
use super::registry::SharedWriter;
use crate::error::ConnectionError;
use crate::frame::{ErrorCode, Op};
use crate::socket::Socket;
use crate::source::{HoldId, MemberLife, SourceRefusal};

/// Opens that wait on one connection. Further ones are refused at once, and the peer asks again.
const WAITING_MAX: usize = 64;

/// Pause between two questions to the source: short against the time of a restore.
const PAUSE: Duration = Duration::from_millis(2);

/// An open whose object is on its way.
struct WaitingOpen {
    id: u64,
    hold: HoldId,
    want: Vec<u8>,
    until: Instant,
}

#[derive(Default)]
struct OpensState {
    waiting: Vec<WaitingOpen>,
    has_thread: bool,
    is_closed: bool,
}

/// The opens of one connection.
pub(super) struct Opens<'a> {
    shared: &'a ServerShared,
    socket: &'a Socket,
    member: MemberLife,
    writer: SharedWriter,
    state: Mutex<OpensState>,
}

impl<'a> Opens<'a> {
    pub(super) fn new(
        shared: &'a ServerShared,
        socket: &'a Socket,
        member: MemberLife,
        writer: SharedWriter,
    ) -> Self {
        Self { shared, socket, member, writer, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, OpensState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers an open, now or when its object has arrived.
    pub(super) fn open<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        (id, hold): (u64, HoldId),
        want: Vec<u8>,
    ) -> Result<(), ConnectionError> {
        let refusal = match self.shared.source.open(&self.member, hold, &want) {
            Err(refusal) if refusal.is_passing => refusal,
            answer => return self.answer((id, hold), answer),
        };
        // Less than the peer waits for an answer.
        let until = Instant::now() + self.socket.stall() * 3 / 4;
        let mut state = self.lock();
        if state.waiting.len() >= WAITING_MAX {
            drop(state);
            return self.answer((id, hold), Err(refusal));
        }
        if !state.has_thread {
            let thread = std::thread::Builder::new().name("farrow-net-open".into());
            if let Err(error) = thread.spawn_scoped(scope, || self.run()) {
                tracing::warn!(%error, "an open cannot wait");
                drop(state);
                return self.answer((id, hold), Err(refusal));
            }
            state.has_thread = true;
        }
        state.waiting.push(WaitingOpen { id, hold, want, until });
        Ok(())
    }

    /// Ends the waits: the connection has ended.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }

    fn run(&self) {
        loop {
            let waiting = {
                let mut state = self.lock();
                if state.is_closed || state.waiting.is_empty() {
                    state.has_thread = false;
                    return;
                }
                std::mem::take(&mut state.waiting)
            };
            for one in waiting {
                match self.try_again(one) {
                    Ok(None) => {}
                    Ok(Some(one)) => self.lock().waiting.push(one),
                    Err(error) => self.socket.cut(error.to_string()),
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the open if its object is still on its way.
    fn try_again(&self, one: WaitingOpen) -> Result<Option<WaitingOpen>, ConnectionError> {
        if self.socket.is_cut() {
            return Ok(None);
        }
        match self.shared.source.open(&self.member, one.hold, &one.want) {
            Err(refusal) if refusal.is_passing && Instant::now() < one.until => Ok(Some(one)),
            answer => self.answer((one.id, one.hold), answer).map(|()| None),
        }
    }

    fn answer(
        &self,
        (id, hold): (u64, HoldId),
        answer: Result<crate::frame::Opened, SourceRefusal>,
    ) -> Result<(), ConnectionError> {
        // After the open: a thread that cuts a connection ends the holds of its member next.
        if answer.is_ok() && self.socket.is_cut() {
            self.shared.source.release(&self.member, hold);
            return Err(ConnectionError::Cut("cut during an open".into()));
        }
        let encoded = answer.and_then(|opened| {
            opened.encode().map_err(|error| {
                self.shared.source.release(&self.member, hold);
                SourceRefusal::new(ErrorCode::Other, error.to_string())
            })
        });
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match encoded {
            // If the answer is lost, the client releases the hold on its next connection.
            Ok(body) => writer.write_bytes(Op::Opened, id, hold.0, &body),
            Err(refusal) => refuse(&mut writer, id, &refusal),
        }
    }
}
