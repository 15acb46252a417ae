//! Orderly handover from one daemon to the next.

use farrow_store::{ClientSlot, ObjectId, StoreError, Unfinished};
use farrow_wire::{BATCH_ITEMS_MAX, Inheritance, WireError, WireObjectId};

use crate::protocol::state::NodeState;
use crate::protocol::{Action, PeerIdentity, SessionId};

impl NodeState {
    /// Checks a takeover: only by this node's own user, and only with the region that it serves.
    pub(in crate::protocol) fn check_handover(
        &mut self,
        session: SessionId,
        peer: PeerIdentity,
        region_uid: u64,
    ) -> Result<(), WireError> {
        if peer.remote_client.is_some() {
            return Err(WireError::Denied("another node may not take over this one".to_owned()));
        }
        if peer.uid != self.clients.owner_uid() {
            return Err(WireError::Denied(format!(
                "user {} may not take over the node of user {}",
                peer.uid,
                self.clients.owner_uid()
            )));
        }
        let ours = self.home.uid().0;
        if region_uid != ours {
            return Err(WireError::OtherRegion { old: region_uid, new: ours });
        }
        if self.is_stopping {
            return Err(WireError::Closing);
        }
        self.clients.introduced(session);
        Ok(())
    }

    /// State that the next daemon cannot read from the region.
    ///
    /// # Errors
    ///
    /// The region cannot be read.
    pub fn inheritance(&self) -> Result<Inheritance, StoreError> {
        let Unfinished { reserved, retained, .. } = self.home.unfinished(BATCH_ITEMS_MAX)?;
        Ok(Inheritance {
            incarnation: self.cluster.own_incarnation(),
            flags: self.barriers.flags_to_pass_on(),
            reserved: reserved.into_iter().map(|(client, name)| (client.0, name)).collect(),
            retained: retained.into_iter().map(|(client, id)| (client.0, id.into())).collect(),
            reserved_objects: self
                .quota
                .reservations
                .all()
                .map(|(client, objects)| (client.0, objects))
                .collect(),
        })
    }

    /// Notes that the next daemon is to take over: connections are closed for it from here on.
    pub fn begin_handover(&mut self) {
        self.barriers.begin_handover();
    }

    /// Notes that this daemon keeps running instead.
    pub fn cancel_handover(&mut self) {
        self.barriers.cancel_handover();
    }

    /// Finishes the counts that requests wait for: the next daemon does not know these requests.
    pub fn finish_counts(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        while self.counting.is_busy() {
            self.count_more(now_ms, out);
        }
        self.drop_namespaces(true, out);
    }

    /// Ends all waits for barriers and flags, since another daemon of this node follows: the waiters
    /// ask that one again. Requests that arrive until then are refused.
    pub fn stop_sync(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let (barriers, mut context) = self.barriers(now_ms, out);
        barriers.stop(&mut context);
    }

    /// Hands over the barriers and flags of this node, which is about to leave, and takes no more.
    pub fn hand_over_sync(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let (barriers, mut context) = self.barriers(now_ms, out);
        barriers.hand_over_all(&mut context);
    }

    /// Resumes the flags of the previous daemon, after this one has joined its cluster. Those of
    /// another incarnation may be out of date.
    pub(crate) fn inherit_flags(
        &mut self,
        flags: (u64, Vec<(String, u64)>),
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let (barriers, mut context) = self.barriers(now_ms, out);
        barriers.inherit_flags(flags, &mut context);
    }

    /// Resumes the state of the previous daemon, before this node joins its cluster. The store has
    /// taken over its part.
    pub(crate) fn resume_from(&mut self, inheritance: &Inheritance) {
        self.inherit_reservations(&inheritance.reserved_objects);
    }
}

fn by_slot(&(client, id): &(u32, WireObjectId)) -> (ClientSlot, ObjectId) {
    (ClientSlot(client), id.into())
}

/// Converts the state of the previous daemon to the store's types. The store validates it.
pub(crate) fn unfinished(inheritance: &Inheritance) -> Unfinished {
    let Inheritance { reserved, retained, .. } = inheritance;
    let reserved = reserved.iter().map(|(client, name)| (ClientSlot(*client), name.clone()));
    Unfinished {
        is_cut: retained.len() >= BATCH_ITEMS_MAX,
        reserved: reserved.collect(),
        retained: retained.iter().map(by_slot).collect(),
    }
}
