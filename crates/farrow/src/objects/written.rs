//! An object between its write and the answer to its seal.

use std::sync::Arc;

use farrow_memory::{Length, Retired, Span};
use farrow_store::ObjectId;
use farrow_wire::{SealItem, wire_span};

use crate::connection::session::Session;
use crate::error::Error;
use crate::memory::background;
use crate::memory::extents::{SealOutcome, SealTicket, UseGuard};
use crate::objects::block::metadata_offset;
use crate::objects::late::{self, LateObject};
use crate::objects::name_claim::NameClaim;
use crate::objects::object_reservation::ObjectReservation;
use crate::objects::seal::{Sealed, Unsealed};
use crate::objects::write_batch::WriteBatch;

/// An object that is written and not yet sealed.
pub(crate) struct WrittenObject {
    pub(crate) item: SealItem,
    pub(super) primary: Span,
    pub(super) is_small: bool,
    /// Buffers of the pool that become part of the object.
    pub(super) pool: Vec<SealTicket>,
    /// The old page tables of these buffers.
    pub(crate) retired: Retired,
    reservation: ObjectReservation,
    claim: NameClaim,
    /// Set once the node was asked to seal the object.
    ticket: Option<SealTicket>,
}

impl WrittenObject {
    pub(super) fn new(
        mut item: SealItem,
        primary: Span,
        is_small: bool,
        prepared: Prepared,
    ) -> Self {
        let Prepared { reservation, claim, .. } = prepared;
        item.is_reserved_object = reservation.is_there();
        item.is_reserved = claim.is_there();
        let retired = Retired::default();
        let (pool, ticket) = (Vec::new(), None);
        Self { item, primary, is_small, pool, retired, reservation, claim, ticket }
    }

    /// Records that the node is about to be asked to seal the object.
    pub(crate) fn ask(&mut self, session: &Session) {
        self.ticket = Some(session.extents.seal_requested(self.primary));
    }

    /// The node is to count the object among the reserved ones.
    pub(crate) fn reserve(&mut self, reservation: ObjectReservation) {
        self.item.is_reserved_object = reservation.is_there();
        self.reservation = reservation;
    }

    /// The object written by [`write_plain`](super::put::write_plain).
    pub(crate) fn small_bytes(primary: Span, size: Length) -> Self {
        let item = SealItem::bytes(wire_span(primary), size.0);
        Self::new(item, primary, true, Prepared::default())
    }
}

/// Resources acquired for an object before it is written.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) reservation: ObjectReservation,
    pub(crate) claim: NameClaim,
    pub(crate) place: ObjectPlacement,
}

/// Where an object is placed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum ObjectPlacement {
    /// Anywhere; if no memory is free, other objects are evicted.
    #[default]
    Any,
    /// Anywhere, also at a node that drains: the object is on its way to another node.
    Transit,
    /// In free memory only.
    Free,
    /// In this range. A small object shares its pages with others.
    At { span: Span, is_small: bool },
}

impl From<ObjectReservation> for Prepared {
    fn from(reservation: ObjectReservation) -> Self {
        Self { reservation, ..Self::default() }
    }
}

/// Gives back memory that was not written to.
pub(crate) fn give_back(session: &Session, place: ObjectPlacement) {
    match place {
        ObjectPlacement::At { span, is_small: true } => session.extents.give_lines(session, span),
        ObjectPlacement::At { span, is_small: false } => session.extents.give(session, span),
        ObjectPlacement::Any | ObjectPlacement::Transit | ObjectPlacement::Free => {}
    }
}

/// Writes metadata to the end of its block.
pub(super) fn write_metadata(
    small: &mut WriteBatch<'_>,
    primary: Span,
    metadata: &[u8],
) -> Result<(), Error> {
    if metadata.is_empty() {
        return Ok(());
    }
    small.write(metadata_offset(primary, metadata), metadata)
}

/// Replaces the metadata of a written and unsealed object by metadata of the same length.
pub(crate) fn relabel(
    session: &Session,
    written: &mut WrittenObject,
    metadata: &[u8],
) -> Result<(), Error> {
    if metadata.len() as u64 != u64::from(written.item.metadata_bytes) {
        let had = written.item.metadata_bytes;
        let text = format!("metadata of {} B in the place of {had} B", metadata.len());
        return Err(Error::InvalidArgument(text));
    }
    write_metadata(&mut WriteBatch::nothing(session), written.primary, metadata)?;
    written.item.metadata_crc = crc32c::crc32c(metadata);
    Ok(())
}

