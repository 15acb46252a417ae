//! Names of objects in creation.
//!
//! The node keeps them in private memory, so one that follows a crash does not know them: they
//! are reserved again when the client finds it. A name that somebody else took in between is
//! lost, and its writer is told so at the seal. A node that hands over passes them on.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Instant;

use farrow_wire::link::Link;
use farrow_wire::{BATCH_ITEMS_MAX, ReplyBody, RequestBody};

use crate::error::Error;
use crate::session::{Session, lock};

#[derive(Debug, Default)]
pub(crate) struct ReservedNames {
    names: Mutex<BTreeSet<String>>,
}

impl ReservedNames {
    /// Takes all names, or none.
    pub(crate) fn take(&self, session: &Session, names: Vec<String>) -> Result<(), Error> {
        if names.is_empty() {
            return Ok(());
        }
        session.call(RequestBody::Reserve { names: names.clone() })?;
        lock(&self.names).extend(names);
        Ok(())
    }

    /// Gives names back. Those that were lost to others are let be.
    pub(crate) fn give(&self, session: &Session, mut names: Vec<String>) {
        // In a forked child they are the parent's.
        if names.is_empty() || !session.is_own_process() {
            return;
        }
        {
            let mut ours = lock(&self.names);
            names.retain(|name| ours.remove(name));
        }
        if !names.is_empty() {
            session.tell(RequestBody::Unreserve { names });
        }
    }

    /// The name is that of a sealed object now.
    pub(crate) fn sealed(&self, name: &str) {
        lock(&self.names).remove(name);
    }

    /// Says to a node that follows another which names are needed. What it refuses is lost.
    pub(crate) fn renew(&self, link: &Link, deadline: Instant) {
        let mut ours = lock(&self.names);
        let mut names: Vec<String> = ours.iter().cloned().collect();
        let later = names.split_off(names.len().min(BATCH_ITEMS_MAX));
        let batches = std::iter::once((names, true))
            .chain(later.chunks(BATCH_ITEMS_MAX).map(|batch| (batch.to_vec(), false)));
        for (names, are_all) in batches {
            let body = RequestBody::Renew { names: names.clone(), are_all };
            let Ok(ReplyBody::Ready(are_ours)) = link.call(body, deadline) else {
                // That node has gone too; the next one is told again.
                return;
            };
            for (name, _) in names.iter().zip(are_ours).filter(|(_, is_ours)| !is_ours) {
                tracing::warn!(%name, "the name of an object in creation is lost");
                ours.remove(name);
            }
        }
    }
}
