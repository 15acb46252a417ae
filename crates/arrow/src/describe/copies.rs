//! The copies of a plan, and the rewriting of offsets and views in them.

use super::trim::Rewrite;
use arrow_buffer::Buffer;

/// One copy, which the owner of the destination performs.
#[derive(Debug, Clone, Copy)]
pub struct CopyOut<'a> {
    /// Offset within the copied area, a multiple of [`crate::COPY_ALIGNMENT`].
    pub offset: u64,
    /// Bytes to write there.
    pub length: u64,
    /// Source of the bytes.
    pub source: CopySource<'a>,
}

/// Source of copied bytes.
#[derive(Debug, Clone, Copy)]
pub enum CopySource<'a> {
    /// The bytes themselves.
    Bytes(&'a [u8]),
    /// Bytes that [`CopyOut::fill`] computes, such as the offsets or views of a slice.
    Rewritten(Rewritten<'a>),
}

/// Bytes that only [`CopyOut::fill`] can produce.
#[derive(Debug, Clone, Copy)]
pub struct Rewritten<'a>(pub(super) &'a CopyItem);

impl CopyOut<'_> {
    /// Writes the bytes to `into`, whose length should be [`CopyOut::length`]. A shorter slice
    /// receives the bytes that fit.
    pub fn fill(&self, into: &mut [u8]) {
        match self.source {
            CopySource::Bytes(from) => {
                for (to, from) in into.chunks_mut(1 << 20).zip(from.chunks(1 << 20)) {
                    let length = to.len().min(from.len());
                    if let (Some(to), Some(from)) = (to.get_mut(..length), from.get(..length)) {
                        to.copy_from_slice(from);
                    }
                }
            }
            CopySource::Rewritten(Rewritten(item)) => {
                if let Some(rewrite) = &item.rewrite {
                    rewrite.fill(item.bytes.as_slice(), into);
                }
            }
        }
    }
}

/// A copy as stored in the plan.
#[derive(Debug)]
pub(crate) struct CopyItem {
    pub offset: u64,
    /// Bytes to copy or to rewrite.
    pub bytes: Buffer,
    pub length: u64,
    pub(super) rewrite: Option<Rewrite>,
}

impl CopyItem {
    pub fn copy_out(&self) -> CopyOut<'_> {
        let source = match self.rewrite {
            None => CopySource::Bytes(self.bytes.as_slice()),
            Some(_) => CopySource::Rewritten(Rewritten(self)),
        };
        CopyOut { offset: self.offset, length: self.length, source }
    }
}
