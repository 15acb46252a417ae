//! Statistics of a node.

use farrow_store::{StoreError, StoreStats};
use farrow_wire::NodeStats;

use super::state::NodeState;

impl NodeState {
    /// Sets the server's progress: bytes of prepared pages, and number of wake-ups.
    pub fn set_progress(&mut self, prepared: u64, turns: u64) {
        self.prepared = prepared;
        self.turns = turns;
    }

    /// Statistics of the node, including objects that clients have sealed by themselves until now.
    ///
    /// # Errors
    ///
    /// The region cannot be read.
    pub fn current_stats(&mut self, now_ms: u64) -> Result<NodeStats, StoreError> {
        self.home.register_all()?;
        // Refused entries wait to be freed.
        self.reclaim.soon(&self.home, now_ms);
        self.stats(now_ms)
    }

    /// Statistics of the node as registered so far.
    ///
    /// # Errors
    ///
    /// The region cannot be read.
    pub fn stats(&self, now_ms: u64) -> Result<NodeStats, StoreError> {
        let StoreStats {
            capacity,
            used,
            free,
            largest_free,
            granted,
            fragmented,
            quarantine,
            retiring,
            objects,
            objects_max,
            objects_retiring,
            clients,
            clients_max,
            holds,
            held,
            pinned,
            objects_pinned,
            evictable,
            records,
            client_objects,
            client_objects_max,
            objects_spilled,
            spilled,
            ..
        } = self.home.stats()?;
        let (buffers, buffers_max) = self.buffers();
        let residency = self.residency.totals();
        let fabric = self.home.region().fabric();
        Ok(NodeStats {
            capacity: capacity.0,
            used: used.0,
            free: free.0,
            largest_free: largest_free.0,
            granted: granted.0,
            fragmented: fragmented.0,
            quarantine: quarantine.0,
            retiring: retiring.0,
            objects: objects.into(),
            objects_max: objects_max.into(),
            objects_retiring: objects_retiring.into(),
            clients: clients.into(),
            clients_max: clients_max.into(),
            holds,
            region_uid: self.home.uid().0,
            pid: self.pid,
            uptime_ms: now_ms.saturating_sub(self.started_ms),
            adopted: self.adopted,
            prepared: self.prepared,
            fabric: fabric.kind().as_str().to_owned(),
            coherence: fabric.coherence_class().as_str().to_owned(),
            memory: self.place.memory.clone(),
            huge_page_bytes: fabric.huge_page_bytes().map_or(0, |bytes| bytes.0),
            requests: self.counts.requests,
            sealed_total: self.counts.sealed,
            deleted_total: self.counts.deleted,
            waiting: self.admission.waiting() as u64,
            waiting_bytes: self.admission.waiting_bytes(),
            turns_total: self.turns,
            eviction: self.residency.policy_name().to_owned(),
            held: held.0,
            pinned: pinned.0,
            objects_pinned: objects_pinned.into(),
            evictable: evictable.0,
            evicted_total: residency.evicted,
            evicted_bytes_total: residency.evicted_bytes,
            records: records.0,
            client_objects: client_objects.into(),
            client_objects_max: client_objects_max.into(),
            objects_spilled: objects_spilled.into(),
            spilled: spilled.0,
            spilled_total: residency.spilled,
            restored_total: residency.restored,
            spill_failures_total: residency.spill_failures,
            buffers,
            buffers_max,
        })
    }
}
