//! What the daemon answers.

use serde::{Deserialize, Serialize};

use super::{Members, Rule, WireError, WireSpan};

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// That of the request.
    pub seq: u64,
    /// The answer.
    pub body: Result<ReplyBody, WireError>,
}

/// The answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplyBody {
    /// To `Hello`; three file descriptors come with it.
    Welcome(Welcome),
    /// To `Grant`.
    Granted(WireSpan),
    /// Done, nothing to say.
    Done,
    /// To `Seal`: one result an item.
    Sealed(Vec<Result<(u64, u64), WireError>>),
    /// To `Delete`: one result a target.
    Deleted(Vec<Result<(), WireError>>),
    /// To `Wait`: which are sealed. To `Renew`: which are reserved.
    Ready(Vec<bool>),
    /// To `HoldBlock`.
    HoldBlock(WireSpan),
    /// To `Stats`.
    Stats(Box<NodeStats>),
    /// To `Handover`, with two descriptors: the listening socket, then the lock.
    HandedOver(Inheritance),
    /// To `Watch`: no event before this number is of interest.
    Watched {
        /// Number of the next event to look at.
        next: u64,
    },
    /// To `Pin`: one result a target.
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
        /// All flags of that name.
        value: u64,
        /// False: what was waited for did not come in time.
        is_met: bool,
    },
    /// To `Nodes`.
    Nodes(Members),
    /// To `Rules`.
    Rules(Vec<Rule>),
    /// To `Room`: one range a size.
    Room(Vec<WireSpan>),
    /// To `Fetch`: the id of a replica in the client's own node. None: the object is nowhere.
    Fetched(Option<(u64, u64)>),
    /// To `Fetch`: it is on its way.
    Fetching,
    /// To `Fetch` of a part: the id of an object in the client's own node that is that part alone.
    FetchedPart((u64, u64)),
    /// To `ListAt`.
    Listing(Listing),
    /// To `Fetch` of metadata: it, encoded, of an object of which there is no replica.
    Metadata(Vec<u8>),
}

/// A page of a list of objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The objects, in no order.
    pub items: Vec<ListedItem>,
    /// Position at which the next page begins; `None`: this is the last.
    pub next: Option<u64>,
}

/// An object of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedItem {
    /// The two halves of its id.
    pub id: (u64, u64),
    /// Its name in its namespace, if it has one.
    pub name: Option<String>,
    /// `ObjectKind` as a number.
    pub kind: u8,
    /// Bytes of its buffers.
    pub bytes: u64,
    /// Nanoseconds since 1970 at its seal.
    pub sealed_at_ns: u64,
    /// Process that made it.
    pub creator_pid: u32,
    /// Its metadata, encoded.
    pub metadata: Vec<u8>,
    /// Whether it is never evicted.
    pub is_pinned: bool,
    /// Nanoseconds since 1970 at its last use.
    pub last_use_ns: u64,
    /// Whether it is out of memory.
    pub is_spilled: bool,
    /// Whether its name in memory was overwritten.
    pub is_name_damaged: bool,
}

/// What a daemon knows that is not in its region. At most [`BATCH_ITEMS_MAX`](super::BATCH_ITEMS_MAX) of each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inheritance {
    /// Names of objects in creation, each with the place of its client.
    pub reserved: Vec<(u32, String)>,
    /// Objects that their creators have not held yet: place, and the two halves of the id.
    pub retained: Vec<(u32, u64, u64)>,
    /// Promised objects, by the place of the client.
    pub promised: Vec<(u32, u32)>,
}

/// The client's place in the region.
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
    /// Place in the client table.
    pub slot: u32,
    /// Proves the place when the client comes back.
    pub nonce: u64,
    /// Hold pages of this client.
    pub hold_blocks: Vec<WireSpan>,
    /// Its pages for entries of objects that it seals by itself, neighbours as one.
    pub entry_pages: Vec<WireSpan>,
    /// What the daemon believes is granted to this client.
    pub grants: Vec<WireSpan>,
    /// Process id of the daemon.
    pub pid: u32,
    /// Path or name of the memory, for people.
    pub memory: String,
    /// Number of the client's namespace.
    pub namespace: u16,
    /// Events before this one are not of that namespace.
    pub events_from: u64,
    /// Objects are counted: who is about to create some asks for a reservation.
    pub are_objects_limited: bool,
}

