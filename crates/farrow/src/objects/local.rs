//! Sealing without a message: objects that have no name and one block.
//!
//! The client writes their entries itself, in pages that the node assigned to it, and the node
//! finds them when it scans. Their memory stays recorded as granted to this client; after a
//! reconnect the node reports which ranges still are.

use std::sync::Arc;
use std::time::Instant;

use farrow_memory::{Length, Span};
use farrow_store::{Held, HoldTable, ObjectId, ObjectKind, SealRequest, StoreError};
use farrow_wire::link::confused;
use farrow_wire::{ReplyBody, RequestBody, SealItem, span};

use crate::clock::{deadline_after, wall_clock_ns};
use crate::connection::session::Session;
use crate::error::Error;

/// Most pages of one request, which starts with one page and doubles: 42 x 64 entries.
const PAGES_MAX: u32 = 64;
/// Requests double once more, to twice the maximum, if that is at most this part of all pages.
const PART_OF_PAGES: u32 = 32;

/// After the node had no page left, this many objects are sealed by it before the next request.
const PAUSE: u32 = 256;

/// Seals a written and published object. `None`: the node has to seal it.
pub(crate) fn seal(session: &Session, item: &SealItem) -> Option<ObjectId> {
    Sealer::new(session).item(item)
}

/// As [`seal`], and holds the object from its first moment on.
pub(crate) fn seal_held(session: &Session, item: &SealItem) -> Option<(ObjectId, Held)> {
    let sealer = Sealer::new(session);
    let (id, held) = sealer.seal(&request(item)?, Some(&session.holds))?;
    Some((id, held?))
}

/// Seals several objects with one timestamp, as long as no client watches all objects.
pub(crate) struct Sealer<'a> {
    session: &'a Session,
    now_ns: u64,
    is_possible: bool,
}

impl<'a> Sealer<'a> {
    pub(crate) fn new(session: &'a Session) -> Self {
        let is_possible = !session.is_cut_off() && !session.reserved_objects.are_needed();
        Self { session, now_ns: wall_clock_ns(), is_possible }
    }

    /// As [`seal`].
    pub(crate) fn item(&self, item: &SealItem) -> Option<ObjectId> {
        self.seal(&request(item)?, None).map(|(id, _)| id)
    }

    /// As [`seal`], for the first `size` bytes of a block, without a name.
    pub(crate) fn bytes(&self, primary: Span, size: Length) -> Option<ObjectId> {
        self.seal(&SealRequest::bytes(primary, size, None), None).map(|(id, _)| id)
    }

    fn seal(
        &self,
        request: &SealRequest<'_>,
        holds: Option<&Arc<HoldTable>>,
    ) -> Option<(ObjectId, Option<Held>)> {
        let Self { session, now_ns, is_possible } = *self;
        // Subscribers to all objects are notified by the node, from the middle of a batch on too.
        if !is_possible || session.reader.is_watched().unwrap_or(true) {
            return None;
        }
        loop {
            let more = match session.local.entries.seal(request, now_ns, holds) {
                Ok(Some(sealed)) => return Some(sealed),
                Ok(None) => add_pages(session),
                Err(StoreError::HoldsExhausted { slots, .. }) => session.add_hold_block(slots),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = more {
                tracing::debug!(%error, "left to the node to seal");
                return None;
            }
        }
    }
}

/// The request of an object that the client can seal. `None`: it has a name or several blocks.
fn request(item: &SealItem) -> Option<SealRequest<'static>> {
    if item.name.is_some() || !item.extra.is_empty() {
        return None;
    }
    Some(SealRequest {
        kind: ObjectKind::from_u8(item.kind)?,
        primary: span(item.primary),
        descriptor: span(item.descriptor),
        descriptor_crc: item.descriptor_crc,
        extra: Vec::new(),
        extra_crc: 0,
        size: Length(item.size),
        metadata_bytes: item.metadata_bytes,
        metadata_crc: item.metadata_crc,
        name: None,
        is_reserved: false,
        is_staged: false,
    })
}

fn add_pages(session: &Session) -> Result<(), Error> {
    let none = || Error::TooMany { what: "entry pages".into(), max: 0 };
    let mut state = session.local.state.try_lock().map_err(|_| none())?;
    if state.pause > 0 {
        state.pause -= 1;
        return Err(none());
    }
    let part = session.reader.layout().entry_pages_max / PART_OF_PAGES;
    let count = (state.pages * 2).clamp(1, part.clamp(PAGES_MAX, 2 * PAGES_MAX));
    // Calls since then have read a late reply, if the node has sent it.
    let now = Instant::now();
    let request = RequestBody::EntryPages { count };
    let deadline = deadline_after(session.timeout);
    let added = match session.call_after_late(&mut state.late, now, request, deadline) {
        Ok(ReplyBody::EntryPages(pages)) => Ok(session.local.add(&[span(pages)])?),
        Ok(other) => Err(confused(&other).into()),
        Err(error) => Err(error),
    };
    match &added {
        Ok(()) => state.pages = count,
        Err(_) => state.pause = PAUSE,
    }
    added
}
