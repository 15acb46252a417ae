//! Decisions of the daemon for a server: the objects that a peer may read, the grants it may fill.

pub mod table;

use std::fmt;
use std::sync::Arc;

use farrow_memory::{FileMap, Span};

use crate::frame::{ErrorCode, Opened};

/// One life of a node as a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberLife {
    /// Its name.
    pub name: String,
    /// Its incarnation.
    pub incarnation: u64,
}

impl fmt::Display for MemberLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (incarnation {})", self.name, self.incarnation)
    }
}

/// A hold of a member on an object, by a number that the member chose: so it can end holds whose
/// answer never came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldId(pub u64);

/// A grant that a member may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub u64);

/// A request is refused. The connection stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} ({code:?})")]
pub struct SourceRefusal {
    /// What kind of error.
    pub code: ErrorCode,
    /// For a human; cut at [`crate::frame::ERROR_TEXT_BYTES_MAX`].
    pub text: String,
}

impl SourceRefusal {
    /// A refusal with its text.
    #[must_use]
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// While it lives, the ranges it was given for are not reused: see [`Source::read`].
pub type Guard = Box<dyn Send>;

/// Objects that peers may read. Called by several threads of a server at a time. Each call returns
/// well within the stall limit, since its connection waits for it.
pub trait Source: Send + Sync {
    /// The data section that offsets are in.
    fn map(&self) -> &Arc<FileMap>;

    /// Finds the object that `want` describes, checks the member's rights and holds it for the
    /// member under the number that it chose. A number that the member has in use is refused. `want`
    /// comes from the peer and is at most [`crate::frame::OPEN_BYTES_MAX`] long.
    ///
    /// # Errors
    /// [`Refusal`], which the peer is told.
    fn open(&self, member: &MemberLife, hold: HoldId, want: &[u8])
    -> Result<Opened, SourceRefusal>;

    /// Allows ranges to be sent: each lies within one block of the object of that hold, and the hold
    /// is of that member. On memory that is not coherent it also refreshes them. The ranges stay
    /// readable until the guard is dropped, even if the hold ends meanwhile.
    ///
    /// # Errors
    /// [`Refusal`], which the peer is told.
    fn read(
        &self,
        member: &MemberLife,
        hold: HoldId,
        ranges: &[Span],
    ) -> Result<Guard, SourceRefusal>;

    /// The member needs the hold no more. An unknown one is ignored: it may have ended before.
    fn release(&self, member: &MemberLife, hold: HoldId);

    /// No reader of the member finds the object any more: the answer to a notice.
    fn gone_seen(&self, member: &MemberLife, object: u64);
}

/// Grants that peers may fill.
pub trait PushTarget: Send + Sync {
    /// The data section that offsets are in, writable.
    fn map(&self) -> &Arc<FileMap>;

    /// Allows ranges to be written: each lies in the grant, and the grant is the member's and is not
    /// sealed. The grant is not given to anybody else until the guard is dropped.
    ///
    /// # Errors
    /// [`Refusal`], which the peer is told.
    fn write(
        &self,
        member: &MemberLife,
        grant: GrantId,
        ranges: &[Span],
    ) -> Result<Guard, SourceRefusal>;

    /// Every byte of the ranges is in memory. On memory that is not coherent it publishes them. The
    /// guard still lives.
    ///
    /// # Errors
    /// [`Refusal`], which the peer is told instead of the acknowledgement.
    fn written(
        &self,
        member: &MemberLife,
        grant: GrantId,
        ranges: &[Span],
    ) -> Result<(), SourceRefusal>;
}
