//! Statistics of a node.

use farrow_store::StoreError;
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
        let store = self.home.stats()?;
        let (buffers, buffers_max) = self.buffers.totals();
        let residency = self.residency.totals();
        let fabric = self.home.region().fabric();
        Ok(NodeStats {
            capacity: store.capacity.0,
            used: store.used.0,
            free: store.free.0,
            largest_free: store.largest_free.0,
            granted: store.granted.0,
            fragmented: store.fragmented.0,
            quarantine: store.quarantine.0,
            retiring: store.retiring.0,
            objects: store.objects.into(),
            objects_max: store.objects_max.into(),
            objects_retiring: store.objects_retiring.into(),
            clients: store.clients.into(),
            clients_max: store.clients_max.into(),
            holds: store.holds,
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
            held: store.held.0,
            pinned: store.pinned.0,
            objects_pinned: store.objects_pinned.into(),
            evictable: store.evictable.0,
            evicted_total: residency.evicted,
            evicted_bytes_total: residency.evicted_bytes,
            records: store.records.0,
            client_objects: store.client_objects.into(),
            client_objects_max: store.client_objects_max.into(),
            objects_spilled: store.objects_spilled.into(),
            spilled: store.spilled.0,
            spilled_total: residency.spilled,
            restored_total: residency.restored,
            spill_failures_total: residency.spill_failures,
            buffers,
            buffers_max,
            capacity_max: store.capacity_max.0,
            settings: self.node_settings(),
            settings_changed: self.changed_settings(),
            draining: u64::from(self.drain.record.is_draining),
            moved_total: self.drain.moved,
            moved_bytes_total: self.drain.moved_bytes,
        })
    }
}
