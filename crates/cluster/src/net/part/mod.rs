//! Parts of objects: only the bytes of some columns and rows of an opened object are transferred.
//!
//! The part has a descriptor of its own, in which all offsets are those of the whole object. The
//! byte ranges that it needs become its blocks, so it is stored like any relocated object. Which
//! bytes of strings, views and nested types are needed is in buffers of the object. These are read
//! first, and rebuilt for the part: they become its last block.

mod new_blocks;
mod pieces;

use farrow_arrow::{Decoded, Limits, PartContents, RowSlice, SelectError, SelectStep, Selected};
use farrow_memory::{Length, Offset, Span};
use farrow_net::frame::Opened;
use farrow_store::{BLOCK_BYTES, ObjectKind, SpillHead};
use farrow_wire::PartSpec;

use crate::protocol::net::NetFault;
use crate::protocol::net::query::Brought;
pub(super) use new_blocks::NewBlocks;
use pieces::Whole;

/// Offset at which the new block of a part is said to lie in its home's data section. No section is
/// that long, so it is no span of the home.
pub(super) const NEW_BLOCK_AT: Offset = Offset(1 << 62);

/// Reads spans of the home's data section.
pub(super) type ReadSpans<'a> = &'a mut dyn FnMut(&[Span]) -> Result<Vec<Vec<u8>>, NetFault>;

/// A part of an opened object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OpenedPart {
    /// The part, as an opened object with fewer blocks.
    pub(super) opened: Opened,
    /// The bytes of its last block, at [`NEW_BLOCK_AT`]; empty: it has no such block.
    pub(super) new_block: Vec<u8>,
}

/// The part of an opened object. `read` reads of the object while it is held.
pub(super) fn part_of(
    opened: &Opened,
    spec: &PartSpec,
    read: ReadSpans<'_>,
) -> Result<OpenedPart, NetFault> {
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
    let decoded = Decoded::parse(&brought.descriptor, &Limits::default());
    let decoded = decoded.map_err(|error| damaged(&error))?;
    let whole = Whole::new(&head.origins, opened);
    let selected = match opened.inline.is_empty() {
        true => select_in_steps(&decoded, spec, &whole, read)?,
        // All bytes are here already.
        false => decoded.select(spec.columns.as_deref(), rows_of(spec)).map_err(fault)?,
    };
    let (pieces, mut size) = whole.pieces(&selected.ranges)?;
    let mut origins: Vec<Span> = pieces.iter().map(|piece| piece.origin).collect();
    let mut blocks: Vec<Span> = pieces.iter().map(|piece| piece.block).collect();
    let mut new_block = selected.new_buffers;
    if !new_block.is_empty() {
        size += new_block.len() as u64;
        new_block.resize(new_block.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        let length = Length::from(new_block.len());
        origins.push(Span::new(Offset(base_of(&whole)?), length));
        blocks.push(Span::new(NEW_BLOCK_AT, length));
    }
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
    let entry = part.encode().map_err(NetFault::Other)?;
    Ok(OpenedPart { opened: Opened { blocks, entry, inline }, new_block })
}

fn damaged(error: &dyn std::fmt::Display) -> NetFault {
    NetFault::Other(format!("descriptor: {error}"))
}

fn fault(error: SelectError) -> NetFault {
    match error {
        SelectError::Invalid(_) | SelectError::Schema(_) => damaged(&error),
        error => NetFault::Invalid(error.to_string()),
    }
}

fn rows_of(spec: &PartSpec) -> RowSlice {
    RowSlice { start: spec.start, stop: spec.stop }
}

/// Region offset of the new block, behind all others.
fn base_of(whole: &Whole<'_>) -> Result<u64, NetFault> {
    let base = whole.end().checked_next_multiple_of(BLOCK_BYTES);
    let base = base.filter(|base| *base <= NEW_BLOCK_AT.0);
    base.ok_or_else(|| NetFault::Other(format!("blocks up to offset {}", whole.end())))
}

/// Selects, and reads the contents that tell which bytes are needed.
fn select_in_steps(
    decoded: &Decoded,
    spec: &PartSpec,
    whole: &Whole<'_>,
    read: ReadSpans<'_>,
) -> Result<Selected, NetFault> {
    let mut contents = PartContents::new(base_of(whole)?);
    loop {
        let step = decoded.select_step(spec.columns.as_deref(), rows_of(spec), &contents);
        let ranges = match step.map_err(fault)? {
            SelectStep::Selected(selected) => return Ok(selected),
            SelectStep::Needed(ranges) => ranges,
        };
        let pieces = whole.exact_pieces(&ranges)?;
        let spans: Vec<Span> = pieces.iter().map(|piece| piece.block).collect();
        let bytes = read(&spans)?;
        for (start, length) in ranges {
            let behind = pieces.partition_point(|piece| piece.origin.offset.0 <= start);
            let number = behind.wrapping_sub(1);
            let part = pieces.get(number).zip(bytes.get(number)).and_then(|(piece, bytes)| {
                let first = usize::try_from(start - piece.origin.offset.0).ok()?;
                bytes.get(first..first.checked_add(usize::try_from(length).ok()?)?)
            });
            let short = || NetFault::Other(format!("bytes {start}..+{length} did not arrive"));
            contents.add((start, length), part.ok_or_else(short)?.to_vec());
        }
    }
}

#[cfg(test)]
mod tests;
