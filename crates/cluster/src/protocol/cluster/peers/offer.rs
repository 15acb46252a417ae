//! The ways to a node's memory, as announced to the other nodes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Limit of the bytes of an encoded offer: followed by a lease it is part of each view, which takes
/// 1,024.
pub const OFFER_BYTES_MAX: usize = 1024 - 10;

/// One way to the memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryRoute {
    /// Files of a tmpfs, for nodes of the same machine.
    Shm {
        /// Their folder.
        dir: PathBuf,
        /// Their name.
        name: String,
    },
    /// A file or device that other machines have too, by the same path unless configured otherwise.
    Device {
        /// Its path.
        path: PathBuf,
        /// First byte of the region.
        file_offset: u64,
        /// Whether it is coherent inside a machine only.
        is_node_local: bool,
    },
    /// Memory without a name, for nodes of the same machine. The lock file of the node's socket
    /// names its holder, also after a restart of the daemon.
    Held {
        /// The lock file.
        lock: PathBuf,
    },
}

/// A node's region, and the ways to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Identifies kernel and process namespace of the node: nodes with equal values see each
    /// other's processes.
    pub host: String,
    /// Uid of the region.
    pub region_uid: u64,
    /// Bytes of its control section.
    pub control_bytes: u64,
    /// Bytes of its data section.
    pub data_bytes: u64,
    /// Heap bytes that it lends.
    pub capacity: u64,
    /// Address at which every process should map it.
    pub base: u64,
    /// The ways, the best one first.
    pub ways: Vec<MemoryRoute>,
}

impl Offer {
    /// Bytes for a view; `None` if its paths are too long.
    pub fn encode(&self) -> Option<Vec<u8>> {
        postcard::to_allocvec(self).ok().filter(|bytes| bytes.len() <= OFFER_BYTES_MAX)
    }

    /// The opposite of [`Self::encode`]; `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

/// A member's info: its offer, followed by its lease.
pub(in crate::protocol::cluster) fn info_of(offer: &Offer, lease_ms: u64) -> Vec<u8> {
    let lease = postcard::to_allocvec(&lease_ms).unwrap_or_default();
    offer.encode().map_or_else(Vec::new, |bytes| [bytes, lease].concat())
}

/// The info of a node that continues the life of which `retained` is the info. A node that was
/// resized meanwhile is the same node, and announces the capacity of then: other members ask it for
/// the present one.
pub(in crate::protocol::cluster) fn continued_info(
    offer: &Offer,
    lease_ms: u64,
    retained: &[u8],
) -> Vec<u8> {
    let earlier = Offer::decode(retained).map_or(offer.capacity, |earlier| earlier.capacity);
    let info = info_of(&Offer { capacity: earlier, ..offer.clone() }, lease_ms);
    if info == retained { info } else { info_of(offer, lease_ms) }
}

/// The lease in a member's info; `None` if there is none.
pub(in crate::protocol::cluster) fn lease_ms_in(info: &[u8]) -> Option<u64> {
    let (_, rest) = postcard::take_from_bytes::<Offer>(info).ok()?;
    postcard::from_bytes(rest).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_survives_and_a_long_one_is_refused() {
        let way = MemoryRoute::Shm { dir: "/dev/shm".into(), name: "farrow".into() };
        let offer = Offer {
            host: "h".into(),
            region_uid: 1,
            control_bytes: 2,
            data_bytes: 3,
            capacity: 4,
            base: 5,
            ways: vec![way],
        };
        assert_eq!(Offer::decode(&offer.encode().unwrap()), Some(offer.clone()));
        assert_eq!(Offer::decode(b"\xff\xff"), None);
        let info = info_of(&offer, 5000);
        assert_eq!((Offer::decode(&info), lease_ms_in(&info)), (Some(offer.clone()), Some(5000)));
        let resized = Offer { capacity: offer.capacity * 2, ..offer.clone() };
        assert_eq!(continued_info(&resized, 5000, &info), info);
        assert_eq!(continued_info(&resized, 6000, &info), info_of(&resized, 6000));
        let other = Offer { region_uid: offer.region_uid + 1, ..resized };
        assert_eq!(continued_info(&other, 5000, &info), info_of(&other, 5000));
        assert_eq!(continued_info(&offer, 5000, b"\xff\xff"), info);
        assert_eq!(lease_ms_in(&offer.encode().unwrap()), None);
        assert_eq!(lease_ms_in(b"\xff\xff"), None);
        let long = Offer { host: "x".repeat(2000), ..offer };
        assert_eq!(long.encode(), None);
    }
}
