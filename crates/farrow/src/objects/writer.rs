//! Writes an object in place: through a pointer, or by calls that copy.
//!
//! Copies are published as they are written, past the caches where that is quicker. So on memory
//! that is coherent only inside a node, the seal has no line left to write back. Once a pointer was
//! handed out, all lines may be dirty, and all are written back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::{Length, Offset, Retired, Span, fork, page_bytes};
use farrow_store::{Held, ObjectId};
use farrow_wire::{SealItem, span, wire_span};

use crate::clock::deadline_after;
use crate::cluster::request_link::FarDestination;
use crate::connection::session::Session;
use crate::error::Error;
use crate::lock::lock;
use crate::memory::background;
use crate::memory::extents::{SealOutcome, SealTicket, UseGuard, difference};
use crate::memory::room::Demand;
use crate::memory::unused::Unused;
use crate::objects::block::{metadata_offset, with_metadata};
use crate::objects::late::{self, LateObject};
use crate::objects::local;
use crate::objects::object_reservation::{ObjectReservation, rest_of};
use crate::objects::seal::{self, Unsealed};
use crate::options::ObjectOptions;

/// Copies of this length or more use a mapping of their own, which is populated part by part:
/// single page faults would halve the speed.
const FRESH_BYTES_MIN: u64 = 1 << 20;

/// Number of written parts that are tracked. With more, everything is published again at the seal.
const PARTS_MAX: usize = 1024;

/// Pages of an object in creation. They stay mapped while this value lives: writable until the
/// seal, read-only after it, so that a view of them never dangles.
#[derive(Debug)]
pub struct WriterMemory {
    session: Arc<Session>,
    pages: Span,
    bytes: u64,
    /// The last fork before the pages were taken.
    since: u64,
    state: std::sync::Mutex<WriterState>,
    published: std::sync::Mutex<Published>,
}

/// The published part of an object in creation.
#[derive(Debug)]
enum Published {
    /// These parts, by their starts in the region; no two touch.
    Parts(BTreeMap<u64, u64>),
    /// Unknown: a pointer was handed out, which allows stores anywhere, or there are too many
    /// parts.
    Unknown,
}

impl Published {
    fn add(&mut self, part: Span) {
        let Self::Parts(parts) = self else {
            return;
        };
        if part.is_empty() {
            return;
        }
        let (mut start, mut end) = (part.offset.0, part.offset.0 + part.length.0);
        let near = parts.range(..=end).rev().take_while(|(_, near_end)| **near_end >= start);
        let near: Vec<(u64, u64)> = near.map(|(start, end)| (*start, *end)).collect();
        for (near_start, near_end) in near {
            parts.remove(&near_start);
            (start, end) = (start.min(near_start), end.max(near_end));
        }
        parts.insert(start, end);
        if parts.len() > PARTS_MAX {
            *self = Self::Unknown;
        }
    }

    /// The unpublished rest of these pages.
    fn missing_of(&self, pages: Span) -> Vec<Span> {
        let Self::Parts(parts) = self else {
            return vec![pages];
        };
        let parts = parts.iter().map(|(start, end)| Span::new(Offset(*start), Length(end - start)));
        difference(&[pages], &parts.collect::<Vec<_>>()).into_iter().map(span).collect()
    }
}

#[derive(Debug)]
enum WriterState {
    Writing,
    Sealed(Held),
    Aborted,
    /// The outcome of the seal is unknown.
    Unknown(SealTicket),
}

/// Writes an object of plain bytes in place. A drop without a seal leaves nothing behind.
#[derive(Debug)]
pub struct Writer {
    memory: Arc<WriterMemory>,
    name: Option<String>,
    /// The name, if it is reserved for this writer. Of one that replaces, another writer of this
    /// client may have reserved it.
    reserved: Option<String>,
    is_replacing: bool,
    reservation: ObjectReservation,
    metadata_bytes: u32,
    metadata_crc: u32,
    is_done: bool,
    /// The node that the object is sent to when it is sealed; `None`: it stays here.
    destination: Option<FarDestination>,
    wait: Duration,
}