/// Records the node's answer: the memory belongs to the object, to this client again, or the
/// outcome is unknown. `open` stays open while bytes in the pool may be in use without a hold.
pub(crate) fn settle(
    session: &Arc<Session>,
    mut written: WrittenObject,
    sealed: Sealed,
    open: Option<&UseGuard>,
) -> Result<ObjectId, Error> {
    background::take_down(std::mem::take(&mut written.retired));
    match sealed {
        Ok(id) => {
            settle_sealed(session, written, id, open);
            Ok(id)
        }
        Err(Unsealed { error, is_unknown: false, .. }) => {
            abandon(session, &mut written);
            Err(error)
        }
        Err(unsealed) => Err(leave_unanswered(session, vec![written], unsealed, open)),
    }
}

fn settle_sealed(
    session: &Arc<Session>,
    mut written: WrittenObject,
    id: ObjectId,
    open: Option<&UseGuard>,
) {
    written.reservation.used(1);
    written.claim.sealed();
    if let Some(ticket) = written.ticket {
        session.extents.sealed(&**session, ticket);
    }
    if written.pool.is_empty() {
        return;
    }
    // Each buffer holds the object until Arrow frees it, so that the source table stays valid even
    // if the object is deleted.
    match session.hold_sealed(id) {
        Ok(held) => {
            session.pool.commit_seal(&**session, &written.pool, &held);
            session.release(held);
        }
        Err(error) => {
            for ticket in &written.pool {
                session.pool.extents().unanswered(&**session, *ticket, None, open);
            }
            leave_unheld(session, &written.pool, &error);
        }
    }
}

/// Leaves the buffers of a sealed object that cannot be held. They stay read-only and are never
/// reused, which is safe.
pub(crate) fn leave_unheld(session: &Session, pool: &[SealTicket], error: &Error) {
    tracing::error!(%error, "a sealed object cannot be held");
    for ticket in pool {
        session.pool.extents().conclude(session, *ticket, SealOutcome::Sealed(None));
    }
}

/// Leaves the objects of one request without an answer to the background, or to the next
/// connection. Objects that may be sealed keep the buffers of the pool read-only.
pub(crate) fn leave_unanswered(
    session: &Arc<Session>,
    all: Vec<WrittenObject>,
    unsealed: Unsealed,
    open: Option<&UseGuard>,
) -> Error {
    let Unsealed { error, lost, .. } = unsealed;
    let sent_on = lost.as_ref().map(|lost| lost.sent_on);
    // In a forked child the memory belongs to the parent.
    if !session.is_own_process() {
        return error;
    }
    let is_part = all.len() > 1;
    let mut objects = Vec::with_capacity(all.len());
    for mut written in all {
        background::take_down(std::mem::take(&mut written.retired));
        written.reservation.used(1);
        for ticket in &written.pool {
            session.pool.extents().unanswered(&**session, *ticket, sent_on, open);
        }
        if let Some(ticket) = written.ticket {
            session.extents.abandoned(&**session, ticket, sent_on);
        }
        objects.push(LateObject {
            own: written.ticket,
            in_use: written.pool,
            block: written.primary.offset.0,
            is_held_by_creator: written.item.is_held_by_creator,
            is_unwanted: is_part || written.item.name.is_none(),
        });
    }
    late::watch(session, lost, objects);
    error
}

/// Takes back the memory of an object that is not sealed.
pub(crate) fn abandon(session: &Arc<Session>, written: &mut WrittenObject) {
    // In a forked child the memory belongs to the parent.
    if !session.is_own_process() {
        return;
    }
    session.pool.abort_seal(&**session, &written.pool);
    if written.ticket.is_some_and(|ticket| !session.extents.refused(&**session, ticket)) {
        return;
    }
    if written.is_small {
        session.arena.untake(&**session, &session.extents, written.primary);
    } else {
        session.extents.give(&**session, written.primary);
    }
}
