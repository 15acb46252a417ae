//! Names of objects that were just sealed, imported or moved here. The daemon may be stopped between
//! the check of a name and the write of its entry, for longer than its lease: another node may have
//! granted the name then. So the lease is checked once more behind the write, before any reply leaves.

use std::collections::BTreeSet;

use farrow_store::{ClientSlot, ObjectId, Target};
use farrow_wire::{ReplyBody, WireObjectId};

use crate::protocol::cluster::state::UnconfirmedSeal;
use crate::protocol::cluster::{Answer, OptionalCluster, PeerAction};
use crate::protocol::state::NodeState;
use crate::protocol::{Action, SessionId};

impl OptionalCluster {
    /// Records that an object was given a name that had none.
    pub(in crate::protocol) fn note_named(&mut self, slot: ClientSlot, id: ObjectId) {
        if let Some(cluster) = &mut self.0 {
            let incarnation = cluster.membership.incarnation().0;
            cluster.unconfirmed.push(UnconfirmedSeal { id, slot, incarnation });
        }
    }
}

impl NodeState {
    /// Deletes the objects that were given names when the lease was over, and removes the replies to
    /// their seals from `out`, which has not been performed. Their clients are disconnected instead:
    /// a client that reconnects compares its memory with that of the node. A node that moved an object
    /// here asks again, and is refused.
    pub fn confirm_names(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        if cluster.unconfirmed.is_empty() {
            return;
        }
        // With the lease of the same incarnation, no view has excluded this node until now.
        let has_lease = cluster.membership.has_lease(now_ms);
        let incarnation = cluster.membership.incarnation().0;
        let mut late = std::mem::take(&mut cluster.unconfirmed);
        late.retain(|seal| !has_lease || seal.incarnation != incarnation);
        if late.is_empty() {
            return;
        }
        let count = late.len();
        tracing::warn!(count, "the lease ended while names were written: they are removed");
        let ids: BTreeSet<WireObjectId> = late.iter().map(|seal| seal.id.into()).collect();
        let (drain, mut context) = self.drain(now_ms, out);
        let moved = drain.unsettle_taken(&ids, &mut context);
        let mut sessions = BTreeSet::new();
        for UnconfirmedSeal { id, slot, .. } in late {
            match self.home.delete(Target::Id(id)) {
                Ok(deleted) => self.note_deleted(deleted),
                Err(error) => {
                    tracing::debug!(%error, "an object whose name is unconfirmed cannot be removed")
                }
            }
            sessions.extend(self.clients.sessions_of(slot).map(|(session, _)| session));
        }
        self.replicas.imported.forget(|id| ids.contains(&WireObjectId::from(*id)));
        let (drain, mut context) = self.drain(now_ms, out);
        drain.refuse_taken(&moved, &mut context);
        out.retain(|action| !is_seal_of(&ids, action));
        out.extend(sessions.into_iter().map(|session: SessionId| Action::Close { session }));
        self.heed_lease(now_ms, out);
    }
}

fn is_seal_of(ids: &BTreeSet<WireObjectId>, action: &Action) -> bool {
    match action {
        Action::Send { reply, .. } => match &reply.body {
            Ok(ReplyBody::Sealed(sealed)) => sealed.iter().flatten().any(|id| ids.contains(id)),
            Ok(ReplyBody::Fetched(Some(id))) => ids.contains(id),
            _ => false,
        },
        Action::Peer(PeerAction::Answer { body, .. }) => matches!(
            postcard::from_bytes(body),
            Ok(Answer::Took(Ok(id))) if ids.contains(&id)
        ),
        _ => false,
    }
}
