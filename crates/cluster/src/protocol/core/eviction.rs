//! The eviction policy, and what it evicted.

use farrow_store::{ByHand, EvictionPolicy};

/// Eviction policy, and the evictions since the start.
#[derive(Debug)]
pub(in crate::protocol) struct Eviction {
    pub(in crate::protocol) policy: Box<dyn EvictionPolicy>,
    pub(in crate::protocol) objects: u64,
    pub(in crate::protocol) bytes: u64,
}

impl Default for Eviction {
    fn default() -> Self {
        Self { policy: Box::new(ByHand), objects: 0, bytes: 0 }
    }
}
