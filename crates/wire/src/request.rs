//! Requests of clients.
//!
//! Each list has a limit when it is decoded. It is larger than the number of items that a request may
//! have, so that the daemon can reply with that number.

use std::fmt;

use farrow_store::{ObjectId, ObjectKind};
use serde::{Deserialize, Serialize};

use super::{
    BATCH_ITEMS_MAX, DrainStep, EXTRA_BLOCKS_MAX, Setting, WAIT_MS_MAX, WireObjectId, WireSpan,
};
use crate::bounded::{list, some_list};
pub use crate::rights::{Rights, Rule};

/// Most items of a list that is decoded.
pub(crate) const LIST_ITEMS_MAX: usize = 2 * BATCH_ITEMS_MAX;

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the client, repeated in the reply.
    pub seq: u64,
    /// The content.
    pub body: RequestBody,
}

/// The content of a request, by kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestBody {
    /// Opens a session; the first message of a connection.
    Hello(Hello),
    /// Requests memory to write in: at least `min` bytes, and up to `want`. If memory is short, the
    /// reply may take up to `wait_ms`.
    Grant {
        /// Smallest usable number of bytes.
        min: u64,
        /// Preferred number of bytes.
        want: u64,
        /// Longest wait for memory in milliseconds; 0: no wait.
        wait_ms: u64,
    },
    /// Gives back unused parts of granted memory.
    Release {
        /// The ranges.
        #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
        spans: Vec<WireSpan>,
    },
    /// Reserves names for objects in creation: all of them, or none.
    Reserve {
        /// 1 to 255 bytes of UTF-8 each.
        #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
        names: Vec<String>,
    },
    /// Gives reserved names back.
    Unreserve {
        /// The names.
        #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
        names: Vec<String>,
    },
    /// Turns written memory into objects: none if one of the names is taken.
    Seal {
        /// One item per object.
        #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
        items: Vec<SealItem>,
    },
    /// Reports that the client now holds these objects, which it created.
    Confirm {
        /// The ids.
        #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
        ids: Vec<WireObjectId>,
    },
    /// Reports that the client holds every object that it sealed before it reconnected and still
    /// uses.
    ConfirmEarlier,
    /// Deletes objects; their space becomes free when no client holds them.
    Delete {
        /// The objects.
        #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
        targets: Vec<WireTarget>,
    },
    /// The reply arrives when `count` of the targets are sealed or the timeout elapses.
    Wait {
        /// The objects to wait for.
        #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
        targets: Vec<WireTarget>,
        /// Number of sealed targets that ends the wait.
        count: u32,
        /// Time limit in milliseconds.
        timeout_ms: u64,
    },
    /// Requests one more page for holds.
    HoldBlock,
    /// Reports that the client released an object that is being deleted, so that the node looks
    /// again.
    Reclaim,
    /// Requests the statistics of the node.
    Stats,
    /// Ends the session: the slot may be cleared although the process is alive.
    Goodbye,
    /// Stops the daemon.
    Shutdown,
    /// Sent instead of `Hello` by the successor of a daemon: the daemon finishes received requests,
    /// releases the region, and passes on the listening socket and the lock.
    Handover {
        /// The region that the successor is ready to adopt.
        region_uid: u64,
    },
    /// Sent first by a client that reconnected: the names that it still needs for objects in
    /// creation. Names that the last daemon passed on need no new reservation.
    Renew {
        /// 1 to 255 bytes of UTF-8 each.
        #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
        names: Vec<String>,
        /// True: every other name of this client is given back.
        are_all: bool,
    },
    /// Reserves quota for objects that the client is about to create: for all, or none. If quota is
    /// short, the reply may take up to `wait_ms`.
    ReserveObjects {
        /// Number of objects.
        objects: u32,
        /// Longest wait for quota in milliseconds; 0: no wait.
        wait_ms: u64,
    },
    /// Gives reservations back.
    UnreserveObjects {
        /// Number of objects.
        objects: u32,
    },
    /// Sent by a client after it reconnected: the number of its objects in creation that had a
    /// reservation. Reservations that exceed the quota now lapse.
    ReservedObjects {
        /// Number of objects.
        objects: u32,
    },
    /// First message of a further connection of a client, which only waits for events.
    Listen(Listen),
    /// The reply arrives when there is a matching event or the timeout elapses. The client reads
    /// the events themselves in the region.
    Watch(Watch),
    /// Pins objects, which exempts them from eviction, or unpins them.
    Pin {
        /// The objects.
        #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
        targets: Vec<WireTarget>,
        /// False: unpin.
        is_pinned: bool,
    },
    /// Evicts the least recently used objects, at least this many bytes.
    Evict {
        /// Bytes to free.
        bytes: u64,
    },
    /// The reply arrives when the object can be held; a spilled object is restored.
    Restore {
        /// Its id.
        id: WireObjectId,
    },
    /// Requests the list of clients and the state of the heap.
    Overview {
        /// Number of equal parts of the heap to report, at most [`farrow_store::HEAP_CELLS_MAX`].
        cells: u32,
        /// Number of holds to list, at most [`farrow_store::HELD_LISTED_MAX`]. Clients with few holds
        /// are complete first.
        held_max: u32,
    },
    /// Requests consecutive pages for entries of objects that the client seals by itself.
    EntryPages {
        /// Largest useful number of pages; at least one is given.
        count: u32,
    },
    /// Creates a namespace.
    CreateNamespace(NamespaceSpec),
    /// Drops an empty namespace.
    DropNamespace {
        /// Its name.
        name: String,
    },
    /// Lists the namespaces and their usage.
    Namespaces,
    /// Operates on a barrier or on flags.
    Sync {
        /// Name of the barrier or the flags, unique in the cluster for each namespace; 1 to 255
        /// bytes.
        name: String,
        /// The operation.
        ask: SyncAsk,
    },
    /// Finds the node, unreachable for the client, that has an object of this name.
    FindLost {
        /// The name.
        name: String,
    },
    /// Lists the nodes of the cluster.
    Nodes,
    /// Sets the rights of a node in a namespace.
    SetRule(Rule),
    /// Removes a rule; the next most specific rule applies.
    RemoveRule {
        /// As in the rule.
        namespace: String,
        /// As in the rule.
        node: String,
    },
    /// Lists all rules.
    Rules,
    /// Confirms that the processes of a lost node have ended; everything that they hold is
    /// reclaimed.
    Forget {
        /// Its name.
        node: String,
    },
    /// Requests memory to write in, all of it or none.
    Room(RoomAsk),
    /// Ends the wait of an earlier request of this connection. If that request still waits, its
    /// reply is [`WireError::Cancelled`](super::WireError::Cancelled) and nothing has changed. If
    /// it was already answered, nothing happens.
    Cancel {
        /// The number of that request.
        seq: u64,
    },
    /// Copies an object from unmapped memory to the memory of the client's own node.
    Fetch {
        /// The object.
        target: WireTarget,
        /// The requested extent.
        extent: Extent,
        /// Time in milliseconds after which the reply is that the transfer is in progress.
        wait_ms: u64,
    },
    /// Requests a page of the list of objects at a node whose memory is not mapped.
    ListAt {
        /// The node.
        node: String,
        /// Prefix of the names; empty: all objects.
        prefix: String,
        /// Position at which the page begins; 0: the first page.
        from: u64,
    },
    /// Brings an object that the client has sealed in memory that this node cannot map, and makes
    /// it an object of this node. The same request again waits on.
    Import {
        /// Its id.
        origin: WireObjectId,
        /// What to do with it.
        step: ImportStep,
        /// After this time the answer is that the object is still on its way, in milliseconds.
        wait_ms: u64,
    },
    /// Looks for objects at a node whose memory is not mapped. The reply lists those that exist.
    FindAt {
        /// The node.
        node: String,
        /// The objects: a few dozen names, since the request to the node is short.
        #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
        targets: Vec<WireTarget>,
    },
    /// Starts the clock of leases of this client: each object is deleted `lease_ms` after now, as
    /// if the client had ended. Ids without a lease of this client are ignored.
    EndLeases {
        /// The ids.
        #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
        ids: Vec<WireObjectId>,
    },
    /// Changes settings of the node: all, or none. At most [`SETTINGS_MAX`](super::SETTINGS_MAX).
    Set(#[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")] Vec<Setting>),
    /// First message of a further connection of a client: opens an object of unmapped memory whose
    /// pages are brought one by one. The connection holds the object.
    OpenLazy(OpenLazy),
    /// Brings all bytes of the object of such a connection that lie in a range of its file.
    Pages {
        /// Where the range starts.
        start: u64,
        /// Where it ends.
        end: u64,
    },
    /// Drains the node: its objects move to other nodes.
    Drain(DrainStep),
}

