//! The first message of a connection: identification of the client, and its slot.

use farrow_memory::{CoherenceClass, FabricKind, Proximity};
use farrow_store::{ClientRecord, ClientSlot, Newcomer, StoreError};
use farrow_wire::{Hello, PROTOCOL_VERSION, ReplyBody, Welcome, WireError, wire_span};

use crate::protocol::convert::store_error;
use crate::protocol::core::clients::Admitted;
use crate::protocol::state::NodeState;
use crate::protocol::{Action, PeerIdentity, SessionId};

/// Number of locked slots after which a client is rejected.
const PLACES_TRIED_MAX: u32 = 4;

/// Whether the slot of a client is this peer's. All clients can read nonces, and several processes
/// may have the number 0. But the kernel reports the user, or the node of a client does.
///
/// # Errors
///
/// [`WireError::Denied`]: the slot is of another node, or of another user. A process that has changed
/// its user needs another slot.
pub(in crate::protocol) fn check_owner(
    record: &ClientRecord,
    peer: PeerIdentity,
) -> Result<(), WireError> {
    let slot = record.client.0;
    if record.remote_client != peer.remote_client {
        return Err(WireError::Denied(format!("slot {slot} belongs to a client of another node")));
    }
    if record.uid != peer.uid {
        return Err(WireError::Denied(format!(
            "slot {slot} belongs to user {}, not to user {}: connect again",
            record.uid, peer.uid
        )));
    }
    Ok(())
}

impl NodeState {
    pub(in crate::protocol) fn hello(
        &mut self,
        session: SessionId,
        peer: PeerIdentity,
        hello: &Hello,
    ) -> Result<ReplyBody, WireError> {
        self.admit(peer, hello.version)?;
        let is_bare = peer.remote_client.is_some() && !hello.maps_memory;
        let slot = match hello.resume.filter(|_| !is_bare) {
            None => {
                let namespace = self.home.namespace(&hello.namespace).map_err(store_error)?.id;
                let PeerIdentity { pid, start_time, uid, remote_client } = peer;
                self.let_in(remote_client, namespace)?;
                let newcomer = Newcomer { pid, start_time, uid, namespace, remote_client };
                let slot = self.join_free_place(&newcomer, peer)?;
                if !is_bare && let Err(error) = self.home.hold_block(slot) {
                    let _ = self.home.client_leave(slot);
                    return Err(store_error(error));
                }
                slot
            }
            Some((uid, slot, nonce)) => {
                let ours = self.home.uid().0;
                if uid != ours {
                    return Err(WireError::OtherRegion { old: uid, new: ours });
                }
                let slot = ClientSlot(slot);
                if self.families.has(slot) {
                    return Err(store_error(StoreError::NoSuchClient { slot: slot.0 }));
                }
                if let Ok(record) = self.home.client(slot) {
                    check_owner(record, peer)?;
                    self.let_in(peer.remote_client, record.namespace)?;
                }
                if let Some((_, other)) = self.clients.sessions_of(slot).next() {
                    return Err(self.in_use(slot, other.peer, peer));
                }
                self.home.client_resume(slot, nonce, peer.pid).map_err(store_error)?;
                if let Err(error) = self.home.register(slot) {
                    tracing::debug!(slot = slot.0, %error, "objects are not registered");
                }
                slot
            }
        };
        let ClientRecord { namespace, nonce, .. } = *self.home.client(slot).map_err(store_error)?;
        let rights = self.let_in(peer.remote_client, namespace)?;
        let proximity =
            if peer.remote_client.is_some() { Proximity::Remote } else { Proximity::Local };
        self.home.set_proximity(slot, proximity).map_err(store_error)?;
        let maps_memory = hello.maps_memory || peer.remote_client.is_none();
        let is_newcomer = hello.resume.is_none();
        let admitted = Admitted {
            slot: Some(slot),
            listens_for: None,
            namespace,
            rights,
            maps_memory,
            is_newcomer,
            nonce,
        };
        self.clients.admitted(session, admitted);
        self.barriers.client_resumed(session, nonce);
        self.welcome(slot).map(ReplyBody::Welcome)
    }

