//! Notifications of this node that others have not received yet.

use super::pending::{PendingQuestion, Untold};
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
        let asked = cluster.asked.values().filter_map(|about| match about {
            PendingQuestion::Told { question, .. } => Some(question),
            _ => None,
        });
        let mut under_way = asked.chain(cluster.untold.iter().map(|one| &one.what.1));
        let is_under_way = under_way.any(|question| {
            matches!(
                question,
                Question::Sync(SyncQuestion::Retained { .. } | SyncQuestion::Told { .. })
            )
        });
        !is_under_way && self.barriers.has_nothing_set_aside()
    }

    pub(super) fn tell_again(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let untold = std::mem::take(&mut cluster.untold);
        let (due, later) = untold.into_iter().partition(|one: &Untold| one.at_ms <= now_ms);
        cluster.untold = later;
        for Untold { what: (node, question, until_ms), .. } in due {
            if self.barriers.is_of_old_epoch(&question) {
                continue;
            }
            let about =
                PendingQuestion::Told { node: node.clone(), question: question.clone(), until_ms };
            self.cluster.ask_node(&node, &question, about, out);
        }
    }
}
