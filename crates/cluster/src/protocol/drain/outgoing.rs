//! A drain: the objects of this node move to other nodes, one after another, and keep their names.
//!
//! A client brings the bytes to the other node. Then this node asks that one to seal the object
//! under its name ("take"), and removes its own once it hears that this is done. So the name is in
//! one directory at any time, and for a moment in two, with the same bytes. Requests that change the
//! object wait for the end of the move. The region notes the move before the question is sent, so
//! that the next daemon asks again; the other node answers a repetition as it did first.
//!
//! If the other node is lost before it answers, this node keeps the object, and has that one remove
//! its copy when it is back. Without the lease it seals nothing, and its lease is over before it is
//! lost to anybody.

use std::collections::BTreeSet;

use farrow_store::{ObjectId, StoreError, Target};
use farrow_wire::{
    DrainReport, DrainStep, ImportStep, ReplyBody, RequestBody, SealItem, WireError, WireTarget,
};

use crate::protocol::Action;
use crate::protocol::action::answer_to;
use crate::protocol::cluster::{Answer, PendingQuestion, Question};
use crate::protocol::context::RequestContext;
use crate::protocol::convert::store_error;
use crate::protocol::core::drain::{
    DrainRecord, MoveJob, MovePhase, OutgoingMove, UNDONE_MAX, WaitingRequest,
};
use crate::protocol::identity::SessionId;
use crate::protocol::replicas::{DeleteOrigin, Withdrawal};
use crate::protocol::sessions::buffered::body_bytes;
use crate::protocol::state::NodeState;

/// Pause before a node that did not answer is asked again.
pub(in crate::protocol) const ASK_AGAIN_MS: u64 = 100;

/// Pause before a node that refuses is notified again, or a lost one is looked for: it may be replaced.
pub(super) const NOTIFY_DRAIN_AGAIN_MS: u64 = 1_000;

/// A client's request to move an object.
struct MoveRequest {
    id: ObjectId,
    node: String,
    /// The low half of the id of the object that the node has brought for it.
    brought: u64,
}

/// Passes a point where a test may kill.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(feature = "failpoints")]
        farrow_store::failpoints::hit($name);
    };
}
pub(in crate::protocol) use failpoint;

impl NodeState {
    /// Serves a step of a drain. `None`: the answer follows later.
    pub(in crate::protocol) fn drain_step(
        &mut self,
        context: RequestContext,
        step: DrainStep,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        match step {
            DrainStep::Begin => self.set_draining(true, context.now_ms, out)?,
            DrainStep::Cancel => self.set_draining(false, context.now_ms, out)?,
            _ => {}
        }
        // At any step: a daemon that continues a drain has not seen its beginning.
        if self.drain.record.is_draining {
            self.drain.conductors.insert(context.session);
        }
        match step {
            DrainStep::Begin | DrainStep::Cancel | DrainStep::Report => {}
            DrainStep::Move { id, node } => {
                let ask = MoveRequest { id: id.into(), node, brought: id.lo };
                return self.begin_move(context, ask, out).map(|()| None);
            }
            DrainStep::MoveAs { id, node, staged, absent } => {
                let id = ObjectId::from(id);
                self.check_staged(id, staged.into())?;
                self.check_absent(context, id, &absent)?;
                let ask = MoveRequest { id, node, brought: staged.lo };
                return self.begin_move(context, ask, out).map(|()| None);
            }
        }
        let report = DrainReport {
            node: self.cluster.own_name(),
            is_draining: self.drain.record.is_draining,
            untold: self
                .drain
                .untold
                .iter()
                .map(|(node, (why, _))| (node.clone(), why.clone()))
                .collect(),
            moved: self.drain.moved,
            moved_bytes: self.drain.moved_bytes,
            reserved: self.names_being_written().len() as u64,
            undone: self.drain.record.undone.iter().map(|one| one.node.clone()).collect(),
            moving_to: self.drain.job.as_ref().map_or_else(String::new, |job| job.node.clone()),
        };
        Ok(Some(ReplyBody::Drain(report)))
    }

