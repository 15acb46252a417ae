//! Pages of the data section that clients write: hold blocks, entry pages, use stamps. All that the
//! home reads there is input, and on a node-local region comes from memory: a page that a client of
//! another node writes is refreshed before each look.

use std::collections::BTreeSet;
use std::sync::Arc;

use farrow_memory::sync::{Ordering, fence};
use farrow_memory::{Alias, Proximity, Region, Span};

use crate::error::StoreError;

/// The home's hand on such pages.
#[derive(Debug)]
pub(crate) struct ClientPages {
    region: Arc<Region>,
    /// Writable for the home alone, which zeroes pages here where calls do not.
    alias: Alias,
    /// The data section can be read and written by system calls, not only mapped.
    is_by_call: bool,
    /// Clients on this node, whose pages need no refresh.
    near: BTreeSet<u32>,
}

impl ClientPages {
    pub(crate) fn new(region: &Arc<Region>, pages: Span) -> Result<Self, StoreError> {
        let alias = region.alias(pages)?;
        let is_by_call = region.read_by_call(pages.offset, &mut [0; 8]).is_ok();
        Ok(Self { region: Arc::clone(region), alias, is_by_call, near: BTreeSet::new() })
    }

    /// Where the process of a client runs.
    pub(crate) fn set_proximity(&mut self, client: u32, proximity: Proximity) {
        match proximity {
            Proximity::Local => self.near.insert(client),
            Proximity::Remote => self.near.remove(&client),
        };
    }

    /// Whether what this client writes has to be refreshed before it is read.
    pub(crate) fn is_far(&self, client: Option<u32>) -> bool {
        self.region.is_node_local() && client.is_none_or(|client| !self.near.contains(&client))
    }

    /// Copy words of a client out. By a system call where the fabric allows it: a client could cut the file
    /// short, and a load from behind its end would kill the home.
    pub(crate) fn read(&self, span: Span, client: Option<u32>) -> Result<Vec<u64>, StoreError> {
        if self.is_far(client) {
            self.region.refresh(span)?;
        }
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
            self.region.write_by_call(span.offset, &zeros)?;
        } else {
            let words = self.alias.words_mut(span)?;
            for i in 0..words.len() {
                words.store(i, 0, Ordering::Release);
            }
        }
        // The next client may be on another node, and writes into these lines.
        Ok(self.region.publish(span)?)
    }
}
