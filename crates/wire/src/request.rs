//! What clients ask.

use std::fmt;

use farrow_store::ObjectKind;
use serde::{Deserialize, Serialize};

use super::{WAIT_MS_MAX, WireSpan};
pub use crate::rights::{Rights, Rule};

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the client, returned in the reply.
    pub seq: u64,
    /// The question.
    pub body: RequestBody,
}

/// The questions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestBody {
    /// First message of a connection.
    Hello(Hello),
    /// Memory to write in: at least `min` bytes, `want` if there is as much. When there is not,
    /// the answer may take up to `wait_ms`.
    Grant {
        /// Least number of bytes that helps.
        min: u64,
        /// Number of bytes wished for.
        want: u64,
        /// How long to wait for room, in milliseconds; 0: not at all.
        wait_ms: u64,
    },
    /// Gives back parts of granted memory that hold nothing.
    Release {
        /// What to give back.
        spans: Vec<WireSpan>,
    },
    /// Takes names for objects that are being written: all of them, or none.
    Reserve {
        /// 1 to 255 bytes of UTF-8 each.
        names: Vec<String>,
    },
    /// Gives reserved names back.
    Unreserve {
        /// The names.
        names: Vec<String>,
    },
    /// Makes written memory into objects: none if a name of them is taken.
    Seal {
        /// One an object.
        items: Vec<SealItem>,
    },
    /// The client holds these objects of its own now.
    Confirm {
        /// The two halves of each id.
        ids: Vec<(u64, u64)>,
    },
    /// The client holds all objects that it sealed before it came back, and still uses.
    ConfirmEarlier,
    /// Deletes objects; space comes back when nobody holds them.
    Delete {
        /// Which.
        targets: Vec<WireTarget>,
    },
    /// Answers when `count` of the targets are sealed or the time is over.
    Wait {
        /// What is waited for.
        targets: Vec<WireTarget>,
        /// How many of them are enough.
        count: u32,
        /// Time limit in milliseconds.
        timeout_ms: u64,
    },
    /// One more page for holds.
    HoldBlock,
    /// The client let go of an object that is being deleted: look again.
    Reclaim,
    /// Numbers.
    Stats,
    /// The client needs nothing any more: its place may be cleared although it lives on.
    Goodbye,
    /// Ends the daemon.
    Shutdown,
    /// Asked instead of `Hello` by a daemon that is to follow this one: finish what has arrived,
    /// let go of the region, and pass on the listening socket and the lock.
    Handover {
        /// The region that the asker is ready to adopt.
        region_uid: u64,
    },
    /// First words of a client that came back: the names that it still needs for objects in
    /// creation. Those that the last daemon passed on need no new reservation.
    Renew {
        /// 1 to 255 bytes of UTF-8 each.
        names: Vec<String>,
        /// Every other name of this client is given back.
        are_all: bool,
    },
    /// Keeps room in the quotas for objects that the client is about to create: for all, or none.
    /// When there is none, the answer may take up to `wait_ms`.
    ReserveObjects {
        /// How many.
        objects: u32,
        /// How long to wait for room, in milliseconds; 0: not at all.
        wait_ms: u64,
    },
    /// Gives reservations back.
    UnreserveObjects {
        /// How many.
        objects: u32,
    },
    /// Among the first words of a client that came back: so many of its objects in creation were
    /// promised. What there is no room for any more is no reservation from here on.
    ReservedObjects {
        /// How many.
        objects: u32,
    },
    /// First message of a further connection of a client, on which it only waits for events.
    Listen(Listen),
    /// Answers as soon as there is an event that is meant, or the time is over. The events
    /// themselves are read in the region.
    Watch(Watch),
    /// Pins objects, so that they are never evicted, or lets them go.
    Pin {
        /// Which.
        targets: Vec<WireTarget>,
        /// False: they may be evicted again.
        is_pinned: bool,
    },
    /// Evicts what was used least recently, so many bytes or more.
    Evict {
        /// Bytes that are to become free.
        bytes: u64,
    },
    /// Answers when the object can be held; brings it back into memory if need be.
    Restore {
        /// The two halves of its id.
        id: (u64, u64),
    },
    /// Who is there and what the heap looks like.
    Overview {
        /// Parts of the heap, at most [`farrow_store::HEAP_CELLS_MAX`].
        cells: u32,
    },
    /// Pages in a row for entries of objects that the client seals by itself.
    EntryPages {
        /// Most that are wished for; at least one is given.
        count: u32,
    },
    /// Makes a namespace.
    CreateNamespace(NamespaceSpec),
    /// Drops a namespace in which nothing is.
    DropNamespace {
        /// Its name.
        name: String,
    },
    /// Which namespaces there are, and what is in them.
    Namespaces,
    /// A barrier, or flags.
    Sync {
        /// One in the cluster for each namespace; 1 to 255 bytes.
        name: String,
        /// What is to be done.
        ask: SyncAsk,
    },
    /// Which other node has an object of this name: one that the client could not reach.
    FindLost {
        /// The name.
        name: String,
    },
    /// Which nodes the cluster has.
    Nodes,
    /// What a node may do in a namespace, from now on.
    SetRule(Rule),
    /// Takes such a rule out: the next closest one holds.
    RemoveRule {
        /// As in the rule.
        namespace: String,
        /// As in the rule.
        node: String,
    },
    /// All such rules.
    Rules,
    /// The processes of a lost node have ended for certain: what they hold comes back.
    Forget {
        /// Its name.
        node: String,
    },
    /// Memory to write in, all of it or none.
    Room(RoomAsk),
    /// Ends the wait of an earlier request of this connection. If that request still waits, its
    /// answer is [`WireError::Cancelled`](super::WireError::Cancelled) and nothing has changed.
    /// If it was answered before, nothing happens.
    Cancel {
        /// The number of that request.
        seq: u64,
    },
    /// Bring an object, which is in no memory that is mapped, into that of the client's own node.
    Fetch {
        /// Which.
        target: WireTarget,
        /// How much of it.
        extent: Extent,
        /// After so long the answer is that it is still on its way.
        wait_ms: u64,
    },
    /// A page of the list of objects at a node whose memory is not mapped.
    ListAt {
        /// The node.
        node: String,
        /// Only objects whose names begin like this; empty: all.
        prefix: String,
        /// Position at which the page begins; 0: the first.
        from: u64,
    },
}