/// A step of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImportStep {
    /// Bring the bytes. They stay without an object until the next step, or until the client's
    /// connection ends.
    Bring,
    /// Bring the bytes, unless they are there, and make them an object.
    Seal {
        /// The name of the object, which this client has reserved.
        name: Option<String>,
        /// Encoded metadata instead of that of the original, of the same length.
        #[serde(deserialize_with = "some_list::<_, _, LIST_ITEMS_MAX>")]
        metadata: Option<Vec<u8>>,
        /// Whether the object is exempt from eviction from the beginning.
        is_pinned: bool,
    },
    /// Free the memory of what was brought.
    Abandon,
}

/// The extent of an object that is fetched.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Extent {
    /// All of it.
    Whole,
    /// Some columns and rows.
    Part(PartSpec),
    /// Only its metadata, which also shows whether it exists.
    Metadata,
    /// The pages that a client reads, as it reads them: see [`RequestBody::OpenLazy`].
    Lazy {
        /// As there.
        is_again: bool,
    },
}

impl Extent {
    /// The part, if the extent is one.
    pub fn part(&self) -> Option<&PartSpec> {
        match self {
            Self::Part(part) => Some(part),
            Self::Whole | Self::Metadata | Self::Lazy { .. } => None,
        }
    }
}

/// A part of an Arrow object: some columns, in this order, and some rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartSpec {
    /// Names of columns of a table or record batch, at most
    /// [`PART_COLUMNS_MAX`](super::PART_COLUMNS_MAX); `None`: all columns.
    #[serde(deserialize_with = "some_list::<_, _, LIST_ITEMS_MAX>")]
    pub columns: Option<Vec<String>>,
    /// The first row, from the end if negative; `None`: row 0.
    pub start: Option<i64>,
    /// The first row after the part, from the end if negative; `None`: the end.
    pub stop: Option<i64>,
}

