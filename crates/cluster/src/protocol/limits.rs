//! Limits of memory and of lists.

use farrow_wire::{
    BATCH_ITEMS_MAX, EXTRA_BLOCKS_MAX, ROOM_RANGES_MAX, RequestBody, RoomAsk, SETTINGS_MAX,
    WireError,
};

/// Smallest useful heap: a few extents.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// # Errors
///
/// [`WireError::TooMany`] with the limit.
pub(super) fn check_limit(what: &str, count: usize, max: usize) -> Result<(), WireError> {
    if count > max {
        return Err(WireError::TooMany { what: what.to_owned(), max: max as u64 });
    }
    Ok(())
}

/// Checks the lists of a request before it has any effect: what serves it relies on their limits.
///
/// # Errors
///
/// [`WireError::TooMany`] with the limit.
pub(super) fn check_lists(body: &RequestBody) -> Result<(), WireError> {
    let objects = |count| check_limit("objects in one message", count, BATCH_ITEMS_MAX);
    let names = |count| check_limit("names in one message", count, BATCH_ITEMS_MAX);
    match body {
        RequestBody::Seal { items } => {
            objects(items.len())?;
            let mut blocks = items.iter().map(|item| item.extra.len());
            blocks
                .try_for_each(|count| check_limit("blocks in one object", count, EXTRA_BLOCKS_MAX))
        }
        RequestBody::Room(RoomAsk { sizes, purpose, .. }) => {
            check_limit("ranges in one message", sizes.len(), ROOM_RANGES_MAX)?;
            let Some(purpose) = purpose else { return Ok(()) };
            objects(purpose.objects as usize)?;
            names(purpose.names.len())
        }
        RequestBody::Release { spans } => {
            check_limit("spans in one message", spans.len(), BATCH_ITEMS_MAX)
        }
        RequestBody::Reserve { names: list }
        | RequestBody::Renew { names: list, .. }
        | RequestBody::Unreserve { names: list } => names(list.len()),
        RequestBody::Delete { targets }
        | RequestBody::Pin { targets, .. }
        | RequestBody::Wait { targets, .. } => objects(targets.len()),
        RequestBody::Confirm { ids } | RequestBody::EndLeases { ids } => objects(ids.len()),
        RequestBody::ReserveObjects { objects: count, .. } => objects(*count as usize),
        RequestBody::Set(settings) => {
            check_limit("settings in one message", settings.len(), SETTINGS_MAX)
        }
        _ => Ok(()),
    }
}
