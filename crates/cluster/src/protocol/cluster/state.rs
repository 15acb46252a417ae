//! State of a node's cluster.

use std::collections::BTreeMap;

use farrow_membership::naming::Naming;
use farrow_store::{ClientSlot, ObjectId};

use super::clients::watched::{Dirty, Watched};
use super::membership::agreement::Agreement;
use super::membership::not_joined::NotJoined;
use super::names::hint_table::NameHints;
use super::names::parked::{Lookups, Parked};
use super::options::ClusterOptions;
use super::peers::peer::PeerNode;
use super::questions::pending::PendingQuestion;
use super::questions::queues::PeerNotifications;
use super::waits::awaited::Awaited;

/// Limit of the time for a question to another node, in leases: the facts in question do not change
/// sooner.
pub(in crate::protocol) const ASK_LEASES_MAX: u64 = 3;

/// State of a node's cluster.
#[derive(Debug)]
pub(in crate::protocol) struct Cluster {
    pub(in crate::protocol) options: ClusterOptions,
    pub(super) membership: Agreement,
    pub(in crate::protocol) naming: Naming,
    pub(in crate::protocol) incarnation: u64,
    pub(in crate::protocol) has_lease: bool,
    /// When the lease was last lost, or this daemon started.
    pub(super) without_lease_since_ms: u64,
    pub(in crate::protocol) peers: BTreeMap<String, PeerNode>,
    pub(in crate::protocol) parked: Parked,
    pub(in crate::protocol) awaited: Awaited,
    pub(in crate::protocol) lookups: Lookups,
    pub(super) hints: NameHints,
    pub(in crate::protocol) not_joined: NotJoined,
    /// Whether this node was in a view since this daemon started.
    pub(in crate::protocol) was_member: bool,
    pub(in crate::protocol) questions: BTreeMap<u64, PendingQuestion>,
    pub(in crate::protocol) next_token: u64,
    /// Remote clients without a connection, with the state of their watch.
    pub(in crate::protocol) watched: BTreeMap<ClientSlot, Watched>,
    /// Ended remote clients whose nodes have not cleaned their caches.
    pub(in crate::protocol) dirty: BTreeMap<ClientSlot, Dirty>,
    /// Notifications that other nodes have not received.
    pub(in crate::protocol) notifications: PeerNotifications,
    /// Objects that were given names since replies were last sent.
    pub(super) unconfirmed: Vec<UnconfirmedSeal>,
    /// An earlier daemon read from members and noted names for them, and they were not notified that it
    /// has ended.
    pub(super) is_restarted: bool,
    /// Whether clients must be informed of a change.
    pub(in crate::protocol) has_news: bool,
    /// Whether the others know that this node leaves.
    pub(in crate::protocol) has_left: bool,
}

/// An object whose name depends on the lease.
#[derive(Debug)]
pub(super) struct UnconfirmedSeal {
    pub(super) id: ObjectId,
    pub(super) slot: ClientSlot,
    pub(super) incarnation: u64,
}

impl Cluster {
    /// When a request that needs the lease gives up waiting for it. The other members agree on a
    /// view without a lost one within two leases, and a node that returns is let in sooner. After
    /// that this node is cut off; a request then waits only for a lease that is just being granted.
    pub(super) fn lease_awaited_until_ms(&self, now_ms: u64) -> u64 {
        let lease_ms = self.options.lease_ms;
        let new_view_ms = self.without_lease_since_ms.saturating_add(lease_ms.saturating_mul(2));
        new_view_ms.max(now_ms.saturating_add(lease_ms / 2))
    }
}

/// The cluster of this node, if it is in one. Without one it answers for a node that is alone.
#[derive(Debug, Default)]
pub(in crate::protocol) struct OptionalCluster(pub(in crate::protocol) Option<Box<Cluster>>);
