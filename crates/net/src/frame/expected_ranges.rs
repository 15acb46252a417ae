//! The frames of the data path: a header of 32 bytes, little-endian, and a body.
//!
//! | bytes | field | meaning |
//! | --- | --- | --- |
//! | 0 | op | [`Op`] |
//! | 1 | flags | bit 0: the checksum is set; the others are zero |
//! | 2..4 | | zero |
//! | 4..8 | crc | CRC-32C of the header with zeros here, and of the body; zero without the flag |
//! | 8..16 | id | the request that the frame belongs to |
//! | 16..24 | offset | by op: an offset in the data section, a hold, a grant, a version |
//! | 24..32 | length | bytes of the body |
//!
//! | op | sent by | offset | body |
//! | --- | --- | --- | --- |
//! | Hello | client | version | a ticket and the class of the connection |
//! | Welcome | server | version | length of the data section; bit 0 of the id: [`CAN_PACK`] |
//! | Open | client | hold, a new number | the request, which the daemon interprets |
//! | Opened | server | hold | [`Opened`] |
//! | Read | client | hold | 1 to 256 ranges, answered by Data for each [`piece`] in order |
//! | Data | both | offset of the bytes | the bytes |
//! | ReadPacked | client | hold | 8 bytes of a [wish], ranges; answered by Data or Packed for each piece |
//! | Packed | server | offset of the bytes | CRC-32C of the bytes, 4 bytes; an LZ4 block shorter than they |
//! | Release | client | hold | none |
//! | Released | server | hold | none |
//! | Push | client | grant | 1 to 256 ranges; Data for each piece follows, Pushed answers |
//! | Pushed | server | grant | none |
//! | Invalidate | server | object | none; the id is that of the notice |
//! | Invalidated | client | object | none |
//! | Error | server | code | a text |
//! | Meet, Met | client, server | none | where a network card's end of the connection is |
//! | Expose | client | hold | 1 to 256 ranges |
//! | Exposed | server | hold | a key for each range |
//! | Conceal | client | none | none |
//!
//! [wish]: crate::pack::PackWish
//!
//! The decoders check all input of a peer against limits, and the caller checks it against its
//! requests. The decoders read no clock and no socket, so a fuzzer can drive them.

mod body;
mod header;

pub use body::{
    ConnectionClass, ENDPOINT_BYTES, ENTRY_BYTES_MAX, ERROR_TEXT_BYTES_MAX, ErrorCode,
    INLINE_BYTES_MAX, KEY_BYTES, Opened, PeerHello, RANGES_MAX, READ_BYTES_MAX,
    decode_exposed_ranges, decode_packed_read, decode_ranges, encode_packed_read, encode_ranges,
};
pub use header::{CAN_PACK, FrameHeader, HEADER_BYTES, OPEN_BYTES_MAX, Op, VERSION};

use farrow_memory::{Length, Offset, Span};

use crate::{PIECE_BYTES_MAX, error::FrameError};

/// The first piece of a range, which one Data frame carries. Pieces end at multiples of
/// [`PIECE_BYTES_MAX`], so that two frames never share a chunk.
#[must_use]
pub fn piece(range: Span) -> Span {
    let to_boundary = PIECE_BYTES_MAX - range.offset.0 % PIECE_BYTES_MAX;
    Span::new(range.offset, Length(range.length.0.min(to_boundary)))
}

/// The rest of a range after its first `length` bytes; `None` if it is empty.
#[must_use]
pub fn behind(range: Span, length: Length) -> Option<Span> {
    let rest = range.length.0.checked_sub(length.0).filter(|rest| *rest > 0)?;
    Some(Span::new(Offset(range.offset.0.checked_add(length.0)?), Length(rest)))
}

/// The ranges that one request still expects, by piece and in order. Any other data is a protocol
/// violation.
#[derive(Debug, Clone)]
pub struct ExpectedRanges {
    id: u64,
    /// In reverse order, so that the next range is the last element.
    ranges: Vec<Span>,
    bytes: u64,
}

impl ExpectedRanges {
    /// The expected ranges of a request that was sent or announced.
    #[must_use]
    pub fn new(id: u64, ranges: &[Span]) -> Self {
        let ranges: Vec<_> = ranges.iter().rev().copied().collect();
        let bytes = ranges.iter().map(|range| range.length.0).sum();
        Self { id, ranges, bytes }
    }

    /// The request.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Number of bytes that have not arrived.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether all ranges have arrived.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The next expected piece.
    #[must_use]
    pub fn next(&self) -> Option<Span> {
        self.ranges.last().copied().map(piece)
    }

    /// Checks that a header is that of the next piece, and returns the piece.
    ///
    /// # Errors
    /// [`FrameError::Unrequested`] with the expected and the received range.
    pub fn check(&self, header: &FrameHeader) -> Result<Span, FrameError> {
        let found = Span::new(Offset(header.offset), Length(header.length));
        match self.next() {
            Some(piece) if header.id == self.id && found == piece => Ok(piece),
            next => {
                let expected = next.map(|piece| (self.id, piece));
                Err(FrameError::Unrequested { id: header.id, found, expected })
            }
        }
    }

    /// As [`Self::check`], for a packed piece: its length is not in the header.
    ///
    /// # Errors
    /// As [`Self::check`]; [`FrameError::BodyLength`] if it is not shorter than the piece.
    pub fn check_packed(&self, header: &FrameHeader) -> Result<Span, FrameError> {
        let length = self.next().map_or(0, |piece| piece.length.0);
        let piece = self.check(&FrameHeader { length, ..*header })?;
        if header.length >= length {
            let (min, _) = header.op.body_bytes();
            let (op, max) = (header.op, length.saturating_sub(1));
            return Err(FrameError::BodyLength { op, length: header.length, min, max });
        }
        Ok(piece)
    }

    /// The ranges that have not arrived.
    #[must_use]
    pub fn rest(&self) -> Vec<Span> {
        self.ranges.iter().rev().copied().collect()
    }

    /// Records the arrival of the next piece.
    pub fn advance(&mut self) {
        if let Some(range) = self.ranges.pop() {
            let piece = piece(range);
            self.bytes -= piece.length.0;
            self.ranges.extend(behind(range, piece.length));
        }
    }
}

#[cfg(test)]
mod tests;
