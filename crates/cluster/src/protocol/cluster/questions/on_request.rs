//! Questions of other nodes, and the answers of this one.

use super::message::{Answer, NAMES_MAX, Question};
use crate::protocol::net::NetAction;
use crate::protocol::action::{Action, answer_peer};
use crate::protocol::cluster::PeerAction;
use crate::protocol::drain::incoming::TakeRequest;
use crate::protocol::identity::PeerLife;
use crate::protocol::state::NodeState;

impl NodeState {
    /// Handles a question of another node. `from` is taken from its certificate.
    pub fn on_request(
        &mut self,
        token: u64,
        from: PeerLife<'_>,
        body: &[u8],
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        self.heed_lease(now_ms, out);
        let answer = match postcard::from_bytes::<Question>(body) {
            Ok(question) => self.answer_question(token, from, question, now_ms, out),
            Err(error) => Some(Answer::No(format!("{} B: {error}", body.len()))),
        };
        if let Some(answer) = answer {
            out.push(answer_peer(token, &answer));
        }
    }

    /// Returns `None` if the answer follows later.
    pub(super) fn answer_question(
        &mut self,
        token: u64,
        from: PeerLife<'_>,
        question: Question,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Option<Answer> {
        let PeerLife { name: from, incarnation } = from;
        let Some(member) = self.cluster.peer_in_life(from, incarnation) else {
            return Some(Answer::no_member(from, incarnation));
        };
        match question {
            Question::Naming(message) => {
                self.handle_naming(&member, message, now_ms, out);
                Some(Answer::Done)
            }
            Question::Sync(question) => {
                let (barriers, mut context) = self.barriers(now_ms, out);
                Some(barriers.on_request(from, question, &mut context).unwrap_or_else(Answer::No))
            }
            Question::Watch { pid, start_time } => {
                out.push(Action::Peer(PeerAction::WatchProcess { token, pid, start_time }));
                None
            }
            Question::Clean { region_uid, spans } => {
                if self.cluster.region_of(from) != Some(region_uid) {
                    return Some(Answer::No(format!("region {region_uid:#x} is not mapped")));
                }
                let node = from.to_owned();
                out.push(Action::Peer(PeerAction::Clean { token, node, spans }));
                None
            }
            Question::Family { region_uid, place } => Some(match self.cluster.memory_of(from) {
                Some(memory) if memory.reader.uid().0 == region_uid => Answer::IsThere(
                    farrow_memory::family::is_mapped_by_client(memory.fabric.as_ref(), place),
                ),
                // Not mapped again yet, but its clients' children may map it.
                _ => Answer::No(format!("region {region_uid:#x} is not mapped")),
            }),
            Question::Await { names } => Some(self.await_for(from, names, out)),
            Question::StillAwaited { names } if names.len() > NAMES_MAX => {
                Some(Answer::No(format!("{} names, {NAMES_MAX} are taken", names.len())))
            }
            Question::StillAwaited { names } => {
                let is_awaited = |name: &String| self.waits.is_awaited(name);
                Some(Answer::Has(names.iter().map(is_awaited).collect()))
            }
            Question::Sealed { names } => {
                self.sealed_elsewhere(from, &names, out);
                Some(Answer::Done)
            }
            Question::Has { names } => Some(self.has_names(&names)),
            Question::Joined { names } => Some(self.names_of_joined(&member, &names)),
            Question::Where { name } => {
                Some(self.cluster.where_is(&self.home, &self.rules, from, &name))
            }
            Question::Room => {
                let (free, capacity) = (self.home.free_bytes().0.0, self.home.capacity().0);
                Some(Answer::Room { free, capacity })
            }
            Question::DataAddress => {
                let net = self.cluster.0.as_ref().and_then(|cluster| cluster.options.net.clone());
                Some(Answer::DataAddress(net))
            }
            Question::Ticket { life } => {
                let node = from.to_owned();
                out.push(Action::Net(NetAction::IssueTicket { token, node, incarnation, life }));
                None
            }
            Question::Invalidate { objects } if objects.len() > NAMES_MAX => {
                Some(Answer::No(format!("{} objects, {NAMES_MAX} are taken", objects.len())))
            }
            Question::Invalidate { objects } => {
                self.on_invalidation(from, &objects, now_ms, out);
                Some(Answer::Done)
            }
            Question::Draining(is_draining) => {
                let stored = self.keep_draining_member(from, is_draining);
                Some(stored.map_or_else(|error| Answer::No(error.to_string()), |()| Answer::Done))
            }
            Question::Take { object, number, name, is_pinned } => {
                let ask = TakeRequest { from, object, number, name: &name, is_pinned };
                Some(Answer::Took(self.take_object(&ask, now_ms, out)))
            }
            Question::Taken { object } => {
                self.object_removed(from, object, now_ms, out);
                Some(Answer::Done)
            }
            Question::Untake { object, number } => {
                Some(self.untake(from, (object, number), now_ms, out))
            }
            Question::Restarted { life } => {
                let node = from.to_owned();
                self.await_all_at(&node, out);
                out.push(Action::Net(NetAction::EndReads { node, incarnation, life: Some(life) }));
                Some(Answer::Done)
            }
            Question::Missed => {
                self.await_all_at(from, out);
                let (barriers, mut context) = self.barriers(now_ms, out);
                barriers.missed(from, &mut context);
                Some(Answer::Done)
            }
            Question::Delete { target } => self.delete_for(token, from, &target, now_ms, out),
        }
    }
}
