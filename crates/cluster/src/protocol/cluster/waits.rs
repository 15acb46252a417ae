//! Waiting for names that are sealed in the memory of other nodes.

use farrow_wire::Rights;

use super::questions::NAMES_MAX;
use super::questions::{Answer, Question};
use crate::protocol::Action;
use crate::protocol::action::answer_to;
use crate::protocol::core::waits::Wait;
use crate::protocol::state::NodeState;

/// Limit of names that one other node may wait for.
const AWAITED_MAX: usize = 65_536;

impl NodeState {
    /// Sends the awaited names to all nodes, also to those that joined.
    pub(super) fn await_everywhere(&mut self, out: &mut Vec<Action>) {
        let waits = &self.waits;
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        cluster.awaited.by_own.retain(|name| waits.is_awaited(name));
        let nodes: Vec<String> = cluster.peers.keys().cloned().collect();
        let names: Vec<String> = cluster.awaited.by_own.iter().cloned().collect();
        for node in nodes {
            self.cluster.await_at(&node, names.clone(), out);
        }
    }

    /// Notes the names that another node waits for.
    pub(super) fn await_for(&mut self, node: &str, names: Vec<String>) -> Answer {
        if names.len() > NAMES_MAX {
            return Answer::No(format!("{} names, {NAMES_MAX} are taken", names.len()));
        }
        let (sealed, missing): (Vec<String>, Vec<String>) =
            names.into_iter().partition(|name| self.home.has_name(name).unwrap_or(false));
        let sealed =
            sealed.into_iter().filter(|name| self.rules.may(node, Rights::READ, name)).collect();
        let Some(cluster) = &mut self.cluster.0 else {
            return Answer::Sealed(sealed);
        };
        let waiting = cluster.awaited.by_others.values();
        let waiting = waiting.filter(|nodes| nodes.contains(node)).count();
        if waiting + missing.len() > AWAITED_MAX {
            return Answer::No(format!("{waiting} names are waited for, {AWAITED_MAX} at most"));
        }
        for name in missing {
            cluster.awaited.by_others.entry(name).or_default().insert(node.to_owned());
        }
        Answer::Sealed(sealed)
    }

    /// Notifies other nodes of a full name that was sealed here.
    pub(in crate::protocol) fn notify_sealed(
        &mut self,
        name: &str,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let Some(nodes) = cluster.awaited.by_others.remove(name) else {
            return;
        };
        for node in nodes {
            if !self.rules.may(&node, Rights::READ, name) {
                continue;
            }
            let question = Question::Sealed { names: vec![name.to_owned()] };
            self.cluster.notify(&node, question, now_ms, out);
        }
    }

    /// Handles names that were sealed in the memory of another node.
    pub(super) fn sealed_elsewhere(&mut self, node: &str, names: &[String], out: &mut Vec<Action>) {
        let is_unread = self.cluster.unread_members().iter().any(|one| one == node);
        let unreachable =
            (is_unread && !self.cluster.is_by_net(node)).then(|| self.cluster.unreachable(node));
        for name in names.iter().take(NAMES_MAX) {
            // The claim is not verified: a client that is woken without cause waits again.
            tracing::debug!(node, name, "sealed elsewhere");
            if let Some(cluster) = &mut self.cluster.0 {
                cluster.awaited.by_own.remove(name);
            }
            match &unreachable {
                None => self.waits.sealed(name),
                // No client here can read the object, so the wait fails.
                Some(error) => {
                    let failed = self.waits.failed(name).into_iter();
                    let answer = |wait: Wait| answer_to(wait.session, wait.seq, Err(error.clone()));
                    out.extend(failed.map(answer));
                }
            }
        }
        self.answer_waits(out);
    }
}
