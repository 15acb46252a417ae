//! The keys of a cluster in etcd: below the prefix and a version, `view`, `nodes/NAME` and
//! `alive/NAME`. Other keys there are ignored.

use farrow_membership::etcd::Key;

/// Version of the layout. Clusters with different layouts do not see each other's keys.
const VERSION: &str = "v1";

#[derive(Debug)]
pub(super) struct Keys {
    /// The common prefix of all keys, with its slash.
    base: String,
}

impl Keys {
    pub(super) fn below(prefix: &str) -> Self {
        Self { base: format!("{prefix}/{VERSION}/") }
    }

    pub(super) fn write(&self, key: &Key) -> Vec<u8> {
        let base = &self.base;
        let text = match key {
            Key::View => format!("{base}view"),
            Key::Node(name) => format!("{base}nodes/{name}"),
            Key::Alive(name) => format!("{base}alive/{name}"),
        };
        text.into_bytes()
    }

    pub(super) fn read(&self, key: &[u8]) -> Option<Key> {
        let key = std::str::from_utf8(key.strip_prefix(self.base.as_bytes())?).ok()?;
        match key.split_once('/') {
            None if key == "view" => Some(Key::View),
            Some(("nodes", name)) => Some(Key::Node(name.parse().ok()?)),
            Some(("alive", name)) => Some(Key::Alive(name.parse().ok()?)),
            _ => None,
        }
    }

    /// The range of all keys: its start, and its exclusive end.
    pub(super) fn range(&self) -> (Vec<u8>, Vec<u8>) {
        let first = self.base.clone().into_bytes();
        let mut end = first.clone();
        // The base ends in a slash, and the next byte value is a zero digit.
        if let Some(last) = end.last_mut() {
            *last = last.saturating_add(1);
        }
        (first, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written_and_only_below_their_prefix() {
        let (one, other) = (Keys::below("/a"), Keys::below("/a/v1/nodes"));
        let name: crate::certs::NodeName = "view".parse().unwrap();
        for key in [Key::View, Key::Node(name.clone()), Key::Alive(name)] {
            let bytes = one.write(&key);
            assert_eq!(one.read(&bytes), Some(key.clone()));
            assert_eq!(other.read(&bytes), None);
            // A prefix within another one is separate from it.
            assert_eq!(one.read(&other.write(&key)), None);
            let (first, end) = one.range();
            assert!(first <= bytes && bytes < end);
            assert!(!(first..end).contains(&Keys::below("/aa").write(&key)));
        }
        for bytes in [&b"/a/v1/"[..], b"/a/v1/views", b"/a/v1/nodes/", b"/a/v1/nodes/A", b"\xff"] {
            assert_eq!(one.read(bytes), None);
        }
    }
}
