//! Cancelled requests.

use farrow_wire::{ReplyBody, WireError};

use crate::protocol::action::answer_to;
use crate::protocol::state::NodeState;
use crate::protocol::{Action, SessionId};

impl NodeState {
    /// Ends the wait of an earlier request of a session and answers it at once. A request that does
    /// not wait is answered as usual.
    pub(in crate::protocol) fn cancel(
        &mut self,
        session: SessionId,
        seq: u64,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> ReplyBody {
        let (barriers, mut context) = self.barriers(now_ms, out);
        let was_waiting = barriers.cancel(session, seq, &mut context)
            || self.waits.cancel(session, seq)
            || self.admission.cancel(session, seq)
            || self.quota.reservations.cancel(session, seq)
            || self.residency.cancel(session, seq)
            || self.replicas.cancel(session, seq)
            || self.resize.cancel(session, seq)
            || self.drain.cancel(session, seq)
            || self.counting.cancel(session, seq)
            || self.cluster.cancel_in_cluster(session, seq);
        if was_waiting {
            out.push(answer_to(session, seq, Err(WireError::Cancelled)));
        }
        ReplyBody::Done
    }
}
