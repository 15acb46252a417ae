//! Who waits for events is told when there are some. The events themselves are read in the region,
//! so a subscriber that is slow or many are no burden: one short message each, once for each wait.

use farrow_store::{ClientSlot, EventKind, NAME_BYTES_MAX, NamespaceId, Seen, StoreError};
use farrow_wire::{Listen, Reply, ReplyBody, WAIT_MS_MAX, Watch, WireError};

use super::convert::{limit, store_error};
use super::node::NodeState;
use super::watches::{WATCHER_BYTES_MAX, WATCHES_PER_SESSION_MAX, Watcher};
use super::{Action, PeerIdentity, SessionId};

/// So many events are looked through for one request; a client that has not seen more of them is
/// told to look by itself.
const LOOK_EVENTS_MAX: u64 = 256;

/// Subscribers find the successor of a node within so long, or not at all.
const WATCHERS_RETURN_MS: u64 = 30_000;

impl NodeState {
    /// The first message of a connection that only waits for events. It has no place of its own,
    /// holds nothing, and is that of a client who has one.
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
            .ok_or_else(|| WireError::Denied(format!("place {} is not this client's", slot.0)))?;
        let rights = self.let_in(peer.remote_client, namespace)?;
        if let Some(state) = self.sessions.get_mut(&session) {
            state.namespace = namespace;
            state.rights = rights;
            state.is_listening = true;
            self.silent.remove(&(state.hello_by_ms, session));
        }
        Ok(ReplyBody::Done)
    }

    /// The number of the next event to look at, or none: it is answered later.
    pub(super) fn watch(
        &mut self,
        session: SessionId,
        seq: u64,
        watch: Watch,
        now_ms: u64,
    ) -> Result<Option<u64>, WireError> {
        limit("bytes of a prefix", watch.prefix.len(), NAME_BYTES_MAX as usize)?;
        // What happened up to now is for those who waited before.
        let head = self.home.events_head();
        let namespace = self.sessions.get(&session).map_or_else(Default::default, |s| s.namespace);
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

    /// Has clients know in which namespaces somebody wants to hear of all objects.
    pub(super) fn show_watched(&mut self) -> Result<(), StoreError> {
        let wanted = self.watches.of_all();
        if wanted == self.home.watched()? { Ok(()) } else { self.home.set_watched(wanted) }
    }

    /// As [`Self::show_watched`], when somebody went. Clients that still ask the node to seal lose
    /// time and nothing else.
    pub(super) fn show_fewer_watched(&mut self) {
        if let Err(error) = self.show_watched() {
            tracing::error!(%error, "what is watched could not be shown");
        }
    }

    /// The first event from `after` on that is meant, or as far as this was looked for.
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

    /// Answers those for whom there are events by now.
    pub(super) fn tell_watchers(&mut self, out: &mut Vec<Action>) {
        let (told, head) = (self.watches.told(), self.home.events_head());
        self.watches.set_told(head);
        if told == head || self.watches.is_empty() {
            return;
        }
        let is_shown = self.show_events(told, out);
        if !is_shown {
            // More at once than the ring holds: everybody is to look.
            let all = self.watches.drain();
            self.fan_out.add(all.into_iter().map(|one| answer(one, told)), out);
        }
    }

    /// False if some events could not be read.
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

    /// Answers those whose time is over: nothing up to here is of interest.
    pub(super) fn expire_watches(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let is_over = now_ms >= self.started_ms.saturating_add(WATCHERS_RETURN_MS);
        if is_over && self.watches.expect_nobody() {
            self.show_fewer_watched();
        }
        let told = self.watches.told();
        let expired = self.watches.expired(now_ms, self.fan_out.left());
        self.fan_out.add(expired.into_iter().map(|one| answer(one, told)), out);
    }

    /// Tells all who wait that the node ends.
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