/// How much of an object is brought.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Extent {
    /// All of it.
    Whole,
    /// Some columns and rows.
    Part(PartSpec),
    /// Its metadata, and so whether it exists.
    Metadata,
}

impl Extent {
    /// The part, unless it is something else.
    pub fn part(&self) -> Option<&PartSpec> {
        match self {
            Self::Part(part) => Some(part),
            Self::Whole | Self::Metadata => None,
        }
    }
}

/// A part of an Arrow object: some columns, in this order, and some rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartSpec {
    /// Names of columns of a table or record batch, at most
    /// [`PART_COLUMNS_MAX`](super::PART_COLUMNS_MAX); `None`: all columns.
    pub columns: Option<Vec<String>>,
    /// The first row, from the end if negative; `None`: row 0.
    pub start: Option<i64>,
    /// The first row behind the part, from the end if negative; `None`: the end.
    pub stop: Option<i64>,
}

/// Memory for an operation that knows how much it needs. The node decides about all of it at once,
/// so an operation that cannot have it costs no other object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomAsk {
    /// A range of so many bytes each, at most [`ROOM_RANGES_MAX`](super::ROOM_RANGES_MAX); none: slots and names alone.
    pub sizes: Vec<u64>,
    /// Bytes wished for, where there is one range; 0: no more than needed.
    pub want: u64,
    /// How long to wait for room, in milliseconds; 0: not at all.
    pub wait_ms: u64,
    /// What it is for. `None`: nobody knows yet whether anything comes of it, so it is taken from
    /// what is free and no object goes for it.
    pub purpose: Option<Purpose>,
}

/// What memory is for: where there is no room for this, no object goes for the memory either.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purpose {
    /// Objects that are to be sealed.
    pub objects: u32,
    /// Bytes of each of their names, as the client calls them.
    pub names: Vec<u32>,
}

/// Who speaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION) of the client.
    pub version: u32,
    /// Set when the client had a place before: (region uid, slot, nonce).
    pub resume: Option<(u64, u32, u64)>,
    /// The namespace to be in; empty: the default one. One that comes back stays where it was.
    pub namespace: String,
    /// The node whose memory is to be used; empty: that of the daemon that is asked. Messages to
    /// another node go through the daemon of the client's own.
    pub node: String,
}

/// What a namespace is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceSpec {
    /// 1 to 63 bytes of UTF-8 without NUL.
    pub name: String,
    /// Most bytes of grants and objects; `None`: no limit.
    pub bytes_max: Option<u64>,
    /// Most objects; `None`: no limit.
    pub objects_max: Option<u64>,
    /// User ids of those that may write, at most 8; `None`: all that may connect.
    pub writers: Option<Vec<u32>>,
}

/// Whose further connection this is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION) of the client.
    pub version: u32,
    /// Uid of the region.
    pub region_uid: u64,
    /// The client's place.
    pub slot: u32,
    /// What proves it.
    pub nonce: u64,
    /// The node at which it has that place; empty: that of the daemon that is asked, through which
    /// messages to another one go.
    pub node: String,
}

/// Which events are meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Number of the first event of interest: those before were seen.
    pub after: u64,
    /// Only objects whose names begin like this; empty: all.
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
    pub extra: Vec<WireSpan>,
    /// CRC-32C of the list of further blocks as it lies in memory.
    pub extra_crc: u32,
    /// Bytes the user sees.
    pub size: u64,
    /// Bytes of metadata at the end of the primary block.
    pub metadata_bytes: u32,
    /// CRC-32C of the metadata.
    pub metadata_crc: u32,
    /// Name, if it has one.
    pub name: Option<String>,
    /// True when the name was reserved by this client before.
    pub is_reserved: bool,
    /// True when a reservation of this client keeps room for it.
    pub is_reserved_object: bool,
    /// True when the client goes on using the memory and will hold the object: until it says
    /// so, nobody's delete frees it.
    pub is_held_by_creator: bool,
}

impl SealItem {
    /// Plain bytes without a name: the first `size` of `primary`.
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
        }
    }
}

/// An object by id or by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireTarget {
    /// The two halves of the id.
    Id(u64, u64),
    /// The name.
    Name(String),
}

impl fmt::Display for WireTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(hi, lo) => write!(f, "{}", farrow_store::ObjectId { hi: *hi, lo: *lo }),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// What a client wants done to a barrier or to flags.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncAsk {
    /// Come to a barrier.
    Arrive {
        /// How many come.
        parties: u32,
        /// Time limit.
        timeout_ms: u64,
    },
    /// Set and clear flags.
    SetFlags {
        /// Bits to set, after
        set: u64,
        /// these were cleared.
        clear: u64,
    },
    /// Wait until all these are set.
    WaitFlags {
        /// Bits.
        mask: u64,
        /// Time limit.
        timeout_ms: u64,
    },
}

impl SyncAsk {
    /// The same with the time that is left.
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
