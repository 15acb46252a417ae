//! Bodies of frames other than Data.

use farrow_memory::{Length, Offset, Span};

use crate::error::{BodyError, FrameError};
use crate::pack::wish::PackWish;
use crate::ticket::{TICKET_BYTES, Ticket};

/// Maximum ranges of one request: one page, so that a request fits any socket buffer.
pub const RANGES_MAX: usize = 256;

/// Maximum bytes of one request. Reads of this version ask for 1 MiB. The limit bounds the time
/// that a reader waits for a request of another version.
pub const READ_BYTES_MAX: u64 = 8 << 20;

/// Bytes of the rate in front of the ranges of a ReadPacked.
pub(super) const RATE_BYTES: usize = 8;

/// Bytes of a range in a body: offset and length.
pub(super) const RANGE_BYTES: usize = 16;

/// Maximum length of the entry, descriptor included, in an answer to Open. A table of 10,000
/// columns has one of 1 to 2 MiB.
pub const ENTRY_BYTES_MAX: u64 = 4 << 20;

/// Maximum size of an object that the answer to Open includes: such objects share pages.
pub const INLINE_BYTES_MAX: u64 = 64 << 10;

/// Maximum blocks of an object in an answer to Open.
pub(super) const OPENED_BLOCKS_MAX: usize = 65_536;

/// Maximum length of an error text.
pub const ERROR_TEXT_BYTES_MAX: u64 = 1024;

/// Bytes of the address of a network card's end of a connection.
pub const ENDPOINT_BYTES: usize = 36;

/// Bytes of the key of an exposed range.
pub const KEY_BYTES: usize = 4;

/// Ticket, class, and seven zeros.
pub(super) const HELLO_BYTES: usize = TICKET_BYTES + 8;

/// The purpose of a connection. Small requests never wait behind bulk data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionClass {
    /// Opens, releases, notices and reads of some chunks.
    Small,
    /// Reads of many chunks.
    Bulk,
    /// Writes to the server.
    Push,
    /// What network cards need to read one-sidedly; no data of objects.
    Rdma,
}

/// Body of the first frame.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerHello {
    /// Binds the connection to an incarnation of a member.
    pub ticket: Ticket,
    /// The purpose of the connection.
    pub class: ConnectionClass,
}

impl PeerHello {
    /// Encodes to bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let class = match self.class {
            ConnectionClass::Small => 0,
            ConnectionClass::Bulk => 1,
            ConnectionClass::Push => 2,
            ConnectionClass::Rdma => 3,
        };
        let mut bytes = self.ticket.as_bytes().to_vec();
        bytes.extend([class, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    }

    /// Decodes bytes.
    ///
    /// # Errors
    /// [`FrameError::Body`]: wrong length, or an unknown class.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let wrong = |error| FrameError::Body { what: "Hello", error };
        let (ticket, rest) =
            bytes.split_first_chunk::<TICKET_BYTES>().ok_or(wrong(BodyError::Short {
                requested: TICKET_BYTES as u64,
                left: bytes.len() as u64,
            }))?;
        let class = match rest {
            [0, 0, 0, 0, 0, 0, 0, 0] => ConnectionClass::Small,
            [1, 0, 0, 0, 0, 0, 0, 0] => ConnectionClass::Bulk,
            [2, 0, 0, 0, 0, 0, 0, 0] => ConnectionClass::Push,
            [3, 0, 0, 0, 0, 0, 0, 0] => ConnectionClass::Rdma,
            _ => {
                let class = rest.first().copied().unwrap_or(0);
                return Err(wrong(BodyError::Class { class, bytes: rest.len() as u64 }));
            }
        };
        Ok(Self { ticket: Ticket::from_bytes(*ticket), class })
    }
}

/// The kind of a failure, which decides the reaction of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The object does not exist.
    NotFound,
    /// The member has no permission.
    Denied,
    /// The hold or grant does not exist, or does not cover the range.
    NotHeld,
    /// The server is at a limit.
    Busy,
    /// Another error; the text describes it.
    Other,
}

impl ErrorCode {
    /// Encodes to the offset of an Error frame.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        match self {
            Self::NotFound => 1,
            Self::Denied => 2,
            Self::NotHeld => 3,
            Self::Busy => 4,
            Self::Other => 0,
        }
    }

    /// Decodes the offset of an Error frame; codes of later versions are `Other`.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        match word {
            1 => Self::NotFound,
            2 => Self::Denied,
            3 => Self::NotHeld,
            4 => Self::Busy,
            _ => Self::Other,
        }
    }
}

/// Encodes ranges.
#[must_use]
pub fn encode_ranges(ranges: &[Span]) -> Vec<u8> {
    let words = ranges.iter().flat_map(|range| [range.offset.0, range.length.0]);
    words.flat_map(u64::to_le_bytes).collect()
}

/// Decodes the ranges of a Read or a Push.
///
/// # Errors
/// As of [`decode_exposed_ranges`], or a total above [`READ_BYTES_MAX`].
pub fn decode_ranges(bytes: &[u8]) -> Result<Vec<Span>, FrameError> {
    let ranges = decode_exposed_ranges(bytes)?;
    let total = ranges.iter().fold(0_u64, |sum, range| sum.saturating_add(range.length.0));
    if total > READ_BYTES_MAX {
        let error = BodyError::TooLong { what: "ranges", bytes: total, max: READ_BYTES_MAX };
        return Err(FrameError::Body { what: "ranges", error });
    }
    Ok(ranges)
}

/// Encodes a ReadPacked.
#[must_use]
pub fn encode_packed_read(wish: PackWish, ranges: &[Span]) -> Vec<u8> {
    let mut bytes = wish.rate.to_le_bytes().to_vec();
    bytes.extend(encode_ranges(ranges));
    bytes
}

