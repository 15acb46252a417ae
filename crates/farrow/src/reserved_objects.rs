//! Reservations in the object quotas for objects that this client is about to make.
//!
//! Where objects are limited, the client reserves each one at the node before writing it, except in
//! a put that does not wait. Unused reservations are returned when the object is given up. The
//! client reports the open ones to a new daemon.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_wire::link::Link;
use farrow_wire::{RequestBody, WAIT_MS_MAX};

use crate::clock::{deadline_after, millis};
use crate::error::Error;
use crate::lock::lock;
use crate::session::Session;

#[derive(Debug, Default)]
pub(crate) struct ReservedObjects {
    /// Whether the node counts objects.
    are_needed: AtomicBool,
    /// Objects reserved at the node that are neither used nor given back.
    objects: Mutex<u32>,
}

/// A reservation of some objects, or of none. The unused rest is returned on drop.
#[derive(Debug, Default)]
pub(crate) struct ObjectReservation {
    session: Option<Arc<Session>>,
    objects: u32,
}

impl ReservedObjects {
    pub(crate) fn new(are_needed: bool) -> Self {
        Self { are_needed: AtomicBool::new(are_needed), objects: Mutex::default() }
    }

    pub(crate) fn are_needed(&self) -> bool {
        // The flag orders no other memory.
        self.are_needed.load(Ordering::Relaxed)
    }

    /// Reports the open reservations to a new daemon and calls `go_over` to switch to it, under one
    /// lock, so that a concurrent return reaches the right daemon.
    pub(crate) fn renew<T>(&self, link: &Link, are_needed: bool, go_over: impl FnOnce() -> T) -> T {
        let objects = lock(&self.objects);
        self.are_needed.store(are_needed, Ordering::Relaxed);
        if are_needed {
            link.tell(RequestBody::ReservedObjects { objects: *objects });
        }
        go_over()
    }
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

    /// Takes over another reservation of this client.
    pub(crate) fn join(&mut self, mut other: Self) {
        self.objects = self.objects.saturating_add(std::mem::take(&mut other.objects));
        self.session = self.session.take().or_else(|| other.session.take());
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
            session.tell(RequestBody::UnreserveObjects { objects: self.objects });
        }
    }
}

/// The rest of a wait after `gone`. A nonzero wait never becomes zero.
pub(crate) fn rest_of(wait: Duration, gone: Duration) -> Duration {
    wait.saturating_sub(gone).max(wait.min(Duration::from_millis(1)))
}
