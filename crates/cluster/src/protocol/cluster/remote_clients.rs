//! Clients of other nodes that lost their connection: they may still read what they hold, so their
//! places stay until it is certain that their processes have ended.

use farrow_membership::fnv::{BASIS, fnv};
use farrow_store::{ClientSlot, Reclaimed, RemoteClient, StoreError};
use farrow_wire::{ReplyBody, WireError};

use super::{NodeState, PeerAction, PendingQuestion, Question};
use crate::protocol::Action;
use crate::protocol::convert::wire_span;

/// A client whose node has no answer is asked for again after so long.
pub(super) const AGAIN_MS: u64 = 500;

/// How a remote client without a connection is watched.
#[derive(Debug)]
pub(super) enum Watched {
    /// Its process can be seen from here.
    Here,
    /// Its node is being asked.
    Asking,
    /// It is looked for, or its node is asked, again at this time.
    AskAt(u64),
}

impl Watched {
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        match self {
            Self::AskAt(at_ms) => Some(*at_ms),
            Self::Here | Self::Asking => None,
        }
    }
}

/// A client that went, and what it could write in quarantine.
#[derive(Debug)]
pub(super) struct Dirty {
    remote_client: RemoteClient,
    /// When its node is asked to clean; `None`: it is being asked.
    ask_at_ms: Option<u64>,
}

impl Dirty {
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.ask_at_ms
    }
}

/// By what the table of clients knows a node: 64 bits of FNV-1a of its name.
pub(crate) fn node_key(name: &str) -> u64 {
    fnv(BASIS, name.as_bytes())
}

impl NodeState {
    /// Remote clients that lost their connections are watched by their processes where those can be seen,
    /// else by their nodes.
    pub(super) fn watch_remote_clients(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &self.cluster else {
            return;
        };
        let new = self.orphans.iter().filter(|(slot, _)| !cluster.watched.contains_key(slot));
        let new = new.filter_map(|(slot, peer)| Some((*slot, peer.remote_client?)));
        let new: Vec<(ClientSlot, bool)> =
            new.map(|(slot, remote_client)| (slot, self.is_host_own(remote_client))).collect();
        for (slot, is_visible) in new {
            let watched = if is_visible {
                out.push(Action::Peer(PeerAction::WatchRemoteClient { slot }));
                Watched::Here
            } else {
                Watched::AskAt(now_ms)
            };
            self.set_watched(slot, watched);
        }
        self.ask_for_remote_clients(now_ms, out);
        self.ask_to_clean(now_ms, out);
    }

    /// Whether the processes of a remote client's node are seen by this one.
    pub(in crate::protocol) fn is_host_own(&self, remote_client: RemoteClient) -> bool {
        let Some(cluster) = &self.cluster else {
            return false;
        };
        let host = &cluster.options.offer.host;
        let mut nodes = cluster.peers.values();
        nodes.any(|one| {
            node_key(one.member.name.as_str()) == remote_client.node
                && one.offer.as_ref().is_some_and(|offer| offer.host == *host)
        })
    }

    /// Asks the nodes of clients that cannot be seen from here.
    fn ask_for_remote_clients(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        cluster.watched.retain(|slot, _| self.orphans.contains_key(slot));
        let due = cluster.watched.iter();
        let due = due.filter(|(_, watched)| matches!(watched, Watched::AskAt(at) if *at <= now_ms));
        let due: Vec<ClientSlot> = due.map(|(slot, _)| *slot).collect();
        for slot in due {
            let Some(peer) = self.orphans.get(&slot).copied() else {
                continue;
            };
            if peer.remote_client.is_some_and(|remote_client| self.is_host_own(remote_client)) {
                out.push(Action::Peer(PeerAction::WatchRemoteClient { slot }));
                self.set_watched(slot, Watched::Here);
                continue;
            }
            let node = peer.remote_client.and_then(|remote_client| self.node_of(remote_client));
            let question = Question::Watch { pid: peer.pid, start_time: peer.start_time };
            let about = PendingQuestion::Watch(slot, peer);
            let is_asked = node.is_some_and(|node| self.ask_node(&node, &question, about, out));
            let watched =
                if is_asked { Watched::Asking } else { Watched::AskAt(now_ms + AGAIN_MS) };
            self.set_watched(slot, watched);
        }
    }

    fn set_watched(&mut self, slot: ClientSlot, watched: Watched) {
        if let Some(cluster) = &mut self.cluster {
            cluster.watched.insert(slot, watched);
        }
    }

    /// Asks the node of a client that has ended; false if that is not possible now.
    pub(in crate::protocol) fn ask_node_of(
        &mut self,
        remote_client: RemoteClient,
        question: &Question,
        slot: ClientSlot,
        out: &mut Vec<Action>,
    ) -> bool {
        let node = self.node_of(remote_client);
        node.is_some_and(|node| self.ask_node(&node, question, PendingQuestion::Family(slot), out))
    }

    /// The node of a remote client, unless it is lost.
    fn node_of(&self, remote_client: RemoteClient) -> Option<String> {
        let cluster = self.cluster.as_ref()?;
        let mut nodes = cluster.peers.iter().filter(|(_, one)| !one.is_lost());
        nodes.find(|(name, _)| node_key(name) == remote_client.node).map(|(name, _)| name.clone())
    }

