//! The pieces of an object's blocks that a part needs.

use farrow_memory::{Length, Offset, Span};
use farrow_net::frame::Opened;
use farrow_store::BLOCK_BYTES;

use crate::protocol::net::NetFault;

/// Blocks begin and end at multiples of this, so a part's buffers keep their alignment.
const ALIGNMENT: u64 = BLOCK_BYTES;

/// Gaps up to this size are transferred too, since that costs less than another range.
const GAP_BYTES: u64 = 4096;

/// Limit on the blocks of a part. To stay below it, larger gaps are transferred too.
const BLOCKS_MAX: usize = 1024;

/// A block of the whole object, or a piece of one.
#[derive(Clone, Copy)]
pub(super) struct TransferPiece {
    /// Its span when the object was sealed. Offsets in the descriptor refer to it.
    pub(super) origin: Span,
    /// Its span in its home's data section.
    pub(super) block: Span,
    /// Offset of its bytes in the inline bytes of the answer.
    inline: u64,
}

impl TransferPiece {
    fn end(&self) -> u64 {
        self.origin.offset.0.saturating_add(self.origin.length.0)
    }

    /// A part of this piece, given by bounds within its origin.
    fn cut(&self, start: u64, end: u64) -> Self {
        let skipped = start - self.origin.offset.0;
        Self {
            origin: Span::new(Offset(start), Length(end - start)),
            block: Span::new(Offset(self.block.offset.0 + skipped), Length(end - start)),
            inline: self.inline + skipped,
        }
    }
}

/// The object from which a part is taken.
pub(super) struct Whole<'a> {
    /// Its blocks, ordered by origin.
    blocks: Vec<TransferPiece>,
    inline: &'a [u8],
}

impl<'a> Whole<'a> {
    pub(super) fn new(origins: &[Span], opened: &'a Opened) -> Self {
        let mut inline = 0;
        let pairs = origins.iter().zip(&opened.blocks).map(|(origin, block)| {
            let piece = TransferPiece { origin: *origin, block: *block, inline };
            inline += block.length.0;
            piece
        });
        let mut blocks: Vec<TransferPiece> = pairs.collect();
        blocks.sort_unstable_by_key(|piece| piece.origin.offset);
        Self { blocks, inline: &opened.inline }
    }

    /// The first region offset after all blocks.
    pub(super) fn end(&self) -> u64 {
        self.blocks.iter().map(TransferPiece::end).max().unwrap_or(0)
    }

    /// The pieces that cover these ranges, and the total length of the ranges. There is at least
    /// one piece.
    pub(super) fn pieces(
        &self,
        ranges: &[(u64, u64)],
    ) -> Result<(Vec<TransferPiece>, u64), NetFault> {
        let (mut bounds, size) = self.bounds(ranges)?;
        let mut gap = GAP_BYTES;
        join(&mut bounds, gap);
        // Gaps grow until at most one piece per block remains.
        while bounds.len() > BLOCKS_MAX.max(self.blocks.len()) {
            gap = gap.saturating_mul(2);
            join(&mut bounds, gap);
        }
        let mut pieces = self.cut(&bounds);
        if pieces.is_empty() {
            // An object has a block even if it refers to no bytes.
            let first = self.blocks.first().ok_or_else(|| NetFault::Other("no blocks".into()))?;
            let start = first.origin.offset.0;
            pieces.push(first.cut(start, start + first.origin.length.0.min(ALIGNMENT)));
        }
        Ok((pieces, size))
    }

    /// The pieces that cover these ranges and no bytes between them.
    pub(super) fn exact_pieces(
        &self,
        ranges: &[(u64, u64)],
    ) -> Result<Vec<TransferPiece>, NetFault> {
        let (mut bounds, _) = self.bounds(ranges)?;
        join(&mut bounds, 0);
        Ok(self.cut(&bounds))
    }

    /// Bounds of these ranges, aligned and in order, and the total length of the ranges.
    fn bounds(&self, ranges: &[(u64, u64)]) -> Result<(Vec<PieceBounds>, u64), NetFault> {
        let mut sorted = ranges.to_vec();
        sorted.sort_unstable();
        let mut bounds = Vec::with_capacity(sorted.len());
        let mut size = 0u64;
        let mut counted_to = 0;
        for (start, length) in sorted {
            let behind = self.blocks.partition_point(|block| block.origin.offset.0 <= start);
            let number = behind.wrapping_sub(1);
            let block = self.blocks.get(number);
            let end = start.checked_add(length);
            let (Some(block), Some(end)) =
                (block, end.filter(|end| block.is_some_and(|it| *end <= it.end())))
            else {
                let text = format!("bytes {start}..+{length} do not lie in a block of the object");
                return Err(NetFault::Other(text));
            };
            size += end.saturating_sub(start.max(counted_to));
            counted_to = counted_to.max(end);
            let first = (start / ALIGNMENT * ALIGNMENT).max(block.origin.offset.0);
            let last = end.next_multiple_of(ALIGNMENT).min(block.end());
            bounds.push((first, last, number));
        }
        Ok((bounds, size))
    }

