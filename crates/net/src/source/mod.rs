//! Decisions of the daemon for a server: objects that a peer may read, and grants that it may fill.

pub mod table;

use std::sync::Arc;

use farrow_memory::{FileMap, Span};

use crate::frame::{ErrorCode, Opened};
pub use crate::member::MemberLife;

/// A hold of a member on an object. The member chooses the number, so it can end a hold even if the
/// answer to Open is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldId(pub u64);

/// A grant that a member may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub u64);

/// The refusal of a request. The connection stays open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} ({code:?})")]
pub struct SourceRefusal {
    /// The kind of error.
    pub code: ErrorCode,
    /// The reason; truncated to [`crate::frame::ERROR_TEXT_BYTES_MAX`].
    pub text: String,
    /// An open may succeed soon: the server repeats it for a while before it refuses it.
    pub is_passing: bool,
}

impl SourceRefusal {
    /// A refusal with a code and a text.
    #[must_use]
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), is_passing: false }
    }

    /// The refusal of an open whose object is on its way into memory.
    #[must_use]
    pub fn passing(text: impl Into<String>) -> Self {
        Self { is_passing: true, ..Self::new(ErrorCode::Busy, text) }
    }
}

/// While the guard lives, its ranges are not reused; see [`Source::read`].
pub type Guard = Box<dyn Send>;

/// Objects that peers may read. Several threads of a server call it concurrently. No call may wait,
/// since the other requests of its connection wait for it.
pub trait Source: Send + Sync {
    /// The data section that offsets refer to.
    fn map(&self) -> &Arc<FileMap>;

    /// Finds the object that `want` describes, checks the member's permission, and holds the object
    /// under the given number. A number that the member already uses is refused. `want` is input of
    /// the peer, of at most [`crate::frame::OPEN_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`SourceRefusal`], which is sent to the peer; a passing one after several calls.
    fn open(&self, member: &MemberLife, hold: HoldId, want: &[u8])
    -> Result<Opened, SourceRefusal>;

    /// Checks that ranges may be sent: the hold belongs to the member, and each range is within one
    /// block of its object. On non-coherent memory it also refreshes them. The ranges stay readable
    /// until the guard is dropped, even if the hold ends meanwhile.
    ///
    /// # Errors
    /// [`SourceRefusal`], which is sent to the peer.
    fn read(
        &self,
        member: &MemberLife,
        hold: HoldId,
        ranges: &[Span],
    ) -> Result<Guard, SourceRefusal>;

    /// Releases a hold. An unknown hold is ignored, since it may have ended before.
    fn release(&self, member: &MemberLife, hold: HoldId);

    /// Records the answer to a notice: no reader of the member can find the object.
    fn on_invalidated(&self, member: &MemberLife, object: u64);
}

/// Grants that peers may fill.
pub trait PushTarget: Send + Sync {
    /// The writable data section that offsets refer to.
    fn map(&self) -> &Arc<FileMap>;

    /// Checks that ranges may be written: the grant belongs to the member and is not sealed, and
    /// each range is within it. The grant's memory is not reused until the guard is dropped.
    ///
    /// # Errors
    /// [`SourceRefusal`], which is sent to the peer.
    fn write(
        &self,
        member: &MemberLife,
        grant: GrantId,
        ranges: &[Span],
    ) -> Result<Guard, SourceRefusal>;

    /// Called when every byte of the ranges is in memory, while the guard still lives. On
    /// non-coherent memory it publishes the ranges.
    ///
    /// # Errors
    /// [`SourceRefusal`], which is sent to the peer instead of the acknowledgement.
    fn written(
        &self,
        member: &MemberLife,
        grant: GrantId,
        ranges: &[Span],
    ) -> Result<(), SourceRefusal>;
}
