//! The words that a client and its daemon exchange over a Unix socket.
//!
//! A frame is a little-endian `u32` length and that many bytes of a postcard-encoded
//! [`Request`] or [`Reply`]. Descriptors of files travel only with the reply to `Hello`.
//! Everything here is input: lengths are limited before anything is allocated.

use farrow_store::ObjectKind;
use serde::{Deserialize, Serialize};

/// Version of this protocol; a peer of another version is refused in `Hello`.
pub const PROTOCOL_VERSION: u32 = 2;

/// Longest frame in bytes: 8192 seal items of about 200 bytes and as many names of 255.
pub const FRAME_BYTES_MAX: usize = 4 << 20;

/// Most items of one batch message (seal, delete, wait, release).
pub const BATCH_ITEMS_MAX: usize = 8192;

/// Most extra blocks of one object: its list of 16 bytes each then takes 1 MiB.
pub const EXTRA_BLOCKS_MAX: usize = 65_536;

/// Longest wait in milliseconds that one message may ask for; a client asks again.
pub const WAIT_MS_MAX: u64 = 3_600_000;

/// (offset, length) in bytes from the start of the region.
pub type WireSpan = (u64, u64);

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
    /// Makes written memory into objects.
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
}

/// Who speaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`] of the client.
    pub version: u32,
    /// Set when the client had a place before: (region uid, slot, nonce).
    pub resume: Option<(u64, u32, u64)>,
    /// The namespace to be in; empty: the default one. One that comes back stays where it was.
    pub namespace: String,
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

/// Whose further connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// [`PROTOCOL_VERSION`] of the client.
    pub version: u32,
    /// Uid of the region.
    pub region_uid: u64,
    /// The client's place.
    pub slot: u32,
    /// What proves it.
    pub nonce: u64,
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
}

/// What a daemon knows that is not in its region. At most [`BATCH_ITEMS_MAX`] of each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inheritance {
    /// Names of objects in creation, each with the place of its client.
    pub reserved: Vec<(u32, String)>,
    /// Objects that their creators have not held yet: place, and the two halves of the id.
    pub kept: Vec<(u32, u64, u64)>,
}

/// The client's place in the region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL_VERSION`] of the daemon.
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

/// Why not, in terms of what the caller can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum WireError {
    /// No run of free memory is long enough.
    #[error(
        "out of memory: asked {asked} B, {free} B free, longest free run {largest} B{}",
        after(*waited_ms)
    )]
    OutOfMemory {
        /// Bytes asked.
        asked: u64,
        /// Bytes free.
        free: u64,
        /// Longest run.
        largest: u64,
        /// How long the request waited for room, in milliseconds.
        waited_ms: u64,
    },
    /// A table of the region is full.
    #[error("too many {what}: the limit is {max}")]
    TooMany {
        /// Of what.
        what: String,
        /// Limit.
        max: u64,
    },
    /// The name is in use.
    #[error("the name {name:?} is taken")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No such object.
    #[error("no object {what}")]
    NotFound {
        /// Id or name.
        what: String,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Not allowed.
    #[error("{0}")]
    Denied(String),
    /// The client speaks another version.
    #[error("protocol version {theirs} asked, this daemon speaks {ours}")]
    Version {
        /// Of the client.
        theirs: u32,
        /// Of the daemon.
        ours: u32,
    },
    /// The region that the client knew is gone.
    #[error("the node lost its region {old:#018x} and serves {new:#018x} now")]
    OtherRegion {
        /// What the client had.
        old: u64,
        /// What is served.
        new: u64,
    },
    /// The daemon is ending.
    #[error("the node is shutting down")]
    Closing,
    /// Something is wrong with the region itself.
    #[error("the region is damaged: {0}")]
    Damaged(String),
    /// More than the region could ever hold.
    #[error("{asked} B asked of a region of {capacity} B")]
    TooLarge {
        /// Bytes asked.
        asked: u64,
        /// Bytes of the heap.
        capacity: u64,
    },
    /// A client may not have more.
    #[error("quota of {whose}: {asked} {what} asked, {used} of {limit} in use")]
    QuotaExceeded {
        /// Of whom.
        whose: String,
        /// `bytes` or `objects`.
        what: String,
        /// How many were asked.
        asked: u64,
        /// How many it has.
        used: u64,
        /// How many it may have.
        limit: u64,
    },
    /// No such namespace.
    #[error("no namespace {name:?}; there are {known:?}")]
    NoNamespace {
        /// The name asked for.
        name: String,
        /// Some of those that there are, besides the default one.
        known: Vec<String>,
    },
    /// A namespace is not empty.
    #[error("namespace {name:?} is in use: {objects} objects, {bytes} B, {clients} clients")]
    NamespaceInUse {
        /// Its name.
        name: String,
        /// Sealed objects in it.
        objects: u64,
        /// Bytes granted to its clients, and those of objects not yet gone.
        bytes: u64,
        /// Clients in it.
        clients: u64,
    },
    /// A spilled object cannot be brought back; it stays spilled.
    #[error("object {what} cannot be restored from {file}: {reason}")]
    NotRestored {
        /// Its id.
        what: String,
        /// Its file.
        file: String,
        /// What is wrong with the file.
        reason: String,
    },
}

