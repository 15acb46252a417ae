//! Claims: the parts that one fetch transfers.

use std::sync::Arc;

use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_memory::{AccessError, FileMap, Length, Offset, Span};

use super::Cache;
use super::chunks::PartState;
use super::state::MirrorObjectId;
use crate::error::CacheError;

/// Bytes whose pages are allocated in one step, which takes some 2 ms.
const COMMIT_BYTES: u64 = 4 << 20;

/// The exclusive right to fetch parts of an object. While it lives, the parts are arriving: no
/// other claim includes them, and they are not evicted. Its drop releases incomplete parts, so
/// every writer of these bytes holds a reference to it.
#[derive(Debug)]
pub struct FetchClaim {
    cache: Arc<Cache>,
    object: MirrorObjectId,
    map: Arc<FileMap>,
    spans: Vec<Span>,
    has_large_grains: bool,
    has_ended: AtomicBool,
}

impl FetchClaim {
    pub(super) fn new(
        cache: Arc<Cache>,
        object: MirrorObjectId,
        map: Arc<FileMap>,
        spans: Vec<Span>,
        has_large_grains: bool,
    ) -> Self {
        let has_ended = AtomicBool::new(false);
        Self { cache, object, map, spans, has_large_grains, has_ended }
    }

    /// The bytes to fetch, in order, each span within one block. Empty if all are complete or
    /// arriving.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Total number of bytes.
    #[must_use]
    pub fn length(&self) -> Length {
        Length(self.spans.iter().map(|span| span.length.0).sum())
    }

    /// The map to write to.
    #[must_use]
    pub fn map(&self) -> &Arc<FileMap> {
        &self.map
    }

    /// Marks parts as complete, so that readers may use them. Parts that are only partly within the
    /// span are unchanged.
    pub fn complete(&self, span: Span) {
        let mut state = self.cache.lock();
        let Some(block) = state.object(self.object).and_then(|object| object.block_of(span)) else {
            return;
        };
        for at in block.parts_of(span) {
            let is_whole = block.part(at).is_some_and(|part| span.contains(part));
            if is_whole && block.state(at) == PartState::Arriving {
                block.set(at, PartState::Complete);
            }
        }
        drop(state);
        self.cache.parts_changed.notify_all();
    }

    /// Ends the claim before its drop. The caller ensures that no thread writes its bytes.
    pub(crate) fn end(&self) {
        if self.has_ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let abandoned = self.cache.lock().abandon(self.object, &self.spans);
        let mut state = self.cache.give_back(abandoned.into_iter().collect());
        if let Some(object) = state.object(self.object) {
            object.claims -= 1;
        }
        let settled = state.settle(self.object);
        drop(state);
        drop(self.cache.give_back(settled.into_iter().collect()));
    }

    /// Copies bytes into a part of the claim and completes it.
    ///
    /// # Errors
    /// [`CacheError::NotInObject`] outside the claim; [`CacheError::Memory`] if the write fails.
    pub fn put(&self, offset: Offset, bytes: &[u8]) -> Result<(), CacheError> {
        let span = Span::new(offset, Length::from(bytes.len()));
        if !self.spans.iter().any(|claimed| claimed.contains(span)) {
            return Err(CacheError::NotInObject { range: span, object: self.object.key });
        }
        self.map.write(offset, bytes)?;
        self.complete(span);
        Ok(())
    }

    /// Allocates huge pages of the claim ahead of the stream, in the thread that waits for it,
    /// until `is_done`. The stream allocates small pages itself: it does not clear them first,
    /// which halves the CPU time.
    ///
    /// # Errors
    /// [`AccessError`] if the pages cannot be allocated.
    pub fn commit_ahead(&self, is_done: &dyn Fn() -> bool) -> Result<(), AccessError> {
        for span in self.spans.iter().filter(|_| self.has_large_grains) {
            for at in (0..span.length.0).step_by(COMMIT_BYTES as usize) {
                if is_done() {
                    return Ok(());
                }
                let length = Length(COMMIT_BYTES.min(span.length.0 - at));
                self.map.commit(Span::new(Offset(span.offset.0 + at), length))?;
            }
        }
        Ok(())
    }
}

impl Drop for FetchClaim {
    fn drop(&mut self) {
        self.end();
    }
}