    fn cut(&self, bounds: &[PieceBounds]) -> Vec<TransferPiece> {
        let pieces = bounds.iter().filter_map(|(start, end, number)| {
            self.blocks.get(*number).map(|block| block.cut(*start, *end))
        });
        pieces.collect()
    }

    pub(super) fn inline_of(&self, pieces: &[TransferPiece]) -> Result<Vec<u8>, NetFault> {
        let mut bytes = Vec::new();
        for piece in pieces {
            let start = usize::try_from(piece.inline).unwrap_or(usize::MAX);
            let part = start.checked_add(piece.block.length.as_usize());
            let part = part.and_then(|end| self.inline.get(start..end));
            let short = || NetFault::Other("fewer bytes came than the blocks have".to_owned());
            bytes.extend(part.ok_or_else(short)?);
        }
        Ok(bytes)
    }
}

/// Start, end, and the index of the block.
type PieceBounds = (u64, u64, usize);

/// Joins bounds in one block with at most `gap` bytes between them.
fn join(bounds: &mut Vec<PieceBounds>, gap: u64) {
    bounds.dedup_by(|next, last| {
        let is_near = next.2 == last.2 && next.0 <= last.1.saturating_add(gap);
        if is_near {
            last.1 = last.1.max(next.1);
        }
        is_near
    });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failure is the result
mod tests {
    use super::*;

    fn span(offset: u64, length: u64) -> Span {
        Span::new(Offset(offset), Length(length))
    }

    /// Blocks at 1024, 2048 and so on of the region, one after the other in the section.
    fn whole(lengths: &[u64], inline: &[u8]) -> (Vec<Span>, Opened) {
        let origins = lengths.iter().zip(1..).map(|(length, number)| span(number * 1024, *length));
        let mut at = 0;
        let blocks = lengths.iter().map(|length| {
            at += length;
            span(at - length, *length)
        });
        let blocks = blocks.collect();
        (origins.collect(), Opened { blocks, entry: Vec::new(), inline: inline.to_vec() })
    }

    #[test]
    fn pieces_cover_their_ranges_and_keep_alignment() {
        let (origins, opened) = whole(&[1024, 256], &[]);
        let whole = Whole::new(&origins, &opened);
        let (pieces, size) = whole.pieces(&[(1500, 10), (1024, 4), (1026, 4), (2100, 1)]).unwrap();
        assert_eq!(size, 10 + 6 + 1);
        // Near ranges are one piece; no piece spans two blocks.
        let origins: Vec<Span> = pieces.iter().map(|piece| piece.origin).collect();
        assert_eq!(origins, [span(1024, 512), span(2048, 128)]);
        let blocks: Vec<Span> = pieces.iter().map(|piece| piece.block).collect();
        assert_eq!(blocks, [span(0, 512), span(1024, 128)]);
    }

    #[test]
    fn many_ranges_become_few_pieces() {
        let length = 64 << 20;
        let (origins, opened) = whole(&[length], &[]);
        let whole = Whole::new(&origins, &opened);
        let ranges: Vec<(u64, u64)> = (0..4000).map(|number| (1024 + number * 16_384, 8)).collect();
        let (pieces, size) = whole.pieces(&ranges).unwrap();
        assert_eq!(size, 32_000);
        assert!(pieces.len() <= BLOCKS_MAX, "{}", pieces.len());
        let is_covered = |(start, length): &(u64, u64)| {
            pieces.iter().any(|piece| piece.origin.contains(span(*start, *length)))
        };
        assert!(ranges.iter().all(is_covered));
    }

    #[test]
    fn a_part_without_bytes_has_a_block() {
        let (origins, opened) = whole(&[1024], &[]);
        let (pieces, size) = Whole::new(&origins, &opened).pieces(&[]).unwrap();
        assert_eq!((pieces.len(), size), (1, 0));
        assert_eq!(pieces[0].origin, span(1024, 128));
    }

    #[test]
    fn what_a_home_reports_wrongly_is_refused() {
        let (origins, opened) = whole(&[1024, 256], &[7; 100]);
        let whole = Whole::new(&origins, &opened);
        for range in [(0, 8), (2040, 16), (2300, 8), (u64::MAX, 8), (2048, u64::MAX)] {
            let result = whole.pieces(&[range]);
            assert!(matches!(result, Err(NetFault::Other(_))), "{range:?}");
        }
        let (pieces, _) = whole.pieces(&[(1024, 512)]).unwrap();
        assert!(whole.inline_of(&pieces).is_err());
    }
}
