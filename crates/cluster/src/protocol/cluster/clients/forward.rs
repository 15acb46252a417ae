//! Forwarding of clients that use the memory or the events of another node.

use farrow_wire::{Hello, Listen, RequestBody, WireError};

use crate::protocol::action::Action;
use crate::protocol::cluster::PeerAction;
use crate::protocol::context::ReplyTo;
use crate::protocol::identity::PeerIdentity;
use crate::protocol::state::NodeState;

impl NodeState {
    /// The other node that the first message of a connection is for, if there is one.
    pub(in crate::protocol) fn other_node(&self, first: &RequestBody) -> Option<String> {
        let (RequestBody::Hello(Hello { node, .. }) | RequestBody::Listen(Listen { node, .. })) =
            first
        else {
            return None;
        };
        let own = self.cluster.0.as_ref().map(|cluster| cluster.options.name.as_str());
        (!node.is_empty() && own != Some(node)).then(|| node.clone())
    }

    /// Forwards a client that uses the memory or the events of another node.
    pub(in crate::protocol) fn forward_client(
        &mut self,
        ReplyTo { session, seq }: ReplyTo,
        peer: PeerIdentity,
        name: String,
        first: RequestBody,
    ) -> Result<Action, WireError> {
        let (version, maps_memory, first) = match first {
            RequestBody::Hello(hello) => {
                let node = String::new();
                let (version, maps_memory) = (hello.version, hello.maps_memory);
                (version, maps_memory, RequestBody::Hello(Hello { node, ..hello }))
            }
            RequestBody::Listen(listen) => {
                let node = String::new();
                (listen.version, true, RequestBody::Listen(Listen { node, ..listen }))
            }
            _ => return Err(WireError::Invalid("the first message is Hello or Listen".into())),
        };
        self.admit(peer, version)?;
        if peer.remote_client.is_some() {
            // Its own node forwards it to its destination.
            return Err(WireError::Denied("a client of another node is not forwarded".to_owned()));
        }
        let Some(cluster) = &self.cluster.0 else {
            return Err(WireError::NoNode { name, known: Vec::new() });
        };
        let Some(peer) = cluster.peers.get(&name) else {
            return Err(WireError::NoNode { name, known: self.members().names() });
        };
        match maps_memory {
            true => peer.check_usable()?,
            false => peer.check_live()?,
        }
        let action = Action::Peer(PeerAction::Bridge {
            session,
            seq,
            node: name,
            address: peer.member.address.clone(),
            incarnation: cluster.incarnation,
            first,
            maps_memory,
        });
        self.clients.introduced(session);
        Ok(action)
    }
}