impl WriterMemory {
    /// Pointer to the first byte. It allows stores anywhere until the seal, which then publishes
    /// all lines. In a forked child the memory is read-only.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        if self.session.is_own_process() {
            *lock(&self.published) = Published::Unknown;
        }
        let first = Span { offset: self.pages.offset, length: Length(self.bytes) };
        match self.session.region.address_of(first) {
            Ok(address) => std::ptr::with_exposed_provenance_mut(address.0),
            Err(_) => std::ptr::null_mut(),
        }
    }

    /// Number of bytes that may be written.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// True if there are no bytes to write.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// True until the seal or the abort.
    pub fn is_writable(&self) -> bool {
        self.session.is_own_process() && matches!(*lock(&self.state), WriterState::Writing)
    }

    /// The offset of the first byte in the region.
    pub fn offset(&self) -> Offset {
        self.pages.offset
    }

    /// Copies `from` to `offset` bytes behind the first byte, and publishes it. Large copies bypass
    /// the caches and use all cores.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when the bytes do not fit or the writer is finished,
    /// [`Error::Disconnected`] in a forked child.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.session.check()?;
        let state = lock(&self.state);
        let end = offset.checked_add(from.len() as u64);
        if !matches!(*state, WriterState::Writing) || end.is_none_or(|end| end > self.bytes) {
            return Err(Error::InvalidArgument(format!(
                "{} B at {offset} of an object of {} B{}",
                from.len(),
                self.bytes,
                if matches!(*state, WriterState::Writing) { "" } else { " that is finished" }
            )));
        }
        let region = &self.session.region;
        let target = Span::new(Offset(self.pages.offset.0 + offset), Length::from(from.len()));
        if !self.pages.contains(target) {
            let text = format!("{target} of a writer over {}", self.pages);
            return Err(Error::InvalidArgument(text));
        }
        if target.length.0 >= FRESH_BYTES_MIN {
            let pages = target.outward(page_bytes()).unwrap_or(self.pages);
            let alias = region.alias(pages)?;
            alias.write_fresh(target.offset, from, None)?;
            background::unmap(alias);
        } else {
            region.writable_slice(self.pages)?.write_at(target.offset, from)?;
            region.publish_if_node_local(target)?;
        }
        lock(&self.published).add(target);
        Ok(())
    }

    /// The parts of the pages that are not published, and whether calls wrote the whole object.
    fn unpublished(&self) -> (Vec<Span>, bool) {
        let published = lock(&self.published);
        let object = Span::new(self.pages.offset, Length(self.bytes));
        (published.missing_of(self.pages), published.missing_of(object).is_empty())
    }

    /// Holds the sealed object. Caches of this node may have older bytes of parts that were not
    /// written by calls.
    fn hold(&self, id: ObjectId, is_whole: bool) -> Result<Held, Error> {
        match is_whole {
            true => self.session.hold_written(id, self.pages),
            false => self.session.hold_sealed(id),
        }
    }

    /// Notes that the object is sealed. The memory holds it, so that views stay valid even if the
    /// object is deleted.
    fn on_sealed(
        &self,
        held: Result<Held, Error>,
        ticket: SealTicket,
        sealing: &UseGuard,
        state: &mut WriterState,
    ) -> Result<(), Error> {
        let (session, extents) = (&self.session, self.session.pool.extents());
        match held {
            Ok(held) => {
                extents.sealed(&**session, ticket);
                *state = WriterState::Sealed(held);
                Ok(())
            }
            Err(error) => {
                *state = WriterState::Unknown(ticket);
                extents.unanswered(&**session, ticket, None, Some(sealing));
                extents.conclude(&**session, ticket, SealOutcome::Sealed(None));
                Err(error)
            }
        }
    }

    /// Makes the pages writable again after a failed seal, so that the next writer may have them. If
    /// that fails they return to the node.
    fn unprotect(&self, state: &mut WriterState, ticket: SealTicket) {
        let extents = self.session.pool.extents();
        if let Err(error) = self.session.region.make_writable(self.pages) {
            tracing::error!(%error, "pages of a failed seal stay read-only");
            *state = WriterState::Unknown(ticket);
            extents.refused_read_only(&*self.session, ticket);
        } else {
            extents.refused(&*self.session, ticket);
        }
    }
}

impl Drop for WriterMemory {
    fn drop(&mut self) {
        if !self.session.is_own_process() {
            return;
        }
        // Only now may the pages be reused: until here a view could be written to.
        let state = std::mem::replace(&mut *lock(&self.state), WriterState::Aborted);
        match state {
            WriterState::Writing | WriterState::Aborted => {
                self.session.give_unused(Unused::Pages(self.pages), self.since);
            }
            WriterState::Sealed(held) => {
                held.date_back(self.since);
                self.session.release(held);
            }
            WriterState::Unknown(ticket) => {
                self.session.give_unused(Unused::Sealing(ticket), self.since);
            }
        }
    }
}

impl Writer {
    pub(crate) fn new(
        session: &Arc<Session>,
        bytes: u64,
        options: &ObjectOptions<'_>,
    ) -> Result<Self, Error> {
        Self::with_pages(session, bytes, options, |demand, size| {
            session.pool.extents().take_or_make(&**session, &[size], demand)
        })
    }