    /// Begins or ends a drain.
    fn set_draining(
        &mut self,
        is_draining: bool,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        if self.drain.record.is_draining == is_draining {
            return Ok(());
        }
        if is_draining {
            self.check_can_drain()?;
        }
        let before = self.drain.record.clone();
        self.drain.record.is_draining = is_draining;
        self.drain.record.is_cancelled = !is_draining;
        if let Err(error) = self.keep_settings() {
            self.drain.record = before;
            return Err(error);
        }
        tracing::info!(is_draining, "drain");
        self.notify_all_of_drain(now_ms);
        if is_draining {
            let error = || WireError::Draining { node: self.cluster.own_name() };
            let refused: Vec<_> =
                self.admission.drain().chain(self.quota.reservations.drain()).collect();
            out.extend(
                refused
                    .into_iter()
                    .map(|asker| crate::protocol::action::answer(asker, Err(error()))),
            );
        }
        if let Some(cluster) = &mut self.cluster.0 {
            cluster.has_news = true;
        }
        self.notify_members();
        Ok(())
    }

    fn check_can_drain(&self) -> Result<(), WireError> {
        let reason = if self.cluster.0.is_none() {
            "this node is in no cluster"
        } else if self.cluster.live_peers().is_empty() {
            "the cluster has no other member"
        } else if self.replicas.port.is_none() {
            "this node serves no objects over the network (--net off), by which they move"
        } else {
            return Ok(());
        };
        Err(WireError::Invalid(format!("no object can move to another node: {reason}")))
    }

    /// Stores the state of drains. It is stored again with the next change if that fails.
    pub(super) fn keep_drain(&mut self) {
        if let Err(error) = self.keep_settings() {
            tracing::error!(%error, "the state of a drain cannot be stored");
        }
    }

    /// The node ends in order, and its drain with it: if it is started again, it takes new objects.
    pub(in crate::protocol) fn end_drain_in_order(&mut self) {
        let record = &mut self.drain.record;
        if record.is_draining || record.is_cancelled {
            (record.is_draining, record.is_cancelled) = (false, false);
            self.keep_drain();
        }
    }

    /// Whether the node serves a request while it drains: what has begun may end, nothing begins.
    pub(in crate::protocol) fn check_not_draining(
        &self,
        session: SessionId,
        body: &RequestBody,
    ) -> Result<(), WireError> {
        // A part of a table that is written while its root moves would belong to no table.
        if !self.drain.record.is_draining && !self.drain.is_replacing() {
            return Ok(());
        }
        let is_conductor = self.drain.conductors.contains(&session);
        let is_new =
            |item: &SealItem| item.is_replacing || (item.name.is_some() && !item.is_reserved);
        match body {
            RequestBody::Grant { .. }
            | RequestBody::Room(_)
            | RequestBody::EntryPages { .. }
            | RequestBody::ReserveObjects { .. }
                if is_conductor =>
            {
                return Ok(());
            }
            RequestBody::Grant { .. }
            | RequestBody::Room(_)
            | RequestBody::EntryPages { .. }
            | RequestBody::ReserveObjects { .. }
            | RequestBody::Reserve { .. }
            | RequestBody::Import { step: ImportStep::Bring | ImportStep::Seal { .. }, .. } => {}
            RequestBody::Seal { items } if items.iter().any(is_new) => {}
            _ => return Ok(()),
        }
        Err(WireError::Draining { node: self.cluster.own_name() })
    }

