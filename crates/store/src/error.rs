//! Errors of the store, grouped by the caller's possible reaction, with the numbers.

use farrow_memory::{AccessError, BoundsError, Length, MapError, Span};

use crate::format::ids::{ObjectId, Slot};
use crate::format::options::NAMESPACE_NAME_BYTES_MAX;

/// These bytes are not a region that this program can use.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// No region starts here.
    #[error("not a region: the first word is {found:#018x}")]
    BadMagic {
        /// The word in place of the magic.
        found: u64,
    },
    /// Its creator was killed, so it never had any content.
    #[error("the creation of the region was never finished")]
    Unfinished,
    /// A region of another version of the format.
    #[error("region format version {found}; this program knows version {known}")]
    OtherVersion {
        /// Version of the region.
        found: u32,
        /// The version this program supports.
        known: u32,
    },
    /// The region ends before a part that its header describes.
    #[error("region is truncated: {needed} needed, {found} there")]
    Truncated {
        /// Bytes that the header needs.
        needed: Length,
        /// Length of the mapped region.
        found: Length,
    },
    /// The header was modified or is torn.
    #[error("header checksum is {computed:#010x}, the header says {stored:#010x}")]
    Checksum {
        /// The checksum in the header.
        stored: u64,
        /// The checksum of the header's bytes.
        computed: u64,
    },
    /// Two parts of the region claim the same bytes.
    #[error("{first} ({first_span}) and {second} ({second_span}) overlap")]
    Overlap {
        /// One part.
        first: &'static str,
        /// Its range.
        first_span: Span,
        /// The other part.
        second: &'static str,
        /// Its range.
        second_span: Span,
    },
    /// A part is in the wrong section, unaligned, or of a length that contradicts its counts.
    #[error("{table} ({span}) is misplaced: {reason}")]
    Misplaced {
        /// The part.
        table: &'static str,
        /// Its range according to the header.
        span: Span,
        /// The reason.
        reason: &'static str,
    },
    /// A number in the header or in the options is out of range.
    #[error("{what} is {value}, must be in {min}..={max}")]
    OutOfRange {
        /// The number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// The region was created on a machine with another page size.
    #[error("region has pages of {region} B, this machine of {machine} B")]
    PageBytes {
        /// Page size of the region.
        region: u64,
        /// Page size of this machine.
        machine: u64,
    },
    /// Bytes of the header are not accessible.
    #[error("header: {0}")]
    Access(String),
}

