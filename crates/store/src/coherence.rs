//! What a client of another node does with lines of a node-local region, beside what
//! [`crate::Reader`], [`crate::HoldTable`] and [`crate::EntryTable`] do by themselves.
//!
//! The rules are in `docs/coherence.md`. On a coherent region nothing here costs more than a fence.

use farrow_memory::{Region, Span};

use crate::error::StoreError;

/// An entry that was read in parts of different age is read anew so often. Each time all its lines
/// are fetched again, so a second look that fails has met another change.
pub(crate) const TORN_MAX: u32 = 16;

/// Leaves no dirty line of `spans` in the caches of this node: brings them to memory and drops
/// them. For ranges that go back to the home, be it by the client that wrote them, or for one that
/// is dead by any process of its node. Nobody on this node may write there from before the call on.
///
/// # Errors
/// [`StoreError::Access`] for a span outside of the region.
pub fn clean(region: &Region, spans: &[Span]) -> Result<(), StoreError> {
    for span in spans {
        region.refresh(*span)?;
    }
    Ok(())
}
