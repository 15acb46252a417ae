//! A drain: what the region keeps of it, and the move under way.

use std::collections::{BTreeMap, BTreeSet};

use farrow_membership::Member;
use farrow_store::ObjectId;
use farrow_wire::{RequestBody, WireError, WireObjectId, WireTarget};
use serde::{Deserialize, Serialize};

use crate::protocol::context::RequestContext;
use crate::protocol::identity::SessionId;
use crate::protocol::limits::check_limit;

/// Limit of requests about the moving object that wait for the end of the move.
const WAITING_MAX: usize = 1024;

/// Limit of those of one session.
const OWN_WAITING_MAX: usize = 64;

/// Limit of copies at lost nodes that are to be removed once these are back.
pub(in crate::protocol) const UNDONE_MAX: usize = 4;

/// Limit of nodes that move objects to this one at a time.
pub(in crate::protocol) const INCOMING_MAX: usize = 2;

/// Limit of members that are known to drain at a time. Other members are notified that this node does not
/// note it, so nothing of theirs moves.
pub(in crate::protocol) const DRAINING_MAX: usize = 16;

/// An object of this node that moves, or moved in vain, to another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::protocol) struct OutgoingMove {
    /// The low half of its id.
    pub(in crate::protocol) object: u64,
    /// The other node.
    pub(in crate::protocol) node: String,
    /// Number of the move, above that of each earlier one of this node.
    pub(in crate::protocol) number: u64,
    /// The low half of the id of the object whose bytes the other node has; `None`: the same object.
    pub(in crate::protocol) staged: Option<u64>,
}

impl OutgoingMove {
    /// The low half of the id of the object that the other node has brought.
    pub(in crate::protocol) fn brought(&self) -> u64 {
        self.staged.unwrap_or(self.object)
    }
}

/// An object that moves to this node. Its name is retained, since its old home may have removed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::protocol) struct IncomingMove {
    /// Its id at its old home.
    pub(in crate::protocol) origin: WireObjectId,
    /// The old home.
    pub(in crate::protocol) from: String,
    /// Its full name.
    pub(in crate::protocol) name: String,
    /// Its id here. `None`: it was about to be sealed.
    pub(in crate::protocol) id: Option<WireObjectId>,
    /// Number of the move, from its old home.
    pub(in crate::protocol) number: u64,
}

/// What the region keeps, so that a move is decided the same way after a kill.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::protocol) struct DrainRecord {
    pub(in crate::protocol) is_draining: bool,
    /// A drain was ended, and members may not know it.
    pub(in crate::protocol) is_cancelled: bool,
    /// The move under way, from before its target is asked until its object is removed here.
    pub(in crate::protocol) outgoing: Option<OutgoingMove>,
    /// Moves to nodes that were lost meanwhile. Their copies do not count.
    pub(in crate::protocol) undone: Vec<OutgoingMove>,
    /// One move of each other node, until that node has removed its object.
    pub(in crate::protocol) incoming: Vec<IncomingMove>,
    /// Members that said that they drain, by their numbers, with their incarnations. They do not say
    /// it again to a daemon that continues the life of this one.
    pub(in crate::protocol) draining: Vec<(u8, u64)>,
}

impl DrainRecord {
    /// Whether this life of a member has said that it drains.
    pub(in crate::protocol) fn has_draining(&self, member: &Member) -> bool {
        self.draining.contains(&(member.number.get(), member.incarnation.0))
    }

    /// The part that must survive a restart.
    pub(in crate::protocol) fn to_keep(&self) -> Option<&Self> {
        Some(self).filter(|record| **record != Self::default())
    }
}

/// What members are notified of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol) struct DrainNotice {
    /// Whether this node drains.
    pub(in crate::protocol) is_draining: bool,
    /// The incarnation of this node for which members note it.
    pub(in crate::protocol) own: u64,
}

/// How far a move is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol) enum MovePhase {
    /// The target is asked to seal the object; `None`: its answer is awaited.
    Asking { again_at_ms: Option<u64> },
    /// The target has the object under this id; it is being removed here.
    Removing(ObjectId),
}

/// The move under way.
#[derive(Debug)]
pub(in crate::protocol) struct MoveJob {
    pub(in crate::protocol) id: ObjectId,
    /// Full name.
    pub(in crate::protocol) name: String,
    pub(in crate::protocol) bytes: u64,
    pub(in crate::protocol) node: String,
    pub(in crate::protocol) number: u64,
    /// The low half of the id of the object that the other node has brought.
    pub(in crate::protocol) brought: u64,
    /// `None`: it was begun for a client of an earlier daemon, or of an ended session.
    pub(in crate::protocol) waiter: Option<(SessionId, u64)>,
    pub(in crate::protocol) phase: MovePhase,
}

impl MoveJob {
    fn is_of(&self, target: &WireTarget) -> bool {
        match target {
            WireTarget::Name(full) => *full == self.name,
            WireTarget::Id(id) => ObjectId::from(*id) == self.id,
        }
    }
}

