//! Answers of other nodes to questions and notifications of this one.

use super::message::Answer;
use super::pending::PendingQuestion;
use crate::protocol::net::NetAction;
use crate::protocol::action::Action;
use crate::protocol::cluster::peers::peer::because;
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
            tracing::debug!(?about, %reason, "no answer");
        }
        match (about, answer) {
            // By now another client may have that slot.
            (PendingQuestion::Watch(slot, peer), Ok(Answer::IsThere(false)))
                if self.clients.orphan(slot) == Some(peer) =>
            {
                self.remote_client_ended(slot, now_ms);
            }
            (PendingQuestion::Watch(slot, _), _) => self.cluster.watch_later(slot, now_ms),
            (PendingQuestion::Family(slot), Ok(Answer::IsThere(is_there))) => {
                self.on_family_response(slot, Some(is_there), now_ms);
            }
            (PendingQuestion::Family(slot), _) => self.on_family_response(slot, None, now_ms),
            (PendingQuestion::Clean(slot), Ok(Answer::Done)) => self.cleaned(slot, now_ms),
            (PendingQuestion::Clean(slot), _) => self.cluster.clean_later(slot, now_ms),
            (PendingQuestion::Await(question), answer) => {
                self.on_await_response(question, answer, now_ms, out);
            }
            (PendingQuestion::StillAwaited(question), answer) => {
                self.cluster.on_still_awaited(&question, answer, out);
            }
            (PendingQuestion::Has { lookup, node }, answer) => {
                self.cluster.on_lookup_response(lookup, &node, answer, out);
            }
            (PendingQuestion::Where(search), answer) => {
                self.on_hint_response(search, answer, now_ms, out);
            }
            (PendingQuestion::DataAddress { node, incarnation }, answer) => {
                self.on_data_address_response(
                    (node.as_str(), incarnation).into(),
                    answer,
                    now_ms,
                    out,
                );
            }
            (PendingQuestion::Room { node, incarnation }, answer) => {
                self.on_room_response((node.as_str(), incarnation).into(), answer, now_ms);
            }
            (PendingQuestion::Draining { node, incarnation, notice }, answer) => {
                self.on_draining_response(
                    (node.as_str(), incarnation).into(),
                    notice,
                    answer,
                    now_ms,
                );
            }
            (PendingQuestion::IsRemoved { node, object, number }, Ok(Answer::Has(has)))
                if has[..] == [false] && self.drain.is_from(&node, object, number) =>
            {
                self.object_removed(&node, object, now_ms, out);
            }
            (PendingQuestion::IsRemoved { .. }, _) => {}
            (PendingQuestion::Take { number, node }, answer) => {
                self.on_take_response((number, &node), answer, now_ms, out);
            }
            (PendingQuestion::Untake { number, node }, answer) => {
                self.on_untake_response((number, &node), &answer);
            }
            (PendingQuestion::Ticket { node, number }, answer) => {
                let result = match answer {
                    Ok(Answer::Ticket(ticket)) => Ok(ticket),
                    Ok(Answer::No(why)) | Err(why) => Err(format!("{node} gives no ticket: {why}")),
                    Ok(_) => Err(format!("{node} sent an answer of another kind")),
                };
                out.push(Action::Net(NetAction::Ticket { number, result }));
            }
            (PendingQuestion::Invalidate(notice), answer) => {
                let is_done = matches!(answer, Ok(Answer::Done));
                self.on_invalidation_response(&notice, is_done, now_ms, out);
            }
            (PendingQuestion::Delete { node, which }, answer) => {
                let result = match answer {
                    Ok(Answer::Deleted(result)) => result,
                    Ok(Answer::No(why)) | Err(why) => {
                        Err(because(&self.cluster.unreachable(&node), &why))
                    }
                    Ok(_) => Err(self.cluster.unreachable(&node)),
                };
                self.on_delete_response(which, result, out);
            }
            (PendingQuestion::Sync(number), Err(_)) => self.barriers.unanswered(number, now_ms),
            (PendingQuestion::Sync(number), Ok(Answer::No(why))) => {
                self.barriers.refused(number, why, now_ms)
            }
            (PendingQuestion::Restarted { node, incarnation }, answer) => {
                let member = (node.as_str(), incarnation).into();
                let (barriers, mut context) = self.barriers(now_ms, out);
                barriers.on_restarted_response(member, &answer, &mut context);
            }
            (PendingQuestion::HandOver { node, epoch }, Ok(Answer::HandedOver(names))) => {
                let (barriers, mut context) = self.barriers(now_ms, out);
                barriers.handed_over((&node, epoch), Some(names), &mut context);
            }
            (PendingQuestion::HandOver { node, epoch }, _) => {
                let (barriers, mut context) = self.barriers(now_ms, out);
                barriers.handed_over((&node, epoch), None, &mut context);
            }
            (PendingQuestion::Joined { incarnation, question }, answer) => {
                self.on_joined_response((incarnation, question), answer, now_ms, out);
            }
            (PendingQuestion::Notification { node, incarnation, notification }, answer) => {
                let to = (node.as_str(), incarnation).into();
                self.on_notification_response(to, notification, &answer, now_ms, out);
            }
            (PendingQuestion::Naming | PendingQuestion::Sync(_), _) => {}
        }
    }
}
