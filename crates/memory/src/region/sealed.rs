//! Sealed bytes: memory without writers, which may be borrowed as a plain slice.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::Region;
use crate::error::BoundsError;
use crate::units::Span;

impl Region {
    /// Bytes of a sealed object. The result keeps the region mapped.
    ///
    /// This call turns a seal into a Rust borrow. The caller has found the span in a sealed entry
    /// and has a hold on it, so nothing writes it while the result lives. In this process the window
    /// is read-only there. Shared memory cannot protect against another process of the same user
    /// that violates the protocol.
    ///
    /// # Errors
    /// [`BoundsError`] if the span is not inside the region.
    pub fn sealed(self: &Arc<Self>, span: Span) -> Result<SealedBytes, BoundsError> {
        self.check(span)?;
        Ok(SealedBytes { region: Arc::clone(self), span })
    }
}

/// Immutable bytes in a region.
#[derive(Clone)]
pub struct SealedBytes {
    region: Arc<Region>,
    span: Span,
}

impl SealedBytes {
    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the span was checked, and the region stays mapped readable while self lives. The
        // span is sealed, so it has no writer.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.span.length.as_usize()) }
    }

    /// A pointer to the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.region.window.pointer(self.span.offset.0)
    }

    /// The span in the region.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// The region of the bytes.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl Deref for SealedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for SealedBytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for SealedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedBytes({})", self.span)
    }
}