    /// Ends the earlier connection for requests of a client that opens another one: it saw the link
    /// break before this node did. Otherwise the names that it reserved would stay taken.
    pub(in crate::protocol) fn end_earlier(
        &mut self,
        peer: PeerIdentity,
        hello: &Hello,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some((uid, slot, nonce)) = hello.resume.filter(|_| !hello.maps_memory) else { return };
        let slot = ClientSlot(slot);
        let is_it = self.home.client(slot).is_ok_and(|record| record.nonce == nonce);
        if uid != self.home.uid().0 || !is_it {
            return;
        }
        let mut sessions = self.clients.sessions_of(slot);
        let earlier = sessions.find(|(_, one)| !one.maps_memory && one.peer == peer);
        let earlier = earlier.map(|(session, _)| session);
        drop(sessions);
        if let Some(session) = earlier {
            tracing::debug!(session = session.0, "another connection follows");
            self.closed(session, false, now_ms);
            self.settle_reserved();
            out.push(Action::Close { session });
        }
    }

    /// Joins with a slot through which no process maps the region. A slot that a process locked
    /// without cause is set aside until it is free.
    fn join_free_place(
        &mut self,
        newcomer: &Newcomer,
        peer: PeerIdentity,
    ) -> Result<ClientSlot, WireError> {
        for _ in 0..PLACES_TRIED_MAX {
            let slot = self.home.client_join_as(newcomer).map_err(store_error)?.client;
            if !self.is_mapped_by(slot) {
                return Ok(slot);
            }
            tracing::warn!(slot = slot.0, "a free slot is locked");
            // The next tick checks it.
            self.end_of_client(slot, peer, 0);
        }
        Err(WireError::TooMany { what: "locked slots".into(), max: PLACES_TRIED_MAX.into() })
    }

    /// The error for a client that cannot have its slot back now.
    fn in_use(&self, slot: ClientSlot, holder: PeerIdentity, peer: PeerIdentity) -> WireError {
        if holder != peer {
            return WireError::Denied(format!("slot {} is in use", slot.0));
        }
        // The same process: it saw the link break, or gave up waiting, before this node did. Its
        // earlier messages may still arrive, so it retries after the old connection has ended.
        let reason = format!("the last connection to slot {} has not ended yet", slot.0);
        WireError::NoRemoteSession { node: self.cluster.own_name(), reason }
    }

    /// Sets the users that may connect besides the node's own and root.
    pub fn allow_users(&mut self, users: &[u32]) {
        self.clients.allow_users(users);
    }

    /// Whether this user may connect.
    pub fn may_connect(&self, peer: &PeerIdentity) -> bool {
        self.clients.may_connect(peer)
    }

    /// Whether to accept a connection. Users that may not connect only get that answer, and must
    /// not exhaust the descriptors of the node.
    pub fn has_room_for(&self, peer: &PeerIdentity) -> bool {
        self.clients.has_room_for(peer)
    }

    /// Whether this user may connect now, with this version of the protocol.
    pub(in crate::protocol) fn admit(
        &self,
        peer: PeerIdentity,
        version: u32,
    ) -> Result<(), WireError> {
        if version != PROTOCOL_VERSION {
            return Err(WireError::Version { theirs: version, ours: PROTOCOL_VERSION });
        }
        if self.is_stopping {
            return Err(WireError::Closing);
        }
        if !self.may_connect(&peer) {
            return Err(WireError::Denied(format!(
                "user {} may not use the node of user {}",
                peer.uid,
                self.clients.owner_uid()
            )));
        }
        Ok(())
    }

    fn welcome(&mut self, slot: ClientSlot) -> Result<Welcome, WireError> {
        // The client gives back unknown spans, so none of its objects may be among them.
        let grants = self.home.unsealed_of(slot).map_err(store_error)?;
        let fabric = self.home.region().fabric();
        let geometry = fabric.geometry();
        let nonce = self.home.client(slot).map_err(store_error)?.nonce;
        let namespace = self.home.namespace_of(slot).map_err(store_error)?;
        Ok(Welcome {
            version: PROTOCOL_VERSION,
            region_uid: self.home.uid().0,
            is_device: fabric.kind() == FabricKind::Device,
            is_node_local: fabric.coherence_class() == CoherenceClass::NodeLocal,
            control_bytes: geometry.control.0,
            data_bytes: geometry.data.0,
            control_file_offset: self.place.control_file_offset,
            data_file_offset: self.place.data_file_offset,
            base: self.base,
            slot: slot.0,
            nonce,
            hold_blocks: self.home.hold_blocks_of(slot).into_iter().map(wire_span).collect(),
            entry_pages: self.home.entry_pages_of(slot).into_iter().map(wire_span).collect(),
            grants: grants.into_iter().map(wire_span).collect(),
            pid: self.pid,
            memory: self.place.memory.clone(),
            namespace: namespace.id.0,
            events_from: namespace.events_from,
            are_objects_limited: self.quota.are_objects_limited(&self.home, slot)?,
        })
    }
}
