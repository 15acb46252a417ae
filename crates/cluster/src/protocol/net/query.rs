//! Messages between nodes: the request to open an object, and its answer.

use std::fmt;

use farrow_membership::NODE_NAME_CHARS_MAX;
use farrow_store::{METADATA_BYTES_MAX, NAME_BYTES_MAX, ObjectId, SpillHead, Target};
use farrow_wire::WireTarget;
use serde::{Deserialize, Serialize};

use super::broadcast::ReplicaKey;

/// The object of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum NetQuery {
    /// By its full name.
    Name(String),
    /// By its id.
    Id(u64, u64),
    /// No object: a page of the list of a namespace's objects.
    List {
        namespace: String,
        /// Restricts the list to names with this prefix.
        prefix: String,
        /// Position at which the page starts.
        from: u64,
    },
    /// No object: those of these objects that exist, as in a list.
    Find {
        namespace: String,
        /// Names are those in the namespace.
        targets: Vec<WireTarget>,
    },
    /// No object: which node sends the object of this hold? An earlier version rejects the query.
    Sender {
        hold: u64,
        /// The node that was named before and did not send it.
        failed: Option<String>,
    },
    /// No object: the replica of the object of this hold is complete, and is served by this key.
    Complete { hold: u64, key: ReplicaKey },
    /// A replica of an object of a third node.
    Replica {
        /// The id of the object.
        hi: u64,
        lo: u64,
        key: ReplicaKey,
    },
}

impl fmt::Display for NetQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(full) => write!(f, "{}", Target::Name(full)),
            Self::Id(hi, lo) => write!(f, "{}", Target::Id(ObjectId { hi: *hi, lo: *lo })),
            Self::List { prefix, .. } => write!(f, "{prefix:?}*"),
            Self::Find { targets, .. } => write!(f, "{} objects", targets.len()),
            Self::Sender { hold, .. } => write!(f, "a sender for hold {hold}"),
            Self::Complete { hold, .. } => write!(f, "the replica of hold {hold}"),
            Self::Replica { hi, lo, .. } => {
                write!(f, "the replica of {}", farrow_store::ObjectId { hi: *hi, lo: *lo })
            }
        }
    }
}

impl NetQuery {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Encoding these types into memory cannot fail.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (wish, rest) = postcard::take_from_bytes(bytes)
            .map_err(|error| format!("a query of {} B: {error}", bytes.len()))?;
        match &wish {
            Self::Name(name) if name.len() as u64 > NAME_BYTES_MAX => {
                Err(format!("a name of {} B, at most {NAME_BYTES_MAX}", name.len()))
            }
            Self::List { namespace, prefix, .. }
                if namespace.len().max(prefix.len()) as u64 > NAME_BYTES_MAX =>
            {
                let bytes = (namespace.len(), prefix.len());
                Err(format!("a namespace and a prefix of {bytes:?} B, at most {NAME_BYTES_MAX}"))
            }
            Self::Find { namespace, targets } => {
                let names = targets.iter().map(|target| match target {
                    WireTarget::Name(name) => name.len(),
                    WireTarget::Id(_) => 0,
                });
                let longest = names.chain([namespace.len()]).max().unwrap_or_default();
                match longest as u64 > NAME_BYTES_MAX || !rest.is_empty() {
                    true => Err(format!("{longest} B of a name, {} B behind", rest.len())),
                    false => Ok(wish),
                }
            }
            Self::Sender { failed: Some(node), .. } if node.len() > NODE_NAME_CHARS_MAX => {
                Err(format!("a node name of {} B, at most {NODE_NAME_CHARS_MAX}", node.len()))
            }
            _ if !rest.is_empty() => Err(format!("{} B after a query", rest.len())),
            _ => Ok(wish),
        }
    }
}

/// The description of an opened object, without its blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Brought {
    /// The head, as in a spill file.
    pub(crate) head: Vec<u8>,
    /// Its name in its namespace.
    pub(crate) name: Option<String>,
    pub(crate) descriptor: Vec<u8>,
    pub(crate) descriptor_crc: u32,
    pub(crate) metadata: Vec<u8>,
    pub(crate) metadata_crc: u32,
    pub(crate) sealed_at_ns: u64,
}