/// What an error says of a wait.
pub fn after(waited_ms: u64) -> String {
    if waited_ms == 0 { String::new() } else { format!(", after waiting {waited_ms} ms") }
}

/// Why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The announced length is over the limit.
    #[error("a frame of {bytes} B was announced, the limit is {max} B")]
    TooLong {
        /// Announced.
        bytes: usize,
        /// Limit.
        max: usize,
    },
    /// The bytes do not decode.
    #[error("a frame of {bytes} B does not decode: {reason}")]
    Garbled {
        /// Length.
        bytes: usize,
        /// Decoder's words.
        reason: String,
    },
}

/// Appends a frame with `message` to `out`.
pub fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    if let Err(error) = postcard::to_io(message, &mut *out) {
        out.truncate(start);
        return Err(FrameError::Garbled { bytes: 0, reason: error.to_string() });
    }
    let bytes = out.len() - start - 4;
    if bytes > FRAME_BYTES_MAX {
        out.truncate(start);
        return Err(FrameError::TooLong { bytes, max: FRAME_BYTES_MAX });
    }
    if let Some(head) = out.get_mut(start..start + 4) {
        head.copy_from_slice(&(bytes as u32).to_le_bytes());
    }
    Ok(())
}

/// Takes one message off the front of `buffer`; `None` while it is not whole.
///
/// Returns the message and how many bytes it took.
pub fn decode<T: for<'a> Deserialize<'a>>(buffer: &[u8]) -> Result<Option<(T, usize)>, FrameError> {
    let Some((head, rest)) = buffer.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let bytes = u32::from_le_bytes(*head) as usize;
    if bytes > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong { bytes, max: FRAME_BYTES_MAX });
    }
    let Some(body) = rest.get(..bytes) else {
        return Ok(None);
    };
    match postcard::from_bytes(body) {
        Ok(message) => Ok(Some((message, bytes + 4))),
        Err(error) => Err(FrameError::Garbled { bytes, reason: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_wire_in_any_pieces() {
        let request = Request {
            seq: 7,
            body: RequestBody::Wait {
                targets: vec![WireTarget::Name("a".into()), WireTarget::Id(1, 2)],
                count: 2,
                timeout_ms: 50,
            },
        };
        let mut bytes = Vec::new();
        encode(&request, &mut bytes).unwrap();
        for cut in 0..bytes.len() {
            assert_eq!(decode::<Request>(&bytes[..cut]).unwrap(), None);
        }
        bytes.push(9);
        let (back, used) = decode::<Request>(&bytes).unwrap().unwrap();
        assert_eq!((back, used), (request, bytes.len() - 1));
    }

    #[test]
    fn too_long_and_garbled_frames_are_refused() {
        let long = ((FRAME_BYTES_MAX + 1) as u32).to_le_bytes();
        assert!(matches!(decode::<Request>(&long), Err(FrameError::TooLong { .. })));
        let garbled = [2, 0, 0, 0, 0xff, 0xff];
        assert!(matches!(decode::<Request>(&garbled), Err(FrameError::Garbled { .. })));
        let huge =
            Request { seq: 1, body: RequestBody::Reserve { names: vec!["x".repeat(5 << 20)] } };
        let mut out = vec![1];
        assert!(matches!(encode(&huge, &mut out), Err(FrameError::TooLong { .. })));
        assert_eq!(out, [1], "a refused message leaves the buffer as it was");
    }
}
