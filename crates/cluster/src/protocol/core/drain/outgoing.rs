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

use farrow_store::{ClientSlot, Home, ObjectId, Target};
use farrow_wire::{
    DrainReport, DrainStep, ImportStep, ReplyBody, RequestBody, RoomAsk, SealItem, WireError,
    WireTarget,
};

use super::context::{AfterMove, DrainContext};
use super::state::{Drain, DrainRecord, MoveJob, MovePhase, OutgoingMove, UNDONE_MAX};
use crate::protocol::action::answer_to;
use crate::protocol::cluster::{Answer, OptionalCluster, PendingQuestion, Question};
use crate::protocol::context::RequestContext;
use crate::protocol::convert::store_error;
use crate::protocol::core::namespaces::{full_name, full_target};
use crate::protocol::identity::SessionId;

/// Pause before a node that did not answer is asked again.
pub(super) const ASK_AGAIN_MS: u64 = 100;

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

impl Drain {
    /// Serves a step of a drain. `None`: the answer follows later.
    pub(in crate::protocol) fn step(
        &mut self,
        request: RequestContext,
        step: DrainStep,
        context: &mut DrainContext<'_>,
    ) -> Result<Option<ReplyBody>, WireError> {
        match step {
            DrainStep::Begin => self.set_draining(true, context)?,
            DrainStep::Cancel => self.set_draining(false, context)?,
            _ => {}
        }
        // At any step: a daemon that continues a drain has not seen its beginning.
        if self.record.is_draining {
            self.conductors.insert(request.session);
        }
        match step {
            DrainStep::Begin | DrainStep::Cancel | DrainStep::Report => {}
            DrainStep::Move { id, node } => {
                let ask = MoveRequest { id: id.into(), node, brought: id.lo };
                return self.begin_move(request, ask, context).map(|()| None);
            }
            DrainStep::MoveAs { id, node, staged, absent } => {
                let id = ObjectId::from(id);
                check_staged(context.home, id, staged.into())?;
                check_absent(context, request.slot, id, &absent)?;
                let ask = MoveRequest { id, node, brought: staged.lo };
                return self.begin_move(request, ask, context).map(|()| None);
            }
        }
        Ok(Some(ReplyBody::Drain(self.report(context))))
    }

    fn report(&self, context: &DrainContext<'_>) -> DrainReport {
        let untold = self.untold.iter().map(|(node, (why, _))| (node.clone(), why.clone()));
        DrainReport {
            node: context.cluster.own_name(),
            is_draining: self.record.is_draining,
            untold: untold.collect(),
            moved: self.moved,
            moved_bytes: self.moved_bytes,
            reserved: context.names_being_written().len() as u64,
            undone: self.record.undone.iter().map(|one| one.node.clone()).collect(),
            moving_to: self.job.as_ref().map_or_else(String::new, |job| job.node.clone()),
        }
    }

    /// Begins or ends a drain.
    fn set_draining(
        &mut self,
        is_draining: bool,
        context: &mut DrainContext<'_>,
    ) -> Result<(), WireError> {
        if self.record.is_draining == is_draining {
            return Ok(());
        }
        if is_draining {
            check_can_drain(context)?;
        }
        let before = self.record.clone();
        self.record.is_draining = is_draining;
        self.record.is_cancelled = !is_draining;
        if let Err(error) = context.keep(&self.record) {
            self.record = before;
            return Err(error);
        }
        tracing::info!(is_draining, "the drain of this node changed");
        self.notify_all(context.cluster, context.now_ms);
        context.notify_members(&self.record);
        Ok(())
    }

    /// The node ends in order, and its drain with it: if it is started again, it takes new objects.
    pub(in crate::protocol) fn end_in_order(&mut self, context: &mut DrainContext<'_>) {
        let record = &mut self.record;
        if record.is_draining || record.is_cancelled {
            (record.is_draining, record.is_cancelled) = (false, false);
            context.keep_or_log(record);
        }
    }

