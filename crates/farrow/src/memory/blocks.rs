//! The blocks of the region that belong to objects held by this client.
//!
//! A put looks up here whether a buffer is already in a sealed block. Then the new object may refer
//! to the block instead of copying the buffer.

use crate::lock::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

use farrow_memory::{Offset, Span};

#[derive(Debug)]
pub(crate) struct HeldBlocks {
    /// From the start of a block to (end, number of held objects that refer to it). It is never
    /// empty, so that a client that holds one object at a time allocates no node for each.
    blocks: Mutex<BTreeMap<u64, (u64, usize)>>,
}

impl Default for HeldBlocks {
    fn default() -> Self {
        // Behind all memory.
        Self { blocks: Mutex::new(BTreeMap::from([(u64::MAX, (u64::MAX, 1))])) }
    }
}

impl HeldBlocks {
    pub(crate) fn insert(&self, blocks: &[Span]) {
        let mut held = lock(&self.blocks);
        for block in blocks {
            let end = block.offset.0.saturating_add(block.length.0);
            held.entry(block.offset.0).or_insert((end, 0)).1 += 1;
        }
    }

    pub(crate) fn remove(&self, blocks: &[Span]) {
        let mut held = lock(&self.blocks);
        for block in blocks {
            if let Some((_, count)) = held.get_mut(&block.offset.0) {
                *count -= 1;
                if *count == 0 {
                    held.remove(&block.offset.0);
                }
            }
        }
    }

    /// The block that contains all of `span`.
    pub(crate) fn find(&self, span: Span) -> Option<Span> {
        let held = lock(&self.blocks);
        let (start, (end, _)) = held.range(..=span.offset.0).next_back()?;
        let block = Span { offset: Offset(*start), length: farrow_memory::Length(end - start) };
        block.contains(span).then_some(block)
    }
}
