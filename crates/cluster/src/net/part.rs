//! Parts of objects: only the bytes of some columns and rows of an opened object are transferred.
//!
//! The part has a descriptor of its own, in which all offsets are those of the whole object. The
//! byte ranges that it needs become its blocks, so it is stored like any relocated object.

use farrow_arrow::{Decoded, Limits, RowSlice, SelectError};
use farrow_memory::{Length, Offset, Span};
use farrow_net::frame::Opened;
use farrow_store::{BLOCK_BYTES, ObjectKind, SpillHead};
use farrow_wire::PartSpec;

use super::NetFault;
use super::query::Brought;

/// Blocks begin and end at multiples of this, so a part's buffers keep their alignment.
const ALIGNMENT: u64 = BLOCK_BYTES;

/// Gaps up to this size are transferred too, since that costs less than another range.
const GAP_BYTES: u64 = 4096;

/// Limit on the blocks of a part. To stay below it, larger gaps are transferred too.
const BLOCKS_MAX: usize = 1024;

/// The part of an opened object, as an opened object with fewer blocks.
pub(super) fn part_of(opened: &Opened, spec: &PartSpec) -> Result<Opened, NetFault> {
    let (brought, head) = Brought::decode(&opened.entry).map_err(NetFault::Other)?;
    let lengths = |spans: &[Span]| spans.iter().map(|span| span.length).collect::<Vec<_>>();
    if lengths(&opened.blocks) != lengths(&head.origins) {
        let text = "the blocks that its home reports are not those of its head";
        return Err(NetFault::Other(text.to_owned()));
    }
    if head.kind == ObjectKind::Bytes {
        let text = "rows and columns are selected of Arrow objects, this is plain bytes";
        return Err(NetFault::Invalid(text.to_owned()));
    }
    let damaged = |error: &dyn std::fmt::Display| NetFault::Other(format!("descriptor: {error}"));
    let decoded = Decoded::parse(&brought.descriptor, &Limits::default());
    let decoded = decoded.map_err(|error| damaged(&error))?;
    let rows = RowSlice { start: spec.start, stop: spec.stop };
    let selected = decoded.select(spec.columns.as_deref(), rows).map_err(|error| match error {
        SelectError::Invalid(_) | SelectError::Schema(_) => damaged(&error),
        error => NetFault::Invalid(error.to_string()),
    })?;
    let whole = Whole::new(&head.origins, opened);
    let (pieces, size) = whole.pieces(&selected.ranges)?;
    let origins = pieces.iter().map(|piece| piece.origin).collect();
    let blocks = pieces.iter().map(|piece| piece.block).collect();
    let inline = match opened.inline.is_empty() {
        true => Vec::new(),
        false => whole.inline_of(&pieces)?,
    };
    let head = SpillHead {
        size: Length(size),
        descriptor_bytes: selected.descriptor.len() as u64,
        origins,
        ..head
    };
    let part = Brought {
        head: head.encode(),
        descriptor_crc: crc32c::crc32c(&selected.descriptor),
        descriptor: selected.descriptor,
        ..brought
    };
    Ok(Opened { blocks, entry: part.encode().map_err(NetFault::Other)?, inline })
}

/// A block of the whole object, or a piece of one.
#[derive(Clone, Copy)]
struct TransferPiece {
    /// Its span when the object was sealed. Offsets in the descriptor refer to it.
    origin: Span,
    /// Its span in its home's data section.
    block: Span,
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
struct Whole<'a> {
    /// Its blocks, ordered by origin.
    blocks: Vec<TransferPiece>,
    inline: &'a [u8],
}

impl<'a> Whole<'a> {
    fn new(origins: &[Span], opened: &'a Opened) -> Self {
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

    /// The pieces that cover these ranges, and the total length of the ranges.
    fn pieces(&self, ranges: &[(u64, u64)]) -> Result<(Vec<TransferPiece>, u64), NetFault> {
        let mut sorted = ranges.to_vec();
        sorted.sort_unstable();
        // Bounds (start, end), and the index of their block.
        let mut bounds: Vec<(u64, u64, usize)> = Vec::with_capacity(sorted.len());
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
        let mut gap = GAP_BYTES;
        loop {
            bounds.dedup_by(|next, last| {
                let is_near = next.2 == last.2 && next.0 <= last.1.saturating_add(gap);
                if is_near {
                    last.1 = last.1.max(next.1);
                }
                is_near
            });
            // Gaps grow until at most one piece per block remains.
            if bounds.len() <= BLOCKS_MAX.max(self.blocks.len()) {
                break;
            }
            gap = gap.saturating_mul(2);
        }
        let cut = |(start, end, number): (u64, u64, usize)| {
            self.blocks.get(number).map(|block| block.cut(start, end))
        };
        let mut pieces: Vec<TransferPiece> = bounds.into_iter().filter_map(cut).collect();
        if pieces.is_empty() {
            // An object has a block even if it refers to no bytes.
            let first = self.blocks.first().ok_or_else(|| NetFault::Other("no blocks".into()))?;
            let start = first.origin.offset.0;
            pieces.push(first.cut(start, start + first.origin.length.0.min(ALIGNMENT)));
        }
        Ok((pieces, size))
    }

    fn inline_of(&self, pieces: &[TransferPiece]) -> Result<Vec<u8>, NetFault> {
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
        let nothing = Opened { blocks: Vec::new(), entry: vec![1, 2, 3], inline: Vec::new() };
        assert!(part_of(&nothing, &PartSpec::default()).is_err());
    }
}
