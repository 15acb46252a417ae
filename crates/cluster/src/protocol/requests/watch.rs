//! Requests of clients that wait for events, and those of barriers and flags.

use farrow_store::{ClientSlot, EventKind, NAME_BYTES_MAX};
use farrow_wire::{Listen, ReplyBody, SyncAsk, WAIT_MS_MAX, Watch, WireError};

use crate::protocol::context::RequestContext;
use crate::protocol::convert::store_error;
use crate::protocol::core::clients::Admitted;
use crate::protocol::core::namespaces::full_name;
use crate::protocol::core::watches::{
    WATCHER_BYTES_MAX, WATCHES_PER_SESSION_MAX, Watcher, first_match,
};
use crate::protocol::limits::check_limit;
use crate::protocol::sessions::hello::check_owner;
use crate::protocol::state::NodeState;
use crate::protocol::{Action, PeerIdentity, SessionId};

/// Limit of connections of one client that wait for events: each costs the node two descriptors.
const LISTENERS_MAX: usize = 256;

impl NodeState {
    /// Passes a request for a barrier or for flags on to their owner. The answer follows later.
    pub(in crate::protocol) fn sync(
        &mut self,
        context: RequestContext,
        name: &str,
        ask: SyncAsk,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let full = full_name(&self.home, context.slot, name)?;
        let (barriers, mut rest) = self.barriers(context.now_ms, out);
        barriers.request(context, full, ask, &mut rest).map(|()| None)
    }

    /// The first message of a connection that only waits for events. The connection has no slot and
    /// holds nothing; it belongs to a client that has a slot.
    pub(in crate::protocol) fn listen(
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
        let not_theirs = || WireError::Denied(format!("slot {} is not this client's", slot.0));
        let record = record.ok_or_else(not_theirs)?;
        check_owner(record, peer)?;
        let namespace = record.namespace;
        let rights = self.let_in(peer.remote_client, namespace)?;
        let count = self.clients.listeners_of(slot) + 1;
        check_limit("connections of a client that wait for events", count, LISTENERS_MAX)?;
        let admitted = Admitted {
            slot: None,
            listens_for: Some(slot),
            namespace,
            rights,
            maps_memory: true,
            is_newcomer: false,
            nonce,
        };
        self.clients.admitted(session, admitted);
        Ok(ReplyBody::Done)
    }

    /// Returns the number of the next event to look at. `None`: the answer follows later.
    pub(in crate::protocol) fn watch(
        &mut self,
        session: SessionId,
        seq: u64,
        watch: Watch,
        now_ms: u64,
    ) -> Result<Option<u64>, WireError> {
        check_limit("bytes of a prefix", watch.prefix.len(), NAME_BYTES_MAX as usize)?;
        // Read before the search, so that no event between them is missed.
        let head = self.home.events_head();
        let namespace =
            self.clients.session(session).map_or_else(Default::default, |s| s.namespace);
        if watch.prefix.is_empty() && EventKind::Sealed.is_in(watch.kinds) {
            let wanted = self.watches.want_all(&mut self.home, session, namespace);
            wanted.map_err(store_error)?;
        }
        if let Some(next) = first_match(&self.home, &watch, namespace, head)? {
            return Ok(Some(next));
        }
        if watch.timeout_ms == 0 {
            return Ok(Some(head));
        }
        let waiting = self.watches.count_of(session);
        check_limit("waits for events under way", waiting + 1, WATCHES_PER_SESSION_MAX)?;
        self.check_waiting(session, WATCHER_BYTES_MAX)?;
        let deadline_ms = now_ms.saturating_add(watch.timeout_ms.min(WAIT_MS_MAX));
        let Watch { prefix, kinds, .. } = watch;
        self.watches.add(Watcher { session, seq, namespace, prefix, kinds, deadline_ms });
        Ok(None)
    }
}
