//! What can go wrong, with the numbers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use farrow_memory::{AccessError, BoundsError, Length, Offset, Span};

use crate::frame::{ErrorCode, Op};

/// A frame that no honest peer sends. The connection is cut with this as its reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Not an op of this version.
    #[error("unknown op {op}")]
    UnknownOp {
        /// Its byte.
        op: u8,
    },
    /// Other flags than this connection uses.
    #[error("{op:?} with flags {flags:#x}, expected {expected:#x}")]
    Flags {
        /// The frame.
        op: Op,
        /// Flags and the reserved bytes behind them.
        flags: u32,
        /// What they must be.
        expected: u32,
    },
    /// A body too short or too long for its op.
    #[error("{op:?} with a body of {length} B, expected {min} to {max}")]
    BodyLength {
        /// The frame.
        op: Op,
        /// The length it states.
        length: u64,
        /// Shortest.
        min: u64,
        /// Longest.
        max: u64,
    },
    /// The bytes are not those that were sent.
    #[error("{op:?} of request {id}: checksum {found:#010x}, its bytes have {computed:#010x}")]
    Checksum {
        /// The frame.
        op: Op,
        /// Its request.
        id: u64,
        /// In the frame.
        found: u32,
        /// Of its bytes.
        computed: u32,
    },
    /// Data that was not asked for, or came twice, or is shorter or longer than asked for.
    #[error("data {found} for request {id}, expected {}", show_expected(*expected))]
    NotAsked {
        /// The request that the frame names.
        id: u64,
        /// Where its bytes belong.
        found: Span,
        /// The request and the range that come next, if any.
        expected: Option<(u64, Span)>,
    },
    /// A frame that has no place here.
    #[error("{op:?} (id {id}) {place}")]
    Unexpected {
        /// The frame.
        op: Op,
        /// Its request.
        id: u64,
        /// Where it came.
        place: &'static str,
    },
    /// The body of a frame is malformed.
    #[error("{what}: {error}")]
    Body {
        /// Of which frame.
        what: &'static str,
        /// What is wrong.
        error: BodyError,
    },
    /// Ranges of one request that share bytes.
    #[error("{a} and {b} overlap")]
    Overlap {
        /// One of them.
        a: Span,
        /// The next one.
        b: Span,
    },
    /// Bytes are to go outside of the map.
    #[error(transparent)]
    Place(BoundsError),
    /// The other side speaks another version.
    #[error("the peer speaks version {found} of the data path, this node {expected}")]
    Version {
        /// Its version.
        found: u64,
        /// Ours.
        expected: u64,
    },
    /// The data section is not as long as the mirror that was made for it.
    #[error("the peer's data section has {found}, its mirror here {expected}")]
    SectionLength {
        /// What the peer says.
        found: Length,
        /// What was agreed on.
        expected: Length,
    },
}

fn show_expected(expected: Option<(u64, Span)>) -> String {
    match expected {
        Some((id, span)) => format!("{span} for request {id}"),
        None => "nothing".to_owned(),
    }
}

/// What is wrong with a body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// It ends early.
    #[error("{asked} B expected, {left} B left")]
    Short {
        /// Bytes that should follow.
        asked: u64,
        /// Bytes that do.
        left: u64,
    },
    /// Bytes behind its end.
    #[error("{bytes} B behind the end")]
    Rest {
        /// How many.
        bytes: u64,
    },
    /// Not a count that is allowed.
    #[error("{what} of {bytes} B, at most {max} and at least one whole")]
    Count {
        /// Of what.
        what: &'static str,
        /// Bytes, or the count.
        bytes: u64,
        /// The largest count.
        max: u64,
    },
    /// Longer than allowed.
    #[error("{what}: {bytes}, at most {max}")]
    TooLong {
        /// Which part.
        what: &'static str,
        /// How long, or how many.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// An empty range, or one whose end is over 64 bits.
    #[error("{length} at {offset} is no range")]
    Range {
        /// Where it starts.
        offset: Offset,
        /// How long it is.
        length: Length,
    },
    /// Two blocks of one object share bytes.
    #[error("blocks {a} and {b} overlap")]
    Overlap {
        /// One.
        a: Span,
        /// The other.
        b: Span,
    },
    /// Inline bytes are all of an object or none.
    #[error("{inline} B inline of an object of {total} B")]
    Inline {
        /// Bytes that came.
        inline: u64,
        /// Bytes that the blocks have.
        total: u64,
    },
    /// An unknown class of connection.
    #[error("class {class} in {bytes} B")]
    Class {
        /// Its byte.
        class: u8,
        /// Bytes of the field.
        bytes: u64,
    },
}

