//! Seals without an answer in time, over a connection that lives on.
//!
//! The node may still carry out such a seal, and answers it in any case. A thread waits for that
//! answer, so that neither memory nor holds wait for the next connection. If the connection ends
//! first, the comparison of the records with the next one shows the outcome
//! (`memory/extents/seals.rs`).

use std::sync::{Arc, Weak};
use std::time::Instant;

use farrow_store::ObjectId;
use farrow_wire::link::{LinkError, PendingReply};

use crate::connection::late_queue::LateWork;
use crate::connection::session::Session;
use crate::error::Error;
use crate::memory::extents::{SealOutcome, SealTicket};
use crate::memory::node::LostReply;
use crate::objects::delete::delete;
use crate::objects::seal::{self, Sealed};
use crate::objects::written::leave_unheld;

/// A request to seal some objects.
#[derive(Debug)]
struct LateSeal {
    session: Weak<Session>,
    reply: PendingReply,
    /// The connection of the request.
    sent_on: u64,
    objects: Vec<LateObject>,
}

/// An object whose caller knows that its seal has no answer.
#[derive(Debug)]
pub(crate) struct LateObject {
    /// Its primary block, in the client's extents and not in use.
    pub(crate) own: Option<SealTicket>,
    /// Its ranges in the pool's extents, which may be in use.
    pub(crate) in_use: Vec<SealTicket>,
    /// Offset of its primary block.
    pub(crate) block: u64,
    /// The node retains the object until this client confirms that it holds it.
    pub(crate) is_held_by_creator: bool,
    /// No other client can know of the object, or it is a part of a failed whole: it is deleted.
    pub(crate) is_unwanted: bool,
}

/// Waits for the late answer to a request, if one may arrive, in the background, and then concludes
/// its seals.
pub(crate) fn watch(
    session: &Arc<Session>,
    lost: Option<Box<LostReply>>,
    objects: Vec<LateObject>,
) {
    let Some(LostReply { sent_on, pending: Some(reply) }) = lost.map(|lost| *lost) else {
        return;
    };
    let session_of_seal = Arc::downgrade(session);
    session.late.add(Box::new(LateSeal { session: session_of_seal, reply, sent_on, objects }));
}

impl LateWork for LateSeal {
    fn turn(self: Box<Self>, deadline: Instant) -> Option<Box<dyn LateWork>> {
        let answer = self.reply.receive(deadline);
        let session = self.session.upgrade()?;
        if matches!(answer, Err(LinkError::Timeout { .. })) {
            return Some(self);
        }
        let objects = self.objects;
        let blocks: Vec<u64> = objects.iter().map(|object| object.block).collect();
        match seal::results(&session, &blocks, answer.map_err(Error::from), self.sent_on) {
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
        None
    }
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
            session.extents.conclude(&**session, ticket, SealOutcome::Refused);
        }
        session.pool.abort_seal(&**session, &self.in_use);
    }

    /// The ranges in use hold the object from here on.
    fn sealed(self, session: &Arc<Session>, id: ObjectId) {
        if let Some(ticket) = self.own {
            session.extents.conclude(&**session, ticket, SealOutcome::Sealed(None));
        }
        if self.is_held_by_creator {
            match session.hold_sealed(id) {
                Ok(held) => {
                    session.pool.commit_seal(&**session, &self.in_use, &held);
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
