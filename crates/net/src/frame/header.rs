//! The 32-byte header of each frame.

use super::body::{
    ENDPOINT_BYTES, ENTRY_BYTES_MAX, ERROR_TEXT_BYTES_MAX, HELLO_BYTES, INLINE_BYTES_MAX,
    KEY_BYTES, OPENED_BLOCKS_MAX, RANGE_BYTES, RANGES_MAX, RATE_BYTES,
};
use crate::PIECE_BYTES_MAX;
use crate::error::FrameError;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;

/// Protocol version. Nodes with different versions do not connect.
pub const VERSION: u64 = 1;

/// Maximum length of a request to open an object: a name, a namespace and some fields.
pub const OPEN_BYTES_MAX: u64 = 4096;

/// Bit of the id of a Welcome: the server answers ReadPacked. Earlier versions send 0 and ignore it.
pub const CAN_PACK: u64 = 1;

/// A checksum, and a block of at least one byte.
const PACKED_BYTES_MIN: u64 = 5;

/// Bit of `flags`: the checksum is set.
const FLAG_CHECKED: u8 = 1;

/// Position of the checksum in a header.
const CRC_AT: std::ops::Range<usize> = 4..8;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// First frame of a client.
    Hello = 1,
    /// Answer to Hello.
    Welcome = 2,
    /// Finds and holds an object.
    Open = 3,
    /// Answer to Open.
    Opened = 4,
    /// Requests ranges of a held object.
    Read = 5,
    /// Bytes of one piece of a range.
    Data = 6,
    /// Ends a hold.
    Release = 7,
    /// Announces ranges of a grant; Data frames follow.
    Push = 8,
    /// Acknowledges that all ranges of a push are in memory.
    Pushed = 9,
    /// An object was deleted.
    Invalidate = 10,
    /// Acknowledges Invalidate: no reader of this node can find the object.
    Invalidated = 11,
    /// A request failed.
    Error = 12,
    /// Acknowledges Release: the hold has ended.
    Released = 13,
    /// Connects two network cards.
    Meet = 14,
    /// Answer to Meet.
    Met = 15,
    /// Lets the client's network card read ranges of a held object.
    Expose = 16,
    /// Answer to Expose.
    Exposed = 17,
    /// Ends what Expose began.
    Conceal = 18,
    /// As Read; pieces may come packed.
    ReadPacked = 19,
    /// Compressed bytes of one piece of a range.
    Packed = 20,
}

impl Op {
    /// Every op.
    pub const ALL: [Self; 20] = [
        Self::Hello,
        Self::Welcome,
        Self::Open,
        Self::Opened,
        Self::Read,
        Self::Data,
        Self::Release,
        Self::Push,
        Self::Pushed,
        Self::Invalidate,
        Self::Invalidated,
        Self::Error,
        Self::Released,
        Self::Meet,
        Self::Met,
        Self::Expose,
        Self::Exposed,
        Self::Conceal,
        Self::ReadPacked,
        Self::Packed,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u8 == byte)
    }

    /// Minimum and maximum length of the body.
    #[must_use]
    pub const fn body_bytes(self) -> (u64, u64) {
        match self {
            Self::Hello => (HELLO_BYTES as u64, HELLO_BYTES as u64),
            Self::Welcome => (8, 8),
            Self::Open => (1, OPEN_BYTES_MAX),
            Self::Opened => {
                let counts = 12;
                let blocks = OPENED_BLOCKS_MAX as u64 * RANGE_BYTES as u64;
                (counts, counts + blocks + ENTRY_BYTES_MAX + INLINE_BYTES_MAX)
            }
            Self::Read | Self::Push | Self::Expose => {
                (RANGE_BYTES as u64, (RANGES_MAX * RANGE_BYTES) as u64)
            }
            Self::ReadPacked => {
                let (rate, range) = (RATE_BYTES as u64, RANGE_BYTES as u64);
                (rate + range, rate + RANGES_MAX as u64 * range)
            }
            Self::Data => (1, PIECE_BYTES_MAX),
            Self::Packed => (PACKED_BYTES_MIN, PIECE_BYTES_MAX - 1),
            Self::Error => (0, ERROR_TEXT_BYTES_MAX),
            Self::Meet | Self::Met => (ENDPOINT_BYTES as u64, ENDPOINT_BYTES as u64),
            Self::Exposed => (KEY_BYTES as u64, (RANGES_MAX * KEY_BYTES) as u64),
            Self::Release
            | Self::Released
            | Self::Pushed
            | Self::Invalidate
            | Self::Invalidated
            | Self::Conceal => (0, 0),
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind of the frame.
    pub op: Op,
    /// The request that the frame belongs to.
    pub id: u64,
    /// The table of [`super`] lists its meaning for each op.
    pub offset: u64,
    /// Bytes of the body.
    pub length: u64,
}

impl FrameHeader {
    /// A header for `length` bytes of body.
    #[must_use]
    pub const fn new(op: Op, id: u64, offset: u64, length: u64) -> Self {
        Self { op, id, offset, length }
    }

    /// Encodes to bytes; `is_checked` adds the checksum of header and `body`.
    #[must_use]
    pub fn encode(&self, body: &[u8], is_checked: bool) -> [u8; HEADER_BYTES] {
        let mut bytes = self.without_checksum(is_checked);
        if is_checked {
            let crc = checksum(&bytes, body);
            bytes[CRC_AT].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    }

    fn without_checksum(&self, is_checked: bool) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.op as u8;
        bytes[1] = if is_checked { FLAG_CHECKED } else { 0 };
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Decodes a header. [`FrameHeader::verify`] checks the checksum when the body is complete.
    ///
    /// # Errors
    /// [`FrameError`]: an unknown op, flags that differ from those of the connection, or a body
    /// length that the op does not allow.
    pub fn decode(bytes: &[u8; HEADER_BYTES], is_checked: bool) -> Result<Self, FrameError> {
        let op = Op::from_byte(bytes[0]).ok_or(FrameError::UnknownOp { op: bytes[0] })?;
        // Includes the bytes after the flags, which must be zero.
        let flags = u32::from_le_bytes([bytes[1], bytes[2], bytes[3], 0]);
        let expected = if is_checked { u32::from(FLAG_CHECKED) } else { 0 };
        if flags != expected {
            return Err(FrameError::Flags { op, flags, expected });
        }
        let header = Self::new(op, word(bytes, 8), word(bytes, 16), word(bytes, 24));
        let (min, max) = op.body_bytes();
        if !(min..=max).contains(&header.length) {
            return Err(FrameError::BodyLength { op, length: header.length, min, max });
        }
        Ok(header)
    }

    /// Compares the checksum in `bytes`, the encoding of this header, with that of header and body.
    ///
    /// # Errors
    /// [`FrameError::Checksum`] with both checksums.
    pub fn verify(&self, bytes: &[u8; HEADER_BYTES], body: &[u8]) -> Result<(), FrameError> {
        let found = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let own = self.without_checksum(true);
        let computed = checksum(&own, body);
        if found == computed {
            return Ok(());
        }
        Err(FrameError::Checksum { op: self.op, id: self.id, found, computed })
    }
}

/// CRC-32C of header and body.
fn checksum(header: &[u8; HEADER_BYTES], body: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(header);
    digest.update(body);
    // The crate returns every checksum as 64 bits; this one has 32.
    digest.finalize() as u32
}

fn word(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
