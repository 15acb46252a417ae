//! Members are notified that this node drains, and note which of them do: no object moves before all
//! know. See [`super::outgoing`].

use farrow_wire::WireError;

use super::outgoing::{ASK_AGAIN_MS, NOTIFY_DRAIN_AGAIN_MS};
use crate::protocol::Action;
use crate::protocol::cluster::{Answer, PendingQuestion, Question};
use crate::protocol::core::drain::{DRAINING_MAX, DrainNotice};
use crate::protocol::identity::PeerLife;
use crate::protocol::state::NodeState;

impl NodeState {
    pub(super) fn notify_all_of_drain(&mut self, now_ms: u64) {
        self.drain.notified.clear();
        let all = self.cluster.live_peers().into_iter();
        let first = || ("it is being notified".to_owned(), Some(now_ms));
        self.drain.untold = all.map(|node| (node, first())).collect();
    }

    /// After a change of the members or of this node's incarnation, members that do not know of the
    /// drain are notified.
    pub(in crate::protocol) fn members_changed_in_drain(&mut self, now_ms: u64) {
        let record = &self.drain.record;
        if !record.is_draining && !record.is_cancelled {
            return;
        }
        let (live, own) = (self.cluster.live_lives(), self.cluster.own_incarnation());
        self.drain.untold.retain(|node, _| live.iter().any(|(name, _)| name == node));
        for (node, incarnation) in live {
            if self.drain.notified.get(&node) != Some(&(incarnation, own)) {
                let why = "one of the two nodes has just joined".to_owned();
                self.drain.untold.insert(node, (why, Some(now_ms)));
            }
        }
    }

    /// Handles a member's answer to the notice that this node drains, or does not.
    pub(in crate::protocol) fn on_draining_response(
        &mut self,
        from: PeerLife<'_>,
        notice: DrainNotice,
        answer: Result<Answer, String>,
        now_ms: u64,
    ) {
        let PeerLife { name: node, incarnation } = from;
        let is_current =
            notice == self.drain_notice() && self.cluster.peer_in_life(node, incarnation).is_some();
        if !is_current {
            // It is notified again, of the present state.
            return self.members_changed_in_drain(now_ms);
        }
        match answer {
            Ok(Answer::Done) => {
                self.drain.notified.insert(node.to_owned(), (incarnation, notice.own));
                self.drain.untold.remove(node);
                if self.drain.untold.is_empty() && self.drain.record.is_cancelled {
                    self.drain.record.is_cancelled = false;
                    self.keep_drain();
                }
            }
            Ok(Answer::No(why)) => {
                let why = format!("it refuses the notice, or is of an earlier version: {why}");
                let at_ms = Some(now_ms.saturating_add(NOTIFY_DRAIN_AGAIN_MS));
                self.drain.untold.insert(node.to_owned(), (why, at_ms));
            }
            Ok(_) | Err(_) => {
                let why = answer.err().unwrap_or_else(|| "an answer of another kind".to_owned());
                let at_ms = Some(now_ms.saturating_add(ASK_AGAIN_MS));
                self.drain.untold.insert(node.to_owned(), (why, at_ms));
            }
        }
    }

    fn drain_notice(&self) -> DrainNotice {
        let is_draining = self.drain.record.is_draining;
        DrainNotice { is_draining, own: self.cluster.own_incarnation() }
    }

    /// Notes that a member drains, or does not any more, also for the next daemon: objects move once
    /// all members know.
    pub(in crate::protocol) fn keep_draining_member(
        &mut self,
        node: &str,
        is_draining: bool,
    ) -> Result<(), WireError> {
        let live = self.cluster.live_members();
        let before = self.drain.record.draining.clone();
        let draining = &mut self.drain.record.draining;
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
        if let Err(error) = self.keep_settings() {
            self.drain.record.draining = before;
            return Err(error);
        }
        self.cluster.has_news();
        self.notify_members();
        Ok(())
    }

    pub(super) fn notify_of_drain(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let notice = self.drain_notice();
        if !notice.is_draining && self.drain.record.outgoing.is_some() {
            // Until the last move has ended, members look as in a drain.
            let untold = self.drain.untold.values_mut();
            untold.for_each(|(_, at_ms)| *at_ms = Some(now_ms + ASK_AGAIN_MS));
            return;
        }
        let untold = self.drain.untold.iter_mut();
        let due = untold.filter(|(_, (_, at_ms))| at_ms.is_some_and(|at_ms| at_ms <= now_ms));
        let due: Vec<String> = due
            .map(|(node, (_, at_ms))| {
                *at_ms = None;
                node.clone()
            })
            .collect();
        let live = self.cluster.live_lives();
        for node in due {
            let life = live.iter().find(|(name, _)| *name == node);
            let Some((_, incarnation)) = life else {
                self.drain.untold.remove(&node);
                continue;
            };
            let incarnation = *incarnation;
            let about = PendingQuestion::Draining { node: node.clone(), incarnation, notice };
            let question = Question::Draining(notice.is_draining);
            if !self.cluster.ask_node(&node, &question, about, out) {
                let none = Err("it is no member".to_owned());
                self.on_draining_response(
                    (node.as_str(), incarnation).into(),
                    notice,
                    none,
                    now_ms,
                );
            }
        }
    }
}