/// A request that waits for the end of the move.
#[derive(Debug)]
pub(in crate::protocol) struct WaitingRequest {
    pub(in crate::protocol) context: RequestContext,
    pub(in crate::protocol) body: RequestBody,
    /// Its memory.
    pub(in crate::protocol) bytes: usize,
}

/// State of the drain of this node, and of moves from others.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Drain {
    pub(in crate::protocol) record: DrainRecord,
    pub(in crate::protocol) job: Option<MoveJob>,
    /// Requests that change the moving object.
    pub(in crate::protocol) waiting: Vec<WaitingRequest>,
    /// Sessions that began the drain, or go on with it. They write here what moves.
    pub(in crate::protocol) conductors: BTreeSet<SessionId>,
    /// Members that know whether this node drains, by their names, with their incarnations and that
    /// of this node for which they know it.
    pub(in crate::protocol) notified: BTreeMap<String, (u64, u64)>,
    /// Why members do not know it, and when they are notified again; `None`: a notification is under way.
    pub(in crate::protocol) untold: BTreeMap<String, (String, Option<u64>)>,
    /// When undone moves are looked at again.
    pub(in crate::protocol) undo_at_ms: Option<u64>,
    /// Number of the last move from here.
    pub(in crate::protocol) last_number: u64,
    /// By node, the last move from there that was refused here. A late copy of its question, or of
    /// an earlier one, must not take bytes that were brought for the next move.
    pub(in crate::protocol) refused: BTreeMap<String, u64>,
    pub(in crate::protocol) moved: u64,
    pub(in crate::protocol) moved_bytes: u64,
}

impl Drain {
    /// Whether the object or name is moving away at this moment. The target is in full.
    pub(in crate::protocol) fn is_moving(&self, target: &WireTarget) -> bool {
        self.job.as_ref().is_some_and(|job| job.is_of(target))
    }

    /// Whether the object of this name moved here, and its old home may still have it.
    pub(in crate::protocol) fn is_arriving(&self, target: &WireTarget) -> bool {
        self.record.incoming.iter().any(|one| match target {
            WireTarget::Name(full) => *full == one.name,
            WireTarget::Id(id) => one.id == Some(*id),
        })
    }

    /// As [`Self::is_arriving`], by the full name.
    pub(in crate::protocol) fn has_arriving(&self, full: &str) -> bool {
        self.record.incoming.iter().any(|one| one.name == full)
    }

    /// Whether this move of another node's object is noted here.
    pub(in crate::protocol) fn is_from(&self, node: &str, object: u64, number: u64) -> bool {
        let mut incoming = self.record.incoming.iter();
        incoming.any(|one| one.from == node && (one.origin.lo, one.number) == (object, number))
    }

    /// Whether a name moves to another node with other bytes at this moment.
    pub(in crate::protocol) fn is_replacing(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.brought != job.id.lo)
    }

    /// Whether one more request of a session may wait for the end of the move.
    pub(in crate::protocol) fn check_room(&self, session: SessionId) -> Result<(), WireError> {
        let own = self.waiting.iter().filter(|one| one.context.session == session).count();
        check_limit("requests of a client that wait for a move", own + 1, OWN_WAITING_MAX)?;
        check_limit("requests that wait for a move", self.waiting.len() + 1, WAITING_MAX)
    }

    /// Memory of the requests of a session that wait.
    pub(in crate::protocol) fn bytes_of(&self, session: SessionId) -> usize {
        let own = self.waiting.iter().filter(|one| one.context.session == session);
        own.map(|one| one.bytes).sum()
    }

    /// The move of an object from another node.
    pub(in crate::protocol) fn incoming(&mut self, origin: ObjectId) -> Option<&mut IncomingMove> {
        let mut all = self.record.incoming.iter_mut();
        all.find(|one| ObjectId::from(one.origin) == origin)
    }

    /// Forgets one request. A move goes on.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|one| (one.context.session, one.context.seq) != (session, seq));
        if let Some(job) = self.job.as_mut().filter(|job| job.waiter == Some((session, seq))) {
            job.waiter = None;
            return true;
        }
        self.waiting.len() < before
    }

    /// Forgets the requests of an ended session. A move goes on.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        self.conductors.remove(&session);
        self.waiting.retain(|one| one.context.session != session);
        if let Some(job) = self.job.as_mut()
            && job.waiter.is_some_and(|(of, _)| of == session)
        {
            job.waiter = None;
        }
    }

    /// Takes out all waiting requests at shutdown.
    pub(in crate::protocol) fn drain(&mut self) -> Vec<(SessionId, u64)> {
        let waiter = self.job.as_mut().and_then(|job| job.waiter.take());
        let waiting = std::mem::take(&mut self.waiting);
        let waiting = waiting.into_iter().map(|one| (one.context.session, one.context.seq));
        waiting.chain(waiter).collect()
    }

    /// When [`Self::tick`] has work.
    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        let job = self.job.as_ref().and_then(|job| match job.phase {
            MovePhase::Asking { again_at_ms } => again_at_ms,
            MovePhase::Removing(_) => None,
        });
        let untold = self.untold.values().filter_map(|(_, at_ms)| *at_ms);
        untold.chain(job).chain(self.undo_at_ms).min()
    }
}
