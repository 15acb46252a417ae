//! Pages of the data section that clients write: hold blocks, entry pages, use stamps. The home
//! treats all of it as untrusted input. On a node-local region it reads memory itself: a page
//! written by a client of another node is refreshed before each read.

use std::collections::BTreeSet;
use std::sync::Arc;

use farrow_memory::sync::{Ordering, fence};
use farrow_memory::{Alias, Proximity, Region, Span};

use crate::error::StoreError;

/// The home's access to such pages.
#[derive(Debug)]
pub(crate) struct ClientPages {
    region: Arc<Region>,
    /// Writable for the home alone, which zeroes pages through it if system calls cannot.
    alias: Alias,
    /// Whether system calls can read and write the data section.
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

    /// Record whether the process of a client runs on this node.
    pub(crate) fn set_proximity(&mut self, client: u32, proximity: Proximity) {
        match proximity {
            Proximity::Local => self.near.insert(client),
            Proximity::Remote => self.near.remove(&client),
        };
    }

    /// Whether bytes that this client writes have to be refreshed before they are read.
    pub(crate) fn is_far(&self, client: Option<u32>) -> bool {
        self.region.is_node_local() && client.is_none_or(|client| !self.near.contains(&client))
    }

    /// Copy words of a client out. Uses a system call if the fabric allows it: a client could
    /// truncate the file, and a load beyond its end would kill the home.
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
        // Everything a client did before it stored a word happens before the home's next steps.
        fence(Ordering::Acquire);
        Ok(words)
    }

    /// Zero a range, before it is assigned to a client or after.
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
        // The next client may be on another node and write into these lines.
        Ok(self.region.publish(span)?)
    }
}
