//! Objects that move between nodes: what [`Drain`](super::core::drain::state::Drain) decides, performed
//! on the objects and requests of this node.

use farrow_store::{ObjectId, StoreError, Target, namespace_of, own_name};
use farrow_wire::{DrainStep, ReplyBody, RequestBody, WireError, WireObjectId, WireTarget};

use super::action::{Action, answer, answer_to};
use super::cluster::Answer;
use super::context::RequestContext;
use super::convert::store_error;
use super::core::drain::context::AfterMove;
use super::core::drain::incoming::{Take, TakeRequest, Unwanted};
use super::core::drain::outgoing::failpoint;
use super::core::drain::state::WaitingRequest;
use super::identity::node_key;
use super::replicas::{DeleteOrigin, ImportSeal, Withdrawal};
use super::sessions::buffered::body_bytes;
use super::state::NodeState;

impl NodeState {
    /// Serves a step of a drain. `None`: the answer follows later.
    pub(super) fn drain_step(
        &mut self,
        request: RequestContext,
        step: DrainStep,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let was_draining = self.drain.record.is_draining;
        let (drain, mut context) = self.drain(request.now_ms, out);
        let reply = drain.step(request, step, &mut context)?;
        if !was_draining && self.drain.record.is_draining {
            let node = self.cluster.own_name();
            let refused = self.admission.drain().chain(self.quota.reservations.drain());
            let error = || WireError::Draining { node: node.clone() };
            out.extend(refused.map(|asker| answer(asker, Err(error()))));
        }
        Ok(reply)
    }

    /// Has a request about the moving object wait for the end of the move. `Err` returns any other.
    pub(super) fn wait_for_move(
        &mut self,
        context: RequestContext,
        body: RequestBody,
        out: &mut Vec<Action>,
    ) -> Result<(), RequestBody> {
        if !self.drain.changes_moving(&self.home, context.slot, &body) {
            return Err(body);
        }
        let bytes = body_bytes(&body);
        let checked = self.check_waiting(context.session, bytes);
        match checked.and_then(|()| self.drain.check_room(context.session)) {
            Ok(()) => self.drain.waiting.push(WaitingRequest { context, body, bytes }),
            Err(error) => out.push(answer_to(context.session, context.seq, Err(error))),
        }
        Ok(())
    }

    /// Handles the answer of the node that is to take the moving object, or its failure.
    pub(super) fn on_take_response(
        &mut self,
        of: (u64, &str),
        answer: Result<Answer, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let (drain, mut context) = self.drain(now_ms, out);
        let next = drain.on_take_response(of, answer, &mut context);
        self.after_move(next, now_ms, out);
    }

    /// The moved object is removed here, or was before.
    pub(super) fn moved_away(
        &mut self,
        removed: Result<(), WireError>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let (drain, mut context) = self.drain(now_ms, out);
        let next = drain.moved_away(removed, &mut context);
        self.after_move(next, now_ms, out);
    }

    /// Does the work of a drain that is due: none before this node is a member.
    pub(super) fn tick_drain(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        if !self.cluster.was_member() {
            return;
        }
        let (drain, mut context) = self.drain(now_ms, out);
        let next = drain.tick(&mut context);
        self.after_move(next, now_ms, out);
        let (drain, mut context) = self.drain(now_ms, out);
        drain.undo_at_returned(&mut context);
    }

    fn after_move(&mut self, next: AfterMove, now_ms: u64, out: &mut Vec<Action>) {
        match next {
            AfterMove::Nothing => {}
            AfterMove::Remove(id) => {
                let target = WireTarget::Id(id.into());
                self.go_on_to_delete(Withdrawal::new(DeleteOrigin::Move, target), now_ms, out);
            }
            AfterMove::Serve { waiting, has_moved } => {
                for WaitingRequest { context, body, .. } in waiting {
                    if self.clients.is_of(context.session, context.slot) {
                        let context = RequestContext { now_ms, ..context };
                        // Where the object stays, a seal that replaces it may also create names.
                        let body =
                            if has_moved { Err(body) } else { self.park(context, body, out) };
                        if let Err(body) = body {
                            self.serve(context, body, out);
                        }
                    }
                }
                self.serve_deletes_in_debt(now_ms, out);
            }
        }
    }