    /// Has a request about the moving object wait for the end of the move. `Err` returns any other.
    pub(in crate::protocol) fn wait_for_move(
        &mut self,
        context: RequestContext,
        body: RequestBody,
        out: &mut Vec<Action>,
    ) -> Result<(), RequestBody> {
        if self.drain.job.is_none() || !self.changes_moving(context, &body) {
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

    fn changes_moving(&self, context: RequestContext, body: &RequestBody) -> bool {
        let is_moving = |target: &WireTarget| {
            let full = self.full_target(context.slot, target);
            full.is_ok_and(|full| self.drain.is_moving(&full))
        };
        match body {
            RequestBody::Delete { targets } | RequestBody::Pin { targets, .. } => {
                targets.iter().any(is_moving)
            }
            RequestBody::Seal { items } => {
                let mut names = items.iter().filter_map(|item| item.name.clone());
                names.any(|name| is_moving(&WireTarget::Name(name)))
            }
            _ => false,
        }
    }

    /// Whether an object is about to have another home, or has just got this one. The target is in
    /// full.
    pub(in crate::protocol) fn is_between_homes(&self, target: &WireTarget) -> bool {
        self.drain.is_moving(target) || self.drain.is_arriving(target)
    }

    /// The full names of objects that are being written: reserved ones, and those on which the
    /// cluster decides.
    fn names_being_written(&self) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = self.home.reserved_names().map(String::from).collect();
        if let Some(cluster) = &self.cluster.0 {
            names.extend(cluster.parked.names().cloned());
        }
        let replacements = self.replicas.replacements.values();
        names.extend(replacements.flat_map(|one| one.seal.granted.iter().cloned()));
        names
    }

    /// The bytes of a move are an object of this node without a name.
    fn check_staged(&self, id: ObjectId, staged: ObjectId) -> Result<(), WireError> {
        let entry = self.home.find(Target::Id(staged)).map_err(store_error)?;
        if !entry.is_staged || staged == id {
            let text = format!("object {staged} is not staged for another node");
            return Err(WireError::Invalid(text));
        }
        Ok(())
    }

    fn check_absent(
        &self,
        context: RequestContext,
        id: ObjectId,
        absent: &str,
    ) -> Result<(), WireError> {
        let (name, _, _) = self.movable(id)?;
        let absent = self.full_name(context.slot, absent)?;
        if self.home.has_name(&absent).map_err(store_error)? {
            return Err(WireError::NotMoved(format!("{absent:?} was written meanwhile")));
        }
        let prefix = format!("{name}/");
        match self.names_being_written().into_iter().find(|one| one.starts_with(&prefix)) {
            Some(part) => Err(WireError::NotMoved(format!("its part {part:?} is being written"))),
            None => Ok(()),
        }
    }

    fn begin_move(
        &mut self,
        context: RequestContext,
        ask: MoveRequest,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        let MoveRequest { id, node, brought } = ask;
        let (name, bytes, _) = self.check_move(id, &node)?;
        let before = self.drain.record.clone();
        // Also above those of an earlier daemon.
        let number = self.home.now_ns().max(self.drain.last_number + 1);
        self.drain.last_number = number;
        let staged = (brought != id.lo).then_some(brought);
        self.drain.record.outgoing =
            Some(OutgoingMove { object: id.lo, node: node.clone(), number, staged });
        if let Err(error) = self.keep_settings() {
            self.drain.record = before;
            return Err(error);
        }
        failpoint!("move.recorded");
        let waiter = Some((context.session, context.seq));
        let phase = MovePhase::Asking { again_at_ms: Some(context.now_ms) };
        self.drain.job = Some(MoveJob { id, name, bytes, node, number, brought, waiter, phase });
        self.ask_to_take(context.now_ms, out);
        Ok(())
    }

    /// The name and the bytes of an object, and whether it is pinned, if it can move now.
    fn check_move(&self, id: ObjectId, node: &str) -> Result<(String, u64, bool), WireError> {
        let later = |reason: &str| Err(WireError::NotMoved(reason.to_owned()));
        if !self.drain.record.is_draining {
            return Err(WireError::Invalid("the node is not draining".to_owned()));
        }
        if let Some((node, (why, _))) = self.drain.untold.first_key_value() {
            return later(&format!("node {node} does not know of the drain yet: {why}"));
        }
        if self.drain.job.is_some() || self.drain.record.outgoing.is_some() {
            return later("another one is moving");
        }
        if self.drain.record.undone.iter().any(|one| one.node == node) {
            return later("that node was lost during a move, and has not removed its copy yet");
        }
        if self.drain.record.undone.len() >= UNDONE_MAX {
            return later("too many nodes were lost during moves");
        }
        if !self.cluster.is_peer(node) {
            let reason = "it is no member".to_owned();
            return Err(WireError::NodeLost { node: node.to_owned(), reason });
        }
        let (name, bytes, is_pinned) = self.movable(id)?;
        if self.joined.is_doubtful(&name) {
            return later("another member may have its name, and has not answered yet");
        }
        if self.leases.has(id) {
            return later("a reference that was sent names it, and its lease has not ended");
        }
        let target = WireTarget::Id(id.into());
        if self.cluster.is_in_debt(&self.home, &target) {
            return later("the authority of its name does not know it yet");
        }
        let of_name = WireTarget::Name(name.clone());
        if self.replicas.is_withdrawn(&target) || self.replicas.is_withdrawn(&of_name) {
            return later("it is being deleted or replaced");
        }
        Ok((name, bytes, is_pinned))
    }

    /// The full name and the bytes of an object of this node, and whether it is pinned.
    fn movable(&self, id: ObjectId) -> Result<(String, u64, bool), WireError> {
        let entry = match self.home.find_spilled(Target::Id(id)).map_err(store_error)? {
            Some(entry) => entry,
            None => self.home.find(Target::Id(id)).map_err(store_error)?,
        };
        let name = self.home.name_of_object(id).filter(|_| !entry.is_replica);
        let Some(name) = name else {
            let text = format!("object {id} has no name of its own, so it cannot move");
            return Err(WireError::Invalid(text));
        };
        Ok((name, entry.size.0, self.home.is_pinned(entry.id)))
    }

    /// Asks the target to take the moving object.
    fn ask_to_take(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(job) = &mut self.drain.job else { return };
        let (id, node, name) = (job.id, job.node.clone(), job.name.clone());
        let (number, object) = (job.number, job.brought);
        job.phase = MovePhase::Asking { again_at_ms: None };
        if !self.cluster.is_peer(&node) {
            return self.undo_move(now_ms, out);
        }
        if self.drain.record.is_draining && !self.drain.untold.is_empty() {
            // They look once at each directory, and would miss an object between two.
            return self.ask_to_take_later(now_ms);
        }
        let is_pinned = self.movable(id).is_ok_and(|(_, _, is_pinned)| is_pinned);
        let question = Question::Take { object, number, name, is_pinned };
        let about = PendingQuestion::Take { number, node: node.clone() };
        if !self.cluster.ask_node(&node, &question, about, out) {
            self.ask_to_take_later(now_ms);
        }
    }

    fn ask_to_take_later(&mut self, now_ms: u64) {
        if let Some(job) = &mut self.drain.job {
            job.phase = MovePhase::Asking { again_at_ms: Some(now_ms + ASK_AGAIN_MS) };
        }
    }

    /// Handles the target's answer, or its failure.
    pub(in crate::protocol) fn on_take_response(
        &mut self,
        (number, node): (u64, &str),
        answer: Result<Answer, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(job) = &mut self.drain.job else { return };
        let is_it = (job.number, job.node.as_str()) == (number, node)
            && matches!(job.phase, MovePhase::Asking { .. });
        if !is_it {
            return;
        }
        match answer {
            Ok(Answer::Took(Ok(id))) => {
                failpoint!("move.taken");
                job.phase = MovePhase::Removing(id.into());
                let target = WireTarget::Id(job.id.into());
                self.go_on_to_delete(Withdrawal::new(DeleteOrigin::Move, target), now_ms, out);
            }
            Ok(Answer::Took(Err(error))) => self.end_move(Err(error), now_ms, out),
            // It may have taken the object after an earlier question: only its word decides.
            Ok(_) | Err(_) => {
                job.phase = MovePhase::Asking { again_at_ms: Some(now_ms + ASK_AGAIN_MS) };
            }
        }
    }

    /// The moved object is removed here, or was before.
    pub(in crate::protocol) fn moved_away(
        &mut self,
        removed: Result<(), WireError>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if let Err(error) = removed
            && !matches!(error, WireError::NotFound { .. })
        {
            tracing::error!(%error, "a moved object cannot be removed");
        }
        failpoint!("move.removed");
        let Some(job) = &self.drain.job else { return };
        let MovePhase::Removing(id) = job.phase else { return };
        self.drain.moved += 1;
        self.drain.moved_bytes += job.bytes;
        self.notify_withdrawn(&job.node.clone(), job.brought, out);
        self.end_move(Ok(id), now_ms, out);
    }

    fn notify_withdrawn(&mut self, node: &str, object: u64, out: &mut Vec<Action>) {
        self.cluster.notify(node, Question::Taken { object }, out);
    }

    /// The target was lost before it answered: its copy does not count.
    fn undo_move(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(outgoing) = self.drain.record.outgoing.clone() else { return };
        let reason = "it was lost before it took the object".to_owned();
        let error = WireError::NodeLost { node: outgoing.node.clone(), reason };
        self.drain.record.undone.push(outgoing);
        self.drain.undo_at_ms = Some(now_ms.saturating_add(NOTIFY_DRAIN_AGAIN_MS));
        self.end_move(Err(error), now_ms, out);
    }

    fn end_move(
        &mut self,
        result: Result<ObjectId, WireError>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let has_moved = result.is_ok();
        self.drain.record.outgoing = None;
        self.keep_drain();
        failpoint!("move.ended");
        if let Some(MoveJob { waiter: Some((session, seq)), .. }) = self.drain.job.take() {
            let body = result.map(|id| ReplyBody::Fetched(Some(id.into())));
            out.push(answer_to(session, seq, body));
        }
        for WaitingRequest { context, body, .. } in std::mem::take(&mut self.drain.waiting) {
            if self.clients.is_of(context.session, context.slot) {
                let context = RequestContext { now_ms, ..context };
                // Where the object stays, a seal that replaces it may also create names.
                let body = if has_moved { Err(body) } else { self.park(context, body, out) };
                if let Err(body) = body {
                    self.serve(context, body, out);
                }
            }
        }
        self.serve_deletes_in_debt(now_ms, out);
    }

    /// Resumes the move of an earlier daemon, before any request is served.
    pub(in crate::protocol) fn resume_move(&mut self) {
        let Some(outgoing) = self.drain.record.outgoing.clone() else { return };
        let brought = outgoing.brought();
        let OutgoingMove { object, node, number, .. } = outgoing;
        let id = ObjectId { hi: self.home.uid().0, lo: object };
        // Without the object only the last step is missing.
        let Ok((name, bytes, _)) = self.movable(id) else { return };
        let phase = MovePhase::Asking { again_at_ms: Some(0) };
        self.drain.last_number = number;
        let waiter = None;
        self.drain.job = Some(MoveJob { id, name, bytes, node, number, brought, waiter, phase });
    }

    /// Whether [`Self::tick_drain`] does anything: not before this node is a member.
    pub(in crate::protocol) fn is_drain_ticking(&self) -> bool {
        self.cluster.0.as_ref().is_some_and(|cluster| cluster.was_member)
    }

    /// Does the work of a drain that is due.
    pub(in crate::protocol) fn tick_drain(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        if !self.is_drain_ticking() {
            return;
        }
        self.notify_of_drain(now_ms, out);
        match self.drain.job.as_ref().map(|job| job.phase) {
            Some(MovePhase::Asking { again_at_ms: Some(at_ms) }) if at_ms <= now_ms => {
                self.ask_to_take(now_ms, out);
            }
            // The question was given up with its node.
            Some(MovePhase::Asking { again_at_ms: None }) => {
                let node = self.drain.job.as_ref().map(|job| job.node.clone());
                if node.is_some_and(|node| !self.cluster.is_peer(&node)) {
                    self.undo_move(now_ms, out);
                }
            }
            Some(_) => {}
            None => {
                // An earlier daemon removed the object and ended before it said so.
                if let Some(outgoing) = self.drain.record.outgoing.clone() {
                    self.notify_withdrawn(&outgoing.node, outgoing.brought(), out);
                    self.end_move(Err(WireError::Closing), now_ms, out);
                }
            }
        }
        self.undo_at_returned(now_ms, out);
    }

    /// Has nodes that are back remove copies that do not count.
    fn undo_at_returned(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        if self.drain.record.undone.is_empty() {
            self.drain.undo_at_ms = None;
            return;
        }
        if self.drain.undo_at_ms.is_some_and(|at_ms| at_ms > now_ms) {
            return;
        }
        self.drain.undo_at_ms = Some(now_ms.saturating_add(NOTIFY_DRAIN_AGAIN_MS));
        for outgoing in self.drain.record.undone.clone() {
            let object = outgoing.brought();
            let OutgoingMove { node, number, .. } = outgoing;
            if self.cluster.is_peer(&node) {
                let about = PendingQuestion::Untake { number, node: node.clone() };
                let question = Question::Untake { object, number };
                self.cluster.ask_node(&node, &question, about, out);
            }
        }
    }

    /// A lost node does not come back, nor does its copy of an object.
    pub(in crate::protocol) fn forget_moves_of(&mut self, node: &str) {
        let DrainRecord { undone, incoming, .. } = &mut self.drain.record;
        let before = undone.len() + incoming.len();
        undone.retain(|one| one.node != node);
        incoming.retain(|one| one.from != node);
        if undone.len() + incoming.len() < before {
            self.keep_drain();
        }
    }

    /// Handles the answer of a node that was to remove its copy.
    pub(in crate::protocol) fn on_untake_response(
        &mut self,
        (number, node): (u64, &str),
        answer: &Result<Answer, String>,
    ) {
        if matches!(answer, Ok(Answer::Done)) {
            let undone = &mut self.drain.record.undone;
            undone.retain(|one| (one.number, one.node.as_str()) != (number, node));
            self.keep_drain();
        }
    }

    /// Whether an object is removed here for good, for the answer to a repeated question.
    pub(super) fn is_removed(&self, id: ObjectId) -> bool {
        matches!(self.home.find(Target::Id(id)), Err(StoreError::NotFound { .. }))
            && matches!(self.home.find_spilled(Target::Id(id)), Ok(None) | Err(_))
    }
}