/// A namespace, and what is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceReport {
    /// Its name; that of the default one is empty.
    pub name: String,
    /// Bytes granted to its clients, and those of its objects.
    pub bytes: u64,
    /// Most of them; `None`: no limit.
    pub bytes_max: Option<u64>,
    /// Sealed objects.
    pub objects: u64,
    /// Most of them; `None`: no limit.
    pub objects_max: Option<u64>,
    /// User ids of those that may write; `None`: all that may connect.
    pub writers: Option<Vec<u32>>,
    /// Clients in it.
    pub clients: u64,
}

/// Who is there, and the heap from its start to its end.
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
    /// Its place.
    pub slot: u32,
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Bytes granted and not sealed.
    pub granted: u64,
    /// Objects that it holds.
    pub holds: u64,
    /// False when it has not come back since its connection or the daemon ended.
    pub is_connected: bool,
}

/// Bytes of a part of the heap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellOverview {
    /// Free.
    pub free: u64,
    /// Granted and not sealed.
    pub granted: u64,
    /// Of objects that somebody holds.
    pub held: u64,
    /// Of other objects.
    pub used: u64,
}

/// Numbers of a node; bytes unless said otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Heap bytes lent.
    pub capacity: u64,
    /// Bytes of live objects, rounded to lines.
    pub used: u64,
    /// Bytes that can be granted or lie between objects.
    pub free: u64,
    /// Longest free run of whole pages.
    pub largest_free: u64,
    /// Bytes granted to clients and not sealed.
    pub granted: u64,
    /// Free bytes in pages that also hold objects.
    pub fragmented: u64,
    /// Bytes that a client of another machine could write and went without cleaning.
    pub quarantine: u64,
    /// Bytes of deleted objects that somebody still holds.
    pub retiring: u64,
    /// Sealed objects.
    pub objects: u64,
    /// Most objects.
    pub objects_max: u64,
    /// Deleted objects that somebody still holds.
    pub objects_retiring: u64,
    /// Clients that have a place.
    pub clients: u64,
    /// Most clients.
    pub clients_max: u64,
    /// Objects held, summed over clients.
    pub holds: u64,
    /// Region uid.
    pub region_uid: u64,
    /// Process id of the daemon.
    pub pid: u32,
    /// Milliseconds since the daemon started.
    pub uptime_ms: u64,
    /// Objects adopted at start from an earlier life.
    pub adopted: u64,
    /// Bytes of the heap whose pages are ready.
    pub prepared: u64,
    /// `shm` or `device`.
    pub fabric: String,
    /// `coherent` or `node-local`.
    pub coherence: String,
    /// Where the memory lies, for people.
    pub memory: String,
    /// Size of the huge pages that the memory offers; 0: none.
    pub huge_page_bytes: u64,
    /// Requests answered since start.
    pub requests: u64,
    /// Objects sealed since start.
    pub sealed_total: u64,
    /// Objects deleted since start.
    pub deleted_total: u64,
    /// Requests that wait for memory.
    pub waiting: u64,
    /// Bytes that they wait for.
    pub waiting_bytes: u64,
    /// Times the event loop woke since start; none while nothing happens.
    pub turns_total: u64,
    /// How objects are chosen for eviction: `lru` or `none`.
    pub eviction: String,
    /// Bytes of sealed objects that somebody holds.
    pub held: u64,
    /// Bytes of pinned objects, held or not.
    pub pinned: u64,
    /// Pinned objects.
    pub objects_pinned: u64,
    /// Bytes of objects that could be evicted now.
    pub evictable: u64,
    /// Objects evicted since start.
    pub evicted_total: u64,
    /// Bytes that became free with them.
    pub evicted_bytes_total: u64,
    /// Bytes of the region's tables that objects take.
    pub records: u64,
    /// Objects that clients sealed by themselves, those deleted and held included.
    pub client_objects: u64,
    /// Most of them.
    pub client_objects_max: u64,
    /// Objects that are out of memory.
    pub objects_spilled: u64,
    /// Bytes that their users see.
    pub spilled: u64,
    /// Objects written to files since start, those that came back included.
    pub spilled_total: u64,
    /// Objects that came back since start.
    pub restored_total: u64,
    /// Files that could not be written or read since start.
    pub spill_failures_total: u64,
    /// Memory of the daemon that requests, replies and waits of clients and other nodes take.
    pub buffers: u64,
    /// Most of it.
    pub buffers_max: u64,
}

/// What an eviction did, and what stood in the way of more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictedReport {
    /// Objects that went.
    pub objects: u64,
    /// Bytes that became free with them.
    pub bytes: u64,
    /// Bytes of objects that somebody holds.
    pub held: u64,
    /// Bytes of pinned objects.
    pub pinned: u64,
    /// Bytes granted to clients and not sealed.
    pub granted: u64,
    /// Bytes of deleted objects that somebody holds.
    pub retiring: u64,
}
