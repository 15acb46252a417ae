//! Replies of the daemon.

use serde::{Deserialize, Serialize};

use super::{DrainReport, Members, NodeStats, Rule, WireError, WireObjectId, WireSpan};

/// A reply of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Number of the request.
    pub seq: u64,
    /// The result.
    pub body: Result<ReplyBody, WireError>,
}

impl Reply {
    /// Its errors: that of the request, or those of single items.
    pub fn errors(&self) -> impl Iterator<Item = &WireError> {
        let (sealed, unsealed): (&[Result<_, _>], &[Result<_, _>]) = match &self.body {
            Ok(ReplyBody::Sealed(items)) => (items, &[]),
            Ok(ReplyBody::Deleted(items) | ReplyBody::Pinned(items)) => (&[], items),
            _ => (&[], &[]),
        };
        let items = sealed.iter().filter_map(|item| item.as_ref().err());
        let items = items.chain(unsealed.iter().filter_map(|item| item.as_ref().err()));
        self.body.as_ref().err().into_iter().chain(items)
    }
}

/// The result of a request, by kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplyBody {
    /// To `Hello`, with three file descriptors.
    Welcome(Welcome),
    /// To `Grant`.
    Granted(WireSpan),
    /// The request succeeded and has no result.
    Done,
    /// To `Seal`: one result per item.
    Sealed(Vec<Result<WireObjectId, WireError>>),
    /// To `Delete`: one result per target.
    Deleted(Vec<Result<(), WireError>>),
    /// To `Wait`: whether each target is sealed. To `Renew`: whether each name is reserved.
    Ready(Vec<bool>),
    /// To `HoldBlock`.
    HoldBlock(WireSpan),
    /// To `Stats`.
    Stats(Box<NodeStats>),
    /// To `Handover`, with two file descriptors: the listening socket, then the lock.
    HandedOver(Inheritance),
    /// To `Watch`: no event before this number matches.
    Watched {
        /// Number of the next event to look at.
        next: u64,
    },
    /// To `Pin`: one result per target.
    Pinned(Vec<Result<(), WireError>>),
    /// To `Evict`.
    Evicted(EvictedReport),
    /// To `Overview`.
    Overview(Overview),
    /// To `EntryPages`.
    EntryPages(WireSpan),
    /// To `Namespaces`, the default one first.
    Namespaces(Vec<NamespaceReport>),
    /// To `FindLost`.
    FoundLost(Option<String>),
    /// To `Sync`, about flags.
    Flags {
        /// All flags of this name.
        value: u64,
        /// False: the time limit passed before the condition was met.
        is_met: bool,
    },
    /// To `Nodes`.
    Nodes(Members),
    /// To `Rules`.
    Rules(Vec<Rule>),
    /// To `Room`: one range per size.
    Room(Vec<WireSpan>),
    /// To `Fetch`: the id of a replica in the client's own node; `None`: the object does not exist.
    Fetched(Option<WireObjectId>),
    /// To `Fetch`: the transfer is in progress.
    Fetching,
    /// To `Fetch` of a part: the id of an object in the client's own node that contains only this
    /// part.
    FetchedPart(WireObjectId),
    /// To `ListAt` and `FindAt`.
    Listing(Listing),
    /// To `Fetch` of metadata: the encoded metadata of an object that has no replica.
    Metadata(Vec<u8>),
    /// To `OpenLazy`, with descriptors: a file for the object's bytes; a socket for
    /// [`ServeFaults`](super::ServeFaults), if the node serves the client's faults; and the device
    /// that gives the right to serve page faults, if the node may open it.
    Lazy(Box<LazyObject>),
    /// To `Drain`, about the state.
    Drain(DrainReport),
}

/// An object whose bytes are brought page by page, into a sparse file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LazyObject {
    /// Its id.
    pub id: WireObjectId,
    /// `ObjectKind` as a number.
    pub kind: u8,
    /// Bytes of its buffers.
    pub bytes: u64,
    /// Its blocks, at most [`LAZY_BLOCKS_MAX`](super::LAZY_BLOCKS_MAX).
    pub blocks: Vec<LazyBlock>,
    /// Its descriptor, at most [`LAZY_DESCRIPTOR_BYTES_MAX`](super::LAZY_DESCRIPTOR_BYTES_MAX).
    pub descriptor: Vec<u8>,
    /// crc32c of the descriptor.
    pub descriptor_crc: u32,
    /// Whether the node serves the client's page faults.
    pub is_served: bool,
}

/// A block of such an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LazyBlock {
    /// Its offset in the descriptor: that at the seal.
    pub origin: u64,
    /// Its offset in the file.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// A page of a list of objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The objects, in no particular order.
    pub items: Vec<ListedItem>,
    /// Position at which the next page begins; `None`: this page is the last.
    pub next: Option<u64>,
}

