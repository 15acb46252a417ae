//! Names of objects in creation.
//!
//! The node keeps them in private memory, so its successor does not know them: they are reserved
//! again when the client finds it. A name that somebody else took in between is lost, and its
//! writer is told so at the seal.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Instant;

use farrow_cluster::link::Link;
use farrow_cluster::wire::{BATCH_ITEMS_MAX, RequestBody};

use crate::error::Error;
use crate::session::{Session, lock};

#[derive(Debug, Default)]
pub(crate) struct Reservations {
    names: Mutex<BTreeSet<String>>,
}

impl Reservations {
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

    /// Takes all names again from a node that does not know them. What it refuses is lost.
    pub(crate) fn renew(&self, link: &Link, deadline: Instant) {
        let mut names = lock(&self.names);
        let all: Vec<String> = names.iter().cloned().collect();
        for batch in all.chunks(BATCH_ITEMS_MAX) {
            let body = RequestBody::Reserve { names: batch.to_vec() };
            if link.call(body, deadline).is_ok() {
                continue;
            }
            for name in batch {
                let body = RequestBody::Reserve { names: vec![name.clone()] };
                if let Err(error) = link.call(body, deadline) {
                    tracing::warn!(%name, %error, "the name of an object in creation is lost");
                    names.remove(name);
                }
            }
        }
    }
}
