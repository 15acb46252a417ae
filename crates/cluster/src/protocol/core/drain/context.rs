//! What a drain needs of the rest of the node, and what it has the node do.

use std::collections::BTreeSet;

use farrow_store::Home;
use farrow_wire::WireError;

use super::state::{DrainRecord, WaitingRequest};
use crate::protocol::action::Action;
use crate::protocol::cluster::OptionalCluster;
use crate::protocol::core::cluster_record::RecordParts;
use crate::protocol::core::joined::JoinedState;
use crate::protocol::core::leases::Leases;
use crate::protocol::replicas::Replicas;

/// What a drain needs of the rest of the node, while one event is handled.
#[derive(Debug)]
pub(in crate::protocol) struct DrainContext<'a> {
    pub(in crate::protocol) home: &'a mut Home,
    pub(in crate::protocol) cluster: &'a mut OptionalCluster,
    pub(in crate::protocol) replicas: &'a Replicas,
    pub(in crate::protocol) joined: &'a JoinedState,
    pub(in crate::protocol) leases: &'a Leases,
    /// What the region keeps beside the state of the drain.
    pub(in crate::protocol) parts: RecordParts<'a>,
    pub(in crate::protocol) now_ms: u64,
    pub(in crate::protocol) out: &'a mut Vec<Action>,
}

impl DrainContext<'_> {
    /// Stores the state of drains.
    pub(super) fn keep(&mut self, record: &DrainRecord) -> Result<(), WireError> {
        self.parts.keep(self.home, record)
    }

    /// As [`Self::keep`]. It is stored again with the next change if that fails.
    pub(super) fn keep_or_log(&mut self, record: &DrainRecord) {
        if let Err(error) = self.keep(record) {
            tracing::error!(%error, "the state of a drain cannot be stored");
        }
    }

    /// Informs clients that nodes drain, or do not any more.
    pub(super) fn notify_members(&mut self, record: &DrainRecord) {
        self.cluster.has_news();
        self.cluster.notify_members(self.home, record);
    }

    /// The full names of objects that are being written: reserved ones, and those on which the
    /// cluster decides.
    pub(super) fn names_being_written(&self) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = self.home.reserved_names().map(String::from).collect();
        names.extend(self.cluster.parked_names().cloned());
        names.extend(self.replicas.granted_names().cloned());
        names
    }
}

/// What the node does after a step of a move.
#[derive(Debug)]
#[must_use]
pub(in crate::protocol) enum AfterMove {
    Nothing,
    /// The other node has the object: it is removed here.
    Remove(farrow_store::ObjectId),
    /// The move has ended, and the requests that waited for that are served.
    Serve {
        waiting: Vec<WaitingRequest>,
        /// Whether the object is at the other node.
        has_moved: bool,
    },
}