/// Memory for an operation that knows its need. The node decides about all of it at once, so an
/// operation that cannot have it evicts no object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomAsk {
    /// Bytes of each range, at most [`ROOM_RANGES_MAX`](super::ROOM_RANGES_MAX) ranges; empty: only
    /// slots and names.
    #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
    pub sizes: Vec<u64>,
    /// Preferred number of bytes, if there is one range; 0: no more than needed.
    pub want: u64,
    /// Longest wait for memory in milliseconds; 0: no wait.
    pub wait_ms: u64,
    /// The purpose. `None`: it is not certain that an object results, so the node grants only free
    /// memory and evicts no object.
    pub purpose: Option<Purpose>,
}

/// The purpose of memory: if there is no room for these objects, no object is evicted for the
/// memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purpose {
    /// Number of objects to seal; 0: one that another node brings, see [`Purpose::transit`].
    pub objects: u32,
    /// Bytes of each of their names in the client's namespace.
    #[serde(deserialize_with = "list::<_, _, LIST_ITEMS_MAX>")]
    pub names: Vec<u32>,
}

impl Purpose {
    /// Memory for an object on its way to another node, which a draining node grants too.
    #[must_use]
    pub const fn transit() -> Self {
        Self { objects: 0, names: Vec::new() }
    }

    /// Whether the memory is for no object of this node.
    #[must_use]
    pub const fn is_transit(&self) -> bool {
        self.objects == 0
    }
}

/// Identifies a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION) of the client.
    pub version: u32,
    /// Set when the client had a slot before: (region uid, slot, nonce). A connection for requests
    /// alone gets a new slot, and the earlier one ends with its connection.
    pub resume: Option<(u64, u32, u64)>,
    /// Namespace of the session; empty: the default one. A client that resumes stays in its
    /// namespace.
    pub namespace: String,
    /// Node whose memory the client uses; empty: the node of this daemon. Messages to another node
    /// pass through the daemon of the client's own node.
    pub node: String,
    /// False: the connection is for requests alone. No memory is mapped and no descriptors follow.
    pub maps_memory: bool,
}

/// Name and limits of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceSpec {
    /// 1 to 63 bytes of UTF-8 without NUL.
    pub name: String,
    /// Most bytes of grants and objects; `None`: no limit.
    pub bytes_max: Option<u64>,
    /// Most objects; `None`: no limit.
    pub objects_max: Option<u64>,
    /// User ids with write permission, at most 8; `None`: all users that may connect.
    #[serde(deserialize_with = "some_list::<_, _, LIST_ITEMS_MAX>")]
    pub writers: Option<Vec<u32>>,
}

/// Identifies the client of a further connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION) of the client.
    pub version: u32,
    /// Uid of the region.
    pub region_uid: u64,
    /// The client's slot.
    pub slot: u32,
    /// Proves the ownership of the slot.
    pub nonce: u64,
    /// Node of the slot; empty: the node of this daemon, which also forwards messages to other
    /// nodes.
    pub node: String,
}

