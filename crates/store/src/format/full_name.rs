//! The name of an object with that of its namespace, as the name heap stores it.

/// Separates the name of a namespace from that of an object in it.
pub(crate) const NAMESPACE_END: char = '\0';

/// The name of an object in its namespace.
#[must_use]
pub fn own_name(full: &str) -> &str {
    full.split_once(NAMESPACE_END).map_or(full, |(_, own)| own)
}
