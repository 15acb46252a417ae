//! Questions of other nodes, and the answers of this one.

use farrow_memory::family::is_mapped_by_client;
use farrow_wire::WireSpan;

use super::message::{Answer, NAMES_MAX, Question};
use crate::protocol::action::{Action, answer_peer};
use crate::protocol::cluster::PeerAction;
use crate::protocol::cluster::names::lookups::has_names;
use crate::protocol::core::drain::incoming::TakeRequest;
use crate::protocol::identity::PeerLife;
use crate::protocol::net::NetAction;
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
                let (barriers, mut rest) = self.barriers(now_ms, out);
                Some(barriers.on_request(from, question, &mut rest).unwrap_or_else(Answer::No))
            }
            Question::Watch { pid, start_time } => {
                let node = from.to_owned();
                out.push(Action::Peer(PeerAction::WatchProcess { token, node, pid, start_time }));
                None
            }
            Question::Clean { region_uid, spans } => {
                self.clean_for(token, from, region_uid, spans, out)
            }
            Question::Family { region_uid, place } => Some(self.has_child(from, region_uid, place)),
            Question::Await { names } => Some(self.await_for(from, names, now_ms, out)),
            Question::StillAwaited { names } => Some(self.still_awaited(&names)),
            Question::Sealed { names } => {
                self.sealed_elsewhere(from, &names, now_ms, out);
                Some(Answer::Done)
            }
            Question::Has { names } => Some(has_names(&self.home, &names)),
            Question::Joined { names } => Some(self.names_of_joined(&member, &names)),
            Question::Where { name } => {
                Some(self.cluster.where_is(&self.home, &self.rules, from, &name))
            }
            Question::Room => Some(self.own_room()),
            Question::DataAddress => Some(self.data_address()),
            Question::Ticket { life } => {
                let node = from.to_owned();
                out.push(Action::Net(NetAction::IssueTicket { token, node, incarnation, life }));
                None
            }
            Question::Invalidate { objects } => Some(self.invalidate(from, &objects, now_ms, out)),
            Question::Draining(is_draining) => {
                Some(self.note_draining(from, is_draining, now_ms, out))
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
                Some(self.on_restarted((from, incarnation).into(), life, out))
            }
            Question::Missed => Some(self.on_missed(from, now_ms, out)),
            Question::Delete { target } => self.delete_for_peer(token, from, &target, now_ms, out),
        }
    }

    /// Has the server write back the cache lines that clients of this node left in these ranges.
    fn clean_for(
        &mut self,
        token: u64,
        from: &str,
        region_uid: u64,
        spans: Vec<WireSpan>,
        out: &mut Vec<Action>,
    ) -> Option<Answer> {
        if self.cluster.region_of(from) != Some(region_uid) {
            return Some(Answer::No(format!("region {region_uid:#x} is not mapped")));
        }
        let node = from.to_owned();
        out.push(Action::Peer(PeerAction::Clean { token, node, spans }));
        None
    }

    /// Whether processes of this node map a region of another one through the slot of a client.
    fn has_child(&self, from: &str, region_uid: u64, place: u32) -> Answer {
        match self.cluster.memory_of(from) {
            Some(memory) if memory.reader.uid().0 == region_uid => {
                Answer::IsThere(is_mapped_by_client(memory.fabric.as_ref(), place))
            }
            // Not mapped again yet, but its clients' children may map it.
            _ => Answer::No(format!("region {region_uid:#x} is not mapped")),
        }
    }

    fn await_for(
        &mut self,
        node: &str,
        names: Vec<String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Answer {
        let (cluster, mut context) = self.awaiting(now_ms, out);
        cluster.await_for(node, names, &mut context)
    }

    fn sealed_elsewhere(
        &mut self,
        node: &str,
        names: &[String],
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let (cluster, mut context) = self.awaiting(now_ms, out);
        cluster.sealed_elsewhere(node, names, &mut context);
    }

    fn still_awaited(&self, names: &[String]) -> Answer {
        if names.len() > NAMES_MAX {
            return Answer::No(format!("{} names, {NAMES_MAX} are taken", names.len()));
        }
        Answer::Has(names.iter().map(|name| self.waits.is_awaited(name)).collect())
    }

    fn own_room(&self) -> Answer {
        Answer::Room { free: self.home.free_bytes().0.0, capacity: self.home.capacity().0 }
    }

    fn data_address(&self) -> Answer {
        let cluster = self.cluster.0.as_ref();
        Answer::DataAddress(cluster.and_then(|cluster| cluster.options.net.clone()))
    }

    fn invalidate(
        &mut self,
        from: &str,
        objects: &[u64],
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Answer {
        if objects.len() > NAMES_MAX {
            return Answer::No(format!("{} objects, {NAMES_MAX} are taken", objects.len()));
        }
        let (replicas, mut rest) = self.replicas(now_ms, out);
        replicas.on_invalidation(from, objects, &mut rest);
        Answer::Done
    }

    /// Another node's daemon follows an earlier one, whose reads and waits have ended.
    fn on_restarted(&mut self, of: PeerLife<'_>, life: u64, out: &mut Vec<Action>) -> Answer {
        let PeerLife { name, incarnation } = of;
        self.cluster.await_all_at(name, &self.waits, out);
        let node = name.to_owned();
        out.push(Action::Net(NetAction::EndReads { node, incarnation, life: Some(life) }));
        Answer::Done
    }

    /// Notifications of another node did not reach this one.
    fn on_missed(&mut self, from: &str, now_ms: u64, out: &mut Vec<Action>) -> Answer {
        self.cluster.await_all_at(from, &self.waits, out);
        let (barriers, mut rest) = self.barriers(now_ms, out);
        barriers.missed(from, &mut rest);
        Answer::Done
    }
}
