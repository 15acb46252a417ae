//! What the event loop asks of the threads that serve other nodes: see [`NetReaders`].

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::Instant;

use farrow_memory::sync::Ordering;
use farrow_net::source::MemberLife;
use farrow_net::ticket::Ticket;
use farrow_store::ObjectId;

use super::source::{RESTORE_REFUSED, RegionSource, lock};
use crate::protocol::net::broadcast::ReplicaKey;
use crate::protocol::net::{NetReaders, ReaderRules};

/// Limit of spilled objects of which it is noted that they cannot be restored.
const UNRESTORED_MAX: usize = 256;

impl NetReaders for RegionSource {
    fn publish_rules(&self, rules: ReaderRules) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }

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
