//! Clients of other nodes that lost their connection. They may still read what they hold, so their
//! slots remain until their processes have certainly ended.

use farrow_store::{ClientSlot, Reclaimed, RemoteClient, StoreError};
use farrow_wire::{ReplyBody, WireError, wire_span};

use super::watched::{AGAIN_MS, Dirty, Watched};
use crate::protocol::Action;
use crate::protocol::cluster::{PeerAction, PendingQuestion, Question};
use crate::protocol::identity::node_key;
use crate::protocol::state::NodeState;

impl NodeState {
    /// Watches remote clients that lost their connections: by their processes if those are visible,
    /// otherwise through their nodes.
    pub(in crate::protocol::cluster) fn watch_remote_clients(
        &mut self,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &self.cluster.0 else {
            return;
        };
        let new = self.clients.orphans().filter(|(slot, _)| !cluster.watched.contains_key(slot));
        let new = new.filter_map(|(slot, peer)| Some((slot, peer.remote_client?)));
        let new: Vec<(ClientSlot, bool)> = new
            .map(|(slot, remote_client)| (slot, self.cluster.is_host_own(remote_client)))
            .collect();
        for (slot, is_visible) in new {
            let watched = if is_visible {
                out.push(Action::Peer(PeerAction::WatchRemoteClient { slot }));
                Watched::Here
            } else {
                Watched::AskAt(now_ms)
            };
            self.cluster.set_watched(slot, watched);
        }
        self.ask_for_remote_clients(now_ms, out);
        self.ask_to_clean(now_ms, out);
    }

    /// Asks the nodes of clients that are not visible from here.
    fn ask_for_remote_clients(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        cluster.watched.retain(|slot, _| self.clients.orphan(*slot).is_some());
        let due = cluster.watched.iter();
        let due = due.filter(|(_, watched)| matches!(watched, Watched::AskAt(at) if *at <= now_ms));
        let due: Vec<ClientSlot> = due.map(|(slot, _)| *slot).collect();
        for slot in due {
            let Some(peer) = self.clients.orphan(slot) else {
                continue;
            };
            if peer
                .remote_client
                .is_some_and(|remote_client| self.cluster.is_host_own(remote_client))
            {
                out.push(Action::Peer(PeerAction::WatchRemoteClient { slot }));
                self.cluster.set_watched(slot, Watched::Here);
                continue;
            }
            let node =
                peer.remote_client.and_then(|remote_client| self.cluster.node_of(remote_client));
            let question = Question::Watch { pid: peer.pid, start_time: peer.start_time };
            let about = PendingQuestion::Watch(slot, peer);
            let is_queried =
                node.is_some_and(|node| self.cluster.ask_node(&node, &question, about, out));
            let watched =
                if is_queried { Watched::Asking } else { Watched::AskAt(now_ms + AGAIN_MS) };
            self.cluster.set_watched(slot, watched);
        }
    }

    /// Removes a client of memory that is coherent only inside a machine. The memory that it could
    /// write stays in quarantine until the caches of its machine are clean. `None`: they may not be
    /// yet.
    pub(in crate::protocol) fn leave_dirty(
        &mut self,
        slot: ClientSlot,
    ) -> Result<Option<Reclaimed>, StoreError> {
        let remote_client = self.home.client(slot)?.remote_client;
        let left = self.home.quarantine(slot)?;
        match (remote_client, &mut self.cluster.0) {
            (Some(remote_client), Some(cluster)) => {
                cluster.dirty.insert(slot, Dirty { remote_client, ask_at_ms: Some(0) });
                Ok(None)
            }
            // Its node is no longer known: the operator has to report its end.
            (Some(_), None) => Ok(None),
            (None, _) => {
                farrow_store::clean(self.home.region(), &left.spans)?;
                self.home.release_quarantine(slot).map(Some)
            }
        }
    }

