//! The new blocks of parts, from the open to the transfer.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::protocol::net::NetFault;

/// Limit on the bytes of all new blocks: eight parts of the largest size. Others wait.
const NEW_BLOCKS_BYTES_MAX: usize = 256 << 20;

/// The node that has the object, and the hold on it there.
type PartKey = (String, u64);

/// New blocks of opened parts. A part's block is dropped with the hold of its object.
#[derive(Default)]
pub(in crate::net) struct NewBlocks {
    blocks: Mutex<BTreeMap<PartKey, Vec<u8>>>,
}

impl NewBlocks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PartKey, Vec<u8>>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a block until its part is transferred.
    pub(in crate::net) fn add(&self, key: PartKey, block: Vec<u8>) -> Result<(), NetFault> {
        if block.is_empty() {
            return Ok(());
        }
        let mut blocks = self.lock();
        let used: usize = blocks.values().map(Vec::len).sum();
        if used + block.len() > NEW_BLOCKS_BYTES_MAX {
            let (count, requested) = (blocks.len(), block.len());
            let text = format!("{count} parts wait with {used} B, and one asks for {requested} B");
            return Err(NetFault::Busy(format!("{text}, at most {NEW_BLOCKS_BYTES_MAX} B")));
        }
        blocks.insert(key, block);
        Ok(())
    }

    /// Removes the block of a part, if it has one.
    pub(in crate::net) fn take(&self, node: &str, hold: u64) -> Option<Vec<u8>> {
        self.lock().remove(&(node.to_owned(), hold))
    }
}
