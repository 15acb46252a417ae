//! Objects that move to this node from a draining one: see [`super::outgoing`] for the other side.

use std::collections::BTreeSet;

use farrow_store::{ObjectId, Target};
use farrow_wire::{Rights, WireError, WireObjectId};

use super::context::DrainContext;
use super::state::{Drain, INCOMING_MAX, IncomingMove};
use crate::protocol::cluster::{PendingQuestion, Question};
use crate::protocol::convert::store_error;

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

/// An object that a draining node wants taken.
#[derive(Debug)]
pub(in crate::protocol) enum Take {
    /// An earlier question had it sealed, under this id.
    Before(WireObjectId),
    /// It is to be sealed now. It has this id at its old home.
    Now(ObjectId),
}

/// A copy that its old home does not want any more.
#[derive(Debug)]
pub(in crate::protocol) struct Unwanted {
    /// Its id at its old home.
    pub(in crate::protocol) origin: ObjectId,
    /// Its id here, if it was sealed.
    pub(in crate::protocol) taken: Option<WireObjectId>,
}

impl Drain {
    /// Looks whether an object was taken before, by the question of which this is a repetition.
    ///
    /// # Errors
    ///
    /// There is no copy here, and there will be none without the client.
    pub(in crate::protocol) fn begin_take(
        &mut self,
        ask: &TakeRequest<'_>,
        context: &mut DrainContext<'_>,
    ) -> Result<Take, WireError> {
        let region = context.cluster.region_offered_by(ask.from);
        let hi = region.ok_or_else(|| WireError::NotMoved("its region is unknown".to_owned()))?;
        let origin = ObjectId { hi, lo: ask.object };
        if self.refused.get(ask.from).is_some_and(|last| ask.number <= *last) {
            return Err(WireError::NotMoved("the question is late".to_owned()));
        }
        let known = self.incoming(origin).map(|known| known.number);
        let taken = match known {
            Some(number) if number == ask.number => self.taken_before(origin, ask.name, context)?,
            Some(_) => return Err(WireError::NotMoved("it was taken by another move".to_owned())),
            None => None,
        };
        let Some(id) = taken else { return Ok(Take::Now(origin)) };
        // An earlier daemon may have ended between the seal and the pin.
        if ask.is_pinned
            && let Err(error) = context.home.pin(Target::Id(id.into()), true)
        {
            let id = ObjectId::from(id);
            tracing::warn!(%id, %error, "a moved object is not pinned");
        }
        Ok(Take::Before(id))
    }

    /// Whether this node may take objects of that name now.
    pub(in crate::protocol) fn check_take(
        &self,
        ask: &TakeRequest<'_>,
        context: &DrainContext<'_>,
    ) -> Result<(), WireError> {
        if self.record.is_draining {
            return Err(WireError::Draining { node: context.cluster.own_name() });
        }
        // A node without the lease may be lost to the asker, which then keeps the object.
        if context.cluster.lease_left_ms(context.now_ms).is_none_or(|left_ms| left_ms == 0) {
            return Err(WireError::NotMoved("this node has no lease".to_owned()));
        }
        context.parts.rules.check(ask.from, ask.name, Rights::WRITE)
    }

    /// The object of an earlier question, which a daemon before this one may have sealed last.
    fn taken_before(
        &mut self,
        origin: ObjectId,
        name: &str,
        context: &mut DrainContext<'_>,
    ) -> Result<Option<WireObjectId>, WireError> {
        let Some(known) = self.incoming(origin).cloned() else { return Ok(None) };
        if known.id.is_some() {
            return Ok(known.id);
        }
        let entry = match context.home.find_spilled(Target::Name(name)).map_err(store_error)? {
            Some(entry) => Some(entry),
            None => context.home.find(Target::Name(name)).ok(),
        };
        // No other client could seal an object of this name: the old home has one too.
        let id = entry.filter(|entry| !entry.is_replica).map(|entry| WireObjectId::from(entry.id));
        self.end_take(origin, id, context);
        Ok(id)
    }

    /// Notes that an object is about to be sealed here.
    pub(in crate::protocol) fn note_incoming(
        &mut self,
        ask: &TakeRequest<'_>,
        origin: ObjectId,
        context: &mut DrainContext<'_>,
    ) -> Result<(), WireError> {
        let before = self.record.clone();
        let incoming = &mut self.record.incoming;
        // A node moves one object after another: it has removed the one before. A lost node has
        // perhaps not, and asks again when it is back.
        incoming.retain(|one| one.from != ask.from);
        if incoming.len() >= INCOMING_MAX {
            let senders: Vec<&str> = incoming.iter().map(|one| one.from.as_str()).collect();
            let text = format!(
                "nodes {senders:?} move objects to this one, {INCOMING_MAX} at most; if one of them is \
                 lost for good, tell this node: `farrow nodes forget NAME`"
            );
            self.record = before;
            return Err(WireError::NotMoved(text));
        }
        incoming.push(IncomingMove {
            origin: origin.into(),
            from: ask.from.to_owned(),
            name: ask.name.to_owned(),
            id: None,
            number: ask.number,
        });
        let stored = context.keep(&self.record);
        if stored.is_err() {
            self.record = before;
        }
        stored
    }

