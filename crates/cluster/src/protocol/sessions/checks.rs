//! All checks of a request, in their order.

use farrow_store::ClientSlot;
use farrow_wire::{RequestBody, WireError};

use crate::protocol::SessionId;
use crate::protocol::limits::check_lists;
use crate::protocol::state::NodeState;

impl NodeState {
    /// Whether the node serves a request: checked before a name is taken for it, and before it has any
    /// other effect. `slot`: that of the client, if the session has one. A request for memory is checked
    /// against quotas as well, by the rooms that grant it.
    pub(in crate::protocol) fn check_request(
        &mut self,
        session: SessionId,
        slot: Option<ClientSlot>,
        body: &RequestBody,
    ) -> Result<(), WireError> {
        self.check_permitted(session, body)?;
        self.drain.check_not_draining(session, body, &self.cluster)?;
        check_lists(body)?;
        if let Some(slot) = slot {
            self.clients.check_right(&self.home, slot, body)?;
        }
        self.check_names(session, body)
    }
}
