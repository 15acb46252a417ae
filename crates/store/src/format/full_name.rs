//! The name of an object with that of its namespace, as the name heap stores it.

/// Separates the name of a namespace from that of an object in it.
pub(crate) const NAMESPACE_END: char = '\0';

/// The name of an object in its namespace.
#[must_use]
pub fn own_name(full: &str) -> &str {
    full.split_once(NAMESPACE_END).map_or(full, |(_, own)| own)
}

/// The name of the namespace of an object. That of the default namespace is empty.
#[must_use]
pub fn namespace_of(full: &str) -> &str {
    full.split_once(NAMESPACE_END).map_or("", |(namespace, _)| namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_name_is_parted_at_its_first_nul() {
        let names = [
            ("x", "", "x"),
            ("team\0x", "team", "x"),
            ("a:b\0a:b", "a:b", "a:b"),
            ("a\0b\0c", "a", "b\0c"),
            ("", "", ""),
        ];
        for (full, namespace, own) in names {
            assert_eq!((namespace_of(full), own_name(full)), (namespace, own), "{full:?}");
        }
    }
}
