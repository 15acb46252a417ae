//! Seals without an answer in time, over a connection that lives on.

use std::collections::VecDeque;
use std::sync::Mutex;

use farrow_wire::link::PendingReply;

use crate::memory::extents::SealTicket;

/// The requests of one client.
#[derive(Debug, Default)]
pub(crate) struct LateSeals(pub(crate) Mutex<LateState>);

#[derive(Debug, Default)]
pub(crate) struct LateState {
    pub(crate) requests: VecDeque<LateRequest>,
    /// Whether a thread waits for the answers.
    pub(crate) is_watched: bool,
}

/// A request to seal some objects.
#[derive(Debug)]
pub(crate) struct LateRequest {
    pub(crate) reply: PendingReply,
    pub(crate) objects: Vec<LateObject>,
}

/// An object whose caller was told that its seal has no answer.
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
    /// Nobody can know of the object, or it is a part of a failed whole: it is deleted.
    pub(crate) is_unwanted: bool,
}
