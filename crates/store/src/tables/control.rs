//! The home's access to the control section: every change is one ordered store of one word.

use std::sync::Arc;

use farrow_memory::sync::{Ordering, fence};
use farrow_memory::{Length, Offset, Region, Span};

use crate::error::StoreError;

/// Reads and writes words of the control section. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    region: Arc<Region>,
}

impl Control {
    pub(crate) fn new(region: Arc<Region>) -> Self {
        Self { region }
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Load the word at `offset`. The home is the only writer, so no order is needed.
    pub(crate) fn load(&self, offset: Offset) -> Result<u64, StoreError> {
        let words = self.region.words(Span::new(offset, Length(8)))?;
        words
            .load(0, Ordering::Relaxed)
            .ok_or_else(|| StoreError::unreachable_word("control", offset.0))
    }

    /// Store the word at `offset` after all earlier stores, and publish it.
    pub(crate) fn store(&self, offset: Offset, value: u64) -> Result<(), StoreError> {
        let span = Span::new(offset, Length(8));
        let words = self.region.words_mut(span)?;
        if !words.store(0, value, Ordering::Release) {
            return Err(StoreError::unreachable_word("control", offset.0));
        }
        self.publish(span)
    }

    /// Load the `N` words of a record.
    pub(crate) fn load_record<const N: usize>(
        &self,
        offset: Offset,
    ) -> Result<[u64; N], StoreError> {
        let words = self.region.words(Span::new(offset, Length(N as u64 * 8)))?;
        let mut record = [0; N];
        for (i, word) in record.iter_mut().enumerate() {
            *word = words
                .load(i, Ordering::Relaxed)
                .ok_or_else(|| StoreError::unreachable_word("control", offset.0))?;
        }
        Ok(record)
    }

    /// Store the words of a record that no reader uses yet, in no order, and publish them.
    pub(crate) fn store_record(&self, offset: Offset, record: &[u64]) -> Result<(), StoreError> {
        let span = Span::new(offset, Length(record.len() as u64 * 8));
        let words = self.region.words_mut(span)?;
        for (i, word) in record.iter().enumerate() {
            if !words.store(i, *word, Ordering::Relaxed) {
                return Err(StoreError::unreachable_word("control", offset.0));
            }
        }
        self.publish(span)
    }

    /// Write bytes that no reader uses yet, and publish them.
    pub(crate) fn write_bytes(&self, offset: Offset, bytes: &[u8]) -> Result<(), StoreError> {
        self.region.write(offset, bytes)?;
        self.publish(Span::new(offset, Length(bytes.len() as u64)))
    }

    /// Zero a whole table. Stores are ordered, because a name index may still have a reader.
    pub(crate) fn zero(&self, span: Span) -> Result<(), StoreError> {
        let words = self.region.words_mut(span)?;
        for i in 0..words.len() {
            words.store(i, 0, Ordering::Release);
        }
        self.publish(span)
    }

    /// Make earlier stores visible to other nodes, before any later store.
    fn publish(&self, span: Span) -> Result<(), StoreError> {
        self.region.publish(span)?;
        fence(Ordering::Release);
        Ok(())
    }
}

/// The offset of word `word` of record `index` in a table of records of `bytes`.
pub(crate) fn word_of(table: Span, bytes: u64, index: u32, word: u64) -> Offset {
    // Tables are in the region, so neither the product nor the sum overflows 64 bits.
    Offset(table.offset.0 + u64::from(index) * bytes + word * 8)
}
