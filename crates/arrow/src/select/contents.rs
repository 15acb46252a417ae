//! The contents that a selection has read, and the buffers that it writes again.

use std::collections::HashMap;

use crate::COPY_ALIGNMENT;

/// Fewest bytes that cutting the values of a node must save: about what a link of 1 to 10 Gb/s
/// carries in a round trip of 50 to 500 us, which is the price of reading the node's offsets first.
const SAVED_BYTES_MIN: u64 = 64 << 10;

/// Limit on the bytes that one selection reads, and on those that it rebuilds: the offsets of
/// eight million strings. Daemons hold them in their own memory.
const READ_BYTES_MAX: u64 = 32 << 20;

/// Bytes of an object that were read so that more of it can be left out: offsets, views, type
/// codes and run ends. [`crate::Decoded::select_step`] says which are needed.
#[derive(Debug, Clone)]
pub struct PartContents {
    /// By range: region offset and length.
    known: HashMap<(u64, u64), Vec<u8>>,
    bytes: u64,
    base: u64,
    saved_min: u64,
    bytes_max: u64,
}

impl PartContents {
    /// Nothing has been read. The part's new buffers get region offsets from `base` on, which
    /// should be a multiple of [`COPY_ALIGNMENT`] beyond the end of the object.
    pub fn new(base: u64) -> Self {
        Self::with_limits(base, SAVED_BYTES_MIN, READ_BYTES_MAX)
    }

    /// As [`PartContents::new`]. Contents are read where that saves at least `saved_min` bytes, and
    /// at most `bytes_max` bytes of them.
    pub fn with_limits(base: u64, saved_min: u64, bytes_max: u64) -> Self {
        Self { known: HashMap::new(), bytes: 0, base, saved_min, bytes_max }
    }

    /// Adds the bytes of a range: region offset and length.
    pub fn add(&mut self, range: (u64, u64), bytes: Vec<u8>) {
        if self.known.insert(range, bytes).is_none() {
            self.bytes = self.bytes.saturating_add(counted(range.1));
        }
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Whether these bytes less are worth a read.
    pub(super) fn is_worth(&self, saved: u64) -> bool {
        saved >= self.saved_min
    }

    /// The bytes of a range, if they were read.
    pub(super) fn get(&self, (offset, length): (u64, u64)) -> Option<&[u8]> {
        if length == 0 {
            return Some(&[]);
        }
        let bytes = self.known.get(&(offset, length))?;
        (bytes.len() as u64 == length).then_some(bytes)
    }

    /// Whether ranges of this total may be read besides what was read.
    pub(super) fn has_room(&self, requested: u64) -> bool {
        self.bytes.saturating_add(requested) <= self.bytes_max
    }

    /// Whether new buffers may have this total.
    pub(super) fn has_room_for_new(&self, new: u64) -> bool {
        new <= self.bytes_max
    }
}

/// What a range counts: itself, and up to 128 bytes at each end for the alignment of its reader.
pub(super) fn counted(length: u64) -> u64 {
    length.saturating_add(256)
}

/// The new buffers of a part, one after the other.
#[derive(Debug, Default)]
pub(super) struct NewBuffers {
    pub(super) bytes: Vec<u8>,
}

impl NewBuffers {
    /// Appends a buffer; returns its position.
    pub(super) fn append(&mut self, buffer: &[u8]) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(COPY_ALIGNMENT as usize), 0);
        let at = self.bytes.len() as u64;
        self.bytes.extend_from_slice(buffer);
        at
    }
}
