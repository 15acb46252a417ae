//! Large objects that many nodes want: which node sends one, and the replicas that this node sends.
//!
//! A reader holds the object at its home, whichever node sends it. So a delete, and the rights of the
//! reader, are those of the home. The sender needs no rules of that home: it serves any node with the
//! key of its replica, and only the home has passed it on. The reader takes descriptor and checksums
//! from the home, and from the sender only the bytes of the blocks.

use std::sync::PoisonError;
use std::time::Instant;

use farrow_memory::Span;
use farrow_net::frame::{ErrorCode, Opened};
use farrow_net::source::{MemberLife, SourceRefusal};
use farrow_store::{Held, ObjectId, Target};
use farrow_wire::Rights;

use super::source::{RegionSource, lock};
use crate::protocol::net::broadcast::{ReaderId, ReplicaKey, SenderAnswer, SenderRequest};
use crate::protocol::node_key;

fn answer(answer: &SenderAnswer) -> Result<Opened, SourceRefusal> {
    let other = |error: postcard::Error| SourceRefusal::new(ErrorCode::Other, error.to_string());
    let entry = postcard::to_allocvec(answer).map_err(other)?;
    Ok(Opened { blocks: Vec::new(), entry, inline: Vec::new() })
}

fn not_held(reader: &ReaderId) -> SourceRefusal {
    let (member, hold) = reader;
    SourceRefusal::new(ErrorCode::NotHeld, format!("{member} has no hold {}", hold.0))
}

impl RegionSource {
    /// Chooses the node that sends a held object to its reader.
    pub(super) fn choose_sender(
        &self,
        reader: ReaderId,
        failed: Option<&str>,
    ) -> Result<Opened, SourceRefusal> {
        let mut state = lock(&self.state);
        let reading = state.readings.get(&reader).cloned();
        let reading = reading.filter(|reading| !reading.held.entry().is_replica);
        let reading = reading.ok_or_else(|| not_held(&reader))?;
        let entry = reading.held.entry();
        let (object, bytes) =
            (entry.id.lo, reading.blocks.iter().map(|block| block.length.0).sum());
        let namespace = self.namespace(entry.namespace);
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        // A node with all rights could replace the object. Any other one must not answer for it.
        let may_send = |member: &MemberLife| {
            let rights = |namespace| rules.rights.of(namespace, node_key(&member.name));
            namespace.as_deref().is_some_and(|namespace| rights(namespace).has(Rights::ALL))
        };
        let request = SenderRequest { object, bytes, reader, failed };
        answer(&state.broadcasts.assign(request, may_send, Instant::now()))
    }

    /// Notes that the reader of a held object has a complete replica of it.
    pub(super) fn note_complete(
        &self,
        reader: &ReaderId,
        key: ReplicaKey,
    ) -> Result<Opened, SourceRefusal> {
        let mut state = lock(&self.state);
        let object = state.readings.get(reader).map(|reading| reading.held.entry().id.lo);
        let object = object.ok_or_else(|| not_held(reader))?;
        let (member, _) = reader;
        // Without a record it was notified to drop the replica.
        if state.interests.get(&object).is_some_and(|members| members.contains(member)) {
            state.broadcasts.completed(object, member, key);
        }
        answer(&SenderAnswer::Home)
    }

    /// Holds this node's replica of an object of another node.
    pub(super) fn open_replica(
        &self,
        origin: ObjectId,
        key: &ReplicaKey,
    ) -> Result<(Held, Opened, Vec<Span>), SourceRefusal> {
        let missing =
            || SourceRefusal::new(ErrorCode::NotFound, format!("no replica of object {origin}"));
        let other = |error: &dyn std::fmt::Display| {
            SourceRefusal::new(ErrorCode::Other, format!("the replica of {origin}: {error}"))
        };
        let known = lock(&self.state).replicas.get(&origin).copied();
        let (local, _) = known.filter(|(_, own)| own.is(key)).ok_or_else(missing)?;
        let holds = self.hold_table()?;
        let held = self.reader.hold(&holds, Target::Id(local)).map_err(|error| other(&error))?;
        let held = held.filter(|held| held.entry().id == local).ok_or_else(missing)?;
        // Its block says of which object it is, whatever the event loop noted.
        if self.reader.origin(held.entry()).map_err(|error| other(&error))? != Some(origin) {
            return Err(missing());
        }
        let places = self.reader.places(held.entry()).map_err(|error| other(&error))?;
        let blocks: Option<Vec<Span>> = places
            .iter()
            .map(|one| self.in_section(Span::new(one.block.offset, one.origin.length)))
            .collect();
        let blocks = blocks.ok_or_else(|| other(&"a block leaves the data section"))?;
        for place in &places {
            self.region.refresh(place.block).map_err(|error| other(&error))?;
        }
        let entry =
            postcard::to_allocvec(&(origin.hi, origin.lo)).map_err(|error| other(&error))?;
        let opened = Opened { blocks: blocks.clone(), entry, inline: Vec::new() };
        Ok((held, opened, blocks))
    }
}
