//! Room in the quotas of objects for those that this client is about to make.
//!
//! Where objects are limited the node is asked for a reservation before one is written. What is not used
//! goes back when the object is given up. A node that follows another is told how many there are.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_wire::link::Link;
use farrow_wire::{RequestBody, WAIT_MS_MAX};

use crate::client::{deadline_after, millis};
use crate::error::Error;
use crate::session::{Session, lock};

#[derive(Debug, Default)]
pub(crate) struct ReservedObjects {
    /// The node counts objects.
    are_needed: AtomicBool,
    /// Those that were made and neither used nor given back.
    objects: Mutex<u32>,
}

/// Room for so many objects, or for none. What is left of it goes back at the end.
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
        // It says nothing of other memory.
        self.are_needed.load(Ordering::Relaxed)
    }

    /// Says to a node that follows another what is still needed, and goes over to it: in one, so that
    /// what is given back meanwhile is given to the right one.
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
    /// Asks for room for all, or none, which may take so long to come. Where objects are not counted
    /// there is nothing to ask.
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
        // The node keeps the time; its answer may take a little longer.
        let deadline = deadline_after(wait.saturating_add(session.timeout));
        session.call_until(RequestBody::ReserveObjects { objects, wait_ms }, deadline)?;
        let mut all = lock(&session.reserved_objects.objects);
        *all = all.saturating_add(objects);
        Ok(Self { session: Some(Arc::clone(session)), objects })
    }

    /// The same for what is written at once: only who would wait asks, all others hear it at the seal,
    /// which follows. Returns what is left of the wait too.
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

    /// Whether there is room for one.
    pub(crate) fn is_there(&self) -> bool {
        self.objects > 0
    }

    /// One of those that are left, by itself.
    pub(crate) fn split_one(&mut self) -> Self {
        let objects = self.objects.min(1);
        self.objects -= objects;
        Self { session: self.session.clone(), objects }
    }

    /// Takes in what another one of this client has.
    pub(crate) fn join(&mut self, mut other: Self) {
        self.objects = self.objects.saturating_add(std::mem::take(&mut other.objects));
        self.session = self.session.take().or_else(|| other.session.take());
    }

    /// So many were sealed, or nobody knows whether they were: then what is too much at the node goes
    /// when it hears of this client's reservations the next time.
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
        // In a forked child they are the parent's.
        if session.is_own_process() {
            let mut all = lock(&session.reserved_objects.objects);
            *all = all.saturating_sub(self.objects);
            session.tell(RequestBody::UnreserveObjects { objects: self.objects });
        }
    }
}

/// What is left of a wait that began so long ago; it ends no wait altogether.
pub(crate) fn rest_of(wait: Duration, gone: Duration) -> Duration {
    wait.saturating_sub(gone).max(wait.min(Duration::from_millis(1)))
}
