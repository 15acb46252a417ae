//! Triggers: edges of the batch.

use crate::edge::{EvictionFloor, Side, Stamp};

/// An edge of the batch as the one that may complete a pattern.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trigger<T> {
    pub source: u32,
    pub target: u32,
    pub time: T,
    /// The eviction floor when the trigger arrived (causal mode).
    pub floor: EvictionFloor<T>,
}

impl<T: Stamp> Trigger<T> {
    pub(crate) fn is_loop(&self) -> bool {
        self.source == self.target
    }

    /// The account whose list on this side has the edge.
    pub(crate) fn end(&self, side: Side) -> u32 {
        match side {
            Side::Out => self.source,
            Side::In => self.target,
        }
    }
}
