//! What replicas need of the rest of the node.

use farrow_memory::Length;
use farrow_store::{Home, ObjectId, SpillHead};
use farrow_wire::{OutOfMemory, TooLarge, WireError};

use crate::protocol::action::Action;
use crate::protocol::cluster::OptionalCluster;
use crate::protocol::core::clients::Clients;
use crate::protocol::core::quota::Quota;
use crate::protocol::core::reclaim::Reclaim;
use crate::protocol::core::residency::Residency;

/// What replicas need of the rest of the node, while one event is handled.
#[derive(Debug)]
pub(in crate::protocol) struct ReplicaContext<'a> {
    pub(in crate::protocol) home: &'a mut Home,
    pub(in crate::protocol) cluster: &'a mut OptionalCluster,
    /// Objects that leave memory for a replica.
    pub(in crate::protocol) residency: &'a mut Residency,
    /// Limits of the clients that import objects.
    pub(in crate::protocol) quota: &'a mut Quota,
    pub(in crate::protocol) clients: &'a Clients,
    pub(in crate::protocol) reclaim: &'a mut Reclaim,
    pub(in crate::protocol) now_ms: u64,
    pub(in crate::protocol) out: &'a mut Vec<Action>,
}

impl ReplicaContext<'_> {
    /// Frees the memory of an object that is not sealed.
    pub(super) fn abort_replica(&mut self, origin: ObjectId) {
        if let Err(error) = self.home.abort_replica(origin) {
            tracing::error!(%origin, %error, "memory is lost");
        }
    }

    /// The size of a copy, unless no region of this node's size has room for it.
    pub(super) fn check_size(&self, bytes: Option<Length>) -> Result<Length, WireError> {
        let bytes = bytes.unwrap_or(Length(u64::MAX));
        let capacity = self.home.capacity();
        if bytes > capacity {
            return Err(WireError::TooLarge(TooLarge { requested: bytes.0, capacity: capacity.0 }));
        }
        Ok(bytes)
    }

    /// The error of a copy that gets no memory.
    pub(super) fn out_of_room(&self, head: &SpillHead, waited_ms: u64) -> WireError {
        let (free, largest) = self.home.free_bytes();
        let requested = Home::replica_bytes(head).unwrap_or(Length(u64::MAX)).0;
        WireError::OutOfMemory(OutOfMemory {
            requested,
            free: free.0,
            largest: largest.0,
            waiting: 0,
            waited_ms,
        })
    }

    /// Has deleted objects freed at the next tick.
    pub(super) fn reclaim_soon(&mut self) {
        self.reclaim.soon(self.home, self.now_ms);
    }
}
