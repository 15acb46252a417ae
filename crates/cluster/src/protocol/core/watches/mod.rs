//! Clients that wait for events. They read the events in the region, so slow or many subscribers
//! are no burden: each wait costs one short message.

use std::collections::BTreeMap;

use farrow_store::{Home, NamespaceId, Seen, StoreError, watched_bit};
use farrow_wire::{Reply, ReplyBody, Watch, WireError};

use super::fanout::FanOut;
use crate::protocol::action::Action;
use crate::protocol::convert::store_error;
use crate::protocol::identity::SessionId;

mod table;

use table::WatchTable;
pub(in crate::protocol) use table::{WATCHER_BYTES_MAX, WATCHES_PER_SESSION_MAX, Watcher};

/// Limit of events searched for one request. A client that is further behind searches by itself.
const LOOK_EVENTS_MAX: u64 = 256;

/// Time after a restart in which subscribers of the previous daemon are expected back.
const WATCHERS_RETURN_MS: u64 = 30_000;

/// Requests that wait for events, and the namespaces in which sessions want all events.
#[derive(Debug)]
pub(in crate::protocol) struct Watches {
    waiting: WatchTable,
    /// Events before this one have been delivered to all.
    delivered: u64,
    /// Sessions to notify of every object sealed in a namespace.
    of_all: BTreeMap<SessionId, NamespaceId>,
    /// Bits of the namespaces with such sessions when an earlier daemon ended: they may reconnect.
    expected: u64,
    expected_until_ms: u64,
}

impl Watches {
    /// No request waits. Sessions of an earlier daemon may reconnect.
    pub(in crate::protocol) fn resumed(home: &Home, now_ms: u64) -> Self {
        Self {
            waiting: WatchTable::default(),
            delivered: home.events_head(),
            of_all: BTreeMap::new(),
            expected: home.watched().unwrap_or_default(),
            expected_until_ms: now_ms.saturating_add(WATCHERS_RETURN_MS),
        }
    }

    /// Notifies a session of all objects of a namespace, from now to the end of the session.
    pub(in crate::protocol) fn want_all(
        &mut self,
        home: &mut Home,
        session: SessionId,
        namespace: NamespaceId,
    ) -> Result<(), StoreError> {
        self.of_all.insert(session, namespace);
        self.publish(home)
    }

    /// Publishes to clients in which namespaces sessions want notice of all objects.
    fn publish(&self, home: &mut Home) -> Result<(), StoreError> {
        let bits = |bits, namespace: &NamespaceId| bits | watched_bit(*namespace);
        let wanted = self.of_all.values().fold(self.expected, bits);
        if wanted == home.watched()? { Ok(()) } else { home.set_watched(wanted) }
    }

    /// As [`Self::publish`], after a session ended. An outdated value costs clients time only.
    fn publish_fewer(&self, home: &mut Home) {
        if let Err(error) = self.publish(home) {
            tracing::error!(%error, "the watched namespaces cannot be published");
        }
    }

    /// Number of waiting requests of a session.
    pub(in crate::protocol) fn count_of(&self, session: SessionId) -> usize {
        self.waiting.count_of(session)
    }

    /// Upper bound of the memory of a session's waiting requests.
    pub(in crate::protocol) fn bytes_of(&self, session: SessionId) -> usize {
        self.count_of(session) * WATCHER_BYTES_MAX
    }

    pub(in crate::protocol) fn add(&mut self, watcher: Watcher) {
        self.waiting.add(watcher);
    }

    /// Forgets the requests of an ended session.
    pub(in crate::protocol) fn forget(&mut self, home: &mut Home, session: SessionId) {
        self.waiting.forget(session);
        self.of_all.remove(&session);
        self.publish_fewer(home);
    }

    /// Deadline of the request that expires first.
    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        self.waiting.next_deadline_ms()
    }

    /// Answers the requests for which there are events.
    pub(in crate::protocol) fn notify(
        &mut self,
        home: &Home,
        fan_out: &mut FanOut,
        out: &mut Vec<Action>,
    ) {
        let from = std::mem::replace(&mut self.delivered, home.events_head());
        if from == self.delivered || self.waiting.is_empty() {
            return;
        }
        let are_read = self.notify_from(home, from, fan_out, out);
        if !are_read {
            // More events at once than the ring holds: every client searches by itself.
            let all = self.waiting.drain();
            fan_out.add(all.into_iter().map(|one| answer(one, from)), out);
        }
    }

    /// `false` if some events could not be read.
    fn notify_from(
        &mut self,
        home: &Home,
        from: u64,
        fan_out: &mut FanOut,
        out: &mut Vec<Action>,
    ) -> bool {
        let Ok(mut events) = home.events(from) else {
            return false;
        };
        if events.position() != from {
            return false;
        }
        loop {
            match events.advance() {
                Ok(Some(Seen::Event(event))) => {
                    let meant = self.waiting.matching(&event);
                    fan_out.add(meant.into_iter().map(|one| answer(one, event.number)), out);
                }
                Ok(None) => return true,
                Ok(Some(Seen::Gap { .. })) | Err(_) => return false,
            }
        }
    }

    /// Answers expired requests: no event so far matches them.
    pub(in crate::protocol) fn expire(
        &mut self,
        home: &mut Home,
        now_ms: u64,
        fan_out: &mut FanOut,
        out: &mut Vec<Action>,
    ) {
        if now_ms >= self.expected_until_ms && std::mem::take(&mut self.expected) != 0 {
            self.publish_fewer(home);
        }
        let expired = self.waiting.expired(now_ms, fan_out.left());
        fan_out.add(expired.into_iter().map(|one| answer(one, self.delivered)), out);
    }

    /// Answers all waiting requests with the end of the node.
    pub(in crate::protocol) fn stop(&mut self, out: &mut Vec<Action>) {
        for Watcher { session, seq, .. } in self.waiting.drain() {
            let reply = Reply { seq, body: Err(WireError::Closing) };
            out.push(Action::Send { session, reply, has_descriptors: false });
        }
    }
}

/// The first matching event from `after` on, or `after` if the search stops early.
pub(in crate::protocol) fn first_match(
    home: &Home,
    watch: &Watch,
    namespace: NamespaceId,
    head: u64,
) -> Result<Option<u64>, WireError> {
    if head.saturating_sub(watch.after) > LOOK_EVENTS_MAX {
        return Ok(Some(watch.after));
    }
    let mut events = home.events(watch.after).map_err(store_error)?;
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

fn answer(watcher: Watcher, next: u64) -> Action {
    let reply = Reply { seq: watcher.seq, body: Ok(ReplyBody::Watched { next }) };
    Action::Send { session: watcher.session, reply, has_descriptors: false }
}
