//! Who is in the cluster, retained in etcd: the same views, epochs, lives and leases as the embedded
//! membership hands to the rest, without votes of the nodes.
//!
//! Below one prefix lie: the view; for each node its *registration*, which says which life of it
//! is there; and for each a *sign of life*, which hangs on a lease of etcd and vanishes with it. A
//! node registers by one transaction that writes both, so a registration that was not written
//! anew has no sign of life that was. Whoever finds that a member is absent (its registration says
//! another life, or its sign of life is gone), or that somebody registered, writes the next view
//! by compare-and-swap: nothing but the view's revision decides who goes first, and the epoch
//! counts the views of the chain.
//!
//! **Looks.** All that a node knows it knows from looks: linearizable reads of all keys at one
//! revision, four in a lease, and one whenever etcd's watch says that something changed. A watch
//! carries nothing else, so it may be late, lost, doubled or compacted away.
//!
//! **Lease.** A node has the lease until `lease_ms` (less 1/32 for clocks that run apart) after it
//! *sent* the last look that found its life in the view, and its registration and sign of life in
//! place. A member is excluded no sooner than `lease_ms` after somebody *got* a look that found it
//! absent, by a transaction that compares the revisions of its two keys with those of that look. So
//! while a node has the lease no view without it is written:
//!
//! - Let the look that gave the lease be done in etcd at p, and the exclusion at q. After q no look
//!   finds the life in the view, so p is before q.
//! - The look that found it absent was done at a. From a to q its two keys did not change: the
//!   registration has one revision, and a sign of life comes only with a new one. So p is not
//!   between a and q either, but before a.
//! - The lease ends within `lease_ms` of a moment before p, the exclusion was asked for `lease_ms`
//!   after a.
//!
//! This says nothing of how long etcd keeps a lease: one that it revokes too early (etcd 3.4 and 3.5
//! did, its issue 15247), or says to be renewed when it is gone, delays or hastens the look at a
//! node, and nothing else. It takes that etcd is linearizable, and that no data of
//! it is lost: of a view that went back, or is gone, a node concludes that its life is over. A
//! first view is written only a lease after none was found.
//!
//! **Leaving** is written into the registration, by a node that has no lease any more and never
//! has it again in that life; so it is excluded at once. **Coming back:** a daemon that was killed
//! registers the same life anew if nobody excluded it; an excluded one begins a new life.

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
