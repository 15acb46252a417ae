//! Answers of other nodes to questions and notifications of this one.

use farrow_store::ClientSlot;

use super::message::Answer;
use super::notifications::notification_result;
use super::pending::PendingQuestion;
use super::queues::PeerNotification;
use crate::protocol::action::Action;
use crate::protocol::cluster::HintFor;
use crate::protocol::cluster::peers::peer::because;
use crate::protocol::cluster::waits::awaited::AwaitQuestion;
use crate::protocol::identity::{PeerIdentity, PeerLife};
use crate::protocol::net::NetAction;
use crate::protocol::state::NodeState;

impl NodeState {
    /// Handles the answer to a question of this node, or the reason why there is none.
    pub fn on_response(
        &mut self,
        token: u64,
        answer: Result<Vec<u8>, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        self.heed_lease(now_ms, out);
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let Some(about) = cluster.questions.remove(&token) else {
            return;
        };
        let answer = answer.and_then(|bytes| {
            postcard::from_bytes::<Answer>(&bytes).map_err(|error| error.to_string())
        });
        if let Err(reason) = &answer {
            tracing::debug!(?about, %reason, "a request to a node failed");
        }
        self.settle_question(about, answer, now_ms, out);
    }

    /// Passes an answer to the part that asked.
    fn settle_question(
        &mut self,
        about: PendingQuestion,
        answer: Result<Answer, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let is_there = is_there(&answer);
        match about {
            PendingQuestion::Naming => {}
            PendingQuestion::Watch(slot, peer) => self.on_watched(slot, peer, is_there, now_ms),
            PendingQuestion::Family(slot) => self.on_family_response(slot, is_there, now_ms),
            PendingQuestion::Clean(slot) => self.on_clean_response(slot, is_done(&answer), now_ms),
            PendingQuestion::Await(names) => self.on_await_response(names, answer, now_ms, out),
            PendingQuestion::StillAwaited(names) => {
                self.cluster.on_still_awaited(&names, answer, out);
            }
            PendingQuestion::Has { lookup, node } => {
                self.cluster.on_lookup_response(lookup, &node, answer, out);
            }
            PendingQuestion::Where(search) => self.on_hint_response(search, answer, now_ms, out),
            PendingQuestion::DataAddress { node, incarnation } => {
                let of = (node.as_str(), incarnation).into();
                self.on_data_address_response(of, answer, now_ms, out);
            }
            PendingQuestion::Room { node, incarnation } => {
                self.cluster.on_room_response((node.as_str(), incarnation).into(), answer, now_ms);
            }
            PendingQuestion::Draining { node, incarnation, notice } => {
                let of = (node.as_str(), incarnation).into();
                let (drain, mut rest) = self.drain(now_ms, out);
                drain.on_draining_response(of, notice, answer, &mut rest);
            }
            PendingQuestion::IsRemoved { node, object, number } => {
                if has_none(&answer) && self.drain.is_from(&node, object, number) {
                    self.object_removed(&node, object, now_ms, out);
                }
            }
            PendingQuestion::Take { number, node } => {
                self.on_take_response((number, &node), answer, now_ms, out);
            }
            PendingQuestion::Untake { number, node } => {
                self.on_untake_response((number, &node), &answer, now_ms, out);
            }
            PendingQuestion::Ticket { node, number } => pass_ticket(&node, number, answer, out),
            PendingQuestion::Invalidate(notice) => {
                self.on_invalidation_response(&notice, is_done(&answer), now_ms, out);
            }
            PendingQuestion::Delete { node, which } => {
                self.on_deleted_elsewhere(&node, which, answer, out);
            }
            PendingQuestion::Sync(number) => self.barriers.on_response(number, answer, now_ms),
            PendingQuestion::Restarted { node, incarnation } => {
                let (barriers, mut rest) = self.barriers(now_ms, out);
                let of = (node.as_str(), incarnation).into();
                barriers.on_restarted_response(of, &answer, &mut rest);
            }
            PendingQuestion::HandOver { node, epoch } => {
                let (barriers, mut rest) = self.barriers(now_ms, out);
                barriers.on_handover_response((&node, epoch), answer, &mut rest);
            }
            PendingQuestion::Joined { incarnation, question } => {
                self.on_joined_response((incarnation, question), answer, now_ms, out);
            }
            PendingQuestion::Notification { node, incarnation, notification } => {
                let to = (node.as_str(), incarnation).into();
                self.on_notification_response(to, notification, &answer, now_ms, out);
            }
        }
    }

