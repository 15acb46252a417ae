//! Errors of this crate; variants carry the numbers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use farrow_memory::{AccessError, BoundsError, Length, Offset, Span};

use crate::frame::{ErrorCode, Op};

/// A protocol violation of the peer, which ends the connection with this reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The op is unknown in this version.
    #[error("unknown op {op}")]
    UnknownOp {
        /// The op byte.
        op: u8,
    },
    /// The flags differ from those of this connection.
    #[error("{op:?} with flags {flags:#x}, expected {expected:#x}")]
    Flags {
        /// Op of the frame.
        op: Op,
        /// Flags and the reserved bytes after them.
        flags: u32,
        /// The required value.
        expected: u32,
    },
    /// The body is too short or too long for its op.
    #[error("{op:?} with a body of {length} B, expected {min} to {max}")]
    BodyLength {
        /// Op of the frame.
        op: Op,
        /// Length in the header.
        length: u64,
        /// Minimum length.
        min: u64,
        /// Maximum length.
        max: u64,
    },
    /// The checksum does not match.
    #[error("{op:?} of request {id}: checksum {found:#010x}, its bytes have {computed:#010x}")]
    Checksum {
        /// Op of the frame.
        op: Op,
        /// Request of the frame.
        id: u64,
        /// Checksum in the frame.
        found: u32,
        /// Checksum of the received bytes.
        computed: u32,
    },
    /// Data was not requested, was received twice, or has another length than requested.
    #[error("data {found} for request {id}, expected {}", show_expected(*expected))]
    Unrequested {
        /// The request that the frame names.
        id: u64,
        /// The range that the frame carries.
        found: Span,
        /// The expected request and range, if any.
        expected: Option<(u64, Span)>,
    },
    /// The frame is not allowed in this state.
    #[error("{op:?} (id {id}) {place}")]
    Unexpected {
        /// Op of the frame.
        op: Op,
        /// Request of the frame.
        id: u64,
        /// The state in which it arrived.
        place: &'static str,
    },
    /// The body of a frame is malformed.
    #[error("{what}: {error}")]
    Body {
        /// Kind of the body.
        what: &'static str,
        /// The problem.
        error: BodyError,
    },
    /// Two ranges of one request share bytes.
    #[error("{a} and {b} overlap")]
    Overlap {
        /// One range.
        a: Span,
        /// The next range.
        b: Span,
    },
    /// A destination exceeds the map.
    #[error(transparent)]
    Place(BoundsError),
    /// The peer uses another protocol version.
    #[error("the peer speaks version {found} of the data path, this node {expected}")]
    Version {
        /// Version of the peer.
        found: u64,
        /// Version of this node.
        expected: u64,
    },
    /// The peer's data section does not have the configured length.
    #[error("the peer's data section has {found}, its mirror here {expected}")]
    SectionLength {
        /// Length that the peer reports.
        found: Length,
        /// Configured length.
        expected: Length,
    },
}

fn show_expected(expected: Option<(u64, Span)>) -> String {
    match expected {
        Some((id, span)) => format!("{span} for request {id}"),
        None => "nothing".to_owned(),
    }
}

/// A malformed body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// A packed piece is no LZ4 block.
    #[error("no LZ4 block of the length that was asked for: {0}")]
    NotPacked(String),
    /// A packed piece has another length than requested.
    #[error("{bytes} B unpacked, expected {expected}")]
    Unpacked {
        /// Bytes of the block.
        bytes: u64,
        /// Length of the piece.
        expected: u64,
    },
    /// The checksum of a packed piece does not match.
    #[error("checksum {found:#010x}, the unpacked bytes have {computed:#010x}")]
    PackedChecksum {
        /// Checksum in front of the block.
        found: u32,
        /// Checksum of the unpacked bytes.
        computed: u32,
    },
    /// The body ends early.
    #[error("{requested} B expected, {left} B left")]
    Short {
        /// Bytes expected.
        requested: u64,
        /// Bytes left.
        left: u64,
    },
    /// Bytes follow the end.
    #[error("{bytes} B behind the end")]
    Rest {
        /// Number of extra bytes.
        bytes: u64,
    },
    /// A count is not allowed.
    #[error("{what} of {bytes} B, at most {max} and at least one whole")]
    Count {
        /// The counted items.
        what: &'static str,
        /// Bytes, or the count.
        bytes: u64,
        /// The largest count.
        max: u64,
    },
    /// A part is longer than allowed.
    #[error("{what}: {bytes}, at most {max}")]
    TooLong {
        /// The part.
        what: &'static str,
        /// Its length or count.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A range is empty, or its end exceeds 64 bits.
    #[error("{length} at {offset} is no range")]
    Range {
        /// Start of the range.
        offset: Offset,
        /// Length of the range.
        length: Length,
    },
    /// Two blocks of one object share bytes.
    #[error("blocks {a} and {b} overlap")]
    Overlap {
        /// One block.
        a: Span,
        /// The other block.
        b: Span,
    },
    /// The inline bytes are neither all bytes of the object nor none.
    #[error("{inline} B inline of an object of {total} B")]
    Inline {
        /// Inline bytes received.
        inline: u64,
        /// Bytes of all blocks.
        total: u64,
    },
    /// The class of the connection is unknown.
    #[error("class {class} in {bytes} B")]
    Class {
        /// The class byte.
        class: u8,
        /// Bytes of the field.
        bytes: u64,
    },
}

