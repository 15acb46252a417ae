//! Objects that move to this node from a draining one: see [`super::outgoing`] for the other side.

use std::collections::BTreeSet;

use farrow_store::{ObjectId, Target, namespace_of, own_name};
use farrow_wire::{Rights, WireError, WireObjectId, WireTarget};

use super::outgoing::failpoint;
use crate::protocol::Action;
use crate::protocol::cluster::{Answer, PendingQuestion, Question};
use crate::protocol::convert::store_error;
use crate::protocol::core::drain::{INCOMING_MAX, IncomingMove};
use crate::protocol::identity::node_key;
use crate::protocol::replicas::{DeleteOrigin, ImportSeal, Withdrawal};
use crate::protocol::state::NodeState;

/// A request of a draining node.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct TakeRequest<'a> {
    pub(in crate::protocol) from: &'a str,
    /// The low half of the object's id there.
    pub(in crate::protocol) object: u64,
    /// Number of the move.
    pub(in crate::protocol) number: u64,
    /// Its full name.
    pub(in crate::protocol) name: &'a str,
    pub(in crate::protocol) is_pinned: bool,
}

impl NodeState {
    /// Seals an object of a draining node that a client of that one has had brought, under its name.
    /// Returns its id here. A repetition returns the same.
    ///
    /// # Errors
    ///
    /// There is no copy here, and there will be none without the client.
    pub(in crate::protocol) fn take_object(
        &mut self,
        ask: &TakeRequest<'_>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<WireObjectId, WireError> {
        let region = self.cluster.region_offered_by(ask.from);
        let hi = region.ok_or_else(|| WireError::NotMoved("its region is unknown".to_owned()))?;
        let origin = ObjectId { hi, lo: ask.object };
        if self.drain.refused.get(ask.from).is_some_and(|last| ask.number <= *last) {
            return Err(WireError::NotMoved("the question is late".to_owned()));
        }
        let known = self.drain.incoming(origin).map(|known| known.number);
        let taken = match known {
            Some(number) if number == ask.number => self.taken_before(origin, ask.name)?,
            Some(_) => return Err(WireError::NotMoved("it was taken by another move".to_owned())),
            None => None,
        };
        if let Some(id) = taken {
            // An earlier daemon may have ended between the seal and the pin.
            self.pin_taken(id.into(), ask.is_pinned);
            return Ok(id);
        }
        let taken = self.take_now(ask, origin, now_ms, out);
        if taken.is_err() {
            self.drain.refused.insert(ask.from.to_owned(), ask.number);
        }
        taken
    }

    fn pin_taken(&mut self, id: ObjectId, is_pinned: bool) {
        if is_pinned && let Err(error) = self.home.pin(Target::Id(id), true) {
            tracing::warn!(%id, %error, "a moved object is not pinned");
        }
    }