    /// Handles the answer of a member that was asked for names.
    fn on_await_response(
        &mut self,
        question: AwaitQuestion,
        answer: Result<Answer, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let (cluster, mut context) = self.awaiting(now_ms, out);
        cluster.on_await_response(question, answer, &mut context);
    }

    /// Handles a node's answer with the address of its data server, or its failure.
    fn on_data_address_response(
        &mut self,
        from: PeerLife<'_>,
        answer: Result<Answer, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let kind = self.replicas.kind();
        self.cluster.on_data_address_response(from, answer, kind, now_ms, out);
        self.notify_members();
    }

    /// Handles the result of a delete that another node performed.
    fn on_deleted_elsewhere(
        &mut self,
        node: &str,
        which: (u64, usize),
        answer: Result<Answer, String>,
        out: &mut Vec<Action>,
    ) {
        let result = match answer {
            Ok(Answer::Deleted(result)) => result,
            Ok(Answer::No(why)) | Err(why) => Err(because(&self.cluster.unreachable(node), &why)),
            Ok(_) => Err(self.cluster.unreachable(node)),
        };
        self.replicas.on_delete_response(which, result, &self.cluster, out);
    }

    /// Handles the answer to a notification, or the reason why there is none.
    fn on_notification_response(
        &mut self,
        to: PeerLife<'_>,
        notification: PeerNotification,
        answer: &Result<Answer, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let is_obsolete = self.barriers.is_of_old_epoch(&notification.question);
        let result = notification_result(notification, answer, is_obsolete);
        self.cluster.notification_ended(to, result, now_ms, out);
    }

    /// Handles the answer of an authority, or its failure.
    fn on_hint_response(
        &mut self,
        search: HintFor,
        answer: Result<Answer, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let hint = match answer {
            Ok(Answer::Where(hint)) => hint,
            _ => None,
        };
        match search {
            HintFor::Opening(token) => {
                let (replicas, mut context) = self.replicas(now_ms, out);
                replicas.open_at_hint(token, hint, &mut context);
            }
            HintFor::Lookup(lookup) => self.cluster.look_at_hint(lookup, hint, out),
        }
    }

    fn on_watched(
        &mut self,
        slot: ClientSlot,
        peer: PeerIdentity,
        is_there: Option<bool>,
        now_ms: u64,
    ) {
        // By now another client may have that slot.
        if is_there == Some(false) && self.clients.orphan(slot) == Some(peer) {
            self.remote_client_ended(slot, now_ms);
        } else {
            self.cluster.watch_later(slot, now_ms);
        }
    }

    fn on_clean_response(&mut self, slot: ClientSlot, is_done: bool, now_ms: u64) {
        match is_done {
            true => self.cleaned(slot, now_ms),
            false => self.cluster.clean_later(slot, now_ms),
        }
    }
}

fn is_there(answer: &Result<Answer, String>) -> Option<bool> {
    match answer {
        Ok(Answer::IsThere(is_there)) => Some(*is_there),
        _ => None,
    }
}

fn is_done(answer: &Result<Answer, String>) -> bool {
    matches!(answer, Ok(Answer::Done))
}

/// Whether a node lacks the one name that it was asked for.
fn has_none(answer: &Result<Answer, String>) -> bool {
    matches!(answer, Ok(Answer::Has(has)) if has[..] == [false])
}

fn pass_ticket(node: &str, number: u64, answer: Result<Answer, String>, out: &mut Vec<Action>) {
    let result = match answer {
        Ok(Answer::Ticket(ticket)) => Ok(ticket),
        Ok(Answer::No(why)) | Err(why) => Err(format!("{node} gives no ticket: {why}")),
        Ok(_) => Err(format!("{node} sent an answer of another kind")),
    };
    out.push(Action::Net(NetAction::Ticket { number, result }));
}