/// Decodes a ReadPacked.
///
/// # Errors
/// As of [`decode_ranges`].
pub fn decode_packed_read(bytes: &[u8]) -> Result<(PackWish, Vec<Span>), FrameError> {
    let mut input = ByteReader { rest: bytes };
    let rate = input.array().map_err(|error| FrameError::Body { what: "ReadPacked", error })?;
    Ok((PackWish { rate: u64::from_le_bytes(rate) }, decode_ranges(input.rest)?))
}

/// Decodes the ranges of an Expose, of any length: no thread sends them.
///
/// # Errors
/// [`FrameError::Body`]: no ranges or too many, an empty range, or one whose end exceeds 64 bits.
pub fn decode_exposed_ranges(bytes: &[u8]) -> Result<Vec<Span>, FrameError> {
    let wrong = |error| FrameError::Body { what: "ranges", error };
    let mut input = ByteReader { rest: bytes };
    let count = bytes.len() / RANGE_BYTES;
    if count == 0 || count > RANGES_MAX || !bytes.len().is_multiple_of(RANGE_BYTES) {
        let (bytes, max) = (bytes.len() as u64, RANGES_MAX as u64);
        return Err(wrong(BodyError::Count { what: "ranges", bytes, max }));
    }
    input.spans(count).map_err(wrong)
}

/// An opened object: the body of the answer to Open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Its blocks in the data section.
    pub blocks: Vec<Span>,
    /// Its directory entry and descriptor, for the daemon to interpret.
    pub entry: Vec<u8>,
    /// All bytes of all blocks in order; none if they exceed [`INLINE_BYTES_MAX`].
    pub inline: Vec<u8>,
}

impl Opened {
    /// Encodes to bytes.
    ///
    /// # Errors
    /// [`FrameError::Body`] if a limit of [`Opened::decode`] is exceeded.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        self.check()?;
        let counts = [self.blocks.len(), self.entry.len(), self.inline.len()];
        let mut bytes: Vec<u8> =
            counts.iter().flat_map(|count| (*count as u32).to_le_bytes()).collect();
        bytes.extend(encode_ranges(&self.blocks));
        bytes.extend(&self.entry);
        bytes.extend(&self.inline);
        Ok(bytes)
    }

    /// Decodes bytes.
    ///
    /// # Errors
    /// [`FrameError::Body`]: a wrong length, overlapping or empty blocks, or inline bytes that are
    /// neither all nor none.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let wrong = |error| FrameError::Body { what: "Opened", error };
        let mut input = ByteReader { rest: bytes };
        let counts = [input.count(), input.count(), input.count()];
        let [blocks, entry, inline] = counts;
        let (blocks, entry, inline) =
            (blocks.map_err(wrong)?, entry.map_err(wrong)?, inline.map_err(wrong)?);
        if blocks > OPENED_BLOCKS_MAX {
            let (bytes, max) = (blocks as u64, OPENED_BLOCKS_MAX as u64);
            return Err(wrong(BodyError::Count { what: "blocks", bytes, max }));
        }
        let blocks = input.spans(blocks).map_err(wrong)?;
        let entry = input.take(entry).map_err(wrong)?.to_vec();
        let inline = input.take(inline).map_err(wrong)?.to_vec();
        if !input.rest.is_empty() {
            return Err(wrong(BodyError::Rest { bytes: input.rest.len() as u64 }));
        }
        let opened = Self { blocks, entry, inline };
        opened.check()?;
        Ok(opened)
    }

    fn check(&self) -> Result<(), FrameError> {
        let wrong = |error| FrameError::Body { what: "Opened", error };
        let limits = [
            ("blocks", self.blocks.len() as u64, OPENED_BLOCKS_MAX as u64),
            ("entry", self.entry.len() as u64, ENTRY_BYTES_MAX),
            ("inline", self.inline.len() as u64, INLINE_BYTES_MAX),
        ];
        if let Some((what, bytes, max)) = limits.into_iter().find(|(_, bytes, max)| bytes > max) {
            return Err(wrong(BodyError::TooLong { what, bytes, max }));
        }
        let mut sorted = self.blocks.clone();
        sorted.sort();
        let mut neighbours = sorted.iter().zip(sorted.iter().skip(1));
        if let Some((a, b)) = neighbours.find(|(a, b)| a.overlaps(**b)) {
            return Err(wrong(BodyError::Overlap { a: *a, b: *b }));
        }
        let total: u64 =
            self.blocks.iter().fold(0, |sum, block| sum.saturating_add(block.length.0));
        let inline = self.inline.len() as u64;
        if inline != 0 && inline != total {
            return Err(wrong(BodyError::Inline { inline, total }));
        }
        Ok(())
    }
}

/// Reads fields from the front of a body.
struct ByteReader<'a> {
    rest: &'a [u8],
}

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], BodyError> {
        let left = self.rest.len() as u64;
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(BodyError::Short { requested: count as u64, left })?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BodyError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn count(&mut self) -> Result<usize, BodyError> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn span(&mut self) -> Result<Span, BodyError> {
        let offset = Offset(u64::from_le_bytes(self.array()?));
        let length = Length(u64::from_le_bytes(self.array()?));
        let span = Span::new(offset, length);
        match span.end() {
            Some(_) if !span.is_empty() => Ok(span),
            _ => Err(BodyError::Range { offset, length }),
        }
    }

    fn spans(&mut self, count: usize) -> Result<Vec<Span>, BodyError> {
        // Check before allocating by a number that the peer chose.
        let requested = count.saturating_mul(RANGE_BYTES) as u64;
        if requested > self.rest.len() as u64 {
            return Err(BodyError::Short { requested, left: self.rest.len() as u64 });
        }
        (0..count).map(|_| self.span()).collect()
    }
}
