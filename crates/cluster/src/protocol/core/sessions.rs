//! Connections of clients.

use farrow_store::{ClientSlot, NamespaceId};
use farrow_wire::Rights;

use crate::protocol::identity::PeerIdentity;

#[derive(Debug)]
pub(in crate::protocol) struct ClientSession {
    pub(in crate::protocol) peer: PeerIdentity,
    pub(in crate::protocol) slot: Option<ClientSlot>,
    pub(in crate::protocol) hello_by_ms: u64,
    pub(in crate::protocol) has_said_goodbye: bool,
    /// A further connection of a client, for events only.
    pub(in crate::protocol) is_listening: bool,
    /// Its user may not connect.
    pub(in crate::protocol) is_stranger: bool,
    /// Namespace of the client; the default one until there is a client.
    pub(in crate::protocol) namespace: NamespaceId,
    /// Rights in the namespace; for a remote client by the rules for its node.
    pub(in crate::protocol) rights: Rights,
    /// False: a remote client that sends requests alone. It cannot reconnect.
    pub(in crate::protocol) maps_memory: bool,
}
