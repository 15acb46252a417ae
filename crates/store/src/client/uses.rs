//! When each object was last used: a hint for the home's choice of objects to evict.
//!
//! The data section has one word for each slot, in nanoseconds since 1970. Every client stores it
//! at a get, so this is the only table with more than one writer. Its contents are not trusted: any
//! word is a valid number, and a wrong number only moves the eviction of an object. The home uses
//! the later of the stamp and the time of the seal, so a word left from an earlier life of the slot
//! has no effect.
//!
//! Between nodes that are not coherent, each line has one writer. So on a node-local region only
//! clients on the home's node leave stamps. An object used from other nodes alone counts as used at
//! its seal.

use std::sync::Arc;

use farrow_memory::sync::Ordering;
use farrow_memory::{Alias, Length, Region, Span};

use crate::error::StoreError;
use crate::format::header::RegionHeader;
use crate::format::ids::Slot;
use crate::format::layout::{Layout, USE_BYTES};
use crate::tables::control::word_of;

/// Bytes of the table that the home reads at once.
const PIECE_BYTES: usize = 64 << 10;

/// A client's access to the table.
#[derive(Debug)]
pub struct UseStamps {
    /// None: this client leaves no stamps.
    table: Option<Alias>,
}

impl UseStamps {
    /// Map the table of a region writable, unless the region is node-local and its home is on
    /// another node.
    ///
    /// # Errors
    /// [`StoreError::Format`] if `region` is not a store region, [`StoreError::Map`] if it cannot
    /// be mapped.
    pub fn new(region: &Arc<Region>) -> Result<Self, StoreError> {
        let layout = RegionHeader::read(region)?.layout;
        if region.is_remote() {
            return Ok(Self { table: None });
        }
        let pages = layout.uses.outward(layout.page.0).ok_or(StoreError::BadSpan {
            span: layout.uses,
            reason: "the use table leaves 64 bits",
        })?;
        Ok(Self { table: Some(region.alias(pages)?) })
    }

    /// Stamp the object in `slot` as used now, in nanoseconds since 1970. Nothing is stored if its
    /// last use is less than `grain_ns` ago, so that readers of one object share its line.
    pub fn touch(&self, slot: Slot, now_ns: u64, grain_ns: u64) {
        let Some(table) = &self.table else {
            return;
        };
        let at = word_of(table.span(), USE_BYTES, slot.0, 0);
        // A slot outside the table has no stamp; there is nothing to do about it here.
        if let Ok(words) = table.words_mut(Span::new(at, Length(USE_BYTES)))
            && words
                .load(0, Ordering::Relaxed)
                .is_some_and(|last| now_ns.abs_diff(last) >= grain_ns)
        {
            words.store(0, now_ns, Ordering::Relaxed);
        }
    }
}

/// The stamp of one slot, as a client reads it; 0 if there is none.
pub(crate) fn stamp(region: &Region, layout: &Layout, slot: Slot) -> u64 {
    let at = word_of(layout.uses, USE_BYTES, slot.0, 0);
    let words = region.words(Span::new(at, Length(USE_BYTES))).ok();
    words.and_then(|words| words.load(0, Ordering::Relaxed)).unwrap_or_default()
}

/// The stamp of one slot, for the home.
pub(crate) fn stamp_of_home(
    region: &Region,
    layout: &Layout,
    slot: Slot,
) -> Result<u64, StoreError> {
    let at = word_of(layout.uses, USE_BYTES, slot.0, 0);
    let mut bytes = [0; USE_BYTES as usize];
    region.copy_out_by_call(at, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// The stamps of slots `first..end`, for the home.
pub(crate) fn stamps(
    region: &Region,
    layout: &Layout,
    first: u32,
    end: u32,
) -> Result<Vec<u64>, StoreError> {
    let count = end.saturating_sub(first) as usize;
    let mut stamps = Vec::with_capacity(count);
    let mut bytes = vec![0; PIECE_BYTES];
    while stamps.len() < count {
        let left = (count - stamps.len()).min(PIECE_BYTES / USE_BYTES as usize);
        let piece = bytes.get_mut(..left * USE_BYTES as usize).unwrap_or_default();
        let start = word_of(layout.uses, USE_BYTES, first, stamps.len() as u64);
        region.copy_out_by_call(start, piece)?;
        stamps.extend(piece.as_chunks::<8>().0.iter().map(|eight| u64::from_le_bytes(*eight)));
    }
    Ok(stamps)
}