    /// Asks nodes to clean their caches after clients that have ended.
    pub(super) fn ask_to_clean(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let due = cluster.dirty.iter_mut();
        let due = due.filter(|(_, dirty)| dirty.ask_at_ms.is_some_and(|at_ms| at_ms <= now_ms));
        let due: Vec<(ClientSlot, RemoteClient)> = due
            .map(|(slot, dirty)| {
                dirty.ask_at_ms = None;
                (*slot, dirty.remote_client)
            })
            .collect();
        let region_uid = self.home.uid().0;
        for (slot, remote_client) in due {
            let spans = self.home.writable_by(slot).into_iter().map(wire_span).collect();
            let question = Question::Clean { region_uid, spans };
            let is_queried = (self.cluster.node_of(remote_client)).is_some_and(|node| {
                self.cluster.ask_node(&node, &question, PendingQuestion::Clean(slot), out)
            });
            if !is_queried {
                self.cluster.clean_later(slot, now_ms);
            }
        }
    }

    /// The caches of a client's machine are clean of the memory that it could write.
    pub(in crate::protocol::cluster) fn cleaned(&mut self, slot: ClientSlot, now_ms: u64) {
        if let Some(cluster) = &mut self.cluster.0 {
            cluster.dirty.remove(&slot);
        }
        match self.home.release_quarantine(slot) {
            Ok(reclaimed) => {
                tracing::info!(slot = slot.0, ?reclaimed, "a client is out of quarantine")
            }
            Err(error) => {
                tracing::error!(slot = slot.0, %error, "a client cannot leave quarantine")
            }
        }
        self.reclaim.soon(&self.home, now_ms);
    }

    pub(in crate::protocol::cluster) fn remote_client_ended(
        &mut self,
        slot: ClientSlot,
        now_ms: u64,
    ) {
        if let Some(cluster) = &mut self.cluster.0 {
            cluster.watched.remove(&slot);
        }
        self.orphan_died(slot, now_ms);
    }

    /// Handles the operator's statement that the processes of a lost node have ended.
    pub(in crate::protocol) fn forget_node(
        &mut self,
        node: &str,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<ReplyBody, WireError> {
        let name = node.to_owned();
        let known = self.members().names();
        let Some(cluster) = &mut self.cluster.0 else {
            return Err(WireError::NoNode { name, known });
        };
        let key = node_key(node);
        match cluster.peers.get(node) {
            Some(peer) if !peer.is_lost() => {
                return Err(WireError::Invalid(format!("node {node:?} is not lost")));
            }
            Some(_) => {}
            // Lost before this daemon started: only the clients in the region name it. Without a
            // lease the members are not known.
            None if cluster.has_lease
                && (self.clients.orphans().any(|(_, peer)| peer.is_of_node(key))
                    || !self.families.of_node(key).is_empty()
                    || cluster.dirty.values().any(|one| one.remote_client.node == key)) => {}
            None => return Err(WireError::NoNode { name, known }),
        }
        cluster.peers.remove(node);
        cluster.has_news = true;
        let (drain, mut context) = self.drain(now_ms, out);
        drain.forget_moves_of(node, &mut context);
        let Some(cluster) = &mut self.cluster.0 else {
            return Ok(ReplyBody::Done);
        };
        let orphans = self.clients.orphans().filter(|(_, peer)| peer.is_of_node(key));
        let orphans: Vec<ClientSlot> = orphans.map(|(slot, _)| slot).collect();
        tracing::warn!(node, clients = orphans.len(), "a lost node is forgotten");
        let dirty = cluster.dirty.iter().filter(|(_, one)| one.remote_client.node == key);
        let dirty: Vec<ClientSlot> = dirty.map(|(slot, _)| *slot).collect();
        orphans.iter().for_each(|slot| self.remote_client_ended(*slot, now_ms));
        // The children of its clients have ended too.
        let families = self.families.of_node(key);
        families.iter().for_each(|slot| self.end_family_now(*slot, now_ms));
        // Its caches are lost with it.
        for slot in orphans.into_iter().chain(families).chain(dirty) {
            if self.home.quarantined().any(|one| one == slot) {
                self.cleaned(slot, now_ms);
            }
        }
        self.notify_members();
        Ok(ReplyBody::Done)
    }
}
