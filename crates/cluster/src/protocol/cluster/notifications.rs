//! Notifications of this node that others have not received yet.

use super::pending::{PendingNotification, PendingQuestion};
use super::questions::Question;
use crate::protocol::action::Action;
use crate::protocol::core::barriers::SyncQuestion;
use crate::protocol::state::NodeState;

impl NodeState {
    /// Whether all state that was handed over has been received.
    pub fn has_handed_over(&self) -> bool {
        let Some(cluster) = &self.cluster.0 else {
            return true;
        };
        let pending = cluster.questions.values().filter_map(|about| match about {
            PendingQuestion::Notification { question, .. } => Some(question),
            _ => None,
        });
        let mut under_way = pending.chain(cluster.unacknowledged.iter().map(|one| &one.what.1));
        let is_under_way = under_way.any(|question| {
            matches!(
                question,
                Question::Sync(SyncQuestion::Retained { .. } | SyncQuestion::Outcome { .. })
            )
        });
        !is_under_way && self.barriers.has_nothing_set_aside()
    }

    pub(super) fn notify_again(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let unacknowledged = std::mem::take(&mut cluster.unacknowledged);
        let (due, later) =
            unacknowledged.into_iter().partition(|one: &PendingNotification| one.at_ms <= now_ms);
        cluster.unacknowledged = later;
        for PendingNotification { what: (node, question, until_ms), .. } in due {
            if self.barriers.is_of_old_epoch(&question) {
                continue;
            }
            let about = PendingQuestion::Notification {
                node: node.clone(),
                question: question.clone(),
                until_ms,
            };
            self.cluster.ask_node(&node, &question, about, out);
        }
    }
}
