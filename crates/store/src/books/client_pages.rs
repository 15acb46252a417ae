//! Pages of the data section that clients write: hold blocks, entry pages, use stamps. All that the
//! home reads there is input.

use std::sync::Arc;

use farrow_memory::sync::{Ordering, fence};
use farrow_memory::{Alias, Region, Span};

use crate::error::StoreError;

/// The home's hand on such pages.
#[derive(Debug)]
pub(crate) struct ClientPages {
    region: Arc<Region>,
    /// Writable for the home alone, which zeroes pages here where calls do not.
    alias: Alias,
    /// The data section can be read and written by system calls, not only mapped.
    is_by_call: bool,
}

impl ClientPages {
    pub(crate) fn new(region: &Arc<Region>, pages: Span) -> Result<Self, StoreError> {
        let alias = region.alias(pages)?;
        let is_by_call = region.read_by_call(pages.offset, &mut [0; 8]).is_ok();
        Ok(Self { region: Arc::clone(region), alias, is_by_call })
    }

    /// Copy words out. By a system call where the fabric allows it: a client could cut the file
    /// short, and a load from behind its end would kill the home.
    pub(crate) fn read(&self, span: Span) -> Result<Vec<u64>, StoreError> {
        let count = (span.length.0 / 8) as usize;
        let words = if self.is_by_call {
            let mut bytes = vec![0; count * 8];
            self.region.read_by_call(span.offset, &mut bytes)?;
            bytes.as_chunks::<8>().0.iter().map(|eight| u64::from_le_bytes(*eight)).collect()
        } else {
            let words = self.region.words(span)?;
            (0..count).map(|i| words.load(i, Ordering::Acquire).unwrap_or(0)).collect()
        };
        // What a client did before it stored a word happened before what the home does now.
        fence(Ordering::Acquire);
        Ok(words)
    }

    /// Make a range zero, before it is a client's or after.
    pub(crate) fn zero(&self, span: Span) -> Result<(), StoreError> {
        if self.is_by_call {
            let zeros = vec![0; span.length.0 as usize];
            return Ok(self.region.write_by_call(span.offset, &zeros)?);
        }
        let words = self.alias.words_mut(span)?;
        for i in 0..words.len() {
            words.store(i, 0, Ordering::Release);
        }
        Ok(())
    }
}
