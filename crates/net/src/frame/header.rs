//! The 32 bytes in front of each body.

use super::body::{
    ENTRY_BYTES_MAX, ERROR_TEXT_BYTES_MAX, HELLO_BYTES, INLINE_BYTES_MAX, OPENED_BLOCKS_MAX,
    RANGE_BYTES, RANGES_MAX,
};
use crate::PIECE_BYTES_MAX;
use crate::error::FrameError;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;

/// Version of the frames. Two ends with different versions do not talk.
pub const VERSION: u64 = 1;

/// Longest request to open an object: a name, a namespace and some fields.
pub const OPEN_BYTES_MAX: u64 = 4096;

/// Bit of `flags`: the checksum is set.
const FLAG_CHECKED: u8 = 1;

/// Where in a header the checksum lies.
const CRC_AT: std::ops::Range<usize> = 4..8;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// First frame of a client.
    Hello = 1,
    /// Its answer.
    Welcome = 2,
    /// Finds and holds an object.
    Open = 3,
    /// The object.
    Opened = 4,
    /// Asks for ranges of a held object.
    Read = 5,
    /// Bytes of one piece of a range.
    Data = 6,
    /// Ends a hold.
    Release = 7,
    /// Announces ranges of a grant that Data frames follow.
    Push = 8,
    /// All ranges of a push are in memory.
    Pushed = 9,
    /// An object was deleted.
    Gone = 10,
    /// No reader of this node finds it any more.
    GoneSeen = 11,
    /// A request failed.
    Error = 12,
    /// A hold has ended.
    Released = 13,
}

impl Op {
    /// Every op.
    pub const ALL: [Self; 13] = [
        Self::Hello,
        Self::Welcome,
        Self::Open,
        Self::Opened,
        Self::Read,
        Self::Data,
        Self::Release,
        Self::Push,
        Self::Pushed,
        Self::Gone,
        Self::GoneSeen,
        Self::Error,
        Self::Released,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u8 == byte)
    }

    /// Shortest and longest body.
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
            Self::Read | Self::Push => (RANGE_BYTES as u64, (RANGES_MAX * RANGE_BYTES) as u64),
            Self::Data => (1, PIECE_BYTES_MAX),
            Self::Error => (0, ERROR_TEXT_BYTES_MAX),
            Self::Release | Self::Released | Self::Pushed | Self::Gone | Self::GoneSeen => (0, 0),
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What it is.
    pub op: Op,
    /// The request it belongs to.
    pub id: u64,
    /// See the table of [`super`].
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

    /// As bytes; with the checksum over `body` where `is_checked`.
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

    /// Reads a header. The checksum is left for [`Header::verify`], once the body is there.
    ///
    /// # Errors
    /// [`FrameError`]: an unknown op, other flags than the connection has agreed on, a body shorter
    /// or longer than the op allows.
    pub fn decode(bytes: &[u8; HEADER_BYTES], is_checked: bool) -> Result<Self, FrameError> {
        let op = Op::from_byte(bytes[0]).ok_or(FrameError::UnknownOp { op: bytes[0] })?;
        // With the bytes behind the flags, which are zero.
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

    /// Compares the checksum in `bytes`, from which this header was decoded, with that of header
    /// and body.
    ///
    /// # Errors
    /// [`FrameError::Checksum`] with both.
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

/// CRC-32C of both.
fn checksum(header: &[u8; HEADER_BYTES], body: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(header);
    digest.update(body);
    // Of 32 bits, in a word that has room for the longest of that crate.
    digest.finalize() as u32
}

fn word(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
