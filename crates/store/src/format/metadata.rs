//! Small key-value pairs that an object carries besides its bytes.
//!
//! They are at the end of the primary block, written by the creator before the seal and immutable
//! like the rest of the block. The entry has their length and checksum.

use std::collections::BTreeMap;

/// Maximum length of encoded metadata: it is for labels, not for data.
pub const METADATA_BYTES_MAX: u32 = 4096;
/// Longest key, in bytes: its length is one byte.
pub const METADATA_KEY_BYTES_MAX: usize = 255;

/// The reason why pairs are not valid metadata, or bytes do not decode.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// A key is empty or too long.
    #[error("a metadata key of {bytes} B; 1 to {METADATA_KEY_BYTES_MAX} B are taken")]
    Key {
        /// Length of the key.
        bytes: usize,
    },
    /// The encoded pairs are too long.
    #[error("metadata of {bytes} B; at most {METADATA_BYTES_MAX} B are taken")]
    TooLong {
        /// Their encoded length.
        bytes: u64,
    },
    /// The bytes do not decode.
    #[error("metadata of {bytes} B does not decode: {reason}")]
    Garbled {
        /// Length of the bytes.
        bytes: usize,
        /// The reason.
        reason: &'static str,
    },
}

/// Text pairs, in the order of their keys.
///
/// ```
/// use farrow_store::Metadata;
/// let metadata = Metadata::new([("team", "risk"), ("day", "2026-11-22")])?;
/// assert_eq!(metadata.get("team"), Some("risk"));
/// assert_eq!(Metadata::decode(&metadata.encode())?, metadata);
/// # Ok::<(), farrow_store::MetadataError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Metadata {
    pairs: BTreeMap<String, String>,
}

impl Metadata {
    /// Make metadata of pairs; of several with the same key the last one counts.
    ///
    /// # Errors
    /// [`MetadataError::Key`], [`MetadataError::TooLong`].
    pub fn new<K: Into<String>, V: Into<String>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, MetadataError> {
        let pairs: BTreeMap<String, String> =
            pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        let mut bytes = 0u64;
        for (key, value) in &pairs {
            if key.is_empty() || key.len() > METADATA_KEY_BYTES_MAX {
                return Err(MetadataError::Key { bytes: key.len() });
            }
            bytes += (PAIR_HEADER_BYTES + key.len() + value.len()) as u64;
        }
        if bytes > METADATA_BYTES_MAX.into() {
            return Err(MetadataError::TooLong { bytes });
        }
        Ok(Self { pairs })
    }

    /// Whether there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.get(key).map(String::as_str)
    }

    /// All pairs, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether every pair of `other` is here too.
    #[must_use]
    pub fn contains_all(&self, other: &Self) -> bool {
        other.pairs.iter().all(|(key, value)| self.pairs.get(key) == Some(value))
    }

    /// Encode the pairs as in the region.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (key, value) in &self.pairs {
            // `new` and `decode` have checked that both lengths fit.
            bytes.push(key.len() as u8);
            bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
            bytes.extend_from_slice(key.as_bytes());
            bytes.extend_from_slice(value.as_bytes());
        }
        bytes
    }

    /// Decode the bytes that [`Metadata::encode`] wrote.
    ///
    /// # Errors
    /// [`MetadataError::Garbled`], [`MetadataError::TooLong`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MetadataError> {
        let garbled = |reason| MetadataError::Garbled { bytes: bytes.len(), reason };
        if bytes.len() as u64 > METADATA_BYTES_MAX.into() {
            return Err(MetadataError::TooLong { bytes: bytes.len() as u64 });
        }
        let mut pairs = BTreeMap::new();
        let mut rest = bytes;
        while let Some((header, after)) = rest.split_first_chunk::<PAIR_HEADER_BYTES>() {
            let key_bytes = usize::from(header[0]);
            let value_bytes = usize::from(u16::from_le_bytes([header[1], header[2]]));
            let (key, after) =
                after.split_at_checked(key_bytes).ok_or_else(|| garbled("a key is cut off"))?;
            let (value, after) =
                after.split_at_checked(value_bytes).ok_or_else(|| garbled("a value is cut off"))?;
            let text = |bytes: &[u8]| {
                let text = std::str::from_utf8(bytes).map_err(|_| garbled("it is not UTF-8"))?;
                Ok::<_, MetadataError>(text.to_owned())
            };
            let (key, value) = (text(key)?, text(value)?);
            let is_in_order =
                pairs.last_key_value().is_none_or(|(last, _): (&String, &String)| *last < key);
            if key.is_empty() || !is_in_order {
                return Err(garbled("keys are empty or out of order"));
            }
            pairs.insert(key, value);
            rest = after;
        }
        if !rest.is_empty() {
            return Err(garbled("it ends within a pair"));
        }
        Ok(Self { pairs })
    }
}

/// Length of the key in one byte, of the value in two.
const PAIR_HEADER_BYTES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits_are_reported_with_numbers() {
        assert_eq!(Metadata::new([("", "x")]), Err(MetadataError::Key { bytes: 0 }));
        let long = "k".repeat(256);
        assert_eq!(Metadata::new([(long, "x")]), Err(MetadataError::Key { bytes: 256 }));
        let value = "v".repeat(4096 - 3 - 1);
        assert_eq!(Metadata::new([("k", &value)]).unwrap().encode().len(), 4096);
        let error = Metadata::new([("kk", &value)]).unwrap_err();
        assert_eq!(error, MetadataError::TooLong { bytes: 4097 });
        assert!(Metadata::default().encode().is_empty());
    }

    #[test]
    fn pairs_are_found_and_compared() {
        let all = Metadata::new([("b", "2"), ("a", "1")]).unwrap();
        assert_eq!(all.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);
        assert!(all.contains_all(&Metadata::new([("a", "1")]).unwrap()));
        assert!(!all.contains_all(&Metadata::new([("a", "2")]).unwrap()));
        assert!(all.contains_all(&Metadata::default()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            pairs in prop::collection::btree_map("[^\u{0}]{1,8}", ".{0,20}", 0..20),
        ) {
            let metadata = Metadata::new(pairs).unwrap();
            prop_assert_eq!(Metadata::decode(&metadata.encode()), Ok(metadata));
        }

        #[test]
        fn other_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(metadata) = Metadata::decode(&bytes) {
                prop_assert_eq!(metadata.encode(), bytes);
            }
        }
    }
}
