//! Waiting for names that are sealed in the memory of other nodes.

use farrow_store::Home;
use farrow_wire::Rights;

use super::awaited::{AWAITED_MAX, AwaitQuestion, SweepQuestion};
use crate::protocol::Action;
use crate::protocol::action::answer_to;
use crate::protocol::cluster::questions::message::NAMES_MAX;
use crate::protocol::cluster::{Answer, OptionalCluster, PendingQuestion, Question};
use crate::protocol::core::fanout::FanOut;
use crate::protocol::core::waits::{Wait, Waits};
use crate::protocol::rights::RightsTable;

/// Pause before a node that did not answer is asked for names again.
const AGAIN_MS: u64 = 100;

/// What a wait for a name of another node needs of this one, while one event is handled.
#[derive(Debug)]
pub(in crate::protocol) struct AwaitContext<'a> {
    pub(in crate::protocol) waits: &'a mut Waits,
    pub(in crate::protocol) fan_out: &'a mut FanOut,
    pub(in crate::protocol) home: &'a Home,
    pub(in crate::protocol) rules: &'a RightsTable,
    pub(in crate::protocol) now_ms: u64,
    pub(in crate::protocol) out: &'a mut Vec<Action>,
}

impl OptionalCluster {
    /// Asks all members to report full names that clients of this node began to wait for.
    pub(in crate::protocol) fn await_names(&mut self, names: &[String], out: &mut Vec<Action>) {
        for node in self.live_peers() {
            self.await_at(&node, names.iter().cloned(), out);
        }
    }

    fn await_at(
        &mut self,
        node: &str,
        names: impl IntoIterator<Item = String>,
        out: &mut Vec<Action>,
    ) {
        if let Some(cluster) = &mut self.0 {
            cluster.awaited.queue(node, names);
            self.ask_for_awaited(node, out);
        }
    }

    fn ask_for_awaited(&mut self, node: &str, out: &mut Vec<Action>) {
        let question = self.0.as_mut().and_then(|cluster| cluster.awaited.next_question(node));
        let Some(question) = question else { return };
        let names = question.names.clone();
        self.ask_node(node, &Question::Await { names }, PendingQuestion::Await(question), out);
    }

    fn ask_if_still_awaited(&mut self, question: SweepQuestion, out: &mut Vec<Action>) {
        let (node, names) = (question.node.clone(), question.names.clone());
        let about = PendingQuestion::StillAwaited(question);
        self.ask_node(&node, &Question::StillAwaited { names }, about, out);
    }

    /// Handles the answer of a node, which of its names it still waits for.
    pub(in crate::protocol::cluster) fn on_still_awaited(
        &mut self,
        question: &SweepQuestion,
        answer: Result<Answer, String>,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.0 else { return };
        let next = match answer {
            Ok(Answer::Has(still)) => cluster.awaited.swept(question, &still),
            _ => {
                cluster.awaited.end_sweep(&question.node);
                None
            }
        };
        if let Some(next) = next {
            self.ask_if_still_awaited(next, out);
        }
    }
}

impl OptionalCluster {
    /// Sends the awaited names to all members, also to those that joined.
    pub(in crate::protocol::cluster) fn await_everywhere(
        &mut self,
        waits: &Waits,
        out: &mut Vec<Action>,
    ) {
        if let Some(cluster) = &mut self.0 {
            cluster.awaited.forget_queues();
        }
        for node in self.live_peers() {
            self.await_all_at(&node, waits, out);
        }
    }

    /// Sends the awaited names to a member that does not know them, or not any more.
    pub(in crate::protocol::cluster) fn await_all_at(
        &mut self,
        node: &str,
        waits: &Waits,
        out: &mut Vec<Action>,
    ) {
        self.await_at(node, waits.names().cloned(), out);
    }

    /// Sends awaited names again to members that did not answer.
    pub(in crate::protocol::cluster) fn await_again(
        &mut self,
        waits: &Waits,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.0 else { return };
        let due = cluster.awaited.due(now_ms, |name| waits.is_awaited(name));
        due.iter().for_each(|node| self.ask_for_awaited(node, out));
    }

    /// Handles the answer of a member that was asked for names.
    pub(in crate::protocol::cluster) fn on_await_response(
        &mut self,
        question: AwaitQuestion,
        answer: Result<Answer, String>,
        context: &mut AwaitContext<'_>,
    ) {
        let Some(cluster) = &mut self.0 else { return };
        if let Ok(Answer::Sealed(sealed)) = answer {
            cluster.awaited.on_response(&question, None);
            self.sealed_elsewhere(&question.node, &sealed, context);
        } else {
            let names = question.names.iter().filter(|name| context.waits.is_awaited(name));
            let again = (context.now_ms.saturating_add(AGAIN_MS), names.cloned().collect());
            cluster.awaited.on_response(&question, Some(again));
        }
        self.ask_for_awaited(&question.node, context.out);
    }

    /// Notes the names that another node waits for.
    pub(in crate::protocol::cluster) fn await_for(
        &mut self,
        node: &str,
        names: Vec<String>,
        context: &mut AwaitContext<'_>,
    ) -> Answer {
        if names.len() > NAMES_MAX {
            return Answer::No(format!("{} names, {NAMES_MAX} are taken", names.len()));
        }
        let (sealed, missing): (Vec<String>, Vec<String>) =
            names.into_iter().partition(|name| context.home.has_name(name).unwrap_or(false));
        let sealed =
            sealed.into_iter().filter(|name| context.rules.may(node, Rights::READ, name)).collect();
        let Some(cluster) = &mut self.0 else {
            return Answer::Sealed(sealed);
        };
        let added = cluster.awaited.add(node, missing);
        if let Some(question) = cluster.awaited.begin_sweep(node) {
            self.ask_if_still_awaited(question, context.out);
        }
        match added {
            Ok(()) => Answer::Sealed(sealed),
            Err(waiting) => {
                Answer::No(format!("{waiting} names are waited for, {AWAITED_MAX} at most"))
            }
        }
    }

    /// Notifies other nodes of a full name that was sealed here.
    pub(in crate::protocol) fn notify_sealed(
        &mut self,
        name: &str,
        rules: &RightsTable,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.0 else {
            return;
        };
        for node in cluster.awaited.take(name) {
            if !rules.may(&node, Rights::READ, name) {
                continue;
            }
            let question = Question::Sealed { names: vec![name.to_owned()] };
            self.notify(&node, question, out);
        }
    }

    /// Handles names that were sealed in the memory of another node.
    pub(in crate::protocol::cluster) fn sealed_elsewhere(
        &mut self,
        node: &str,
        names: &[String],
        context: &mut AwaitContext<'_>,
    ) {
        let is_unread = self.unread_members().iter().any(|one| one == node);
        let unreachable = (is_unread && !self.is_by_net(node)).then(|| self.unreachable(node));
        for name in names.iter().take(NAMES_MAX) {
            // The claim is not verified: a client that is woken without cause waits again.
            tracing::debug!(node, name, "an object was sealed on another node");
            match &unreachable {
                None => context.waits.sealed(name),
                // No client here can read the object, so the wait fails.
                Some(error) => {
                    let failed = context.waits.failed(name).into_iter();
                    let answer = |wait: Wait| answer_to(wait.session, wait.seq, Err(error.clone()));
                    context.out.extend(failed.map(answer));
                }
            }
        }
        context.fan_out.answer(context.waits, context.out);
    }
}