    /// Whether the node serves a request while it drains: what has begun may end, nothing begins.
    pub(in crate::protocol) fn check_not_draining(
        &self,
        session: SessionId,
        body: &RequestBody,
        cluster: &OptionalCluster,
    ) -> Result<(), WireError> {
        // A part of a table that is written while its root moves would belong to no table.
        if !self.record.is_draining && !self.is_replacing() {
            return Ok(());
        }
        let is_conductor = self.conductors.contains(&session);
        let is_new =
            |item: &SealItem| item.is_replacing || (item.name.is_some() && !item.is_reserved);
        match body {
            RequestBody::Grant { .. } | RequestBody::Room(_) | RequestBody::EntryPages { .. }
                if is_conductor =>
            {
                return Ok(());
            }
            // An object on its way to another node; it is counted until that node has it.
            RequestBody::Room(RoomAsk { purpose: Some(purpose), .. }) if purpose.is_transit() => {
                return Ok(());
            }
            RequestBody::Grant { .. }
            | RequestBody::Room(_)
            | RequestBody::EntryPages { .. }
            | RequestBody::Reserve { .. }
            | RequestBody::Import { step: ImportStep::Bring | ImportStep::Seal { .. }, .. } => {}
            RequestBody::Seal { items } if items.iter().any(is_new) => {}
            _ => return Ok(()),
        }
        Err(WireError::Draining { node: cluster.own_name() })
    }

