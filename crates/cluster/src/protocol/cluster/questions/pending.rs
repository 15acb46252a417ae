//! Questions of this node to others, under way.

use farrow_membership::Epoch;
use farrow_membership::naming::JoinedQuestion;
use farrow_store::ClientSlot;

use super::queues::PeerNotification;
use crate::protocol::cluster::HintFor;
use crate::protocol::cluster::waits::awaited::{AwaitQuestion, SweepQuestion};
use crate::protocol::core::drain::state::DrainNotice;
use crate::protocol::identity::PeerIdentity;
use crate::protocol::replicas::invalidation_notice::InvalidationNotice;

/// Subject of a question under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) enum PendingQuestion {
    /// A message for names; that protocol repeats by itself.
    Naming,
    /// Whether the process of the client in that slot runs.
    Watch(ClientSlot, PeerIdentity),
    /// Whether processes read through the slot of a client that has ended.
    Family(ClientSlot),
    /// A barrier or flags of a client, by the number of the request.
    Sync(u64),
    /// Whether a member knows that this daemon follows another one.
    Restarted {
        /// The member.
        node: String,
        /// Its incarnation.
        incarnation: u64,
    },
    /// State from a member for names that this node owns by the view of an epoch.
    HandOver {
        /// The member.
        node: String,
        /// The epoch.
        epoch: Epoch,
    },
    /// The cache lines that a client of another machine left.
    Clean(ClientSlot),
    /// Names that clients wait for.
    Await(AwaitQuestion),
    /// Which names a node still waits for.
    StillAwaited(SweepQuestion),
    /// Whether a node whose memory is not mapped has a name.
    Has {
        /// The lookup.
        lookup: u64,
        /// The node that is asked.
        node: String,
    },
    /// Where a name is, as reported to its authority.
    Where(HintFor),
    /// The address of a node's data server.
    DataAddress {
        /// The node.
        node: String,
        /// Its incarnation.
        incarnation: u64,
    },
    /// The room of a node.
    Room {
        /// The node.
        node: String,
        /// Its incarnation.
        incarnation: u64,
    },
    /// A ticket for a connection.
    Ticket {
        /// The node.
        node: String,
        /// Identifies the request.
        number: u64,
    },
    /// Whether a member has dropped its replica of an object.
    Invalidate(InvalidationNotice),
    /// A delete that another node performs.
    Delete {
        /// The node.
        node: String,
        /// The delete, and the index of the object in it.
        which: (u64, usize),
    },
    /// Whether a member knows that this node drains, or does not.
    Draining {
        /// The node.
        node: String,
        /// Its incarnation.
        incarnation: u64,
        /// What it is notified of.
        notice: DrainNotice,
    },
    /// Whether the old home of an object that has moved here still has its name.
    IsRemoved {
        /// The old home.
        node: String,
        /// The low half of the object's id there.
        object: u64,
        /// Number of the move.
        number: u64,
    },
    /// Whether a node has taken an object.
    Take {
        /// Number of the move.
        number: u64,
        /// The node.
        node: String,
    },
    /// Whether a node has removed its copy of an object.
    Untake {
        /// Number of the move.
        number: u64,
        /// The node.
        node: String,
    },
    /// Whether a member has names that this node brought.
    Joined {
        /// The incarnation of this node.
        incarnation: u64,
        /// The question.
        question: JoinedQuestion,
    },
    /// A notification that the other node must receive.
    Notification {
        /// The node.
        node: String,
        /// Its incarnation.
        incarnation: u64,
        /// The notification.
        notification: PeerNotification,
    },
}