/// Opens an object whose pages are brought one by one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenLazy {
    /// The client. Its node is the node of this daemon.
    pub client: Listen,
    /// The object.
    pub target: WireTarget,
    /// True when the client has a part of the object mapped already: a replica does not help it.
    pub is_again: bool,
    /// Time in milliseconds after which the reply is that the object is still being opened.
    pub wait_ms: u64,
}

/// Selects events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Number of the first event of interest: the client has seen all earlier ones.
    pub after: u64,
    /// Prefix of the names; empty: all objects.
    pub prefix: String,
    /// Set of kinds: bit n for `EventKind` number n.
    pub kinds: u8,
    /// Time limit in milliseconds.
    pub timeout_ms: u64,
}

/// One object to seal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealItem {
    /// `ObjectKind` as a number.
    pub kind: u8,
    /// The primary block.
    pub primary: WireSpan,
    /// Descriptor inside the primary block; length 0 for plain bytes.
    pub descriptor: WireSpan,
    /// CRC-32C of the descriptor.
    pub descriptor_crc: u32,
    /// Further blocks.
    #[serde(deserialize_with = "list::<_, _, { 2 * EXTRA_BLOCKS_MAX }>")]
    pub extra: Vec<WireSpan>,
    /// CRC-32C of the list of further blocks as stored in memory.
    pub extra_crc: u32,
    /// Bytes visible to the user.
    pub size: u64,
    /// Bytes of metadata at the end of the primary block.
    pub metadata_bytes: u32,
    /// CRC-32C of the metadata.
    pub metadata_crc: u32,
    /// Name, if it has one.
    pub name: Option<String>,
    /// True when this client reserved the name before.
    pub is_reserved: bool,
    /// True when a reservation of this client covers the object.
    pub is_reserved_object: bool,
    /// True when the client continues to use the memory and will hold the object: until it confirms
    /// the hold, no delete frees the object.
    pub is_held_by_creator: bool,
    /// True when the object exists only to be brought to another node: it is deleted when the
    /// client ends.
    pub is_staged: bool,
    /// Milliseconds for which a reference in flight outlives this client, at most
    /// [`LEASE_MS_MAX`](super::LEASE_MS_MAX); 0: no lease. An object with a lease is pinned, and is
    /// deleted this long after the client ends or sends [`RequestBody::EndLeases`].
    pub lease_ms: u64,
    /// True when the object takes the name of another one of this node, which is then deleted.
    pub is_replacing: bool,
}

impl SealItem {
    /// Plain bytes without a name: the first `size` bytes of `primary`.
    pub fn bytes(primary: WireSpan, size: u64) -> Self {
        Self {
            kind: ObjectKind::Bytes.as_u8(),
            primary,
            descriptor: (primary.0, 0),
            descriptor_crc: 0,
            extra: Vec::new(),
            extra_crc: 0,
            size,
            metadata_bytes: 0,
            metadata_crc: 0,
            name: None,
            is_reserved: false,
            is_reserved_object: false,
            is_held_by_creator: false,
            is_staged: false,
            lease_ms: 0,
            is_replacing: false,
        }
    }
}

/// An object by id or by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WireTarget {
    /// The id.
    Id(WireObjectId),
    /// The name.
    Name(String),
}

impl fmt::Display for WireTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{}", ObjectId::from(*id)),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// An operation on a barrier or on flags.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncAsk {
    /// Arrives at a barrier.
    Arrive {
        /// Number of parties of the barrier.
        parties: u32,
        /// Time limit in milliseconds.
        timeout_ms: u64,
    },
    /// Clears flags, then sets flags.
    SetFlags {
        /// Bits to set after the bits of `clear` are cleared.
        set: u64,
        /// Bits to clear.
        clear: u64,
    },
    /// Waits until all flags of the mask are set.
    WaitFlags {
        /// Bits.
        mask: u64,
        /// Time limit in milliseconds.
        timeout_ms: u64,
    },
}

impl SyncAsk {
    /// The same operation with the remaining time as its limit.
    #[must_use]
    pub fn within(&self, left_ms: u64) -> Self {
        let mut ask = self.clone();
        if let Self::Arrive { timeout_ms, .. } | Self::WaitFlags { timeout_ms, .. } = &mut ask {
            *timeout_ms = left_ms;
        }
        ask
    }

    /// Its time limit, at most [`WAIT_MS_MAX`].
    pub fn timeout_ms(&self) -> u64 {
        match self {
            Self::Arrive { timeout_ms, .. } | Self::WaitFlags { timeout_ms, .. } => {
                (*timeout_ms).min(WAIT_MS_MAX)
            }
            Self::SetFlags { .. } => 0,
        }
    }
}
