//! Notification of clients that wait for events. The clients read the events in the region, so slow
//! or many subscribers are no burden: each wait costs one short message.

use farrow_store::{ClientSlot, EventKind, NAME_BYTES_MAX, NamespaceId, Seen, StoreError};
use farrow_wire::{Listen, Reply, ReplyBody, WAIT_MS_MAX, Watch, WireError};

use super::convert::{limit, store_error};
use super::core::clients::Admitted;
use super::core::watches::{WATCHER_BYTES_MAX, WATCHES_PER_SESSION_MAX, Watcher};
use super::state::NodeState;
use super::{Action, PeerIdentity, SessionId};

/// Limit of events searched for one request. A client that is further behind searches by itself.
const LOOK_EVENTS_MAX: u64 = 256;

/// Time after a restart in which subscribers of the previous daemon are expected back.
const WATCHERS_RETURN_MS: u64 = 30_000;

impl NodeState {
    /// The first message of a connection that only waits for events. The connection has no slot and
    /// holds nothing; it belongs to a client that has a slot.
    pub(super) fn listen(
        &mut self,
        session: SessionId,
        peer: PeerIdentity,
        listen: &Listen,
    ) -> Result<ReplyBody, WireError> {
        self.admit(peer, listen.version)?;
        let ours = self.home.uid().0;
        if listen.region_uid != ours {
            return Err(WireError::OtherRegion { old: listen.region_uid, new: ours });
        }
        let (slot, nonce) = (ClientSlot(listen.slot), listen.nonce);
        let record = self.home.client(slot).ok().filter(|record| record.nonce == nonce);
        // All clients can read nonces.
        let namespace = record
            .filter(|record| record.remote_client == peer.remote_client)
            .map(|record| record.namespace)
            .ok_or_else(|| WireError::Denied(format!("slot {} is not this client's", slot.0)))?;
        let rights = self.let_in(peer.remote_client, namespace)?;
        let admitted = Admitted { slot: None, namespace, rights, maps_memory: true };
        self.clients.admitted(session, admitted);
        Ok(ReplyBody::Done)
    }

    /// Returns the number of the next event to look at. `None`: the answer follows later.
    pub(super) fn watch(
        &mut self,
        session: SessionId,
        seq: u64,
        watch: Watch,
        now_ms: u64,
    ) -> Result<Option<u64>, WireError> {
        limit("bytes of a prefix", watch.prefix.len(), NAME_BYTES_MAX as usize)?;
        // Read before the search, so that no event between them is missed.
        let head = self.home.events_head();
        let namespace =
            self.clients.session(session).map_or_else(Default::default, |s| s.namespace);
        if watch.prefix.is_empty() && EventKind::Sealed.is_in(watch.kinds) {
            self.watches.want_all(session, namespace);
            self.show_watched().map_err(store_error)?;
        }
        if let Some(next) = self.first_meant(&watch, namespace, head)? {
            return Ok(Some(next));
        }
        if watch.timeout_ms == 0 {
            return Ok(Some(head));
        }
        let waiting = self.watches.count_of(session);
        limit("waits for events under way", waiting + 1, WATCHES_PER_SESSION_MAX)?;
        self.check_waiting(session, WATCHER_BYTES_MAX)?;
        let deadline_ms = now_ms.saturating_add(watch.timeout_ms.min(WAIT_MS_MAX));
        let Watch { prefix, kinds, .. } = watch;
        self.watches.add(Watcher { session, seq, namespace, prefix, kinds, deadline_ms });
        Ok(None)
    }

    /// Publishes to clients in which namespaces sessions want notice of all objects.
    pub(super) fn show_watched(&mut self) -> Result<(), StoreError> {
        let wanted = self.watches.of_all();
        if wanted == self.home.watched()? { Ok(()) } else { self.home.set_watched(wanted) }
    }

    /// As [`Self::show_watched`], after a session ended. An outdated value costs clients time only.
    pub(super) fn show_fewer_watched(&mut self) {
        if let Err(error) = self.show_watched() {
            tracing::error!(%error, "the watched namespaces cannot be published");
        }
    }

    /// The first matching event from `after` on, or `after` if the search stops early.
    fn first_meant(
        &self,
        watch: &Watch,
        namespace: NamespaceId,
        head: u64,
    ) -> Result<Option<u64>, WireError> {
        if head.saturating_sub(watch.after) > LOOK_EVENTS_MAX {
            return Ok(Some(watch.after));
        }
        let mut events = self.home.events(watch.after).map_err(store_error)?;
        if watch.after < events.position() {
            return Ok(Some(watch.after));
        }
        while let Some(seen) = events.advance().map_err(store_error)? {
            match seen {
                Seen::Event(event) => {
                    let is_meant = event.namespace == namespace
                        && event.kind.is_in(watch.kinds)
                        && event.name.starts_with(&watch.prefix);
                    if is_meant {
                        return Ok(Some(event.number));
                    }
                }
                Seen::Gap { .. } => return Ok(Some(watch.after)),
            }
        }
        Ok(None)
    }

    /// Answers the requests for which there are events.
    pub(super) fn tell_watchers(&mut self, out: &mut Vec<Action>) {
        let (told, head) = (self.watches.told(), self.home.events_head());
        self.watches.set_told(head);
        if told == head || self.watches.is_empty() {
            return;
        }
        let is_shown = self.show_events(told, out);
        if !is_shown {
            // More events at once than the ring holds: every client searches by itself.
            let all = self.watches.drain();
            self.fan_out.add(all.into_iter().map(|one| answer(one, told)), out);
        }
    }

    /// `false` if some events could not be read.
    fn show_events(&mut self, told: u64, out: &mut Vec<Action>) -> bool {
        let Self { home, watches, fan_out, .. } = self;
        let Ok(mut events) = home.events(told) else {
            return false;
        };
        if events.position() != told {
            return false;
        }
        loop {
            match events.advance() {
                Ok(Some(Seen::Event(event))) => {
                    let meant = watches.matching(&event);
                    fan_out.add(meant.into_iter().map(|one| answer(one, event.number)), out);
                }
                Ok(None) => return true,
                Ok(Some(Seen::Gap { .. })) | Err(_) => return false,
            }
        }
    }

    /// Answers expired requests: no event so far matches them.
    pub(super) fn expire_watches(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let is_over = now_ms >= self.started_ms.saturating_add(WATCHERS_RETURN_MS);
        if is_over && self.watches.expect_nobody() {
            self.show_fewer_watched();
        }
        let told = self.watches.told();
        let expired = self.watches.expired(now_ms, self.fan_out.left());
        self.fan_out.add(expired.into_iter().map(|one| answer(one, told)), out);
    }

    /// Answers all waiting requests with the end of the node.
    pub(super) fn stop_watches(&mut self, out: &mut Vec<Action>) {
        for Watcher { session, seq, .. } in self.watches.drain() {
            let reply = Reply { seq, body: Err(WireError::Closing) };
            out.push(Action::Send { session, reply, has_descriptors: false });
        }
    }
}

fn answer(watcher: Watcher, next: u64) -> Action {
    let reply = Reply { seq: watcher.seq, body: Ok(ReplyBody::Watched { next }) };
    Action::Send { session: watcher.session, reply, has_descriptors: false }
}