impl Brought {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        postcard::to_allocvec(self).map_err(|error| error.to_string())
    }

    /// Decodes a description and its head, and checks both without the region.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, SpillHead), String> {
        let brought: Self = postcard::from_bytes(bytes)
            .map_err(|error| format!("an entry of {} B: {error}", bytes.len()))?;
        let head = SpillHead::decode(&brought.head).map_err(|error| error.to_string())?;
        let lengths = [
            ("descriptor", brought.descriptor.len() as u64, head.descriptor_bytes),
            ("metadata", brought.metadata.len() as u64, head.metadata_bytes.into()),
        ];
        if let Some((what, found, expected)) = lengths.into_iter().find(|(_, a, b)| a != b) {
            return Err(format!("{what} of {found} B, its head says {expected}"));
        }
        let checksums = [
            ("descriptor", &brought.descriptor, brought.descriptor_crc),
            ("metadata", &brought.metadata, brought.metadata_crc),
        ];
        for (what, bytes, stored) in checksums.into_iter().filter(|(_, bytes, _)| !bytes.is_empty())
        {
            let computed = crc32c::crc32c(bytes);
            if computed != stored {
                return Err(format!(
                    "the checksum of its {what} is {computed:#010x}, not {stored:#010x}"
                ));
            }
        }
        if brought.metadata.len() > METADATA_BYTES_MAX as usize {
            return Err(format!("metadata of {} B", brought.metadata.len()));
        }
        let name = brought.name.as_deref().map_or(0, str::len) as u64;
        if name > NAME_BYTES_MAX || brought.name.as_deref().is_some_and(|name| name.contains('\0'))
        {
            return Err(format!("a name of {name} B, or with a NUL"));
        }
        Ok((brought, head))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failure is the result
mod tests {
    use farrow_memory::{Length, Offset, Span};
    use farrow_store::{ObjectId, ObjectKind};
    use farrow_wire::WireObjectId;

    use super::*;

    #[test]
    fn wishes_survive_and_others_are_refused() {
        let list =
            |prefix: String| NetQuery::List { namespace: "n".into(), prefix, from: u64::MAX };
        let find = |name: String| NetQuery::Find {
            namespace: "n".into(),
            targets: vec![WireTarget::Name(name), WireTarget::Id(WireObjectId { hi: 1, lo: 2 })],
        };
        for wish in [
            NetQuery::Name("a\0b".into()),
            NetQuery::Id(1, u64::MAX),
            list("p".into()),
            find("f".into()),
            NetQuery::Sender { hold: 7, failed: None },
            NetQuery::Sender { hold: 7, failed: Some("b".into()) },
            NetQuery::Complete { hold: u64::MAX, key: ReplicaKey([9; 32]) },
            NetQuery::Replica { hi: 1, lo: 2, key: ReplicaKey([0; 32]) },
        ] {
            assert_eq!(NetQuery::decode(&wish.encode()), Ok(wish));
        }
        let long = NetQuery::Name("x".repeat(256)).encode();
        let behind = [NetQuery::Id(1, 2).encode(), vec![0]].concat();
        let long_prefix = list("x".repeat(256)).encode();
        let long_find = find("x".repeat(256)).encode();
        let long_node = NetQuery::Sender { hold: 1, failed: Some("x".repeat(64)) }.encode();
        let behind_find = [find("f".into()).encode(), vec![0]].concat();
        for bytes in [
            &long[..],
            &behind,
            &long_prefix,
            &long_find,
            &long_node,
            &behind_find,
            &[],
            &[9, 9, 9],
        ] {
            assert!(NetQuery::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_brought_is_checked() {
        let head = SpillHead {
            id: ObjectId { hi: 7, lo: 1 << 32 },
            kind: ObjectKind::Table,
            size: Length(100),
            descriptor_bytes: 3,
            metadata_bytes: 2,
            origins: vec![Span::new(Offset(4096), Length(256))],
        };
        let good = Brought {
            head: head.encode(),
            name: Some("t".into()),
            descriptor: vec![1, 2, 3],
            descriptor_crc: crc32c::crc32c(&[1, 2, 3]),
            metadata: vec![4, 5],
            metadata_crc: crc32c::crc32c(&[4, 5]),
            sealed_at_ns: 6,
        };
        let decoded = Brought::decode(&good.encode().unwrap());
        assert_eq!(decoded, Ok((good.clone(), head)));
        for change in [
            (|it| it.head[20] ^= 1) as fn(&mut Brought),
            |it| it.head.clear(),
            |it| it.name = Some("x".repeat(256)),
            |it| it.name = Some("a\0b".into()),
            |it| it.descriptor.push(0),
            |it| it.descriptor[0] = 9,
            |it| it.metadata_crc ^= 1,
            |it| it.metadata.clear(),
        ] {
            let mut bad = good.clone();
            change(&mut bad);
            assert!(Brought::decode(&bad.encode().unwrap()).is_err(), "{bad:?}");
        }
        assert!(Brought::decode(&[1, 2, 3]).is_err());
    }
}
