//! Members are notified that this node drains, and note which of them do: no object moves before all
//! know. See [`super::outgoing`].

use farrow_wire::WireError;

use super::context::DrainContext;
use super::outgoing::{ASK_AGAIN_MS, NOTIFY_DRAIN_AGAIN_MS};
use super::state::{DRAINING_MAX, Drain, DrainNotice};
use crate::protocol::cluster::{Answer, OptionalCluster, PendingQuestion, Question};
use crate::protocol::identity::PeerLife;

impl Drain {
    /// Notifies all members from now on.
    pub(super) fn notify_all(&mut self, cluster: &OptionalCluster, now_ms: u64) {
        self.notified.clear();
        let all = cluster.live_peers().into_iter();
        let first = || ("it is being notified".to_owned(), Some(now_ms));
        self.untold = all.map(|node| (node, first())).collect();
    }

    /// After a change of the members or of this node's incarnation, members that do not know of the
    /// drain are notified.
    pub(in crate::protocol) fn members_changed(&mut self, cluster: &OptionalCluster, now_ms: u64) {
        let record = &self.record;
        if !record.is_draining && !record.is_cancelled {
            return;
        }
        let (live, own) = (cluster.live_lives(), cluster.own_incarnation());
        self.untold.retain(|node, _| live.iter().any(|(name, _)| name == node));
        for (node, incarnation) in live {
            if self.notified.get(&node) != Some(&(incarnation, own)) {
                let why = "one of the two nodes has just joined".to_owned();
                self.untold.insert(node, (why, Some(now_ms)));
            }
        }
    }

    /// Handles a member's answer to the notice that this node drains, or does not.
    pub(in crate::protocol) fn on_draining_response(
        &mut self,
        from: PeerLife<'_>,
        notice: DrainNotice,
        answer: Result<Answer, String>,
        context: &mut DrainContext<'_>,
    ) {
        let now_ms = context.now_ms;
        let PeerLife { name: node, incarnation } = from;
        let is_current = notice == self.notice(context.cluster)
            && context.cluster.peer_in_life(node, incarnation).is_some();
        if !is_current {
            // It is notified again, of the present state.
            return self.members_changed(context.cluster, now_ms);
        }
        match answer {
            Ok(Answer::Done) => {
                self.notified.insert(node.to_owned(), (incarnation, notice.own));
                self.untold.remove(node);
                if self.untold.is_empty() && self.record.is_cancelled {
                    self.record.is_cancelled = false;
                    context.keep_or_log(&self.record);
                }
            }
            Ok(Answer::No(why)) => {
                let why = format!("it refuses the notice, or is of an earlier version: {why}");
                let at_ms = Some(now_ms.saturating_add(NOTIFY_DRAIN_AGAIN_MS));
                self.untold.insert(node.to_owned(), (why, at_ms));
            }
            Ok(_) | Err(_) => {
                let why = answer.err().unwrap_or_else(|| "an answer of another kind".to_owned());
                let at_ms = Some(now_ms.saturating_add(ASK_AGAIN_MS));
                self.untold.insert(node.to_owned(), (why, at_ms));
            }
        }
    }

    fn notice(&self, cluster: &OptionalCluster) -> DrainNotice {
        let is_draining = self.record.is_draining;
        DrainNotice { is_draining, own: cluster.own_incarnation() }
    }

    /// Notes that a member drains, or does not any more, also for the next daemon: objects move once
    /// all members know.
    pub(in crate::protocol) fn keep_member(
        &mut self,
        node: &str,
        is_draining: bool,
        context: &mut DrainContext<'_>,
    ) -> Result<(), WireError> {
        let live = context.cluster.live_members();
        let before = self.record.draining.clone();
        let draining = &mut self.record.draining;
        let number = live.get(node).copied();
        draining.retain(|known| Some(*known) != number && live.values().any(|one| one == known));
        if is_draining {
            draining.extend(number);
        }
        if draining.len() > DRAINING_MAX {
            *draining = before;
            let text = format!("{DRAINING_MAX} other members drain at this moment");
            return Err(WireError::NotMoved(text));
        }
        if *draining == before {
            return Ok(());
        }
        if let Err(error) = context.keep(&self.record) {
            self.record.draining = before;
            return Err(error);
        }
        context.notify_members(&self.record);
        Ok(())
    }

    /// Notifies the members that are due.
    pub(super) fn notify_again(&mut self, context: &mut DrainContext<'_>) {
        let now_ms = context.now_ms;
        let notice = self.notice(context.cluster);
        if !notice.is_draining && self.record.outgoing.is_some() {
            // Until the last move has ended, members look as in a drain.
            let untold = self.untold.values_mut();
            untold.for_each(|(_, at_ms)| *at_ms = Some(now_ms + ASK_AGAIN_MS));
            return;
        }
        let untold = self.untold.iter_mut();
        let due = untold.filter(|(_, (_, at_ms))| at_ms.is_some_and(|at_ms| at_ms <= now_ms));
        let due: Vec<String> = due
            .map(|(node, (_, at_ms))| {
                *at_ms = None;
                node.clone()
            })
            .collect();
        let live = context.cluster.live_lives();
        for node in due {
            let life = live.iter().find(|(name, _)| *name == node);
            let Some((_, incarnation)) = life else {
                self.untold.remove(&node);
                continue;
            };
            let incarnation = *incarnation;
            let about = PendingQuestion::Draining { node: node.clone(), incarnation, notice };
            let question = Question::Draining(notice.is_draining);
            if !context.cluster.ask_node(&node, &question, about, context.out) {
                let none = Err("it is no member".to_owned());
                let from = (node.as_str(), incarnation).into();
                self.on_draining_response(from, notice, none, context);
            }
        }
    }
}