    /// Notes the id of an object that was sealed here; `None`: it was not.
    pub(in crate::protocol) fn end_take(
        &mut self,
        origin: ObjectId,
        id: Option<WireObjectId>,
        context: &mut DrainContext<'_>,
    ) {
        match self.incoming(origin) {
            Some(known) if id.is_some() => known.id = id,
            _ => self.forget_incoming(origin),
        }
        context.keep_or_log(&self.record);
    }

    /// Notes that a move was refused: no late copy of its question is served.
    pub(in crate::protocol) fn refuse(&mut self, from: &str, number: u64) {
        self.refused.insert(from.to_owned(), number);
    }

    fn forget_incoming(&mut self, origin: ObjectId) {
        self.record.incoming.retain(|one| ObjectId::from(one.origin) != origin);
    }

    /// Notes that objects with these ids, which were taken just now, are about to be deleted. Returns
    /// their origins. A daemon that follows in between looks for them by name.
    pub(in crate::protocol) fn unsettle_taken(
        &mut self,
        ids: &BTreeSet<WireObjectId>,
        context: &mut DrainContext<'_>,
    ) -> Vec<ObjectId> {
        let mut origins = Vec::new();
        for one in &mut self.record.incoming {
            if one.id.is_some_and(|id| ids.contains(&id)) {
                one.id = None;
                origins.push(one.origin.into());
            }
        }
        if !origins.is_empty() {
            context.keep_or_log(&self.record);
        }
        origins
    }

    /// Refuses the moves of objects that were deleted again.
    pub(in crate::protocol) fn refuse_taken(
        &mut self,
        origins: &[ObjectId],
        context: &mut DrainContext<'_>,
    ) {
        for origin in origins {
            if let Some(known) = self.incoming(*origin) {
                let (from, number) = (known.from.clone(), known.number);
                self.refuse(&from, number);
            }
            self.forget_incoming(*origin);
        }
        if !origins.is_empty() {
            context.keep_or_log(&self.record);
        }
    }

    /// Asks the old home of an object whether it has removed it: its notice is lost if one of the
    /// two nodes ended meanwhile.
    pub(in crate::protocol) fn ask_if_removed(&self, name: &str, context: &mut DrainContext<'_>) {
        let known = self.record.incoming.iter().find(|one| one.name == name).cloned();
        let Some(IncomingMove { origin, from, number, .. }) = known else { return };
        let about = PendingQuestion::IsRemoved { node: from.clone(), object: origin.lo, number };
        let question = Question::Has { names: vec![name.to_owned()] };
        // If it is no member now, the request is refused at its deadline.
        context.cluster.ask_node(&from, &question, about, context.out);
    }

    /// The old home of an object has removed it: the object here may change again. Returns whether
    /// requests may wait for that.
    pub(in crate::protocol) fn object_removed(
        &mut self,
        from: &str,
        object: u64,
        context: &mut DrainContext<'_>,
    ) -> bool {
        let incoming = &mut self.record.incoming;
        let before = incoming.len();
        incoming.retain(|one| one.from != from || one.origin.lo != object);
        let is_any = incoming.len() < before;
        if is_any {
            context.keep_or_log(&self.record);
        }
        is_any
    }

    /// The copy of an object that its old home retained, if it was to be taken by this move.
    pub(in crate::protocol) fn unwanted(
        &mut self,
        from: &str,
        (object, number): (u64, u64),
        context: &mut DrainContext<'_>,
    ) -> Option<Unwanted> {
        let is_it = |one: &&IncomingMove| {
            one.from == from && (one.origin.lo, one.number) == (object, number)
        };
        let known = self.record.incoming.iter().find(is_it).cloned();
        let IncomingMove { origin, name, .. } = known?;
        let origin = ObjectId::from(origin);
        let taken = self.taken_before(origin, &name, context).unwrap_or_default();
        Some(Unwanted { origin, taken })
    }

    /// The copy of an object that its old home retained is removed here.
    pub(in crate::protocol) fn untaken(
        &mut self,
        origin: ObjectId,
        context: &mut DrainContext<'_>,
    ) {
        self.forget_incoming(origin);
        context.keep_or_log(&self.record);
    }
}