    /// Seals an object of a draining node that a client of that one has had brought, under its name.
    /// Returns its id here. A repetition returns the same.
    ///
    /// # Errors
    ///
    /// There is no copy here, and there will be none without the client.
    pub(super) fn take_object(
        &mut self,
        ask: &TakeRequest<'_>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<WireObjectId, WireError> {
        let (drain, mut context) = self.drain(now_ms, out);
        let origin = match drain.begin_take(ask, &mut context)? {
            Take::Before(id) => return Ok(id),
            Take::Now(origin) => origin,
        };
        let taken = self.take_now(ask, origin, now_ms, out);
        if taken.is_err() {
            self.drain.refuse(ask.from, ask.number);
        }
        taken
    }

    fn take_now(
        &mut self,
        ask: &TakeRequest<'_>,
        origin: ObjectId,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<WireObjectId, WireError> {
        let (drain, context) = self.drain(now_ms, out);
        drain.check_take(ask, &context)?;
        self.check_brought(ask, origin)?;
        self.make_way(origin, ask.name)?;
        let (drain, mut context) = self.drain(now_ms, out);
        drain.note_incoming(ask, origin, &mut context)?;
        self.joined.settle(ask.name);
        failpoint!("take.recorded");
        let sealed = self.seal_taken(ask, origin, now_ms, out).map(WireObjectId::from);
        failpoint!("take.sealed");
        let (drain, mut context) = self.drain(now_ms, out);
        drain.end_take(origin, sealed.as_ref().ok().copied(), &mut context);
        failpoint!("take.ended");
        sealed
    }

    /// Whether a client of the draining node has had the object brought, for the namespace of its
    /// name.
    fn check_brought(&self, ask: &TakeRequest<'_>, origin: ObjectId) -> Result<(), WireError> {
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
        self.replicas.drop_replica(origin, &mut self.home);
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
        let sealed = self.seal_brought(origin, &import, now_ms, out);
        if sealed.is_err() {
            // The seal takes the reservation; without it, it has no use.
            let _ = self.home.unreserve(import.slot, ask.name);
        }
        let (replicas, mut context) = self.replicas(now_ms, out);
        replicas.end_load(origin, sealed.clone(), &mut context);
        replicas.imported.remove(origin);
        sealed
    }

    /// The old home of an object has removed it: the object here may change again.
    pub(super) fn object_removed(
        &mut self,
        from: &str,
        object: u64,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let (drain, mut context) = self.drain(now_ms, out);
        if drain.object_removed(from, object, &mut context) {
            self.serve_indebted(now_ms, out);
            self.serve_deletes_in_debt(now_ms, out);
        }
    }

    /// Removes the copy of an object that its old home retained.
    pub(super) fn untake(
        &mut self,
        from: &str,
        of: (u64, u64),
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Answer {
        let (drain, mut context) = self.drain(now_ms, out);
        let Some(Unwanted { origin, taken }) = drain.unwanted(from, of, &mut context) else {
            return Answer::Done;
        };
        if let Some(taken) = taken {
            let id = ObjectId::from(taken);
            if !self.is_removed(id) {
                let withdrawal = Withdrawal::new(DeleteOrigin::Lease, WireTarget::Id(taken));
                self.go_on_to_delete(withdrawal, now_ms, out);
            }
            if !self.is_removed(id) {
                return Answer::No("the copy is being removed".to_owned());
            }
        }
        let (drain, mut context) = self.drain(now_ms, out);
        drain.untaken(origin, &mut context);
        Answer::Done
    }

    /// Whether an object is removed here for good, for the answer to a repeated question.
    fn is_removed(&self, id: ObjectId) -> bool {
        matches!(self.home.find(Target::Id(id)), Err(StoreError::NotFound { .. }))
            && matches!(self.home.find_spilled(Target::Id(id)), Ok(None) | Err(_))
    }

    /// Handles the answer of a node that was to remove its copy of an object.
    pub(super) fn on_untake_response(
        &mut self,
        of: (u64, &str),
        answer: &Result<Answer, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let (drain, mut context) = self.drain(now_ms, out);
        drain.on_untake_response(of, answer, &mut context);
    }

    /// Notes that a member drains, or does not any more.
    pub(super) fn note_draining(
        &mut self,
        node: &str,
        is_draining: bool,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Answer {
        let (drain, mut context) = self.drain(now_ms, out);
        let stored = drain.keep_member(node, is_draining, &mut context);
        stored.map_or_else(|error| Answer::No(error.to_string()), |()| Answer::Done)
    }
}