    /// A writer of an object without a name that is to be brought to another node.
    pub(crate) fn staged(
        session: &Arc<Session>,
        bytes: u64,
        options: &ObjectOptions<'_>,
    ) -> Result<Self, Error> {
        let nameless = ObjectOptions { name: None, ..*options };
        let extents = session.pool.extents();
        Self::with_pages(session, bytes, &nameless, |demand, size| {
            match extents.take_or_make(&**session, &[size], demand) {
                Err(Error::NodeDraining { .. }) => {
                    extents.make(&**session, &[size], &Demand::transit(demand.wait))
                }
                pages => pages,
            }
        })
    }

    fn with_pages(
        session: &Arc<Session>,
        bytes: u64,
        options: &ObjectOptions<'_>,
        take: impl FnOnce(&Demand, u64) -> Result<Vec<Span>, Error>,
    ) -> Result<Self, Error> {
        let name = || options.name_to_reserve().into_iter().collect();
        session.reservations.take(&**session, name())?;
        let since = Instant::now();
        let reservation = ObjectReservation::take(session, 1, options.wait);
        let made = reservation.and_then(|reservation| {
            let wait = rest_of(options.wait, since.elapsed());
            let bytes_all = Self::block_bytes(bytes, options);
            let demand = Demand::new(1, options.name.into_iter(), wait);
            let pages = take(&demand, bytes_all)?;
            let pages = pages.first().copied().unwrap_or_default();
            Self::over(session, pages, bytes, options, reservation)
        });
        made.inspect_err(|_| session.reservations.give(&**session, name()))
    }

    /// Bytes of an object and its metadata; never 0.
    pub(crate) fn block_bytes(bytes: u64, options: &ObjectOptions<'_>) -> u64 {
        with_metadata(bytes.max(1), &options.encoded_metadata())
    }

    /// Creates a writer over pages taken from the pool's extents. The name is reserved, unless the
    /// object may replace another, and so is the object in its quotas where they count objects.
    pub(crate) fn over(
        session: &Arc<Session>,
        pages: Span,
        bytes: u64,
        options: &ObjectOptions<'_>,
        reservation: ObjectReservation,
    ) -> Result<Self, Error> {
        let state = std::sync::Mutex::new(WriterState::Writing);
        let published = std::sync::Mutex::new(Published::Parts(BTreeMap::new()));
        let metadata = options.encoded_metadata();
        if !metadata.is_empty() {
            let target = session.region.writable_slice(pages)?;
            target.write_at(metadata_offset(pages, &metadata), &metadata)?;
        }
        let (session, since) = (Arc::clone(session), fork::completed_forks());
        let memory = WriterMemory { session, pages, bytes, since, state, published };
        Ok(Self {
            memory: Arc::new(memory),
            name: options.name.map(str::to_owned),
            reserved: options.name_to_reserve(),
            is_replacing: options.replace && options.name.is_some(),
            reservation,
            metadata_bytes: metadata.len() as u32,
            metadata_crc: crc32c::crc32c(&metadata),
            is_done: false,
            destination: None,
            wait: options.wait,
        })
    }

    /// Has the object sent to another node when it is sealed.
    pub(crate) fn send_to(&mut self, destination: Option<FarDestination>) {
        self.destination = destination;
    }

    /// The memory to write to.
    pub fn memory(&self) -> &Arc<WriterMemory> {
        &self.memory
    }

    /// Makes the object immutable and visible. After that a write to its memory faults.
    ///
    /// # Errors
    ///
    /// The name is taken, or the node has ended. The writer is then aborted.
    pub fn seal(mut self) -> Result<ObjectId, Error> {
        let destination = self.destination.take();
        let deadline = deadline_after(self.wait);
        // Its hold keeps a staged object in memory until the other node has it.
        let _memory = Arc::clone(&self.memory);
        let id = self.seal_here(destination.is_some())?;
        destination.map_or(Ok(id), |destination| destination.import(id, deadline))
    }