    /// Whether a request changes the object that moves at this moment. It waits for the end of the
    /// move then.
    pub(in crate::protocol) fn changes_moving(
        &self,
        home: &Home,
        slot: ClientSlot,
        body: &RequestBody,
    ) -> bool {
        if self.job.is_none() {
            return false;
        }
        let is_moving = |target: &WireTarget| {
            full_target(home, slot, target).is_ok_and(|full| self.is_moving(&full))
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
        self.is_moving(target) || self.is_arriving(target)
    }

    fn begin_move(
        &mut self,
        request: RequestContext,
        ask: MoveRequest,
        context: &mut DrainContext<'_>,
    ) -> Result<(), WireError> {
        let MoveRequest { id, node, brought } = ask;
        let (name, bytes, _) = self.check_move(id, &node, context)?;
        let before = self.record.clone();
        // Also above those of an earlier daemon.
        let number = context.home.now_ns().max(self.last_number + 1);
        self.last_number = number;
        let staged = (brought != id.lo).then_some(brought);
        self.record.outgoing =
            Some(OutgoingMove { object: id.lo, node: node.clone(), number, staged });
        if let Err(error) = context.keep(&self.record) {
            self.record = before;
            return Err(error);
        }
        failpoint!("move.recorded");
        let waiter = Some((request.session, request.seq));
        let phase = MovePhase::Asking { again_at_ms: Some(context.now_ms) };
        self.job = Some(MoveJob { id, name, bytes, node, number, brought, waiter, phase });
        // The node is a member, by the check above.
        self.ask_member_to_take(context);
        Ok(())
    }

    /// The name and the bytes of an object, and whether it is pinned, if it can move now.
    fn check_move(
        &self,
        id: ObjectId,
        node: &str,
        context: &DrainContext<'_>,
    ) -> Result<(String, u64, bool), WireError> {
        let DrainContext { home, cluster, replicas, joined, leases, .. } = context;
        let later = |reason: &str| Err(WireError::NotMoved(reason.to_owned()));
        if !self.record.is_draining {
            return Err(WireError::Invalid("the node is not draining".to_owned()));
        }
        if let Some((node, (why, _))) = self.untold.first_key_value() {
            return later(&format!("node {node} does not know of the drain yet: {why}"));
        }
        if self.job.is_some() || self.record.outgoing.is_some() {
            return later("another one is moving");
        }
        if self.record.undone.iter().any(|one| one.node == node) {
            return later("that node was lost during a move, and has not removed its copy yet");
        }
        if self.record.undone.len() >= UNDONE_MAX {
            return later("too many nodes were lost during moves");
        }
        if !cluster.is_peer(node) {
            let reason = "it is no member".to_owned();
            return Err(WireError::NodeLost { node: node.to_owned(), reason });
        }
        let (name, bytes, is_pinned) = movable(home, id)?;
        if joined.is_doubtful(&name) {
            return later("another member may have its name, and has not answered yet");
        }
        if leases.has(id) {
            return later("a reference that was sent names it, and its lease has not ended");
        }
        let target = WireTarget::Id(id.into());
        if cluster.is_in_debt(home, &target) {
            return later("the authority of its name does not know it yet");
        }
        let of_name = WireTarget::Name(name.clone());
        if replicas.is_withdrawn(&target) || replicas.is_withdrawn(&of_name) {
            return later("it is being deleted or replaced");
        }
        Ok((name, bytes, is_pinned))
    }

    /// Asks the target to take the moving object.
    fn ask_to_take(&mut self, context: &mut DrainContext<'_>) -> AfterMove {
        let Some(job) = &mut self.job else { return AfterMove::Nothing };
        job.phase = MovePhase::Asking { again_at_ms: None };
        if !context.cluster.is_peer(&job.node) {
            return self.undo_move(context);
        }
        self.ask_member_to_take(context);
        AfterMove::Nothing
    }

    fn ask_member_to_take(&mut self, context: &mut DrainContext<'_>) {
        let Some(job) = &mut self.job else { return };
        let (id, node, name) = (job.id, job.node.clone(), job.name.clone());
        let (number, object) = (job.number, job.brought);
        job.phase = MovePhase::Asking { again_at_ms: None };
        if self.record.is_draining && !self.untold.is_empty() {
            // They look once at each directory, and would miss an object between two.
            return self.ask_to_take_later(context.now_ms);
        }
        let is_pinned = movable(context.home, id).is_ok_and(|(_, _, is_pinned)| is_pinned);
        let question = Question::Take { object, number, name, is_pinned };
        let about = PendingQuestion::Take { number, node: node.clone() };
        if !context.cluster.ask_node(&node, &question, about, context.out) {
            self.ask_to_take_later(context.now_ms);
        }
    }

    fn ask_to_take_later(&mut self, now_ms: u64) {
        if let Some(job) = &mut self.job {
            job.phase = MovePhase::Asking { again_at_ms: Some(now_ms + ASK_AGAIN_MS) };
        }
    }

    /// Handles the target's answer, or its failure.
    pub(in crate::protocol) fn on_take_response(
        &mut self,
        (number, node): (u64, &str),
        answer: Result<Answer, String>,
        context: &mut DrainContext<'_>,
    ) -> AfterMove {
        let Some(job) = &mut self.job else { return AfterMove::Nothing };
        let is_it = (job.number, job.node.as_str()) == (number, node)
            && matches!(job.phase, MovePhase::Asking { .. });
        if !is_it {
            return AfterMove::Nothing;
        }
        match answer {
            Ok(Answer::Took(Ok(id))) => {
                failpoint!("move.taken");
                job.phase = MovePhase::Removing(id.into());
                AfterMove::Remove(job.id)
            }
            Ok(Answer::Took(Err(error))) => self.end_move(Err(error), context),
            // It may have taken the object after an earlier question: only its word decides.
            Ok(_) | Err(_) => {
                self.ask_to_take_later(context.now_ms);
                AfterMove::Nothing
            }
        }
    }

    /// The moved object is removed here, or was before.
    pub(in crate::protocol) fn moved_away(
        &mut self,
        removed: Result<(), WireError>,
        context: &mut DrainContext<'_>,
    ) -> AfterMove {
        if let Err(error) = removed
            && !matches!(error, WireError::NotFound { .. })
        {
            tracing::error!(%error, "a moved object cannot be removed");
        }
        failpoint!("move.removed");
        let Some(job) = &self.job else { return AfterMove::Nothing };
        let MovePhase::Removing(id) = job.phase else { return AfterMove::Nothing };
        self.moved += 1;
        self.moved_bytes += job.bytes;
        notify_withdrawn(&job.node, job.brought, context);
        self.end_move(Ok(id), context)
    }

    /// The target was lost before it answered: its copy does not count.
    fn undo_move(&mut self, context: &mut DrainContext<'_>) -> AfterMove {
        let Some(outgoing) = self.record.outgoing.clone() else { return AfterMove::Nothing };
        let reason = "it was lost before it took the object".to_owned();
        let error = WireError::NodeLost { node: outgoing.node.clone(), reason };
        self.record.undone.push(outgoing);
        self.undo_at_ms = Some(context.now_ms.saturating_add(NOTIFY_DRAIN_AGAIN_MS));
        self.end_move(Err(error), context)
    }

    fn end_move(
        &mut self,
        result: Result<ObjectId, WireError>,
        context: &mut DrainContext<'_>,
    ) -> AfterMove {
        let has_moved = result.is_ok();
        self.record.outgoing = None;
        context.keep_or_log(&self.record);
        failpoint!("move.ended");
        if let Some(MoveJob { waiter: Some((session, seq)), .. }) = self.job.take() {
            let body = result.map(|id| ReplyBody::Fetched(Some(id.into())));
            context.out.push(answer_to(session, seq, body));
        }
        AfterMove::Serve { waiting: std::mem::take(&mut self.waiting), has_moved }
    }

    /// Resumes the move of an earlier daemon, before any request is served.
    pub(in crate::protocol) fn resume_move(&mut self, home: &Home) {
        let Some(outgoing) = self.record.outgoing.clone() else { return };
        let brought = outgoing.brought();
        let OutgoingMove { object, node, number, .. } = outgoing;
        let id = ObjectId { hi: home.uid().0, lo: object };
        // Without the object only the last step is missing.
        let Ok((name, bytes, _)) = movable(home, id) else { return };
        let phase = MovePhase::Asking { again_at_ms: Some(0) };
        self.last_number = number;
        let waiter = None;
        self.job = Some(MoveJob { id, name, bytes, node, number, brought, waiter, phase });
    }

    /// Does the work that is due. [`Self::undo_at_returned`] follows once the result is done.
    pub(in crate::protocol) fn tick(&mut self, context: &mut DrainContext<'_>) -> AfterMove {
        self.notify_again(context);
        match self.job.as_ref().map(|job| job.phase) {
            Some(MovePhase::Asking { again_at_ms: Some(at_ms) }) if at_ms <= context.now_ms => {
                self.ask_to_take(context)
            }
            // The question was given up with its node.
            Some(MovePhase::Asking { again_at_ms: None }) => {
                let mut job = self.job.iter();
                match job.any(|job| !context.cluster.is_peer(&job.node)) {
                    true => self.undo_move(context),
                    false => AfterMove::Nothing,
                }
            }
            Some(_) => AfterMove::Nothing,
            // An earlier daemon removed the object and ended before it said so.
            None => {
                let Some(outgoing) = &self.record.outgoing else { return AfterMove::Nothing };
                notify_withdrawn(&outgoing.node, outgoing.brought(), context);
                self.end_move(Err(WireError::Closing), context)
            }
        }
    }

    /// Has nodes that are back remove copies that do not count.
    pub(in crate::protocol) fn undo_at_returned(&mut self, context: &mut DrainContext<'_>) {
        let DrainContext { cluster, now_ms, out, .. } = context;
        if self.record.undone.is_empty() {
            self.undo_at_ms = None;
            return;
        }
        if self.undo_at_ms.is_some_and(|at_ms| at_ms > *now_ms) {
            return;
        }
        self.undo_at_ms = Some(now_ms.saturating_add(NOTIFY_DRAIN_AGAIN_MS));
        for outgoing in self.record.undone.clone() {
            let object = outgoing.brought();
            let OutgoingMove { node, number, .. } = outgoing;
            if cluster.is_peer(&node) {
                let about = PendingQuestion::Untake { number, node: node.clone() };
                let question = Question::Untake { object, number };
                cluster.ask_node(&node, &question, about, out);
            }
        }
    }

    /// A lost node does not come back, nor does its copy of an object.
    pub(in crate::protocol) fn forget_moves_of(
        &mut self,
        node: &str,
        context: &mut DrainContext<'_>,
    ) {
        let DrainRecord { undone, incoming, .. } = &mut self.record;
        let before = undone.len() + incoming.len();
        undone.retain(|one| one.node != node);
        incoming.retain(|one| one.from != node);
        if undone.len() + incoming.len() < before {
            context.keep_or_log(&self.record);
        }
    }

    /// Handles the answer of a node that was to remove its copy.
    pub(in crate::protocol) fn on_untake_response(
        &mut self,
        (number, node): (u64, &str),
        answer: &Result<Answer, String>,
        context: &mut DrainContext<'_>,
    ) {
        if matches!(answer, Ok(Answer::Done)) {
            let undone = &mut self.record.undone;
            undone.retain(|one| (one.number, one.node.as_str()) != (number, node));
            context.keep_or_log(&self.record);
        }
    }
}

fn check_can_drain(context: &DrainContext<'_>) -> Result<(), WireError> {
    let reason = if context.cluster.0.is_none() {
        "this node is in no cluster"
    } else if context.cluster.live_peers().is_empty() {
        "the cluster has no other member"
    } else if context.replicas.port.is_none() {
        "this node serves no objects over the network (--net off), by which they move"
    } else {
        return Ok(());
    };
    Err(WireError::Invalid(format!("no object can move to another node: {reason}")))
}

fn notify_withdrawn(node: &str, object: u64, context: &mut DrainContext<'_>) {
    context.cluster.notify(node, Question::Taken { object }, context.out);
}

/// The bytes of a move are an object of this node without a name.
fn check_staged(home: &Home, id: ObjectId, staged: ObjectId) -> Result<(), WireError> {
    let entry = home.find(Target::Id(staged)).map_err(store_error)?;
    if !entry.is_staged || staged == id {
        let text = format!("object {staged} is not staged for another node");
        return Err(WireError::Invalid(text));
    }
    Ok(())
}

/// No part of the object with this id is being written, nor the object that must not exist.
fn check_absent(
    context: &DrainContext<'_>,
    slot: ClientSlot,
    id: ObjectId,
    absent: &str,
) -> Result<(), WireError> {
    let home = &*context.home;
    let (name, _, _) = movable(home, id)?;
    let absent = full_name(home, slot, absent)?;
    if home.has_name(&absent).map_err(store_error)? {
        return Err(WireError::NotMoved(format!("{absent:?} was written meanwhile")));
    }
    let prefix = format!("{name}/");
    match context.names_being_written().into_iter().find(|one| one.starts_with(&prefix)) {
        Some(part) => Err(WireError::NotMoved(format!("its part {part:?} is being written"))),
        None => Ok(()),
    }
}

/// The full name and the bytes of an object of this node, and whether it is pinned.
fn movable(home: &Home, id: ObjectId) -> Result<(String, u64, bool), WireError> {
    let entry = match home.find_spilled(Target::Id(id)).map_err(store_error)? {
        Some(entry) => entry,
        None => home.find(Target::Id(id)).map_err(store_error)?,
    };
    let name = home.name_of_object(id).filter(|_| !entry.is_replica);
    let Some(name) = name else {
        let text = format!("object {id} has no name of its own, so it cannot move");
        return Err(WireError::Invalid(text));
    };
    Ok((name, entry.size.0, home.is_pinned(entry.id)))
}