/// An object of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedItem {
    /// Its id.
    pub id: WireObjectId,
    /// Its name in its namespace, if it has one.
    pub name: Option<String>,
    /// `ObjectKind` as a number.
    pub kind: u8,
    /// Bytes of its buffers.
    pub bytes: u64,
    /// Nanoseconds since 1970 at its seal.
    pub sealed_at_ns: u64,
    /// Process that created it.
    pub creator_pid: u32,
    /// Its metadata, encoded.
    pub metadata: Vec<u8>,
    /// Whether it is exempt from eviction.
    pub is_pinned: bool,
    /// Nanoseconds since 1970 at its last use.
    pub last_use_ns: u64,
    /// Whether it is spilled.
    pub is_spilled: bool,
    /// Whether its name in memory was overwritten.
    pub is_name_damaged: bool,
}

/// State of a daemon outside its region, at most [`BATCH_ITEMS_MAX`](super::BATCH_ITEMS_MAX)
/// entries of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inheritance {
    /// Names of objects in creation, each with the slot of its client.
    pub reserved: Vec<(u32, String)>,
    /// Objects that their creators do not hold yet: slot, and id.
    pub retained: Vec<(u32, WireObjectId)>,
    /// Number of reserved objects, by the slot of the client.
    pub reserved_objects: Vec<(u32, u32)>,
    /// The node's incarnation in its cluster, to which its flags belong; 0 without a cluster.
    pub incarnation: u64,
    /// Flags by their full names.
    pub flags: Vec<(String, u64)>,
}

/// The client's slot in the region, and how to map the region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION) of the daemon.
    pub version: u32,
    /// Uid of the region.
    pub region_uid: u64,
    /// True for the `device` fabric, false for `shm`.
    pub is_device: bool,
    /// True when the region is coherent only inside a node.
    pub is_node_local: bool,
    /// Length of the control section in bytes.
    pub control_bytes: u64,
    /// Length of the data section in bytes.
    pub data_bytes: u64,
    /// Where the control section begins in its file.
    pub control_file_offset: u64,
    /// Where the data section begins in its file.
    pub data_file_offset: u64,
    /// Address at which every process should map the region.
    pub base: u64,
    /// Slot in the client table.
    pub slot: u32,
    /// Proves the ownership of the slot when the client reconnects.
    pub nonce: u64,
    /// Hold pages of this client.
    pub hold_blocks: Vec<WireSpan>,
    /// Its pages for entries of objects that it seals by itself; adjacent pages form one span.
    pub entry_pages: Vec<WireSpan>,
    /// The ranges granted to this client, as the daemon knows them.
    pub grants: Vec<WireSpan>,
    /// Process id of the daemon.
    pub pid: u32,
    /// Path or name of the memory, for display.
    pub memory: String,
    /// Number of the client's namespace.
    pub namespace: u16,
    /// Events before this one belong to other namespaces.
    pub events_from: u64,
    /// Whether objects are limited: a client then needs a reservation before it creates some.
    pub are_objects_limited: bool,
}

/// A namespace and its usage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceReport {
    /// Its name; the default namespace has an empty name.
    pub name: String,
    /// Bytes granted to its clients, and those of its objects.
    pub bytes: u64,
    /// Limit of `bytes`; `None`: no limit.
    pub bytes_max: Option<u64>,
    /// Sealed objects.
    pub objects: u64,
    /// Limit of `objects`; `None`: no limit.
    pub objects_max: Option<u64>,
    /// User ids with write permission; `None`: all users that may connect.
    pub writers: Option<Vec<u32>>,
    /// Clients in it.
    pub clients: u64,
}

/// All clients, and the heap from its start to its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// All clients.
    pub clients: Vec<ClientOverview>,
    /// Equal parts of the heap.
    pub cells: Vec<CellOverview>,
}

/// One client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientOverview {
    /// Its slot.
    pub slot: u32,
    /// Its process id.
    pub pid: u32,
    /// Its user id.
    pub uid: u32,
    /// Bytes granted and not sealed.
    pub granted: u64,
    /// Objects that it holds.
    pub holds: u64,
    /// Ids of objects that it holds, as far as the request lists them. If one was freed during the
    /// count, the next object of its slot may be listed instead.
    pub held: Vec<WireObjectId>,
    /// False if it holds more.
    pub are_all_held: bool,
    /// False if it has not reconnected since its connection or the daemon ended.
    pub is_connected: bool,
}

/// Bytes of a part of the heap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellOverview {
    /// Free bytes.
    pub free: u64,
    /// Bytes granted and not sealed.
    pub granted: u64,
    /// Bytes of held objects.
    pub held: u64,
    /// Bytes of other objects.
    pub used: u64,
}

/// The result of an eviction, and the memory that it could not free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictedReport {
    /// Evicted objects.
    pub objects: u64,
    /// Bytes freed by these evictions.
    pub bytes: u64,
    /// Bytes of held objects.
    pub held: u64,
    /// Bytes of pinned objects.
    pub pinned: u64,
    /// Bytes granted to clients and not sealed.
    pub granted: u64,
    /// Bytes of deleted objects that a client still holds.
    pub retiring: u64,
}