    fn take_now(
        &mut self,
        ask: &TakeRequest<'_>,
        origin: ObjectId,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<WireObjectId, WireError> {
        self.check_take(ask, origin, now_ms)?;
        self.make_way(origin, ask.name)?;
        self.note_incoming(ask, origin)?;
        failpoint!("take.recorded");
        let sealed = self.seal_taken(ask, origin, now_ms, out);
        failpoint!("take.sealed");
        let id = sealed.as_ref().ok().map(|id| WireObjectId::from(*id));
        match self.drain.incoming(origin) {
            Some(known) if id.is_some() => known.id = id,
            _ => self.forget_incoming(origin),
        }
        self.keep_drain();
        failpoint!("take.ended");
        sealed.map(WireObjectId::from)
    }

    /// The object of an earlier question, which a daemon before this one may have sealed last.
    fn taken_before(
        &mut self,
        origin: ObjectId,
        name: &str,
    ) -> Result<Option<WireObjectId>, WireError> {
        let Some(known) = self.drain.incoming(origin).cloned() else { return Ok(None) };
        if known.id.is_some() {
            return Ok(known.id);
        }
        let entry = match self.home.find_spilled(Target::Name(name)).map_err(store_error)? {
            Some(entry) => Some(entry),
            None => self.home.find(Target::Name(name)).ok(),
        };
        // No other client could seal an object of this name: the old home has one too.
        let id = entry.filter(|entry| !entry.is_replica).map(|entry| WireObjectId::from(entry.id));
        match (self.drain.incoming(origin), id) {
            (Some(known), Some(_)) => known.id = id,
            _ => self.forget_incoming(origin),
        }
        self.keep_drain();
        Ok(id)
    }

    fn check_take(
        &self,
        ask: &TakeRequest<'_>,
        origin: ObjectId,
        now_ms: u64,
    ) -> Result<(), WireError> {
        if self.drain.record.is_draining {
            return Err(WireError::Draining { node: self.cluster.own_name() });
        }
        // A node without the lease may be lost to the asker, which then keeps the object.
        if self.cluster.lease_left_ms(now_ms).is_none_or(|left_ms| left_ms == 0) {
            return Err(WireError::NotMoved("this node has no lease".to_owned()));
        }
        self.rules.check(ask.from, ask.name, Rights::WRITE)?;
        let not_here = || WireError::NotMoved("its bytes are not here".to_owned());
        let (import, namespace) = self.replicas.staged_import(origin).ok_or_else(not_here)?;
        let client = self.clients.session(import.session).and_then(|one| one.peer.remote_client);
        let is_theirs = client.is_some_and(|client| client.node == node_key(ask.from));
        if !is_theirs || !self.clients.is_of(import.session, import.slot) {
            return Err(not_here());
        }
        let named = self.home.namespace(namespace_of(ask.name)).map_err(store_error)?;
        if named.id != namespace {
            let text =
                format!("its bytes were brought for another namespace than {:?}'s", ask.name);
            return Err(WireError::Invalid(text));
        }
        Ok(())
    }

    /// Removes replicas that have the name. An object of this node keeps it.
    fn make_way(&mut self, origin: ObjectId, name: &str) -> Result<(), WireError> {
        self.drop_replica(origin);
        if let Ok(entry) = self.home.find(Target::Name(name))
            && entry.is_replica
        {
            // Of an earlier object of this name, whose invalidation is under way.
            self.home.delete(Target::Id(entry.id)).map_err(store_error)?;
        }
        if self.home.has_name(name).unwrap_or(true) || self.home.is_reserved(name) {
            let name = own_name(name).to_owned();
            return Err(WireError::NameTaken { name });
        }
        Ok(())
    }

    fn note_incoming(&mut self, ask: &TakeRequest<'_>, origin: ObjectId) -> Result<(), WireError> {
        let before = self.drain.record.clone();
        let incoming = &mut self.drain.record.incoming;
        // A node moves one object after another: it has removed the one before. A lost node has
        // perhaps not, and asks again when it is back.
        incoming.retain(|one| one.from != ask.from);
        if incoming.len() >= INCOMING_MAX {
            let others: Vec<&str> = incoming.iter().map(|one| one.from.as_str()).collect();
            let text = format!(
                "nodes {others:?} move objects to this one, {INCOMING_MAX} at most; if one of them is \
                 lost for good, tell this node: `farrow nodes forget NAME`"
            );
            self.drain.record = before;
            return Err(WireError::NotMoved(text));
        }
        incoming.push(IncomingMove {
            origin: origin.into(),
            from: ask.from.to_owned(),
            name: ask.name.to_owned(),
            id: None,
            number: ask.number,
        });
        let stored = self.keep_settings();
        if stored.is_err() {
            self.drain.record = before;
        } else {
            self.joined.settle(ask.name);
        }
        stored
    }

    fn forget_incoming(&mut self, origin: ObjectId) {
        self.drain.record.incoming.retain(|one| ObjectId::from(one.origin) != origin);
    }

    /// Notes that objects with these ids, which were taken just now, are about to be deleted. Returns
    /// their origins. A daemon that follows in between looks for them by name.
    pub(in crate::protocol) fn unsettle_taken(
        &mut self,
        ids: &BTreeSet<WireObjectId>,
    ) -> Vec<ObjectId> {
        let mut origins = Vec::new();
        for one in &mut self.drain.record.incoming {
            if one.id.is_some_and(|id| ids.contains(&id)) {
                one.id = None;
                origins.push(one.origin.into());
            }
        }
        if !origins.is_empty() {
            self.keep_drain();
        }
        origins
    }

    /// Refuses the moves of objects that were deleted again.
    pub(in crate::protocol) fn refuse_taken(&mut self, origins: &[ObjectId]) {
        for origin in origins {
            if let Some(known) = self.drain.incoming(*origin) {
                let (from, number) = (known.from.clone(), known.number);
                self.drain.refused.insert(from, number);
            }
            self.forget_incoming(*origin);
        }
        if !origins.is_empty() {
            self.keep_drain();
        }
    }

    fn seal_taken(
        &mut self,
        ask: &TakeRequest<'_>,
        origin: ObjectId,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<ObjectId, WireError> {
        let missing = || WireError::NotMoved("its bytes are not here".to_owned());
        let (mut import, _) = self.replicas.staged_import(origin).ok_or_else(missing)?;
        self.quota.check_objects(&mut self.home, import.slot, 1)?;
        self.home.reserve(import.slot, ask.name).map_err(store_error)?;
        import.seal = Some(ImportSeal {
            name: Some(ask.name.to_owned()),
            metadata: None,
            is_pinned: ask.is_pinned,
            is_moved: true,
        });
        let sealed = self.seal_brought(origin, &import, out);
        if sealed.is_err() {
            // The seal takes the reservation; without it, it has no use.
            let _ = self.home.unreserve(import.slot, ask.name);
        }
        self.end_load(origin, sealed.clone(), now_ms, out);
        self.replicas.imported.remove(origin);
        sealed
    }

    /// Asks the old home of an object whether it has removed it: its notice is lost if one of the
    /// two nodes ended meanwhile.
    pub(in crate::protocol) fn ask_if_removed(&mut self, name: &str, out: &mut Vec<Action>) {
        let known = self.drain.record.incoming.iter().find(|one| one.name == name).cloned();
        let Some(IncomingMove { origin, from, number, .. }) = known else { return };
        let about = PendingQuestion::IsRemoved { node: from.clone(), object: origin.lo, number };
        let question = Question::Has { names: vec![name.to_owned()] };
        // If it is no member now, the request is refused at its deadline.
        self.cluster.ask_node(&from, &question, about, out);
    }

    /// The old home of an object has removed it: the object here may change again.
    pub(in crate::protocol) fn object_removed(
        &mut self,
        from: &str,
        object: u64,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let incoming = &mut self.drain.record.incoming;
        let before = incoming.len();
        incoming.retain(|one| one.from != from || one.origin.lo != object);
        if incoming.len() < before {
            self.keep_drain();
            self.serve_indebted(now_ms, out);
            self.serve_deletes_in_debt(now_ms, out);
        }
    }

    /// Removes the copy of an object that its old home retained.
    pub(in crate::protocol) fn untake(
        &mut self,
        from: &str,
        (object, number): (u64, u64),
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Answer {
        let is_it = |one: &&IncomingMove| {
            one.from == from && (one.origin.lo, one.number) == (object, number)
        };
        let known = self.drain.record.incoming.iter().find(is_it).cloned();
        let Some(IncomingMove { origin, name, .. }) = known else { return Answer::Done };
        let origin = ObjectId::from(origin);
        if let Ok(Some(taken)) = self.taken_before(origin, &name) {
            let id = ObjectId::from(taken);
            if !self.is_removed(id) {
                let withdrawal = Withdrawal::new(DeleteOrigin::Lease, WireTarget::Id(taken));
                self.go_on_to_delete(withdrawal, now_ms, out);
            }
            if !self.is_removed(id) {
                return Answer::No("the copy is being removed".to_owned());
            }
        }
        self.forget_incoming(origin);
        self.keep_drain();
        Answer::Done
    }
}
