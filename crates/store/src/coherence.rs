//! Cache maintenance for clients on other nodes of a node-local region, beyond the calls that
//! [`crate::Reader`], [`crate::HoldTable`] and [`crate::EntryTable`] make themselves.
//!
//! The rules are in `docs/design/coherence-rules.md`. On a coherent region nothing here costs more than a fence.

use farrow_memory::{Region, Span};

use crate::error::StoreError;

/// Attempts to read an entry whose lines are of different age. Each attempt fetches all lines
/// again, so each further failure is due to another change.
pub(crate) const TORN_MAX: u32 = 16;

/// Write back and drop all cache lines of `spans` on this node. For ranges that return to the home:
/// the client that wrote them calls this, or, if that client is dead, any process of its node. No
/// process on this node may write to `spans` after this call starts.
///
/// # Errors
/// [`StoreError::Access`] for a span outside of the region.
pub fn clean(region: &Region, spans: &[Span]) -> Result<(), StoreError> {
    for span in spans {
        region.refresh(*span)?;
    }
    Ok(())
}
