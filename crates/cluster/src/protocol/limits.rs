//! The check of a count against its limit.

use farrow_wire::WireError;

/// # Errors
///
/// [`WireError::TooMany`] with the limit.
pub(super) fn check_limit(what: &str, count: usize, max: usize) -> Result<(), WireError> {
    if count > max {
        return Err(WireError::TooMany { what: what.to_owned(), max: max as u64 });
    }
    Ok(())
}
