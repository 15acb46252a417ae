//! An object that is being written by hand.

use std::sync::Arc;

use farrow_cluster::wire::SealItem;
use farrow_memory::{Length, Offset, Retired, Span};
use farrow_store::{Held, ObjectId};

use crate::background;
use crate::error::Error;
use crate::local;
use crate::options::ObjectOptions;
use crate::put;
use crate::seal;
use crate::session::{Session, lock, wire_span};

/// Pages of an object in creation. They stay mapped as long as this lives: writable until the
/// seal, read-only after it, so that a view of them never dangles.
#[derive(Debug)]
pub struct WriterMemory {
    session: Arc<Session>,
    pages: Span,
    bytes: u64,
    state: std::sync::Mutex<State>,
}

#[derive(Debug)]
enum State {
    Writing,
    Sealed(Held),
    Aborted,
    /// Sealed or not: the node did not say.
    Unknown,
}

/// Writes an object of plain bytes in place. Dropped unsealed it leaves nothing behind.
#[derive(Debug)]
pub struct Writer {
    memory: Arc<WriterMemory>,
    name: Option<String>,
    metadata_bytes: u32,
    metadata_crc: u32,
    is_done: bool,
}

impl WriterMemory {
    /// First byte.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        let first = Span { offset: self.pages.offset, length: Length(self.bytes) };
        match self.session.region.address_of(first) {
            Ok(address) => std::ptr::with_exposed_provenance_mut(address.0),
            Err(_) => std::ptr::null_mut(),
        }
    }

    /// Bytes that may be written.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// True when there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// True until the seal or the abort.
    pub fn is_writable(&self) -> bool {
        matches!(*lock(&self.state), State::Writing)
    }

    /// Where in the region it lies.
    pub fn offset(&self) -> Offset {
        self.pages.offset
    }

    /// Copies `from` to `offset` bytes behind the first byte.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when it does not fit or the writer is done.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let state = lock(&self.state);
        let end = offset.checked_add(from.len() as u64);
        if !matches!(*state, State::Writing) || end.is_none_or(|end| end > self.bytes) {
            return Err(Error::InvalidArgument(format!(
                "{} B at {offset} of an object of {} B{}",
                from.len(),
                self.bytes,
                if matches!(*state, State::Writing) { "" } else { " that is finished" }
            )));
        }
        let target = self.session.region.writable_slice(self.pages)?;
        Ok(target.write_at(Offset(self.pages.offset.0 + offset), from)?)
    }
}

impl Drop for WriterMemory {
    fn drop(&mut self) {
        // Only now may the pages go to others: until here a view of them could be written to.
        let state = std::mem::replace(&mut *lock(&self.state), State::Aborted);
        match state {
            State::Writing | State::Aborted => {
                self.session.pool.extents().give(&self.session, self.pages);
            }
            State::Sealed(held) => self.session.release(held),
            State::Unknown => self.session.pool.extents().in_limbo(self.pages),
        }
    }
}

impl Writer {
    pub(crate) fn new(
        session: &Arc<Session>,
        bytes: u64,
        options: &ObjectOptions<'_>,
    ) -> Result<Self, Error> {
        let name = || options.name.map(str::to_owned).into_iter().collect();
        session.reservations.take(session, name())?;
        session
            .pool
            .extents()
            .take_within(session, Self::block_bytes(bytes, options), options.wait)
            .and_then(|pages| Self::over(session, pages, bytes, options))
            .inspect_err(|_| session.reservations.give(session, name()))
    }

    /// Bytes that an object takes with its metadata; never 0.
    pub(crate) fn block_bytes(bytes: u64, options: &ObjectOptions<'_>) -> u64 {
        put::with_metadata(bytes.max(1), &options.encoded_metadata())
    }

    /// Over pages that were taken from the pool's extents; its name is reserved.
    pub(crate) fn over(
        session: &Arc<Session>,
        pages: Span,
        bytes: u64,
        options: &ObjectOptions<'_>,
    ) -> Result<Self, Error> {
        let state = std::sync::Mutex::new(State::Writing);
        let memory = WriterMemory { session: Arc::clone(session), pages, bytes, state };
        let metadata = options.encoded_metadata();
        if !metadata.is_empty() {
            let target = session.region.writable_slice(pages)?;
            target.write_at(put::metadata_offset(pages, &metadata), &metadata)?;
        }
        Ok(Self {
            memory: Arc::new(memory),
            name: options.name.map(str::to_owned),
            metadata_bytes: metadata.len() as u32,
            metadata_crc: crc32c::crc32c(&metadata),
            is_done: false,
        })
    }

    /// The memory to write to.
    pub fn memory(&self) -> &Arc<WriterMemory> {
        &self.memory
    }

    /// Makes the object immutable and visible. From here on writing to its memory faults.
    ///
    /// # Errors
    ///
    /// The name was taken, the node is gone; the writer is then as if aborted.
    pub fn seal(mut self) -> Result<ObjectId, Error> {
        self.is_done = true;
        let memory = &self.memory;
        let session = Arc::clone(&memory.session);
        session.check_process()?;
        // The lock keeps `write_at` out until the pages are read-only.
        let mut state = lock(&memory.state);
        *state = State::Aborted;
        let mut retired = Retired::default();
        session.protect(memory.pages, &mut retired)?;
        let item = SealItem {
            name: self.name.clone(),
            metadata_bytes: self.metadata_bytes,
            metadata_crc: self.metadata_crc,
            is_reserved: self.name.is_some(),
            is_held_by_creator: true,
            ..SealItem::bytes(wire_span(memory.pages), memory.bytes)
        };
        if let Some((id, held)) = local::seal_held(&session, &item) {
            background::take_down(retired);
            // Held by its memory, so that views stay good even when it is deleted.
            *state = State::Sealed(held);
            return Ok(id);
        }
        let _unheld = session.sealing();
        let sealed = seal::one(&session, item);
        background::take_down(retired);
        match sealed {
            Ok(id) => {
                session.pool.extents().sealed(memory.pages);
                if let Some(name) = &self.name {
                    session.reservations.sealed(name);
                }
                // Held by its memory, so that views stay good even when it is deleted.
                *state = State::Unknown;
                *state = State::Sealed(session.hold_sealed(id)?);
                Ok(id)
            }
            Err(error) => {
                if seal::is_unknown(&session, &error) {
                    *state = State::Unknown;
                    return Err(error);
                }
                if let Err(error) = session.region.make_writable(memory.pages) {
                    tracing::error!(%error, "pages of a failed seal stay read-only");
                }
                session.reservations.give(&session, self.name.take().into_iter().collect());
                Err(error)
            }
        }
    }

    /// Leaves nothing behind.
    pub fn abort(self) {}
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        *lock(&self.memory.state) = State::Aborted;
        let session = &self.memory.session;
        session.reservations.give(session, self.name.take().into_iter().collect());
    }
}
