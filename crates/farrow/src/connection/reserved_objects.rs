//! Reservations in the object quotas for objects that this client is about to make.
//!
//! Where objects are limited, the client reserves each one at the node before writing it, except in
//! a put that does not wait. Unused reservations are returned when the object is given up. The
//! client reports the open ones to a new daemon.

use std::sync::Mutex;

use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_wire::link::{Link, Notification};

use crate::lock::lock;

#[derive(Debug, Default)]
pub(crate) struct ReservedObjects {
    /// Whether the node counts objects.
    are_needed: AtomicBool,
    /// Objects reserved at the node that are neither used nor given back.
    pub(crate) objects: Mutex<u32>,
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
            link.notify(Notification::ReservedObjects(*objects));
        }
        go_over()
    }
}
