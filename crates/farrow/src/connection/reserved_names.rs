//! Reserved names of objects in creation.
//!
//! The node keeps reservations in private memory, so they are lost in a crash, and the client
//! renews them when it finds the next daemon. A name that another client took in between is lost,
//! which its writer learns at the seal. A daemon that hands over passes reservations on.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Instant;

use farrow_wire::link::{Link, Notification};
use farrow_wire::{BATCH_ITEMS_MAX, ReplyBody, RequestBody};

use crate::clock::deadline_after;
use crate::error::Error;
use crate::lock::lock;
use crate::memory::node::NodeAccess;

#[derive(Debug, Default)]
pub(crate) struct ReservedNames {
    names: Mutex<BTreeSet<String>>,
}

impl ReservedNames {
    /// Reserves all names, or none.
    pub(crate) fn take(&self, node: &dyn NodeAccess, names: Vec<String>) -> Result<(), Error> {
        if names.is_empty() {
            return Ok(());
        }
        loop {
            let body = RequestBody::Reserve { names: names.clone() };
            let (_, connection) = node.call_numbered(body, deadline_after(node.timeout()))?;
            let mut ours = lock(&self.names);
            // A daemon that followed meanwhile renewed the names without these.
            if node.connection_number() == connection {
                ours.extend(names);
                return Ok(());
            }
        }
    }

    /// Gives names back, except those lost to other clients.
    pub(crate) fn give(&self, node: &dyn NodeAccess, mut names: Vec<String>) {
        // In a forked child the names belong to the parent.
        if names.is_empty() || !node.is_own_process() {
            return;
        }
        // Under the lock: a new daemon, at which they may just be renewed, learns of it too.
        let mut ours = lock(&self.names);
        names.retain(|name| ours.remove(name));
        if !names.is_empty() {
            node.notify(Notification::Unreserve(names));
        }
    }

    /// Records that a sealed object has the name now.
    pub(crate) fn sealed(&self, name: &str) {
        lock(&self.names).remove(name);
    }

    /// Renews the reservations at a new daemon and calls `go_over` to switch to it, under one lock,
    /// so that a concurrent return reaches the right daemon. A name that it refuses is lost.
    pub(crate) fn renew<T>(
        &self,
        link: &Link,
        deadline: Instant,
        go_over: impl FnOnce() -> T,
    ) -> T {
        let mut ours = lock(&self.names);
        renew_all(&mut ours, link, deadline);
        go_over()
    }
}

fn renew_all(ours: &mut BTreeSet<String>, link: &Link, deadline: Instant) {
    let mut names: Vec<String> = ours.iter().cloned().collect();
    let later = names.split_off(names.len().min(BATCH_ITEMS_MAX));
    let batches = std::iter::once((names, true))
        .chain(later.chunks(BATCH_ITEMS_MAX).map(|batch| (batch.to_vec(), false)));
    for (names, are_all) in batches {
        let body = RequestBody::Renew { names: names.clone(), are_all };
        let Ok(ReplyBody::Ready(are_ours)) = link.call(body, deadline) else {
            // This daemon has ended too; the next one is notified again.
            return;
        };
        for (name, _) in names.iter().zip(are_ours).filter(|(_, is_ours)| !is_ours) {
            tracing::warn!(%name, "the name of an object in creation is lost");
            ours.remove(name);
        }
    }
}