/// An operation of the store failed. Unless noted otherwise, nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No free range is long enough.
    #[error("out of memory: asked {requested}, {free} free, longest range {largest}")]
    OutOfMemory {
        /// Minimum bytes requested.
        requested: Length,
        /// All free bytes.
        free: Length,
        /// The longest range that can be granted.
        largest: Length,
    },
    /// Every directory slot is in use.
    #[error("too many objects: the region holds {max} at most")]
    TooManyObjects {
        /// `objects_max` of the region.
        max: u32,
    },
    /// Every client record is in use.
    #[error("too many clients: the region serves {max} at most")]
    TooManyClients {
        /// `clients_max` of the region.
        max: u32,
    },
    /// Every grant record is in use.
    #[error("too many grants: the region records {max} at most")]
    TooManyGrants {
        /// `grants_max` of the region.
        max: u32,
    },
    /// Every hold block is assigned.
    #[error("hold blocks exhausted: the region has {max}")]
    HoldBlocksExhausted {
        /// `hold_blocks_max` of the region.
        max: u32,
    },
    /// Every page for client entries has an owner.
    #[error("entry pages exhausted: the region has {max}")]
    EntryPagesExhausted {
        /// `entry_pages_max` of the region.
        max: u32,
    },
    /// All hold slots of this client are in use; the client can request another block.
    #[error("holds exhausted: {slots} slots in {blocks} blocks are all in use")]
    HoldsExhausted {
        /// Blocks this client has.
        blocks: u32,
        /// Slots in them.
        slots: u64,
    },
    /// This process may not hold objects by this table: a fork copied it, or its client abandoned it.
    #[error("these holds belong to another process, or were abandoned: connect again")]
    HoldsUnusable,
    /// A lookup by name found nothing in a table that the home rebuilt meanwhile, each time it looked.
    #[error("the name index was rebuilt during each of {rounds} lookups")]
    IndexBusy {
        /// How often it looked.
        rounds: u32,
    },
    /// No room for the bytes of one more name.
    #[error(
        "out of memory for names: asked {requested}, {free} free, longest free run {largest}, \
         {used} in use"
    )]
    NameSpaceFull {
        /// Bytes of the name.
        requested: Length,
        /// Free bytes in the name heap.
        free: Length,
        /// The longest free run in it.
        largest: Length,
        /// Bytes in use by names.
        used: Length,
    },
    /// Another object, or an object in creation, has this name.
    #[error("name {name:?} is taken")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A name is not 1 to 255 bytes without NUL; in a named namespace the maximum is lower.
    #[error("name of {bytes} B refused: must be 1 to {max} B of UTF-8 without NUL")]
    NameInvalid {
        /// Bytes of the name.
        bytes: u64,
        /// The maximum, given the name of its namespace.
        max: u64,
    },
    /// The name of a namespace is not valid.
    #[error(
        "namespace name of {bytes} B refused: must be 1 to {NAMESPACE_NAME_BYTES_MAX} B of UTF-8 \
         without NUL"
    )]
    NamespaceNameInvalid {
        /// Bytes of the name.
        bytes: u64,
    },
    /// There is no namespace of this name.
    #[error("no namespace {name:?}; there are {known:?}")]
    NoSuchNamespace {
        /// The requested name.
        name: String,
        /// The namespaces that exist, except the default one.
        known: Vec<String>,
    },
    /// A namespace cannot be dropped while objects, memory or clients belong to it.
    #[error("namespace {name:?} is in use: {objects} objects, {bytes}, {clients} clients")]
    NamespaceInUse {
        /// Its name.
        name: String,
        /// Sealed objects in it.
        objects: u32,
        /// Bytes of grants and objects in it, including deleted objects that are still held.
        bytes: Length,
        /// Clients in it.
        clients: u32,
    },
    /// Every namespace record is in use.
    #[error("too many namespaces: the region records {max} at most")]
    TooManyNamespaces {
        /// `namespaces_max` of the region.
        max: u32,
    },
    /// More writers than a namespace record can list.
    #[error("{found} writers of a namespace: it names {max} at most")]
    TooManyWriters {
        /// Number of writers requested.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// There is no such object.
    #[error("no {what}")]
    NotFound {
        /// The kind of thing, and its id or name.
        what: String,
    },
    /// There is no such client, or its slot belongs to another client now.
    #[error("no client in slot {slot}, or not the one that asks")]
    NoSuchClient {
        /// The client slot.
        slot: u32,
    },
    /// A range is not granted to this client.
    #[error("range {span} is not granted to client {client}")]
    NotYours {
        /// The range.
        span: Span,
        /// The client slot.
        client: u32,
    },
    /// A range of a request is unaligned, empty, outside of the heap or overlaps another one.
    #[error("bad range {span}: {reason}")]
    BadSpan {
        /// The range.
        span: Span,
        /// The reason.
        reason: &'static str,
    },
    /// A request contradicts itself or the bytes it describes.
    #[error("bad request: {reason}")]
    BadRequest {
        /// The reason.
        reason: &'static str,
    },
    /// The directory entry of an object is invalid.
    #[error("directory slot {}: {reason}", slot.0)]
    Corrupt {
        /// The slot.
        slot: Slot,
        /// The reason.
        reason: &'static str,
    },
    /// The list of extra blocks of an object differs from the one that was sealed.
    #[error("block list of object {id} is damaged: checksum {computed:#010x}, not {stored:#010x}")]
    BlockListDamaged {
        /// The object.
        id: ObjectId,
        /// The checksum in the directory.
        stored: u32,
        /// The checksum of the list.
        computed: u32,
    },
    /// The home's private state contradicts the region. The home must be opened again.
    #[error("the private state contradicts the region: {0}")]
    Inconsistent(String),
    /// The bytes are not a region, or not one that this program supports.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Memory could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Memory could not be read or written.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// An offset outside of the region.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
}

impl StoreError {
    /// A word that is not accessible although its offset was checked before.
    pub(crate) fn unreachable_word(what: &'static str, index: u64) -> Self {
        Self::Inconsistent(format!("word {index} of {what} cannot be reached"))
    }
}