    /// A client of memory that is coherent only inside a machine went: what it could write is
    /// nobody's until the caches of its machine hold nothing of it. `None`: they may do so still.
    pub(in crate::protocol) fn leave_dirty(
        &mut self,
        slot: ClientSlot,
    ) -> Result<Option<Reclaimed>, StoreError> {
        let remote_client = self.home.client(slot)?.remote_client;
        let left = self.home.quarantine(slot)?;
        match (remote_client, &mut self.cluster) {
            (Some(remote_client), Some(cluster)) => {
                cluster.dirty.insert(slot, Dirty { remote_client, ask_at_ms: Some(0) });
                Ok(None)
            }
            // Its node is not known any more: who runs the nodes has to say what became of it.
            (Some(_), None) => Ok(None),
            (None, _) => {
                farrow_store::clean(self.home.region(), &left.spans)?;
                self.home.release_quarantine(slot).map(Some)
            }
        }
    }

    /// Asks nodes to clean what their dead clients may have left in their caches.
    pub(super) fn ask_to_clean(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster else {
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
            let is_asked = (self.node_of(remote_client)).is_some_and(|node| {
                self.ask_node(&node, &question, PendingQuestion::Clean(slot), out)
            });
            if !is_asked {
                self.clean_later(slot, now_ms);
            }
        }
    }

    pub(super) fn clean_later(&mut self, slot: ClientSlot, now_ms: u64) {
        if let Some(cluster) = &mut self.cluster
            && let Some(dirty) = cluster.dirty.get_mut(&slot)
        {
            dirty.ask_at_ms = Some(now_ms + AGAIN_MS);
        }
    }

    /// The caches of a client's machine hold nothing any more of what it could write.
    pub(super) fn cleaned(&mut self, slot: ClientSlot, now_ms: u64) {
        if let Some(cluster) = &mut self.cluster {
            cluster.dirty.remove(&slot);
        }
        match self.home.release_quarantine(slot) {
            Ok(reclaimed) => tracing::info!(slot = slot.0, ?reclaimed, "out of quarantine"),
            Err(error) => tracing::error!(slot = slot.0, %error, "quarantine"),
        }
        self.reclaim_soon(now_ms);
    }

    /// Nobody knows what became of a remote client: it is looked for again.
    pub(crate) fn watch_later(&mut self, slot: ClientSlot, now_ms: u64) {
        if let Some(cluster) = &mut self.cluster
            && let Some(watched) = cluster.watched.get_mut(&slot)
        {
            *watched = Watched::AskAt(now_ms + AGAIN_MS);
        }
    }

    pub(super) fn remote_client_gone(&mut self, slot: ClientSlot, now_ms: u64) {
        if let Some(cluster) = &mut self.cluster {
            cluster.watched.remove(&slot);
        }
        self.orphan_died(slot, now_ms);
    }

    /// Somebody who knows says that the processes of a lost node have ended.
    pub(in crate::protocol) fn forget_node(
        &mut self,
        node: &str,
        now_ms: u64,
    ) -> Result<ReplyBody, WireError> {
        let name = node.to_owned();
        let known = self.members().names();
        let Some(cluster) = &mut self.cluster else {
            return Err(WireError::NoNode { name, known });
        };
        let key = node_key(node);
        let is_of_it = |remote_client: Option<RemoteClient>| {
            remote_client.is_some_and(|remote_client| remote_client.node == key)
        };
        match cluster.peers.get(node) {
            Some(peer) if !peer.is_lost() => {
                return Err(WireError::Invalid(format!("node {node:?} is not lost")));
            }
            Some(_) => {}
            // Lost before this daemon began: it knows its clients by the region. Without a lease it
            // does not know who is a member.
            None if cluster.has_lease
                && (self.orphans.values().any(|peer| is_of_it(peer.remote_client))
                    || !self.families.of_node(key).is_empty()
                    || cluster.dirty.values().any(|one| is_of_it(Some(one.remote_client)))) => {}
            None => return Err(WireError::NoNode { name, known }),
        }
        cluster.peers.remove(node);
        cluster.has_news = true;
        let gone = self.orphans.iter().filter(|(_, peer)| is_of_it(peer.remote_client));
        let gone: Vec<ClientSlot> = gone.map(|(slot, _)| *slot).collect();
        tracing::warn!(node, clients = gone.len(), "a lost node is forgotten");
        let dirty = cluster.dirty.iter().filter(|(_, one)| is_of_it(Some(one.remote_client)));
        let dirty: Vec<ClientSlot> = dirty.map(|(slot, _)| *slot).collect();
        gone.iter().for_each(|slot| self.remote_client_gone(*slot, now_ms));
        // So have their children.
        let families = self.families.of_node(key);
        families.iter().for_each(|slot| self.end_family(*slot, now_ms));
        // Its caches went with it.
        for slot in gone.into_iter().chain(families).chain(dirty) {
            if self.home.quarantined().any(|one| one == slot) {
                self.cleaned(slot, now_ms);
            }
        }
        self.tell_members();
        Ok(ReplyBody::Done)
    }
}