    fn seal_here(mut self, is_staged: bool) -> Result<ObjectId, Error> {
        let memory = Arc::clone(&self.memory);
        let session = Arc::clone(&memory.session);
        session.check()?;
        self.is_done = true;
        // The lock blocks `write_at` until the pages are read-only.
        let mut state = lock(&memory.state);
        *state = WriterState::Aborted;
        let mut retired = Retired::default();
        let (unpublished, is_whole) = memory.unpublished();
        if let Err(error) = session.protect(memory.pages, &unpublished, &mut retired) {
            session.reservations.give(&*session, self.reserved.take().into_iter().collect());
            // A part may be read-only by now.
            let ticket = session.pool.extents().seal_requested(memory.pages);
            memory.unprotect(&mut state, ticket);
            return Err(error);
        }
        let item = self.seal_item(is_staged);
        if !is_staged && let Some((id, held)) = local::seal_held(&session, &item) {
            background::take_down(retired);
            // The memory holds the object, so that views stay valid even if the object is deleted.
            *state = WriterState::Sealed(held);
            return Ok(id);
        }
        let sealing = session.sealing();
        let ticket = session.pool.extents().seal_requested(memory.pages);
        let sealed = seal::one(&session, item);
        background::take_down(retired);
        match sealed {
            Ok(id) => {
                self.reservation.used(1);
                if let Some(name) = &self.reserved {
                    session.reservations.sealed(name);
                }
                let held = memory.hold(id, is_whole);
                memory.on_sealed(held, ticket, &sealing, &mut state)?;
                Ok(id)
            }
            Err(unsealed) => Err(self.on_unsealed(unsealed, ticket, &sealing, &mut state)),
        }
    }

    /// The message that seals the object.
    fn seal_item(&self, is_staged: bool) -> SealItem {
        SealItem {
            name: self.name.clone(),
            metadata_bytes: self.metadata_bytes,
            metadata_crc: self.metadata_crc,
            is_reserved: self.reserved.is_some(),
            is_replacing: self.is_replacing,
            is_reserved_object: self.reservation.is_there(),
            is_held_by_creator: true,
            is_staged,
            lease_ms: 0,
            ..SealItem::bytes(wire_span(self.memory.pages), self.memory.bytes)
        }
    }

    /// Ends the reservations of a seal that failed, or whose outcome is unknown.
    fn on_unsealed(
        &mut self,
        unsealed: Unsealed,
        ticket: SealTicket,
        sealing: &UseGuard,
        state: &mut WriterState,
    ) -> Error {
        let Unsealed { error, is_unknown, lost } = unsealed;
        let memory = &self.memory;
        let session = &memory.session;
        // A seal that succeeded, or still will, has ended the reservation by then.
        session.reservations.give(&**session, self.reserved.take().into_iter().collect());
        if !is_unknown {
            memory.unprotect(state, ticket);
            return error;
        }
        self.reservation.used(1);
        *state = WriterState::Unknown(ticket);
        let sent_on = lost.as_ref().map(|lost| lost.sent_on);
        session.pool.extents().unanswered(&**session, ticket, sent_on, Some(sealing));
        let object = LateObject {
            own: None,
            in_use: vec![ticket],
            block: memory.pages.offset.0,
            is_held_by_creator: true,
            is_unwanted: self.name.is_none(),
        };
        late::watch(session, lost, vec![object]);
        error
    }

    /// Gives up the object and leaves nothing behind.
    pub fn abort(self) {}
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.is_done || !self.memory.session.is_own_process() {
            return;
        }
        *lock(&self.memory.state) = WriterState::Aborted;
        let session = &self.memory.session;
        session.reservations.give(&**session, self.reserved.take().into_iter().collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(start: u64, end: u64) -> Span {
        Span::new(Offset(start), Length(end - start))
    }

    #[test]
    fn what_calls_did_not_write_is_missing() {
        let pages = between(100, 200);
        let mut published = Published::Parts(BTreeMap::new());
        assert_eq!(published.missing_of(pages), [pages]);
        published.add(between(120, 130));
        published.add(between(150, 160));
        let missing = [between(100, 120), between(130, 150), between(160, 200)];
        assert_eq!(published.missing_of(pages), missing);
        // Over the end of one part, up to the start of another, and once more.
        published.add(between(125, 150));
        published.add(between(125, 150));
        assert_eq!(published.missing_of(pages), [between(100, 120), between(160, 200)]);
        published.add(between(160, 200));
        published.add(between(100, 100));
        assert_eq!(published.missing_of(pages), [between(100, 120)]);
        published.add(between(100, 121));
        assert_eq!(published.missing_of(pages), []);
        assert_eq!(published.missing_of(between(100, 250)), [between(200, 250)]);
        assert_eq!(published.missing_of(between(90, 95)), [between(90, 95)]);
        assert_eq!(published.missing_of(between(90, 195)), [between(90, 100)]);
    }

    #[test]
    fn more_parts_than_are_distinguished_are_all_published_again() {
        let pages = between(0, 10 * PARTS_MAX as u64);
        let mut published = Published::Parts(BTreeMap::new());
        for part in 0..PARTS_MAX as u64 {
            published.add(between(part * 4 + 1, part * 4 + 2));
        }
        assert_eq!(published.missing_of(pages).len(), PARTS_MAX + 1);
        published.add(between(9 * PARTS_MAX as u64, 10 * PARTS_MAX as u64));
        assert_eq!(published.missing_of(pages), [pages]);
    }
}
