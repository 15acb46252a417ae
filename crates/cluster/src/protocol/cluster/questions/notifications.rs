//! Notifications that other nodes must receive: passed barriers, sealed names, ended clients. A
//! repetition is harmless.

use super::message::{Answer, Question};
use super::pending::PendingQuestion;
use super::queues::PeerNotification;
use crate::protocol::action::Action;
use crate::protocol::cluster::OptionalCluster;
use crate::protocol::core::barriers::SyncQuestion;
use crate::protocol::identity::PeerLife;

impl OptionalCluster {
    /// Sends a notification that a mapped peer must receive, such as a passed barrier or a sealed
    /// name. A repetition is harmless.
    pub(in crate::protocol) fn notify(
        &mut self,
        node: &str,
        question: Question,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.0 else { return };
        let Some(peer) = cluster.peers.get(node).filter(|peer| !peer.is_lost()) else { return };
        let incarnation = peer.member.incarnation.0;
        cluster.notifications.add((node, incarnation).into(), question);
        self.send_notifications(node, out);
    }

    /// Whether a member may have requests of clients that have withdrawn them, or ended.
    pub(in crate::protocol) fn has_withdrawals(&self, node: &str) -> bool {
        let Some(cluster) = &self.0 else { return false };
        let under_way = cluster.questions.values().filter_map(|about| match about {
            PendingQuestion::Notification { node: to, notification, .. } if to == node => {
                Some(&notification.question)
            }
            _ => None,
        });
        under_way.chain(cluster.notifications.waiting_for(node)).any(|question| {
            matches!(
                question,
                Question::Sync(
                    SyncQuestion::Withdrawn { .. }
                        | SyncQuestion::GivenUp { .. }
                        | SyncQuestion::Left { .. }
                )
            )
        })
    }

    fn send_notifications(&mut self, node: &str, out: &mut Vec<Action>) {
        while let Some(cluster) = &mut self.0
            && let Some((incarnation, notification)) = cluster.notifications.next(node)
        {
            let question = notification.question.clone();
            let node_name = node.to_owned();
            let about =
                PendingQuestion::Notification { node: node_name, incarnation, notification };
            self.ask_node(node, &question, about, out);
        }
    }
}

impl OptionalCluster {
    /// Whether the members have received all state that was handed over.
    pub(in crate::protocol) fn has_handed_over(&self) -> bool {
        let is_state = |question: &SyncQuestion| {
            matches!(question, SyncQuestion::Retained { .. } | SyncQuestion::Outcome { .. })
        };
        !self.is_notifying(is_state)
    }

    /// Whether all members have heard of the clients that have ended here.
    pub(in crate::protocol) fn has_reported_ends(&self) -> bool {
        !self.is_notifying(|question| matches!(question, SyncQuestion::Left { .. }))
    }

    fn is_notifying(&self, is_it: impl Fn(&SyncQuestion) -> bool) -> bool {
        let Some(cluster) = &self.0 else {
            return false;
        };
        let pending = cluster.questions.values().filter_map(|about| match about {
            PendingQuestion::Notification { notification, .. } => Some(&notification.question),
            _ => None,
        });
        let mut under_way = pending.chain(cluster.notifications.waiting());
        under_way.any(|question| matches!(question, Question::Sync(sync) if is_it(sync)))
    }

    pub(in crate::protocol::cluster) fn notify_again(
        &mut self,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.0 else { return };
        for node in cluster.notifications.due(now_ms) {
            self.send_notifications(&node, out);
        }
    }

    /// Handles the end of a notification: see [`notification_result`].
    pub(super) fn notification_ended(
        &mut self,
        to: PeerLife<'_>,
        result: Result<Option<PeerNotification>, PeerNotification>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.0 else { return };
        cluster.notifications.ended(to, result, now_ms);
        self.send_notifications(to.name, out);
    }
}

/// The result of a notification by its answer, or by the reason why there is none. `Ok` returns one
/// that was rejected, `Err` one that did not arrive. `is_obsolete`: it needs no answer any more.
pub(super) fn notification_result(
    notification: PeerNotification,
    answer: &Result<Answer, String>,
    is_obsolete: bool,
) -> Result<Option<PeerNotification>, PeerNotification> {
    // A member of an earlier version has no reads of an earlier daemon, or cannot end them, and
    // cannot look again.
    let is_optional =
        matches!(notification.question, Question::Restarted { .. } | Question::Missed)
            && answer.as_ref().is_ok_and(Answer::is_rejection);
    match answer {
        _ if is_optional || is_obsolete => Ok(None),
        Ok(Answer::No(_)) => Ok(Some(notification)),
        Ok(_) => Ok(None),
        Err(_) => Err(notification),
    }
}
