//! A node that joins in a new life compares the names of its objects with those of the other
//! members: see [`farrow_membership::naming::JoinedNames`].

use std::collections::BTreeSet;

use farrow_membership::naming::{JoinedNames, JoinedQuestion, NumberedLife};
use farrow_membership::{Member, NodeNumber};
use farrow_store::{ObjectId, namespace_of, own_name};
use farrow_wire::{Rights, WireTarget};

use crate::protocol::Action;
use crate::protocol::cluster::questions::message::NAMES_MAX;
use crate::protocol::cluster::{Answer, PendingQuestion, Question};
use crate::protocol::identity::node_key;
use crate::protocol::replicas::{DeleteOrigin, Withdrawal};
use crate::protocol::state::NodeState;

impl NodeState {
    /// Begins to compare names if this node has joined in a new life, and goes on with the members
    /// of a new view.
    pub(in crate::protocol::cluster) fn compare_names(
        &mut self,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &self.cluster.0 else { return };
        let incarnation = cluster.membership.incarnation().0;
        if self.joined.compared_for == Some(incarnation) {
            return;
        }
        let live = cluster.peers.values().filter(|peer| !peer.is_lost());
        let life = |member: &Member| NumberedLife {
            number: member.number,
            incarnation: member.incarnation,
        };
        let members: Vec<NumberedLife> = live.map(|peer| life(&peer.member)).collect();
        if self.joined.names.is_none() || self.joined.incarnation != incarnation {
            let names = self.names_to_compare();
            self.joined.outcast();
            self.joined.incarnation = incarnation;
            self.joined.names = Some(JoinedNames::new(names));
        }
        if let Some(names) = &mut self.joined.names {
            names.set_members(members);
        }
        self.go_on_comparing(now_ms, out);
    }

    /// The names of all objects. Names that moved or are moving are settled by the two nodes of the
    /// move.
    fn names_to_compare(&self) -> Vec<String> {
        let mut names = self.home.own_names().unwrap_or_else(|error| {
            tracing::error!(%error, "names that other members may have too are not compared");
            Vec::new()
        });
        let record = &self.drain.record;
        let hi = self.home.uid().0;
        let outgoing = record.outgoing.iter().chain(&record.undone);
        let moving =
            outgoing.filter_map(|one| self.home.name_of_object(ObjectId { hi, lo: one.object }));
        let moving: BTreeSet<String> =
            moving.chain(record.incoming.iter().map(|one| one.name.clone())).collect();
        names.retain(|name| !moving.contains(name));
        names
    }

    /// Asks members that are to be asked. Once all have answered, no name is in doubt.
    pub(in crate::protocol) fn go_on_comparing(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let incarnation = self.joined.incarnation;
        let Some(names) = &mut self.joined.names else { return };
        for question in names.due(now_ms) {
            let node = self.cluster.name_of(question.to.number);
            let names = Question::Joined { names: question.names.clone() };
            let to = question.to;
            let about = PendingQuestion::Joined { incarnation, question };
            let is_sent = node.is_some_and(|node| self.cluster.ask_node(&node, &names, about, out));
            if let Some(names) = self.joined.names.as_mut().filter(|_| !is_sent) {
                names.on_no_response(to, now_ms);
            }
        }
        for id in self.joined.replaced(&self.home) {
            self.take_name_of(id, now_ms, out);
        }
        let movers = self.cluster.movers(&self.drain.record);
        let is_over = self.joined.names.as_mut().is_some_and(|names| names.is_over(movers));
        if is_over && self.joined.losing.is_empty() {
            self.joined.names = None;
            self.joined.compared_for = Some(incarnation);
            if let Err(error) = self.keep_settings() {
                tracing::error!(%error, "names are compared again after a restart");
            }
        }
    }

    /// Handles the answer of a member about the names that this node brought.
    pub(in crate::protocol::cluster) fn on_joined_response(
        &mut self,
        (incarnation, question): (u64, JoinedQuestion),
        answer: Result<Answer, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if incarnation != self.joined.incarnation {
            return;
        }
        let node = self.cluster.name_of(question.to.number).unwrap_or_default();
        let (rules, key) = (&self.rules, node_key(&node));
        let may_name = |name: &String| rules.of(namespace_of(name), key).has(Rights::WRITE);
        let Some(names) = &mut self.joined.names else { return };
        let lost = match answer {
            Ok(Answer::Has(mut has)) => {
                // A member cannot have names by which its clients may not write.
                let claimed = has.iter_mut().zip(&question.names);
                claimed.for_each(|(has, name)| *has &= may_name(name));
                names.on_response(&question, &has)
            }
            // An earlier version does not understand the question.
            Ok(answer) if answer.is_rejection() || !matches!(answer, Answer::No(_)) => {
                names.excuse(question.to);
                Vec::new()
            }
            Ok(_) | Err(_) => {
                names.on_no_response(question.to, now_ms);
                Vec::new()
            }
        };
        for name in lost {
            self.lose_name(name, &node, now_ms, out);
        }
        self.go_on_comparing(now_ms, out);
    }

    /// Another member has an object of this name: the one of this node loses it.
    fn lose_name(&mut self, name: String, node: &str, now_ms: u64, out: &mut Vec<Action>) {
        let Ok(Some(id)) = self.home.own_named(&name) else { return };
        tracing::error!(
            name = own_name(&name),
            %id,
            node,
            "while this node was not in the cluster, an object of another node got the name of an \
             object of this one, which stays under its id, without the name"
        );
        self.joined.lost += 1;
        self.joined.losing.insert(name, id);
        self.take_name_of(id, now_ms, out);
    }

    /// Takes the name from an object, once no other node has a replica with that name.
    fn take_name_of(&mut self, id: ObjectId, now_ms: u64, out: &mut Vec<Action>) {
        let target = WireTarget::Id(id.into());
        self.go_on_to_delete(Withdrawal::new(DeleteOrigin::Name, target), now_ms, out);
    }

    /// No other node finds an object by its name any more, which it loses now.
    pub(in crate::protocol) fn name_withdrawn(
        &mut self,
        target: &WireTarget,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let WireTarget::Id(id) = target else { return };
        let id = ObjectId::from(*id);
        if let Err(error) = self.home.unname(id) {
            tracing::debug!(%id, %error, "an object loses its name");
        }
        self.go_on_comparing(now_ms, out);
    }

    /// Which names of a node that has joined are those of objects of this one, too.
    pub(in crate::protocol::cluster) fn names_of_joined(
        &self,
        joining: &Member,
        names: &[String],
    ) -> Answer {
        if names.len() > NAMES_MAX {
            return Answer::No(format!("{} names, {NAMES_MAX} are taken", names.len()));
        }
        let own = self.cluster.own_number();
        let (Some(own), Some(cluster)) = (own, &self.cluster.0) else {
            return Answer::no_member(joining.name.as_str(), joining.incarnation.0);
        };
        let has = |name: &String| {
            let is_own = cluster.naming.has_in_flight(name)
                || self.home.is_reserved(name)
                // An unreadable name might exist.
                || self.home.own_named(name).map_or(true, |id| id.is_some());
            is_own && self.joined.outranks(name, own, joining.number)
        };
        Answer::Has(names.iter().map(has).collect())
    }
}

impl crate::protocol::cluster::OptionalCluster {
    /// The number of this node in its view.
    fn own_number(&self) -> Option<NodeNumber> {
        let cluster = self.0.as_ref()?;
        let view = cluster.membership.view()?;
        view.named(&cluster.options.name).map(|member| member.number)
    }
}
