//! Placement of buffers: each one stays in place, or is assigned an offset in the copied area.

use super::copies::CopyItem;
use super::trim::Rewrite;
use crate::COPY_ALIGNMENT;
use crate::error::DescribeError;
use crate::wire::DescriptorWriter;
use arrow_buffer::Buffer;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Returns the region offset of `[pointer, pointer + length)` if the object may refer to these
/// bytes in place; `None` if they must be copied. The length is never zero.
pub type Locate<'a> = &'a mut dyn FnMut(*const u8, usize) -> Option<u64>;

/// A range of bytes, as stored in the descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reference {
    /// No bytes.
    Empty,
    /// Region offset and length.
    InPlace(u64, u64),
    /// Offset within the copied area, and length.
    Copied(u64, u64),
}

/// Writes a reference: the length, then (unless the length is zero) twice the offset, plus one
/// if the offset counts from the start of the region.
pub(super) fn write_reference(writer: &mut DescriptorWriter, reference: Reference) {
    match reference {
        Reference::Empty => writer.number(0),
        Reference::InPlace(offset, length) => {
            writer.number(length);
            writer.number((offset << 1) | 1);
        }
        Reference::Copied(offset, length) => {
            writer.number(length);
            writer.number(offset << 1);
        }
    }
}

/// The result of a placer.
pub(crate) struct Placed {
    pub copies: Vec<CopyItem>,
    pub copy_bytes: u64,
    pub in_place: Vec<(u64, u64)>,
    pub data_bytes: u64,
    pub in_place_bytes: u64,
}

/// Decides the placement of buffers, once for each.
pub(crate) struct Placer<'l> {
    locate: Locate<'l>,
    copies: Vec<CopyItem>,
    copy_bytes: u64,
    in_place: Vec<(u64, u64)>,
    copied_bytes: u64,
    seen: HashMap<(usize, usize), u64, BuildHasherDefault<AddressHasher>>,
}

impl<'l> Placer<'l> {
    pub fn new(locate: Locate<'l>) -> Self {
        Placer {
            locate,
            copies: Vec::new(),
            copy_bytes: 0,
            in_place: Vec::new(),
            copied_bytes: 0,
            seen: HashMap::default(),
        }
    }

    /// Region offset of bytes that may stay in place: bytes in the region, aligned as their type
    /// needs.
    pub fn locate(&mut self, bytes: &[u8], alignment: usize) -> Option<u64> {
        if bytes.is_empty() || !bytes.as_ptr().addr().is_multiple_of(alignment.max(1)) {
            return None;
        }
        let offset = (self.locate)(bytes.as_ptr(), bytes.len())?;
        // The encoding of a reference needs one bit of the offset.
        (offset < 1 << 62 && offset.is_multiple_of(alignment.max(1) as u64)).then_some(offset)
    }

    /// Whether bytes need no copy.
    pub fn is_in_place(&mut self, bytes: &[u8], alignment: usize) -> bool {
        bytes.is_empty() || self.locate(bytes, alignment).is_some()
    }

    /// Places a whole buffer.
    pub fn whole(&mut self, buffer: &Buffer, alignment: usize) -> Result<Reference, DescribeError> {
        self.range(buffer, 0, buffer.len(), alignment)
    }

    /// Places a part of a buffer.
    pub fn range(
        &mut self,
        buffer: &Buffer,
        start: usize,
        length: usize,
        alignment: usize,
    ) -> Result<Reference, DescribeError> {
        let Some(bytes) = start.checked_add(length).and_then(|end| buffer.get(start..end)) else {
            return Err(DescribeError::Malformed {
                data_type: "any".into(),
                reason: "a range ends beyond its buffer",
                needed: (start as u64).saturating_add(length as u64),
                found: buffer.len() as u64,
            });
        };
        if length == 0 {
            return Ok(Reference::Empty);
        }
        if let Some(offset) = self.locate(bytes, alignment) {
            self.in_place.push((offset, length as u64));
            return Ok(Reference::InPlace(offset, length as u64));
        }
        let key = (bytes.as_ptr().addr(), length);
        if let Some(offset) = self.seen.get(&key) {
            return Ok(Reference::Copied(*offset, length as u64));
        }
        let part = buffer.slice_with_length(start, length);
        let offset = self.reserve(part, length as u64, None)?;
        self.seen.insert(key, offset);
        Ok(Reference::Copied(offset, length as u64))
    }

    /// Places bytes that are computed from `from`.
    pub(super) fn rewritten(
        &mut self,
        from: Buffer,
        length: usize,
        rewrite: Rewrite,
    ) -> Result<Reference, DescribeError> {
        if length == 0 {
            return Ok(Reference::Empty);
        }
        let offset = self.reserve(from, length as u64, Some(rewrite))?;
        Ok(Reference::Copied(offset, length as u64))
    }

    fn reserve(
        &mut self,
        bytes: Buffer,
        length: u64,
        rewrite: Option<Rewrite>,
    ) -> Result<u64, DescribeError> {
        let overflow = DescribeError::Overflow { what: "copied bytes" };
        let offset = self.copy_bytes;
        let end = offset.checked_add(length);
        let end = end.and_then(|end| end.checked_next_multiple_of(COPY_ALIGNMENT));
        self.copy_bytes = end.filter(|end| *end < 1 << 62).ok_or(overflow)?;
        self.copied_bytes += length;
        self.copies.push(CopyItem { offset, bytes, length, rewrite });
        Ok(offset)
    }

    pub fn finish(self) -> Placed {
        let in_place = merge(self.in_place);
        let in_place_bytes = in_place.iter().map(|(_, length)| length).sum::<u64>();
        Placed {
            copies: self.copies,
            copy_bytes: self.copy_bytes,
            in_place,
            data_bytes: self.copied_bytes + in_place_bytes,
            in_place_bytes,
        }
    }
}

/// Sorts ranges and merges those that touch or overlap.
fn merge(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (offset, length) in ranges {
        match merged.last_mut() {
            Some((start, covered)) if offset <= *start + *covered => {
                *covered = (*covered).max(offset + length - *start);
            }
            _ => merged.push((offset, length)),
        }
    }
    merged
}

/// A fast hash for (address, length) pairs. The process's own allocator chooses the addresses,
/// so an attacker cannot force collisions.
#[derive(Debug, Default)]
pub(super) struct AddressHasher(u64);

/// 2^64 divided by the golden ratio: Fibonacci hashing (Knuth, TAOCP volume 3, 6.4).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize(usize::from(*byte));
        }
    }

    fn write_usize(&mut self, value: usize) {
        self.0 = (self.0 ^ value as u64).wrapping_mul(GOLDEN).rotate_left(26);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_merged() {
        let merged = merge(vec![(64, 64), (0, 64), (256, 10), (260, 4), (300, 1)]);
        assert_eq!(merged, [(0, 128), (256, 10), (300, 1)]);
    }
}