/// The reason for the end of a connection. The first reason is retained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// A system error: refused, reset, unreachable.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer closed the connection.
    #[error("closed by the peer")]
    Closed,
    /// No progress within the limit.
    #[error("no progress for {} ms", waited.as_millis())]
    Stalled {
        /// The limit.
        waited: Duration,
    },
    /// A frame is not complete within its limit, although bytes arrive.
    #[error("a frame of {bytes} B was not whole after {} ms", waited.as_millis())]
    TooSlow {
        /// Length of the frame.
        bytes: u64,
        /// The limit.
        waited: Duration,
    },
    /// The peer violated the protocol.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// TLS failed.
    #[error("TLS: {0}")]
    Tls(String),
    /// The member or its ticket is not accepted.
    #[error("not admitted: {0}")]
    NotAdmitted(String),
    /// This side ended the connection.
    #[error("{0}")]
    Cut(String),
    /// Access to the mirror or the heap failed.
    #[error(transparent)]
    Memory(#[from] AccessError),
}

impl From<BoundsError> for ConnectionError {
    fn from(error: BoundsError) -> Self {
        Self::Memory(error.into())
    }
}

/// A failure to open, fetch or push.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The connection to the peer failed, or could not be established.
    #[error("peer {peer}: {reason}")]
    Connection {
        /// Name of the peer.
        peer: String,
        /// The reason.
        reason: Arc<ConnectionError>,
    },
    /// The peer is lost, and receives no more requests.
    #[error("peer {peer} is lost: {reason}")]
    Lost {
        /// Name of the peer.
        peer: String,
        /// The reason given by the membership.
        reason: String,
    },
    /// The peer answered with an error.
    #[error("peer {peer}: {text} ({code:?})")]
    Refused {
        /// Name of the peer.
        peer: String,
        /// The kind of error.
        code: ErrorCode,
        /// Text of the error.
        text: String,
    },
    /// The caller's deadline has passed.
    #[error("peer {peer}: {done} of {requested} after {} ms", waited.as_millis())]
    Deadline {
        /// Name of the peer.
        peer: String,
        /// Bytes transferred before the deadline.
        done: Length,
        /// Bytes requested.
        requested: Length,
        /// The caller's time limit.
        waited: Duration,
    },
    /// Too many requests are waiting for this peer.
    #[error("peer {peer}: {waiting} requests wait, at most {max}")]
    Busy {
        /// Name of the peer.
        peer: String,
        /// Number of waiting requests.
        waiting: usize,
        /// The limit.
        max: usize,
    },
    /// The request exceeds a limit of the data path.
    #[error(transparent)]
    Request(#[from] FrameError),
    /// The mirror has no room, or another object at these offsets.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// A failure to add an object or its bytes to a mirror.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The request exceeds the capacity of the cache.
    #[error("{requested} asked, the cache has {limit} in all")]
    TooLarge {
        /// Bytes requested.
        requested: Length,
        /// Capacity, set by `--cache`.
        limit: Length,
    },
    /// No room became free in time: all objects are held or arriving.
    #[error("{requested} asked, {used} of {limit} in use and held after {} ms", waited.as_millis())]
    NoRoom {
        /// Bytes requested.
        requested: Length,
        /// Bytes in use.
        used: Length,
        /// Capacity, set by `--cache`.
        limit: Length,
        /// The caller's time limit.
        waited: Duration,
    },
    /// Too many requests are waiting for room.
    #[error("{waiting} requests wait for room in the cache, at most {max}")]
    TooManyWaiters {
        /// Number of waiting requests.
        waiting: usize,
        /// The limit.
        max: usize,
    },
    /// The range is not within a block of the object.
    #[error("{range} does not lie in the blocks of object {object}")]
    NotInObject {
        /// The range.
        range: Span,
        /// The object's key.
        object: u64,
    },
    /// A block exceeds the peer's data section.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    /// Another object has bytes at these offsets of the mirror, and is held or being fetched.
    #[error("{block} of object {object} overlaps object {other}, which is still held here")]
    Overlap {
        /// The block.
        block: Span,
        /// Key of its object.
        object: u64,
        /// Key of the other object.
        other: u64,
    },
    /// The mirror has the object with other blocks. Ids are never reused, so one opening is wrong.
    #[error("object {object} was opened before with other blocks")]
    OtherBlocks {
        /// Key of the object.
        object: u64,
    },
    /// The object was deleted.
    #[error("object {object} was deleted")]
    Removed {
        /// Key of the object.
        object: u64,
    },
    /// Access to the mirror's file failed.
    #[error("mirror: {0}")]
    Memory(Arc<AccessError>),
}

impl From<AccessError> for CacheError {
    fn from(error: AccessError) -> Self {
        Self::Memory(Arc::new(error))
    }
}
