//! Membership in etcd: the same views, epochs, incarnations and leases as the embedded membership
//! provides, without votes of the nodes.
//!
//! One prefix contains the view, for each node a *registration* of its current life, and for each
//! node a *sign of life*. The sign of life is attached to a lease of etcd and vanishes with it. A
//! node registers by one transaction that writes both, so an old registration never has a new sign
//! of life. A member is absent if its registration has another life or its sign of life is missing.
//! A node that finds an absent member or a new registration writes the next view by
//! compare-and-swap. Only the view's revision decides which node is first, and the epoch counts the
//! views of the chain.
//!
//! **Looks.** A node learns everything from looks: linearizable reads of all keys at one revision,
//! four in a lease, and one for each notification of etcd's watch. A watch carries no other
//! information, so it may be late, lost, duplicated or compacted.
//!
//! **Lease.** A node has the lease until `lease_ms` (less 1/32 for clock drift) after it *sent* the
//! last look that found its life in the view, and its registration and sign of life in place. A
//! member is excluded no sooner than `lease_ms` after a node *received* a look that found it
//! absent. The transaction compares the revisions of its two keys with those of that look. So while
//! a node has the lease, no view without it is written:
//!
//! - Let etcd execute the look that gave the lease at p, and the exclusion at q. After q no look
//!   finds the life in the view, so p is before q.
//! - The look that found it absent was executed at a. From a to q its two keys did not change: the
//!   registration has one revision, and a new sign of life needs a new one. So p is not between a
//!   and q, but before a.
//! - The lease ends within `lease_ms` of a moment before p; the exclusion was requested `lease_ms`
//!   after a.
//!
//! The members have the same lease: it is part of each registration, and a node with another one is
//! not let in.
//!
//! The proof does not depend on how long etcd keeps a lease. If etcd revokes a lease too early (3.4
//! and 3.5 did, issue 15247), or reports a lost one as renewed, it only hastens or delays the look
//! at a node. The proof assumes that etcd is linearizable and loses no data. If the view is missing
//! or older than before, a node concludes that its life is over. A first view is written only a
//! lease after none was found.
//!
//! **Leaving** is written into the registration, by a node that no longer has the lease and never
//! has it again in that life, so it is excluded at once. **Return:** a daemon that was killed
//! registers the same life again if no view excluded it; an excluded one begins a new life.

mod change;
mod mirror;
mod state;
mod types;

#[cfg(test)]
mod simulator;
#[cfg(test)]
mod tests;

pub use state::EtcdMembership;
pub use types::{
    CHANGED_MAX, Change, EtcdOutput, EtcdReply, EtcdRequest, EtcdSnapshot, FoundKey, Key, LeaseId,
    Put, Revision,
};
