//! Counts against their limits.

use farrow_wire::{BATCH_ITEMS_MAX, EXTRA_BLOCKS_MAX, RequestBody, WireError};

/// # Errors
///
/// [`WireError::TooMany`] with the limit.
pub(super) fn check_limit(what: &str, count: usize, max: usize) -> Result<(), WireError> {
    if count > max {
        return Err(WireError::TooMany { what: what.to_owned(), max: max as u64 });
    }
    Ok(())
}

/// Checks the lists of a request for which other nodes may be asked, before they are.
///
/// # Errors
///
/// [`WireError::TooMany`] with the limit.
pub(super) fn check_lists(body: &RequestBody) -> Result<(), WireError> {
    match body {
        RequestBody::Seal { items } => {
            check_limit("objects in one message", items.len(), BATCH_ITEMS_MAX)?;
            let mut blocks = items.iter().map(|item| item.extra.len());
            blocks
                .try_for_each(|count| check_limit("blocks in one object", count, EXTRA_BLOCKS_MAX))
        }
        RequestBody::Reserve { names } => {
            check_limit("names in one message", names.len(), BATCH_ITEMS_MAX)
        }
        RequestBody::Delete { targets } | RequestBody::Pin { targets, .. } => {
            check_limit("objects in one message", targets.len(), BATCH_ITEMS_MAX)
        }
        _ => Ok(()),
    }
}
