//! The membership of this node: it joins, keeps its lease and leaves.

use std::collections::BTreeMap;

use farrow_membership::etcd::EtcdReply;
use farrow_membership::naming::Naming;
use farrow_membership::{Incarnation, Message, Options as MembershipOptions, Output};
use farrow_store::StoreError;

use super::agreement::{Agreement, Outcome};
use super::not_joined::NotJoined;
use crate::protocol::action::Action;
use crate::protocol::cluster::names::hint_table::NameHints;
use crate::protocol::cluster::names::parked::{Lookups, Parked};
use crate::protocol::cluster::peers::offer::{continued_info, info_of};
use crate::protocol::cluster::questions::queues::PeerNotifications;
use crate::protocol::cluster::state::Cluster;
use crate::protocol::cluster::waits::awaited::Awaited;
use crate::protocol::cluster::{ClusterOptions, JoinError, PeerAction};
use crate::protocol::core::cluster_record::retained_membership;
use crate::protocol::identity::PeerLife;
use crate::protocol::net::NetAction;
use crate::protocol::state::NodeState;

/// More requests than one daemon makes: a thousand a second for 35 years. In nanoseconds it is 18
/// minutes.
const REQUESTS_MAX: u64 = 1 << 40;

impl NodeState {
    /// Makes this node a member of a cluster. The region has the state of an earlier incarnation.
    ///
    /// # Errors
    ///
    /// The region cannot be read.
    pub fn join_cluster(
        &mut self,
        options: ClusterOptions,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<(), JoinError> {
        let retained = retained_membership(&self.home)?;
        let first_number = self.begin_numbers(options.incarnation)?;
        let (offer, lease_ms) = (&options.offer, options.lease_ms);
        let earlier =
            retained.as_deref().and_then(|one| Agreement::retained_info(options.agreement, one));
        let info = match earlier {
            Some(earlier) => continued_info(offer, lease_ms, &earlier),
            None => info_of(offer, lease_ms),
        };
        let membership = MembershipOptions {
            name: options.name.clone(),
            address: options.address.clone(),
            info,
            seeds: options.seeds.clone(),
            lease_ms: options.lease_ms,
            incarnation: Incarnation(options.incarnation),
            seed: options.seed,
        };
        let reserved: Vec<String> = self.home.reserved_names().map(str::to_owned).collect();
        let naming = Naming::new(options.name.clone(), first_number, reserved.clone());
        let membership =
            Agreement::new(options.agreement, membership, retained.as_deref(), now_ms)?;
        let incarnation = membership.incarnation().0;
        let known = membership.view().cloned();
        if known.is_some() && self.joined.compared_for.is_none() {
            // The life was begun by an earlier version, whose names are those of the cluster.
            self.joined.compared_for = Some(incarnation);
        }
        self.cluster.0 = Some(Box::new(Cluster {
            membership,
            naming,
            incarnation,
            has_lease: false,
            without_lease_since_ms: now_ms,
            peers: BTreeMap::new(),
            parked: Parked::new(reserved),
            awaited: Awaited::default(),
            lookups: Lookups::default(),
            hints: NameHints::default(),
            not_joined: NotJoined::default(),
            was_member: false,
            questions: BTreeMap::new(),
            next_token: 0,
            watched: BTreeMap::new(),
            dirty: BTreeMap::new(),
            notifications: PeerNotifications::default(),
            unconfirmed: Vec::new(),
            is_restarted: self.home.life() > 1,
            has_news: true,
            has_left: false,
            options,
        }));
        if self.home.life() > 1 {
            let clients = self.clients.orphans();
            let records = clients.filter_map(|(slot, _)| self.home.client(slot).ok());
            self.barriers.follow(records.map(|record| record.nonce));
        }
        if let Some(view) = known {
            self.view_installed(view, now_ms, out);
        }
        self.tick_cluster(now_ms, out);
        Ok(())
    }

    /// The first number of the requests of this daemon to other nodes, above all of earlier ones of
    /// this region: members ignore lower ones. `now_ns` is the wall clock.
    ///
    /// # Errors
    ///
    /// The region cannot be read or written.
    fn begin_numbers(&mut self, now_ns: u64) -> Result<u64, StoreError> {
        let earlier = self.barriers.first_number();
        if now_ns <= earlier {
            tracing::warn!(now_ns, earlier, "the wall clock is behind the last number of requests");
        }
        let first = if now_ns > earlier { now_ns } else { earlier.saturating_add(REQUESTS_MAX) };
        self.barriers.number_from(first);
        let retained = retained_membership(&self.home)?;
        let (home, parts, drain) = self.record();
        parts.keep_with(home, retained.as_deref(), drain)?;
        Ok(first)
    }

    /// Handles a message. `from` is taken from the certificate of the sender.
    pub fn on_message(
        &mut self,
        from: PeerLife<'_>,
        body: &[u8],
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if self.cluster.0.is_none() {
            return;
        }
        let Ok(message) = postcard::from_bytes::<Message>(body) else {
            tracing::warn!(
                from = from.name,
                bytes = body.len(),
                "a message of a node cannot be decoded"
            );
            return;
        };
        let sender = (message.from.name.as_str(), message.from.incarnation.0);
        if PeerLife::from(sender) != from {
            let from = from.name;
            tracing::warn!(from, name = %message.from.name, "a message with the name of another sender is ignored");
            return;
        }
        let outcomes = match self.cluster.refuse_lease(&message, now_ms) {
            Some(outcomes) => outcomes,
            None => self
                .cluster
                .0
                .as_mut()
                .map_or_else(Vec::new, |cluster| cluster.membership.handle(message, now_ms)),
        };
        self.perform_membership(outcomes, now_ms, out);
        self.notify_members();
    }

    pub(in crate::protocol) fn tick_cluster(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let outcomes = cluster.membership.tick(now_ms);
        self.perform_membership(outcomes, now_ms, out);
        self.settle_reserved();
        self.tick_names(now_ms, out);
        self.go_on_comparing(now_ms, out);
        self.watch_remote_clients(now_ms, out);
        self.cluster.notify_again(now_ms, out);
        self.cluster.await_again(&self.waits, now_ms, out);
        self.cluster.ask_by_net(self.replicas.kind(), now_ms, out);
        self.cluster.ask_for_room(now_ms, out);
        self.notify_members();
    }

    /// Announces the leave to the other nodes, so that they need not detect it.
    pub fn leave_cluster(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let (drain, mut context) = self.drain(now_ms, out);
        drain.end_in_order(&mut context);
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let outcomes = cluster.membership.leave(now_ms);
        self.perform_membership(outcomes, now_ms, out);
    }

    /// Handles a reply of etcd; [`PeerAction::AskEtcd`] gave the number.
    pub fn on_etcd_response(
        &mut self,
        id: u64,
        reply: EtcdReply,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        self.with_membership(now_ms, out, |membership| {
            membership.on_etcd_response(id, reply, now_ms)
        });
    }

    /// Handles a possible change in etcd.
    pub fn etcd_changed(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.with_membership(now_ms, out, |membership| membership.etcd_changed(now_ms));
    }

    pub(super) fn with_membership(
        &mut self,
        now_ms: u64,
        out: &mut Vec<Action>,
        what: impl FnOnce(&mut Agreement) -> Vec<Outcome>,
    ) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let outcomes = what(&mut cluster.membership);
        self.perform_membership(outcomes, now_ms, out);
        self.notify_members();
    }

