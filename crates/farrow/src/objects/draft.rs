//! An object that is written and not yet sealed: its name and metadata may still change.
//!
//! For a caller that tries several names until one is free: the bytes are written once.

use std::sync::Arc;

use farrow_memory::AfterCopy;
use farrow_store::{Held, Metadata, ObjectId};
use farrow_wire::SealItem;
use farrow_wire::link::Notification;

use crate::connection::session::Session;
use crate::error::Error;
use crate::memory::background;
use crate::memory::extents::UseGuard;
use crate::objects::object_reservation::ObjectReservation;
use crate::objects::put;
use crate::objects::seal::{self, Sealed};
use crate::objects::write_batch::WriteBatch;
use crate::objects::written::{self, ObjectPlacement, Prepared, WrittenObject};
use crate::options::ObjectOptions;
use crate::value::Value;

/// A drop without a seal leaves nothing behind.
pub(crate) struct Draft {
    session: Arc<Session>,
    /// `None` once sealed or abandoned.
    written: Option<WrittenObject>,
}

/// An object that was just sealed, held so that it is not evicted before it is pinned.
#[derive(Debug)]
pub(crate) struct SealedHold {
    session: Arc<Session>,
    held: Option<Held>,
    id: ObjectId,
}

impl Draft {
    /// Writes a value to memory, as [`crate::Client::put_with`] does before it seals. `after` is
    /// called with each piece of a large buffer right after it was copied.
    pub(crate) fn new(
        session: &Arc<Session>,
        value: &Value<'_>,
        options: &ObjectOptions<'_>,
        after: Option<AfterCopy<'_>>,
    ) -> Result<Self, Error> {
        Self::placed(session, value, options, ObjectPlacement::Any, after)
    }

    /// Writes a value that is to be brought to another node, with its labels and without its name.
    pub(crate) fn staged(
        session: &Arc<Session>,
        value: &Value<'_>,
        options: &ObjectOptions<'_>,
    ) -> Result<Self, Error> {
        let nameless = ObjectOptions { name: None, ..*options };
        Self::placed(session, value, &nameless, ObjectPlacement::Transit, None)
    }

    fn placed(
        session: &Arc<Session>,
        value: &Value<'_>,
        options: &ObjectOptions<'_>,
        place: ObjectPlacement,
        after: Option<AfterCopy<'_>>,
    ) -> Result<Self, Error> {
        session.check()?;
        let (reservation, wait) = ObjectReservation::take_to_wait(session, 1, options.wait)?;
        let options = ObjectOptions { wait, ..*options };
        let small = &mut WriteBatch::seen(session, after);
        let prepared = Prepared { place, ..reservation.into() };
        let mut written = put::write(session, value, &options, prepared, small)?;
        written.item.is_held_by_creator = true;
        Ok(Self { session: Arc::clone(session), written: Some(written) })
    }

    /// Replaces the metadata with metadata of the same encoded length.
    pub(crate) fn relabel(&mut self, metadata: &Metadata) -> Result<(), Error> {
        match &mut self.written {
            Some(written) => written::relabel(&self.session, written, &metadata.encode()),
            None => Err(Error::InvalidArgument("the object is sealed".into())),
        }
    }

    /// Seals the object under this name. `None` if the name is taken: try again with another one.
    pub(crate) fn seal(&mut self, name: &str) -> Result<Option<SealedHold>, Error> {
        let Some(mut written) = self.written.take() else {
            return Err(Error::InvalidArgument("the object is sealed".into()));
        };
        written.item.name = Some(name.to_owned());
        let sealing = self.session.sealing();
        written.ask(&self.session);
        let result = seal::one(&self.session, written.item.clone());
        if matches!(&result, Err(no) if matches!(no.error, Error::AlreadyExists { .. })) {
            self.written = Some(written);
            return Ok(None);
        }
        self.finish(written, result, &sealing).map(Some)
    }

    /// After the reply of the node: holds what was sealed.
    fn finish(
        &self,
        written: WrittenObject,
        result: Sealed,
        sealing: &UseGuard,
    ) -> Result<SealedHold, Error> {
        let is_nameless = written.item.name.is_none();
        let is_in_pool = !written.pool.is_empty();
        let id = written::settle(&self.session, written, result, Some(sealing))?;
        let held = self.hold(id);
        if held.is_err() {
            let ids = vec![id.into()];
            if !is_in_pool {
                // The node retains it no longer. Of the pool, buffers may be in use without a hold.
                self.session.notify(Notification::Confirm(ids.clone()));
            }
            if is_nameless {
                // No caller learns its id, and it is pinned if it has a lease.
                self.session.notify(Notification::Delete(ids));
            }
        }
        held
    }

    fn hold(&self, id: ObjectId) -> Result<SealedHold, Error> {
        let held = self.session.hold(&id.into())?;
        let held = SealedHold { session: Arc::clone(&self.session), held, id };
        self.session.confirm(id)?;
        if held.held.is_none() {
            return Err(Error::no_object(id));
        }
        Ok(held)
    }

    /// Seals it without a name, until another node has brought it or the client ends.
    pub(crate) fn stage(mut self) -> Result<SealedHold, Error> {
        self.seal_nameless(|item| item.is_staged = true)
    }

    /// Seals it without a name, with a lease for references in flight. Its metadata has the label of
    /// the lease.
    pub(crate) fn lease(mut self, lease_ms: u64) -> Result<SealedHold, Error> {
        self.seal_nameless(|item| item.lease_ms = lease_ms)
    }

    fn seal_nameless(&mut self, set: impl FnOnce(&mut SealItem)) -> Result<SealedHold, Error> {
        let Some(mut written) = self.written.take() else {
            return Err(Error::InvalidArgument("the object is sealed".into()));
        };
        set(&mut written.item);
        let sealing = self.session.sealing();
        written.ask(&self.session);
        let result = seal::one(&self.session, written.item.clone());
        self.finish(written, result, &sealing)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(mut written) = self.written.take() {
            written::abandon(&self.session, &mut written);
            background::take_down(written.retired);
        }
    }
}

impl SealedHold {
    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    /// Number of its blocks besides the primary one.
    pub(crate) fn extra_count(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.entry().extra_count as usize)
    }

    /// Bytes of the object's buffers.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.entry().size.0)
    }
}

impl Drop for SealedHold {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.session.release(held);
        }
    }
}