/// Why a connection ended. Its first reason stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The system's answer: refused, reset, unreachable.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side closed the connection.
    #[error("closed by the peer")]
    Closed,
    /// No byte for so long.
    #[error("no progress for {} ms", waited.as_millis())]
    Stalled {
        /// The limit.
        waited: Duration,
    },
    /// Bytes come, but a frame takes too long.
    #[error("a frame of {bytes} B was not whole after {} ms", waited.as_millis())]
    TooSlow {
        /// Its length.
        bytes: u64,
        /// The limit.
        waited: Duration,
    },
    /// A malformed frame or one that was not asked for.
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
    /// The mirror or the heap could not take the bytes.
    #[error(transparent)]
    Memory(#[from] AccessError),
}

impl From<BoundsError> for ConnectionError {
    fn from(error: BoundsError) -> Self {
        Self::Memory(error.into())
    }
}

/// Opening, fetching or pushing failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The connection to the peer failed, or could not be made.
    #[error("peer {peer}: {reason}")]
    Connection {
        /// Its name.
        peer: String,
        /// Why.
        reason: Arc<ConnectionError>,
    },
    /// The peer is lost: nothing is asked of it any more.
    #[error("peer {peer} is lost: {reason}")]
    Lost {
        /// Its name.
        peer: String,
        /// Why, as the membership says.
        reason: String,
    },
    /// The peer answered with an error.
    #[error("peer {peer}: {text} ({code:?})")]
    Refused {
        /// Its name.
        peer: String,
        /// What kind of error.
        code: ErrorCode,
        /// Its text.
        text: String,
    },
    /// Not done by the caller's deadline.
    #[error("peer {peer}: {done} of {asked} after {} ms", waited.as_millis())]
    Deadline {
        /// Its name.
        peer: String,
        /// Bytes that had arrived.
        done: Length,
        /// Bytes asked for.
        asked: Length,
        /// The time that the caller gave.
        waited: Duration,
    },
    /// Too many requests wait for this peer.
    #[error("peer {peer}: {waiting} requests wait, at most {max}")]
    Busy {
        /// Its name.
        peer: String,
        /// How many.
        waiting: usize,
        /// The limit.
        max: usize,
    },
    /// The request is beyond a limit of the data path.
    #[error(transparent)]
    Request(#[from] FrameError),
    /// The mirror has no room, or has other bytes there.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// A mirror could not take an object, or bytes of it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// More than the cache holds when it is empty.
    #[error("{asked} asked, the cache has {limit} in all")]
    TooLarge {
        /// Bytes asked for.
        asked: Length,
        /// `--cache`.
        limit: Length,
    },
    /// No room became free in time: what is there is held or arriving.
    #[error("{asked} asked, {used} of {limit} in use and held after {} ms", waited.as_millis())]
    NoRoom {
        /// Bytes asked for.
        asked: Length,
        /// Bytes in use.
        used: Length,
        /// `--cache`.
        limit: Length,
        /// The time that the caller gave.
        waited: Duration,
    },
    /// Too many wait for room.
    #[error("{waiting} requests wait for room in the cache, at most {max}")]
    TooManyWaiters {
        /// How many.
        waiting: usize,
        /// The limit.
        max: usize,
    },
    /// The range does not lie in the object's blocks.
    #[error("{range} does not lie in the blocks of object {object}")]
    NotInObject {
        /// The range.
        range: Span,
        /// The object's key.
        object: u64,
    },
    /// A block does not lie in the peer's data section.
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    /// Another object has these bytes in the mirror, and readers here hold it.
    #[error("{block} of object {object} overlaps object {other}, which is still held here")]
    Overlap {
        /// The block.
        block: Span,
        /// Its object.
        object: u64,
        /// The object that is there.
        other: u64,
    },
    /// The object is there with other blocks: ids are never used twice, so one of them is wrong.
    #[error("object {object} was opened before with other blocks")]
    OtherBlocks {
        /// Its key.
        object: u64,
    },
    /// The object was deleted.
    #[error("object {object} was deleted")]
    Gone {
        /// Its key.
        object: u64,
    },
    /// The file of the mirror failed.
    #[error("mirror: {0}")]
    Memory(Arc<AccessError>),
}

impl From<AccessError> for CacheError {
    fn from(error: AccessError) -> Self {
        Self::Memory(Arc::new(error))
    }
}
