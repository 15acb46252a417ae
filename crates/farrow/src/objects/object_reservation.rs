//! A reservation in the object quotas, for the objects of one operation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_wire::link::Notification;
use farrow_wire::{RequestBody, WAIT_MS_MAX};

use crate::clock::{deadline_after, millis};
use crate::connection::session::Session;
use crate::error::Error;
use crate::lock::lock;

/// A reservation of some objects, or of none. The unused rest is returned on drop.
#[derive(Debug, Default)]
pub(crate) struct ObjectReservation {
    session: Option<Arc<Session>>,
    objects: u32,
}

impl ObjectReservation {
    /// Reserves all objects or none, waiting up to `wait`. Sends no request where objects are not
    /// counted.
    pub(crate) fn take(
        session: &Arc<Session>,
        objects: usize,
        wait: Duration,
    ) -> Result<Self, Error> {
        if objects == 0 || !session.reserved_objects.are_needed() {
            return Ok(Self::default());
        }
        let objects = u32::try_from(objects).unwrap_or(u32::MAX);
        let wait_ms = millis(wait).min(WAIT_MS_MAX);
        // The node enforces the wait; its answer may take a little longer.
        let deadline = deadline_after(wait.saturating_add(session.timeout));
        session.call_until(RequestBody::ReserveObjects { objects, wait_ms }, deadline)?;
        let mut all = lock(&session.reserved_objects.objects);
        *all = all.saturating_add(objects);
        Ok(Self { session: Some(Arc::clone(session)), objects })
    }

    /// As [`Self::take`], for objects that are sealed right after. Only a caller that would wait
    /// reserves; the others learn of a full quota at the seal. Also returns the rest of the wait.
    pub(crate) fn take_to_wait(
        session: &Arc<Session>,
        objects: usize,
        wait: Duration,
    ) -> Result<(Self, Duration), Error> {
        if wait.is_zero() {
            return Ok((Self::default(), wait));
        }
        let since = Instant::now();
        let reservation = Self::take(session, objects, wait)?;
        Ok((reservation, rest_of(wait, since.elapsed())))
    }

    /// Whether at least one object is reserved.
    pub(crate) fn is_there(&self) -> bool {
        self.objects > 0
    }

    /// Splits off a reservation of one object, if any is left.
    pub(crate) fn split_one(&mut self) -> Self {
        let objects = self.objects.min(1);
        self.objects -= objects;
        Self { session: self.session.clone(), objects }
    }

    /// Counts objects as sealed, or possibly sealed: in that case the node drops any excess when it
    /// next learns of this client's reservations.
    pub(crate) fn used(&mut self, objects: usize) {
        let used = u32::try_from(objects).unwrap_or(u32::MAX).min(self.objects);
        self.objects -= used;
        if let Some(session) = self.session.as_ref().filter(|_| used > 0) {
            let mut all = lock(&session.reserved_objects.objects);
            *all = all.saturating_sub(used);
        }
    }
}

impl Drop for ObjectReservation {
    fn drop(&mut self) {
        let Self { session: Some(session), objects: 1.. } = self else {
            return;
        };
        // In a forked child the reservations belong to the parent.
        if session.is_own_process() {
            let mut all = lock(&session.reserved_objects.objects);
            *all = all.saturating_sub(self.objects);
            session.notify(Notification::UnreserveObjects(self.objects));
        }
    }
}

/// The rest of a wait after `gone`. A nonzero wait never becomes zero.
pub(crate) fn rest_of(wait: Duration, elapsed: Duration) -> Duration {
    wait.saturating_sub(elapsed).max(wait.min(Duration::from_millis(1)))
}
