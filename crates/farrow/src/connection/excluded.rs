//! Whether the other members go on without the client's own node.
//!
//! A client learns of its cluster from the daemon of its own node. Where that has ended and has no
//! successor, the membership lists of other nodes, in mapped memory, say what became of the node.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use farrow_wire::Members;

use crate::connection::replaced::is_served;
use crate::connection::session::Session;
use crate::error::Error;
use crate::lock::lock;

/// The sessions of a client as they know of each other.
#[derive(Debug, Default)]
pub(super) struct Exclusion {
    /// The session at the client's own node, through which this one reaches another node.
    own: OnceLock<Weak<Session>>,
    /// Of the session at the own node: those at other nodes.
    remote: Mutex<Vec<Weak<Session>>>,
}

impl Session {
    /// Notes a session at another node, whose messages this session's daemon forwards.
    pub(crate) fn note_other(self: &Arc<Self>, other: &Arc<Self>) {
        let _ = other.exclusion.own.set(Arc::downgrade(self));
        let mut remote = lock(&self.exclusion.remote);
        remote.retain(|one| one.strong_count() > 0);
        remote.push(Arc::downgrade(other));
    }

    /// Why no successor of the own node's daemon is waited for: no process has its socket, and another
    /// member says that the cluster has excluded the node. A daemon that is cut off has its socket.
    pub(crate) fn excluded(&self) -> Option<String> {
        let own = self.exclusion.own.get().and_then(Weak::upgrade);
        let own = own.as_deref().unwrap_or(self);
        let remote: Vec<_> = lock(&own.exclusion.remote).iter().filter_map(Weak::upgrade).collect();
        let by_other = remote.iter().find_map(|other| {
            let members = other.members()?;
            let node = members.nodes.iter().find(|node| node.region_uid == own.region_uid())?;
            let (name, by) = (&node.name, &other.node);
            (!node.is_member()).then(|| format!("node {name:?} is lost, says node {by:?}"))
        });
        by_other.filter(|_| !is_served(&own.socket))
    }

    /// An error of a connection to the own node, with its name if it has one.
    pub(crate) fn with_own_name(&self, error: Error) -> Error {
        let own = self.exclusion.own.get().and_then(Weak::upgrade);
        let members = own.as_deref().unwrap_or(self).members();
        let own = members.and_then(|members| members.nodes.into_iter().find(|node| node.is_own));
        match (error, own) {
            (Error::Disconnected { socket, reason }, Some(own)) => {
                let reason = format!("the daemon of node {:?} has ended: {reason}", own.name);
                Error::Disconnected { socket, reason }
            }
            (error, _) => error,
        }
    }

    /// The membership list that the node of this session has published.
    pub(super) fn members(&self) -> Option<Members> {
        let (_, bytes) = self.reader.published_members().ok()??;
        Members::decode(&bytes)
    }
}
