//! The pieces of a range, and those that a request still expects.

use farrow_memory::{Length, Offset, Span};

use super::header::FrameHeader;
use crate::PIECE_BYTES_MAX;
use crate::error::FrameError;

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
