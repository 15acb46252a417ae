//! Seals without an answer in time, over a connection that lives on.
//!
//! The node may still carry out such a seal, and answers it in any case. A thread waits for that
//! answer, so that neither memory nor holds wait for the next connection. If the connection ends
//! first, the comparison of the records with the next one shows the outcome
//! (`memory/extents/seals.rs`).

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use farrow_store::ObjectId;
use farrow_wire::link::{LinkError, PendingReply};

use crate::connection::late_seals::{LateObject, LateRequest};
use crate::connection::session::Session;
use crate::error::Error;
use crate::lock::lock;
use crate::memory::extents::SealOutcome;
use crate::objects::delete::delete;
use crate::objects::seal::{self, Sealed};
use crate::objects::written::leave_unheld;

/// The thread waits for one answer this long at a time. Meanwhile it retains the connection only.
const TURN: Duration = Duration::from_millis(100);

/// Most requests that are watched: as many as calls that end without an answer before the node
/// answers the first. The others wait for the next connection.
const LATE_MAX: usize = 4096;

/// Waits for the answer to a request in the background, and then concludes its seals.
pub(crate) fn watch(session: &Arc<Session>, reply: PendingReply, objects: Vec<LateObject>) {
    let mut state = lock(&session.late.0);
    if state.requests.len() >= LATE_MAX {
        return tracing::warn!(requests = LATE_MAX, "too many seals without an answer");
    }
    state.requests.push_back(LateRequest { reply, objects });
    if state.is_watched {
        return;
    }
    let this = Arc::downgrade(session);
    let thread = std::thread::Builder::new().name("farrow-late".into());
    match thread.spawn(move || while wait_once(&this) {}) {
        Ok(_) => state.is_watched = true,
        // The next such seal tries again; the next connection shows the outcome in any case.
        Err(error) => tracing::warn!(%error, "no thread waits for the answer to a seal"),
    }
}

/// Waits for one answer for a short time. False: nothing is left to wait for.
fn wait_once(this: &Weak<Session>) -> bool {
    let request = {
        let Some(session) = this.upgrade() else {
            return false;
        };
        let mut state = lock(&session.late.0);
        let request = state.requests.pop_front();
        state.is_watched = request.is_some();
        request
    };
    let Some(LateRequest { reply, objects }) = request else {
        return false;
    };
    let answer = reply.receive(Instant::now() + TURN);
    let Some(session) = this.upgrade() else {
        return false;
    };
    if matches!(answer, Err(LinkError::Timeout { .. })) {
        lock(&session.late.0).requests.push_back(LateRequest { reply, objects });
        return true;
    }
    let blocks: Vec<u64> = objects.iter().map(|object| object.block).collect();
    match seal::results(&session, &blocks, answer.map_err(Error::from)) {
        Ok(results) => {
            for (object, result) in objects.into_iter().zip(results) {
                object.conclude(&session, result);
            }
        }
        Err(unsealed) if unsealed.is_unknown => {
            tracing::debug!(error = %unsealed.error, "a seal waits for the next connection");
        }
        Err(_) => objects.into_iter().for_each(|object| object.refused(&session)),
    }
    true
}

impl LateObject {
    fn conclude(self, session: &Arc<Session>, result: Sealed) {
        match result {
            Ok(id) => self.sealed(session, id),
            Err(unsealed) if unsealed.is_unknown => {}
            Err(_) => self.refused(session),
        }
    }

    fn refused(self, session: &Arc<Session>) {
        if let Some(ticket) = self.own {
            session.extents.conclude(session, ticket, SealOutcome::Refused);
        }
        session.pool.abort_seal(session, &self.in_use);
    }

    /// The ranges in use hold the object from here on.
    fn sealed(self, session: &Arc<Session>, id: ObjectId) {
        if let Some(ticket) = self.own {
            session.extents.conclude(session, ticket, SealOutcome::Sealed(None));
        }
        if self.is_held_by_creator {
            match session.hold_sealed(id) {
                Ok(held) => {
                    session.pool.commit_seal(session, &self.in_use, &held);
                    session.release(held);
                }
                Err(error) => leave_unheld(session, &self.in_use, &error),
            }
        }
        if self.is_unwanted
            && let Err(error) = delete(session, &[id.into()])
        {
            tracing::warn!(%error, %id, "an object of a call without an answer is left");
        }
    }
}
