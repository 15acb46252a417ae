//! What the event loop asks of the threads that serve other nodes: the members that may have
//! replicas of this node's objects, and the replicas that others may read here.

use std::collections::BTreeSet;
use std::time::Instant;

use farrow_memory::sync::Ordering;
use farrow_net::source::MemberLife;
use farrow_net::ticket::Ticket;
use farrow_store::ObjectId;

use super::source::{RESTORE_REFUSED, RegionSource, lock};
use crate::protocol::net::broadcast::ReplicaKey;

/// Limit of spilled objects of which it is noted that they cannot be restored.
const UNRESTORED_MAX: usize = 256;

/// The members that may have replicas of this node's objects, and this node's own replicas.
pub(crate) trait Interests: Send + Sync {
    /// Returns the members that may have a replica, and forgets them.
    fn take(&self, object: ObjectId) -> BTreeSet<MemberLife>;

    /// Prevents opens of an object until each close is undone. Returns the members that may have a
    /// replica.
    fn close(&self, object: ObjectId) -> BTreeSet<MemberLife>;

    /// Undoes a [`Interests::close`].
    fn reopen(&self, object: ObjectId);

    /// Whether any member may have a replica.
    fn is_any(&self, object: ObjectId) -> bool;

    /// Lets other nodes read this node's replica of an object. Returns the key that they need;
    /// `None` if there are no random bytes.
    fn serve_replica(&self, origin: ObjectId, local: ObjectId) -> Option<ReplicaKey>;

    /// Undoes a [`Interests::serve_replica`]. Reads that have begun go on.
    fn hide_replica(&self, origin: ObjectId);

    /// Lets opens of a spilled object fail for a moment: it cannot be restored.
    fn not_restored(&self, object: ObjectId, reason: String);

    /// Bytes that other nodes read of this node's objects, and of its replicas.
    fn served(&self) -> [u64; 2];

    /// Bytes of the pieces that were sent compressed and of their compressed form, then of those that
    /// were received.
    fn packed(&self) -> [[u64; 2]; 2];
}

impl Interests for RegionSource {
    fn take(&self, object: ObjectId) -> BTreeSet<MemberLife> {
        let mut state = lock(&self.state);
        state.broadcasts.recalled(object.lo);
        state.interests.remove(&object.lo).unwrap_or_default()
    }

    fn close(&self, object: ObjectId) -> BTreeSet<MemberLife> {
        let mut state = lock(&self.state);
        *state.closed.entry(object.lo).or_default() += 1;
        state.broadcasts.recalled(object.lo);
        state.interests.remove(&object.lo).unwrap_or_default()
    }

    fn reopen(&self, object: ObjectId) {
        let mut state = lock(&self.state);
        if let Some(count) = state.closed.get_mut(&object.lo) {
            *count -= 1;
            if *count == 0 {
                state.closed.remove(&object.lo);
            }
        }
    }

    fn is_any(&self, object: ObjectId) -> bool {
        lock(&self.state).interests.contains_key(&object.lo)
    }

    fn serve_replica(&self, origin: ObjectId, local: ObjectId) -> Option<ReplicaKey> {
        let key = Ticket::random().ok()?;
        let key = ReplicaKey(*key.as_bytes());
        lock(&self.state).replicas.insert(origin, (local, key));
        Some(key)
    }

    fn hide_replica(&self, origin: ObjectId) {
        lock(&self.state).replicas.remove(&origin);
    }

    fn not_restored(&self, object: ObjectId, reason: String) {
        let mut state = lock(&self.state);
        state.unrestored.retain(|_, (since, _)| since.elapsed() < RESTORE_REFUSED);
        if state.unrestored.len() < UNRESTORED_MAX {
            state.unrestored.insert(object, (Instant::now(), reason));
        }
    }

    fn served(&self) -> [u64; 2] {
        let [own, replicas] = &self.served;
        [own.load(Ordering::Relaxed), replicas.load(Ordering::Relaxed)]
    }

    fn packed(&self) -> [[u64; 2]; 2] {
        [self.packed.sent(), self.packed.received()]
    }
}
