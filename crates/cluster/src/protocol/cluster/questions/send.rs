//! Questions and notifications of this node to others.

use farrow_store::{ClientSlot, RemoteClient};

use super::message::Question;
use super::pending::PendingQuestion;
use crate::protocol::action::Action;
use crate::protocol::cluster::state::ASK_LEASES_MAX;
use crate::protocol::cluster::{OptionalCluster, PeerAction};
use crate::protocol::replicas::invalidation_notice::InvalidationNotice;

/// A question to a mapped peer.
#[derive(Debug)]
pub(in crate::protocol) struct PeerQuestion<'a> {
    pub(in crate::protocol) node: &'a str,
    pub(in crate::protocol) question: &'a Question,
    /// What the answer is for.
    pub(in crate::protocol) about: PendingQuestion,
    /// Limit of the time for the answer.
    pub(in crate::protocol) timeout_ms: u64,
}

impl OptionalCluster {
    /// Asks a mapped peer; `false` if it is not known.
    pub(in crate::protocol) fn ask_node(
        &mut self,
        node: &str,
        question: &Question,
        about: PendingQuestion,
        out: &mut Vec<Action>,
    ) -> bool {
        let timeout_ms = self.lease_ms().saturating_mul(ASK_LEASES_MAX);
        self.ask(PeerQuestion { node, question, about, timeout_ms }, out)
    }

    /// The lease of the cluster, the time in which a node answers or is excluded.
    pub(in crate::protocol) fn lease_ms(&self) -> u64 {
        self.0.as_ref().map_or(0, |cluster| cluster.options.lease_ms)
    }

    /// As [`Self::ask_node`], with a limit of its own for the answer.
    pub(in crate::protocol) fn ask(
        &mut self,
        peer_question: PeerQuestion<'_>,
        out: &mut Vec<Action>,
    ) -> bool {
        let PeerQuestion { node, question, about, timeout_ms } = peer_question;
        let Some(cluster) = &mut self.0 else {
            return false;
        };
        let Some(peer) = cluster.peers.get(node) else {
            return false;
        };
        let Ok(body) = postcard::to_allocvec(question) else {
            return false;
        };
        let token = cluster.next_token;
        cluster.next_token += 1;
        cluster.questions.insert(token, about);
        out.push(Action::Peer(PeerAction::Ask {
            token,
            node: node.to_owned(),
            address: peer.member.address.clone(),
            incarnation: cluster.incarnation,
            body,
            timeout_ms,
        }));
        true
    }

    /// Asks the node of a client that has ended; `false` if that is not possible now.
    pub(in crate::protocol) fn ask_node_of(
        &mut self,
        remote_client: RemoteClient,
        question: &Question,
        slot: ClientSlot,
        out: &mut Vec<Action>,
    ) -> bool {
        let node = self.node_of(remote_client);
        node.is_some_and(|node| self.ask_node(&node, question, PendingQuestion::Family(slot), out))
    }

    /// Notifies a member that an object is deleted; `false` if that is not possible now.
    pub(in crate::protocol) fn send_invalidation_notice(
        &mut self,
        notice: InvalidationNotice,
        out: &mut Vec<Action>,
    ) -> bool {
        if !self.is_in_life(&notice.member) {
            return false;
        }
        let question = Question::Invalidate { objects: vec![notice.id.lo] };
        let node = notice.member.name.clone();
        self.ask_node(&node, &question, PendingQuestion::Invalidate(notice), out)
    }

    /// Asks a node to delete one of its objects; `false` if that is not possible now.
    pub(in crate::protocol) fn ask_delete(
        &mut self,
        node: &str,
        question: Question,
        which: (u64, usize),
        out: &mut Vec<Action>,
    ) -> bool {
        let about = PendingQuestion::Delete { node: node.to_owned(), which };
        self.ask_node(node, &question, about, out)
    }
}