    /// Notices the end of the lease before any action that depends on it: a stopped process may
    /// continue after the lease has ended.
    pub(in crate::protocol) fn heed_lease(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let is_over =
            |cluster: &Cluster| cluster.has_lease && !cluster.membership.has_lease(now_ms);
        if self.cluster.0.as_deref().is_some_and(is_over) {
            self.with_membership(now_ms, out, |membership| membership.tick(now_ms));
        }
    }

    pub(super) fn perform_membership(
        &mut self,
        outcomes: Vec<Outcome>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        for outcome in outcomes {
            match outcome {
                Outcome::Membership(output) => self.perform_output(output, now_ms, out),
                Outcome::Ask(action) => out.push(Action::Peer(action)),
                Outcome::Keep(bytes) => self.keep(&bytes),
            }
        }
    }

    pub(in crate::protocol::cluster) fn perform_output(
        &mut self,
        output: Output,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        // It increases by itself while a node waits to join.
        cluster.incarnation = cluster.membership.incarnation().0;
        match output {
            Output::Send { address, message } => {
                let Ok(body) = postcard::to_allocvec(&message) else {
                    return;
                };
                let incarnation = cluster.incarnation;
                out.push(Action::Peer(PeerAction::Message { address, incarnation, body }));
            }
            // Converted to [`Outcome::Keep`] already.
            Output::Keep(_) => {}
            Output::View(view) => self.view_installed(view, now_ms, out),
            Output::Reach { number, state } => {
                cluster.has_news = true;
                // A lost node may have had the number earlier, and returns with a view only.
                let found = cluster.peers.values_mut().filter(|one| !one.is_lost());
                for one in found.filter(|one| one.member.number == number) {
                    one.set_reach(state);
                }
            }
            Output::LeaseFound => self.set_lease(true, now_ms, out),
            Output::LeaseLost => self.set_lease(false, now_ms, out),
            Output::Outcast { epoch } => {
                let next = cluster.incarnation.saturating_add(1);
                let mut outputs = Vec::new();
                cluster.naming.outcast(&mut outputs);
                tracing::warn!(
                    epoch = epoch.0,
                    incarnation = next,
                    "the other members excluded this node"
                );
                cluster.incarnation = next;
                cluster.has_news = true;
                self.joined.outcast();
                cluster.membership.rejoin(Incarnation(next), now_ms);
                // They forgot what they held here when they heard that it is over.
                let readers = cluster.peers.iter();
                let readers = readers.map(|(name, one)| (name.clone(), one.member.incarnation.0));
                let readers: Vec<_> = readers.filter(|_| self.replicas.kind().is_some()).collect();
                out.extend(readers.into_iter().map(|(node, incarnation)| {
                    Action::Net(NetAction::EndReads { node, incarnation, life: None })
                }));
                // Their homes know of the incarnation that is over, and not of the next one.
                let (replicas, mut context) = self.replicas(now_ms, out);
                replicas.drop_all(&mut context);
                self.perform_naming(outputs, now_ms, out);
                let (barriers, mut context) = self.barriers(now_ms, out);
                barriers.outcast(&mut context);
                // What members noted of a drain, they noted of the incarnation that is over.
                self.drain.members_changed(&self.cluster, now_ms);
            }
            Output::Left => cluster.has_left = true,
            Output::Clash(clash) => {
                if let Some(failure) = self.cluster.clashed(&clash, now_ms) {
                    self.failure = Some(failure);
                    out.push(Action::Stop);
                }
            }
        }
    }

    /// Stores the state that must survive a kill, before any message that depends on it is sent.
    pub(in crate::protocol::cluster) fn keep(&mut self, bytes: &[u8]) {
        let (home, parts, drain) = self.record();
        if let Err(error) = parts.keep_with(home, Some(bytes), drain) {
            tracing::error!(%error, "the membership state cannot be stored");
        }
    }

    pub(super) fn set_lease(&mut self, has_lease: bool, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        if cluster.has_lease != has_lease {
            tracing::info!(has_lease, "the lease of this node changed");
        }
        let is_over = cluster.has_lease && !has_lease;
        cluster.has_lease = has_lease;
        if is_over {
            cluster.without_lease_since_ms = now_ms;
        }
        cluster.has_news = true;
        let mut outputs = Vec::new();
        cluster.naming.lease(has_lease, &mut outputs);
        self.perform_naming(outputs, now_ms, out);
        if is_over {
            // The homes of the objects no longer wait for this node.
            for node in self.cluster.net_nodes() {
                let (replicas, mut context) = self.replicas(now_ms, out);
                replicas.drop_of(&node, &mut context);
            }
        }
        if has_lease {
            self.ask_again(now_ms, out);
        }
    }
}
