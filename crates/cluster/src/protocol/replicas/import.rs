//! Imports: objects that clients of other nodes put here.
//!
//! Such a client cannot map this node's memory. It seals the object in the memory of its own node,
//! reserves a name here, and asks this node to bring the object. The object gets its id here.

use farrow_arrow::{DescriptorStamp, restamp};
use farrow_memory::Span;
use farrow_store::{ClientSlot, Home, ObjectId, ObjectKind, ReplicaSeal, SpillHead};
use farrow_wire::{Extent, ReplyBody, WireError};

use super::transfers::{FetchKey, FetchWaiter, ImportAsk, ImportTarget, Opening};
use crate::net::query::NetQuery;
use crate::protocol::Action;
use crate::protocol::convert::{limit, store_error};
use crate::protocol::node_key;
use crate::protocol::state::NodeState;

/// Objects that are imported at a time.
const IMPORTS_MAX: usize = 256;

impl NodeState {
    /// Brings an object of another node and makes it one of this node. `None`: the answer comes later.
    pub(in crate::protocol) fn import(
        &mut self,
        ask: ImportAsk,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let ImportAsk { session, slot, seq, origin, name, until_ms } = ask;
        self.check_writer(slot)?;
        let Some(node) = self.net_node_of(origin.hi) else {
            let text = format!("object {origin} is of no node that is reached by network");
            return Err(WireError::Invalid(text));
        };
        // This node may read more there than the client's node may elsewhere.
        let importer = self.sessions.get(&session).and_then(|one| one.peer.remote_client);
        if importer.is_none_or(|client| client.node != node_key(&node)) {
            let text = format!("object {origin} is of node {node}, not of the client's own");
            return Err(WireError::Denied(text));
        }
        let name = name.as_deref().map(|name| self.full_name(slot, name)).transpose()?;
        let import = ImportTarget { session, slot, name };
        let query = NetQuery::Id(origin.hi, origin.lo);
        let key = FetchKey::new(query, Extent::Whole)?;
        let waiter = FetchWaiter { key: key.clone(), session, seq, until_ms };
        // The client asks again while the object is on its way.
        let openings = self.replicas.openings.values_mut();
        let mut same = openings.filter(|one| one.key == key);
        if let Some(opening) = same.find(|one| one.import.as_ref() == Some(&import)) {
            opening.waiters.push(waiter);
            return Ok(None);
        }
        match self.replicas.loading.get_mut(&origin) {
            Some(loading) if loading.import.as_ref() == Some(&import) => {
                loading.waiters.push(waiter);
                return Ok(None);
            }
            Some(_) => {
                return Err(WireError::Invalid(format!(
                    "object {origin} is being brought already"
                )));
            }
            None => {}
        }
        if let Some(id) = self.replicas.imported.remove(&(session, origin)) {
            return Ok(Some(ReplyBody::Fetched(Some((id.hi, id.lo)))));
        }
        import.name.as_deref().map_or(Ok(()), |name| self.check_held(name))?;
        self.check_objects(slot, 1)?;
        let openings = self.replicas.openings.values().filter(|one| one.import.is_some());
        let loading = self.replicas.loading.values().filter(|one| one.import.is_some());
        limit("objects that are imported", openings.count() + loading.count() + 1, IMPORTS_MAX)?;
        let token = self.replicas.token();
        out.push(key.open_at(token, node.clone()));
        let lost_ms = now_ms.saturating_add(self.net_patience_ms());
        let opening = Opening::new(key, vec![waiter], [node], now_ms, lost_ms);
        let opening = Opening { import: Some(import), ..opening };
        self.replicas.openings.insert(token, opening);
        Ok(None)
    }

    /// Memory for an import, as for any other object of its client. `None`: memory is on its way.
    pub(super) fn room_for_import(
        &mut self,
        head: &SpillHead,
        slot: ClientSlot,
    ) -> Result<Option<Vec<Span>>, WireError> {
        let bytes = self.check_size(Home::restored_bytes(head))?;
        self.allowance(slot, bytes, bytes)?;
        self.begin_with_room(head, bytes, |home| home.begin_import(head, slot))
    }

    /// All bytes of an import are here: it is an object from here on, if its client still waits.
    pub(super) fn seal_import(
        &mut self,
        origin: ObjectId,
        import: &ImportTarget,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<ObjectId, WireError> {
        let checked = self.check_import(import);
        if let Err(error) = checked {
            self.abort_replica(origin);
            return Err(error);
        }
        let missing = || WireError::NotFound { what: origin.to_string() };
        let loading = self.replicas.loading.get(&origin).ok_or_else(missing)?;
        let mut descriptor = loading.brought.descriptor.clone();
        let stamp = DescriptorStamp { region: self.home.uid().0, epoch: 0 };
        if loading.head.kind != ObjectKind::Bytes && !restamp(&mut descriptor, stamp) {
            let text = format!("a descriptor of {} B of object {origin}", descriptor.len());
            self.abort_replica(origin);
            return Err(WireError::Damaged(text));
        }
        let now_ns = self.home.now_ns();
        let seal = ReplicaSeal {
            name: import.name.as_deref(),
            namespace: loading.namespace,
            descriptor: &descriptor,
            descriptor_crc: crc32c::crc32c(&descriptor),
            metadata: &loading.brought.metadata,
            metadata_crc: loading.brought.metadata_crc,
            sealed_at_ns: now_ns,
            importer: Some(import.slot),
        };
        let id = self.home.finish_replica(origin, &seal, now_ns).map_err(store_error)?;
        self.counts.sealed += 1;
        self.note_reservations();
        if let Some(name) = &import.name {
            self.waits.sealed(name);
            self.answer_waits(out);
            self.tell_sealed(name, now_ms, out);
        }
        Ok(id)
    }

    fn check_import(&mut self, import: &ImportTarget) -> Result<(), WireError> {
        let session = self.sessions.get(&import.session);
        if session.is_none_or(|session| session.slot != Some(import.slot)) {
            return Err(WireError::Closing);
        }
        import.name.as_deref().map_or(Ok(()), |name| self.check_held(name))?;
        self.check_objects(import.slot, 1)
    }
}
