//! A node in its cluster: members, their memory, and free names.
//!
//! The state machines of membership and naming decide. This module connects them to the store and
//! to the requests of clients. Messages to other nodes are [`PeerAction`]s.

mod agreement;
mod by_net;
mod lookups;
mod names;
mod not_joined;
mod offer;
mod peers;
mod questions;
mod remote_clients;
mod stats;
#[cfg(test)]
mod tests;
mod waits;

use std::collections::BTreeMap;

use farrow_membership::naming::{self, Naming};
use farrow_membership::{
    Epoch, Incarnation, Message, NodeName, NodeNumber, Options as MembershipOptions, Output, etcd,
};
use farrow_net::source::MemberLife;
use farrow_store::{ClientSlot, ObjectId};

pub use agreement::AgreementKind;
pub use offer::{MemoryRoute, Offer};
pub use peers::MappablePeer;
use questions::NAMES_MAX;
pub use questions::{Answer, Question};
pub use stats::ClusterNumbers;

use super::node::NodeState;
use super::sync::SyncQuestion;
use super::{Action, PeerIdentity, SessionId};
use crate::net::NetAction;
use agreement::{Agreement, Outcome};
use farrow_wire::{Hello, Listen, MemberInfo, Members, ReplyBody, RequestBody, WireError};
use lookups::{Lookups, because};
use names::Parked;
use not_joined::NotJoined;
use offer::info_of;
use peers::PeerNode;
use waits::Awaited;

/// Limit of the time for a question to another node, in leases: the facts in question do not change
/// sooner.
const ASK_LEASES_MAX: u64 = 3;

/// A notification is retried for this long: longer than any transient link failure.
const TELL_MS_MAX: u64 = 30_000;
/// Pause between attempts to deliver a notification.
const TELL_AGAIN_MS: u64 = 100;
/// Limit of notifications that are not delivered.
const UNTOLD_MAX: usize = 65_536;

/// Options of a node in a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Its name.
    pub name: NodeName,
    /// Address at which the other nodes reach it.
    pub address: String,
    /// How the nodes agree on their members.
    pub agreement: AgreementKind,
    /// Addresses of other nodes, unless the nodes agree by etcd.
    pub seeds: Vec<String>,
    /// A node without any message for this time is considered lost.
    pub lease_ms: u64,
    /// The ways to its memory.
    pub offer: Offer,
    /// Address of its data server; `None`: it has none.
    pub net: Option<String>,
    /// Increases from one start of a node without memory to the next.
    pub incarnation: u64,
    /// A random number.
    pub seed: u64,
}

/// Work that involves other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerAction {
    /// Sends a message of the membership protocol; it may be lost.
    Tell {
        /// The destination.
        address: String,
        /// The sending incarnation of this node.
        incarnation: u64,
        /// The message.
        body: Vec<u8>,
    },
    /// Asks another node; [`NodeState::answered`] is called by the deadline.
    Ask {
        /// Identifies the question.
        token: u64,
        /// The node.
        node: String,
        /// Its address.
        address: String,
        /// The asking incarnation of this node.
        incarnation: u64,
        /// The question.
        body: Vec<u8>,
        /// Limit of the time for an answer.
        timeout_ms: u64,
    },
    /// Answers a question of another node.
    Answer {
        /// Identifies the question.
        token: u64,
        /// The answer.
        body: Vec<u8>,
    },
    /// Maps the memory of a node and calls [`NodeState::mapped`].
    Map {
        /// The node.
        node: String,
        /// The ways to its memory.
        offer: Offer,
    },
    /// Forwards the messages of a client to another node and back.
    Bridge {
        /// The client's connection.
        session: SessionId,
        /// Number of its first request.
        seq: u64,
        /// The node.
        node: String,
        /// Its address.
        address: String,
        /// The incarnation of this node.
        incarnation: u64,
        /// The first message for the other node: `Hello` or `Listen`.
        first: RequestBody,
        /// The client maps the other node's memory.
        maps_memory: bool,
    },
    /// A node is lost: ends the connections that are forwarded to it.
    CutOff {
        /// The node.
        node: String,
        /// Its address.
        address: String,
    },
    /// Watches a process of this node for another one, for a while, and answers.
    WatchProcess {
        /// Identifies the question.
        token: u64,
        /// The process.
        pid: u32,
        /// Its start time.
        start_time: u64,
    },
    /// Watches the process of a client that runs on another node of this machine, and calls
    /// [`NodeState::orphan_died`].
    WatchRemoteClient {
        /// Its slot.
        slot: ClientSlot,
    },
    /// Asks etcd, which stores the membership; [`NodeState::etcd_answered`] is called by a
    /// deadline.
    AskEtcd {
        /// Identifies the question.
        id: u64,
        /// The request.
        request: etcd::EtcdRequest,
    },
    /// Drops these parts of a mapped region from this machine's caches, after writing them back.
    Clean {
        /// Identifies the question.
        token: u64,
        /// The node that owns the region.
        node: String,
        /// Parts of it.
        spans: Vec<farrow_wire::WireSpan>,
    },
}

/// Error on joining a cluster.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The region cannot be read.
    #[error(transparent)]
    Store(#[from] farrow_store::StoreError),
    /// The options are invalid.
    #[error(transparent)]
    Options(#[from] farrow_membership::OptionsError),
}

/// Subject of a question under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) enum PendingQuestion {
    /// A message for names; that protocol repeats by itself.
    Naming,
    /// Whether the process of the client in that slot runs.
    Watch(ClientSlot, PeerIdentity),
    /// Whether processes read through the slot of a client that has ended.
    Family(ClientSlot),
    /// A barrier or flags of a client, by the number of the request.
    Sync(u64),
    /// State from a member for names that this node owns by the view of an epoch.
    HandOver {
        /// The member.
        node: String,
        /// The epoch.
        epoch: Epoch,
    },
    /// The cache lines that a client of another machine left.
    Clean(ClientSlot),
    /// Names that clients wait for.
    Await(String),
    /// Whether a node whose memory is not mapped has a name.
    Has {
        /// The lookup.
        lookup: u64,
        /// The node that is asked.
        node: String,
    },
    /// The address of a node's data server.
    DataAddress {
        /// The node.
        node: String,
        /// Its incarnation.
        incarnation: u64,
    },
    /// A ticket for a connection.
    Ticket {
        /// The node.
        node: String,
        /// Identifies the request.
        number: u64,
    },
    /// Whether a member has dropped its replica of an object.
    Gone {
        /// The member.
        member: MemberLife,
        /// The object.
        id: ObjectId,
    },
    /// A delete that another node performs.
    Delete {
        /// The node.
        node: String,
        /// The delete, and the index of the object in it.
        which: (u64, usize),
    },
    /// A notification that the other node must receive: repeated for a while.
    Told {
        /// The node.
        node: String,
        /// The notification.
        question: Question,
        /// Time of the last attempt.
        until_ms: u64,
    },
}

/// A notification to repeat, and when.
#[derive(Debug)]
struct Untold {
    at_ms: u64,
    what: (String, Question, u64),
}

/// Notes a notification to repeat, unless its node is lost.
fn cluster_again(cluster: &mut Option<Box<Cluster>>, what: (String, Question, u64), now_ms: u64) {
    let Some(cluster) = cluster else {
        return;
    };
    let is_there = cluster.peers.get(&what.0).is_some_and(|node| !node.is_lost());
    if is_there && cluster.untold.len() < UNTOLD_MAX {
        cluster.untold.push(Untold { at_ms: now_ms + TELL_AGAIN_MS, what });
    }
}

/// State of a node's cluster.
#[derive(Debug)]
pub(in crate::protocol) struct Cluster {
    options: ClusterOptions,
    membership: Agreement,
    naming: Naming,
    incarnation: u64,
    has_lease: bool,
    peers: BTreeMap<String, PeerNode>,
    parked: Parked,
    awaited: Awaited,
    lookups: Lookups,
    not_joined: NotJoined,
    /// Whether this node was in a view since this daemon started.
    was_member: bool,
    asked: BTreeMap<u64, PendingQuestion>,
    next_token: u64,
    /// Remote clients without a connection, with the state of their watch.
    watched: BTreeMap<ClientSlot, remote_clients::Watched>,
    /// Ended remote clients whose nodes have not cleaned their caches.
    dirty: BTreeMap<ClientSlot, remote_clients::Dirty>,
    /// Notifications that other nodes have not received.
    untold: Vec<Untold>,
    /// Whether clients must be informed of a change.
    has_news: bool,
    /// Whether the others know that this node leaves.
    has_left: bool,
}

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
        let retained = self.retained_membership()?;
        let first_number = options.incarnation;
        let membership = MembershipOptions {
            name: options.name.clone(),
            address: options.address.clone(),
            info: info_of(&options.offer, options.lease_ms),
            seeds: options.seeds.clone(),
            lease_ms: options.lease_ms,
            incarnation: Incarnation(options.incarnation),
            seed: options.seed,
        };
        let reserved: Vec<String> = self.home.reserved_names().map(str::to_owned).collect();
        let naming = Naming::new(options.name.clone(), options.incarnation, reserved.clone());
        let membership =
            Agreement::new(options.agreement, membership, retained.as_deref(), now_ms)?;
        let incarnation = membership.incarnation().0;
        let known = membership.view().cloned();
        self.cluster = Some(Box::new(Cluster {
            membership,
            naming,
            incarnation,
            has_lease: false,
            peers: BTreeMap::new(),
            parked: Parked::new(reserved),
            awaited: Awaited::default(),
            lookups: Lookups::default(),
            not_joined: NotJoined::default(),
            was_member: false,
            asked: BTreeMap::new(),
            next_token: 0,
            watched: BTreeMap::new(),
            dirty: BTreeMap::new(),
            untold: Vec::new(),
            has_news: true,
            has_left: false,
            options,
        }));
        self.number_syncs_from(first_number);
        if let Some(view) = known {
            self.view_installed(view, now_ms, out);
        }
        self.tick_cluster(now_ms, out);
        Ok(())
    }

    /// Handles a message. `from` is taken from the certificate of the sender.
    pub fn told(
        &mut self,
        (from, incarnation): (&str, u64),
        body: &[u8],
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if self.cluster.is_none() {
            return;
        }
        let Ok(message) = postcard::from_bytes::<Message>(body) else {
            tracing::warn!(from, bytes = body.len(), "a letter that cannot be read");
            return;
        };
        if (message.from.name.as_str(), message.from.incarnation.0) != (from, incarnation) {
            tracing::warn!(from, name = %message.from.name, "a letter in another's name");
            return;
        }
        let outcomes = match self.refuse_lease(&message, now_ms) {
            Some(outcomes) => outcomes,
            None => self
                .cluster
                .as_mut()
                .map_or_else(Vec::new, |cluster| cluster.membership.handle(message, now_ms)),
        };
        self.perform_membership(outcomes, now_ms, out);
        self.tell_members();
    }

    pub(in crate::protocol) fn next_cluster_deadline_ms(&self) -> Option<u64> {
        let cluster = self.cluster.as_ref()?;
        let membership = Some(cluster.membership.next_deadline_ms());
        let naming = Some(cluster.naming.next_deadline_ms()).filter(|at| *at < u64::MAX);
        let parked = cluster.parked.next_deadline_ms();
        let watched =
            cluster.watched.values().filter_map(remote_clients::Watched::next_deadline_ms).min();
        let dirty =
            cluster.dirty.values().filter_map(remote_clients::Dirty::next_deadline_ms).min();
        let untold = cluster.untold.iter().map(|one| one.at_ms).min();
        let by_net = cluster.peers.values().filter_map(PeerNode::ask_by_net_at_ms).min();
        let all = [membership, naming, parked, watched, dirty, untold, by_net];
        all.into_iter().flatten().min()
    }

    pub(in crate::protocol) fn tick_cluster(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let outcomes = cluster.membership.tick(now_ms);
        self.perform_membership(outcomes, now_ms, out);
        self.settle_reserved();
        self.tick_names(now_ms, out);
        self.watch_remote_clients(now_ms, out);
        self.tell_again(now_ms, out);
        self.ask_by_net(now_ms, out);
        self.tell_members();
    }

    /// Whether all state that was handed over has been received.
    pub fn has_handed_over(&self) -> bool {
        let Some(cluster) = &self.cluster else {
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
        !is_under_way && self.has_nothing_set_aside()
    }

    /// Whether no other node needs to learn that this one leaves.
    pub fn has_left(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.has_left)
    }

    /// Announces the leave to the other nodes, so that they need not detect it.
    pub fn leave_cluster(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let outcomes = cluster.membership.leave(now_ms);
        self.perform_membership(outcomes, now_ms, out);
    }

    fn perform_membership(&mut self, outcomes: Vec<Outcome>, now_ms: u64, out: &mut Vec<Action>) {
        for outcome in outcomes {
            match outcome {
                Outcome::Told(told) => self.perform_told(told, now_ms, out),
                Outcome::Ask(action) => out.push(Action::Peer(action)),
                Outcome::Keep(bytes) => self.keep(&bytes),
            }
        }
    }

    fn perform_told(&mut self, told: Output, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        // It increases by itself while a node waits to join.
        cluster.incarnation = cluster.membership.incarnation().0;
        match told {
            Output::Send { address, message } => {
                let Ok(body) = postcard::to_allocvec(&message) else {
                    return;
                };
                let incarnation = cluster.incarnation;
                out.push(Action::Peer(PeerAction::Tell { address, incarnation, body }));
            }
            // Converted to [`Outcome::Keep`] already.
            Output::Keep(_) => {}
            Output::View(view) => self.view_installed(view, now_ms, out),
            Output::Reach { number, state } => {
                cluster.has_news = true;
                let found = cluster.peers.values_mut();
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
                tracing::warn!(epoch = epoch.0, incarnation = next, "the others went on alone");
                cluster.incarnation = next;
                cluster.has_news = true;
                cluster.membership.rejoin(Incarnation(next), now_ms);
                // Their homes know of the incarnation that is over, and not of the next one.
                self.drop_all_replicas(now_ms, out);
                self.perform_naming(outputs, now_ms, out);
                self.sync_outcast(now_ms, out);
            }
            Output::Left => cluster.has_left = true,
            Output::Clash(clash) => self.clashed(&clash, now_ms, out),
        }
    }

    /// Stores the state that must survive a kill, before any message that depends on it is sent.
    fn keep(&mut self, bytes: &[u8]) {
        if let Err(error) = self.keep_membership(bytes) {
            tracing::error!(%error, "what is to be kept for the cluster");
        }
    }

    fn set_lease(&mut self, has_lease: bool, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        if cluster.has_lease != has_lease {
            tracing::info!(has_lease, "lease");
        }
        let is_over = cluster.has_lease && !has_lease;
        cluster.has_lease = has_lease;
        cluster.has_news = true;
        let mut outputs = Vec::new();
        cluster.naming.lease(has_lease, &mut outputs);
        self.perform_naming(outputs, now_ms, out);
        if is_over {
            // The homes of the objects no longer wait for this node.
            for node in self.net_nodes() {
                self.drop_replicas_of(&node, now_ms, out);
            }
        }
        if has_lease {
            self.ask_again(now_ms, out);
        }
    }

    fn perform_naming(
        &mut self,
        outputs: Vec<naming::NameOutput>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        for output in outputs {
            match output {
                naming::NameOutput::Send { to, message } => {
                    if let Some(to) = self.name_of(to) {
                        self.ask_node(
                            &to,
                            &Question::Naming(message),
                            PendingQuestion::Naming,
                            out,
                        );
                    }
                }
                naming::NameOutput::Answer { ticket, results } => {
                    self.names_granted(ticket, &results, now_ms, out);
                }
            }
        }
    }

    fn name_of(&self, number: NodeNumber) -> Option<String> {
        let view = self.cluster.as_ref()?.membership.view()?;
        view.member(number).map(|member| member.name.to_string())
    }

    /// Asks a mapped peer; `false` if it is not known.
    pub(in crate::protocol) fn ask_node(
        &mut self,
        node: &str,
        question: &Question,
        about: PendingQuestion,
        out: &mut Vec<Action>,
    ) -> bool {
        let lease_ms = self.cluster.as_ref().map_or(0, |cluster| cluster.options.lease_ms);
        let timeout_ms = lease_ms.saturating_mul(ASK_LEASES_MAX);
        self.ask_node_within(node, question, about, timeout_ms, out)
    }

    /// As [`Self::ask_node`], with one lease as the limit for the answer.
    pub(in crate::protocol) fn ask_within_lease(
        &mut self,
        node: &str,
        question: &Question,
        about: PendingQuestion,
        out: &mut Vec<Action>,
    ) -> bool {
        let lease_ms = self.cluster.as_ref().map_or(0, |cluster| cluster.options.lease_ms);
        self.ask_node_within(node, question, about, lease_ms, out)
    }

    /// As [`Self::ask_node`], with a limit for the answer.
    fn ask_node_within(
        &mut self,
        node: &str,
        question: &Question,
        about: PendingQuestion,
        timeout_ms: u64,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(cluster) = &mut self.cluster else {
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
        cluster.asked.insert(token, about);
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

    /// Handles the answer to a question of this node, or the reason why there is none.
    pub fn answered(
        &mut self,
        token: u64,
        answer: Result<Vec<u8>, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let Some(about) = cluster.asked.remove(&token) else {
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
                if self.orphans.get(&slot) == Some(&peer) =>
            {
                self.remote_client_gone(slot, now_ms);
            }
            (PendingQuestion::Watch(slot, _), _) => self.watch_later(slot, now_ms),
            (PendingQuestion::Family(slot), Ok(Answer::IsThere(is_there))) => {
                self.family_answered(slot, Some(is_there), now_ms);
            }
            (PendingQuestion::Family(slot), _) => self.family_answered(slot, None, now_ms),
            (PendingQuestion::Clean(slot), Ok(Answer::Done)) => self.cleaned(slot, now_ms),
            (PendingQuestion::Clean(slot), _) => self.clean_later(slot, now_ms),
            (PendingQuestion::Await(node), Ok(Answer::Sealed(names))) => {
                self.sealed_elsewhere(&node, &names, out);
            }
            (PendingQuestion::Has { lookup, node }, answer) => {
                self.lookup_answered(lookup, &node, answer, out);
            }
            (PendingQuestion::DataAddress { node, incarnation }, answer) => {
                self.data_address_answered((&node, incarnation), answer, now_ms, out);
            }
            (PendingQuestion::Ticket { node, number }, answer) => {
                let result = match answer {
                    Ok(Answer::Ticket(ticket)) => Ok(ticket),
                    Ok(Answer::No(why)) | Err(why) => Err(format!("{node} gives no ticket: {why}")),
                    Ok(_) => Err(format!("{node} answered something else")),
                };
                out.push(Action::Net(NetAction::Ticket { number, result }));
            }
            (PendingQuestion::Gone { member, id }, answer) => {
                let is_done = matches!(answer, Ok(Answer::Done));
                self.gone_answered(&member, id, is_done, now_ms, out);
            }
            (PendingQuestion::Delete { node, which }, answer) => {
                let result = match answer {
                    Ok(Answer::Deleted(result)) => result,
                    Ok(Answer::No(why)) | Err(why) => Err(because(&self.unreachable(&node), &why)),
                    Ok(_) => Err(self.unreachable(&node)),
                };
                self.delete_answered(which, result, out);
            }
            (PendingQuestion::Sync(number), Err(_)) => self.sync_unanswered(number, now_ms),
            (PendingQuestion::Sync(number), Ok(Answer::No(why))) => {
                self.sync_refused(number, why, now_ms)
            }
            (PendingQuestion::HandOver { node, epoch }, Ok(Answer::HandedOver(names))) => {
                self.handed_over((&node, epoch), Some(names), now_ms, out);
            }
            (PendingQuestion::HandOver { node, epoch }, _) => {
                self.handed_over((&node, epoch), None, now_ms, out);
            }
            (PendingQuestion::Told { node, question, until_ms }, Err(_) | Ok(Answer::No(_)))
                if now_ms < until_ms && !self.is_of_old_epoch(&question) =>
            {
                cluster_again(&mut self.cluster, (node, question, until_ms), now_ms);
            }
            (
                PendingQuestion::Naming
                | PendingQuestion::Told { .. }
                | PendingQuestion::Await(_)
                | PendingQuestion::Sync(_),
                _,
            ) => {}
        }
    }

    /// Handles a question of another node. `from` is taken from its certificate.
    pub fn asked(
        &mut self,
        token: u64,
        from: (&str, u64),
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
    fn answer_question(
        &mut self,
        token: u64,
        (from, incarnation): (&str, u64),
        question: Question,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Option<Answer> {
        let Some(member) = self.peer_in_life(from, incarnation) else {
            return Some(Answer::No(format!("{from} is no member in life {incarnation}")));
        };
        match question {
            Question::Naming(message) => {
                self.handle_naming(&member, message, now_ms, out);
                Some(Answer::Done)
            }
            Question::Sync(question) => Some(match self.sync_asked(from, question, now_ms, out) {
                Ok(answer) => answer,
                Err(reason) => Answer::No(reason),
            }),
            Question::Watch { pid, start_time } => {
                out.push(Action::Peer(PeerAction::WatchProcess { token, pid, start_time }));
                None
            }
            Question::Clean { region_uid, spans } => {
                if self.region_of(from) != Some(region_uid) {
                    return Some(Answer::No(format!("region {region_uid:#x} is not mapped")));
                }
                let node = from.to_owned();
                out.push(Action::Peer(PeerAction::Clean { token, node, spans }));
                None
            }
            Question::Family { region_uid, place } => Some(match self.memory_of(from) {
                Some(memory) if memory.reader.uid().0 == region_uid => Answer::IsThere(
                    farrow_memory::family::is_mapped_by_client(memory.fabric.as_ref(), place),
                ),
                // Not mapped again yet, but its clients' children may map it.
                _ => Answer::No(format!("region {region_uid:#x} is not mapped")),
            }),
            Question::Await { names } => Some(self.await_for(from, names)),
            Question::Sealed { names } => {
                self.sealed_elsewhere(from, &names, out);
                Some(Answer::Done)
            }
            Question::Has { names } => Some(self.has_names(&names)),
            Question::DataAddress => {
                let net = self.cluster.as_ref().and_then(|cluster| cluster.options.net.clone());
                Some(Answer::DataAddress(net))
            }
            Question::Ticket { life } => {
                let node = from.to_owned();
                out.push(Action::Net(NetAction::IssueTicket { token, node, incarnation, life }));
                None
            }
            Question::Gone { objects } if objects.len() > NAMES_MAX => {
                Some(Answer::No(format!("{} objects, {NAMES_MAX} are taken", objects.len())))
            }
            Question::Gone { objects } => {
                self.objects_gone(from, &objects, now_ms, out);
                Some(Answer::Done)
            }
            Question::Delete { target } => self.delete_for(token, from, &target, now_ms, out),
        }
    }

    /// Sends a notification that a mapped peer must receive, such as a passed barrier or a sealed
    /// name. A repetition is harmless.
    pub(in crate::protocol) fn tell_node(
        &mut self,
        node: &str,
        question: Question,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let until_ms = now_ms.saturating_add(TELL_MS_MAX);
        let about =
            PendingQuestion::Told { node: node.to_owned(), question: question.clone(), until_ms };
        self.ask_node(node, &question, about, out);
    }

    fn tell_again(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let untold = std::mem::take(&mut cluster.untold);
        let (due, later) = untold.into_iter().partition(|one: &Untold| one.at_ms <= now_ms);
        cluster.untold = later;
        for Untold { what: (node, question, until_ms), .. } in due {
            if self.is_of_old_epoch(&question) {
                continue;
            }
            let about =
                PendingQuestion::Told { node: node.clone(), question: question.clone(), until_ms };
            self.ask_node(&node, &question, about, out);
        }
    }

    /// The name of this node; empty without a cluster.
    pub(in crate::protocol) fn own_name(&self) -> String {
        self.cluster.as_ref().map_or_else(String::new, |one| one.options.name.to_string())
    }

    /// The name authority: it decides on a name and owns its state. The same for all nodes with
    /// this view.
    pub(in crate::protocol) fn authority_name(&self, full: &str) -> String {
        let view = self.cluster.as_ref().and_then(|cluster| cluster.membership.view());
        let member = view.and_then(|view| view.member(naming::authority_of(view, full)?));
        member.map_or_else(|| self.own_name(), |member| member.name.to_string())
    }

    /// Whether no other node can own the flags of this node's names.
    pub(in crate::protocol) fn may_keep_flags(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.has_lease)
    }

    /// The name authority once these nodes have left; `None` if there are no others.
    pub(in crate::protocol) fn authority_without(
        &self,
        nodes: &[&str],
        full: &str,
    ) -> Option<String> {
        let mut view = self.cluster.as_ref()?.membership.view()?.clone();
        view.members.retain(|member| !nodes.contains(&member.name.as_str()));
        let member = view.member(naming::authority_of(&view, full)?);
        member.map(|member| member.name.to_string())
    }

    /// The nodes, for clients and as the answer to `Nodes`.
    pub(in crate::protocol) fn members(&self) -> Members {
        let Some(cluster) = &self.cluster else {
            return Members::default();
        };
        let view = cluster.membership.view();
        let own = MemberInfo {
            number: view
                .and_then(|view| view.members.iter().find(|one| one.name == cluster.options.name))
                .map_or(0, |one| one.number.get()),
            name: cluster.options.name.to_string(),
            address: cluster.options.address.clone(),
            incarnation: cluster.incarnation,
            reach: farrow_wire::Reach::Live,
            is_own: true,
            region_uid: self.home.uid().0,
            fabric: self.home.region().fabric().kind().as_str().to_owned(),
            coherence: self.home.region().fabric().coherence_class().as_str().to_owned(),
            why_not: String::new(),
            capacity: self.home.layout().heap.length.0,
        };
        let mut nodes: Vec<MemberInfo> = cluster.peers.values().map(PeerNode::report).collect();
        nodes.push(own);
        nodes.sort_by(|one, other| (one.number, &one.name).cmp(&(other.number, &other.name)));
        Members {
            cluster: view.map_or(0, |view| view.cluster.0),
            epoch: view.map_or(0, |view| view.epoch.0),
            has_lease: cluster.has_lease,
            nodes,
        }
    }

    /// As [`Self::members`], with the nodes to join that are no members.
    pub(in crate::protocol) fn nodes(&self) -> ReplyBody {
        let mut members = self.members();
        members.nodes.extend(self.not_joined());
        ReplyBody::Nodes(members)
    }

    /// Informs clients of the nodes after a change.
    fn tell_members(&mut self) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        if !std::mem::take(&mut cluster.has_news) {
            return;
        }
        let members = self.members();
        if let Err(error) = self.home.tell_clients(&members.encode()) {
            tracing::error!(%error, "clients are not told of the nodes");
        }
    }

    /// The other node that the first message of a connection is for, if there is one.
    pub(in crate::protocol) fn other_node(&self, first: &RequestBody) -> Option<String> {
        let (RequestBody::Hello(Hello { node, .. }) | RequestBody::Listen(Listen { node, .. })) =
            first
        else {
            return None;
        };
        let own = self.cluster.as_ref().map(|cluster| cluster.options.name.as_str());
        (!node.is_empty() && own != Some(node)).then(|| node.clone())
    }

    /// Forwards a client that uses the memory or the events of another node.
    pub(in crate::protocol) fn carry(
        &mut self,
        (session, seq): (SessionId, u64),
        peer: PeerIdentity,
        name: String,
        first: RequestBody,
    ) -> Result<Action, WireError> {
        let (version, maps_memory, first) = match first {
            RequestBody::Hello(hello) => {
                let node = String::new();
                let (version, maps_memory) = (hello.version, hello.maps_memory);
                (version, maps_memory, RequestBody::Hello(Hello { node, ..hello }))
            }
            RequestBody::Listen(listen) => {
                let node = String::new();
                (listen.version, true, RequestBody::Listen(Listen { node, ..listen }))
            }
            _ => return Err(WireError::Invalid("the first message is Hello or Listen".into())),
        };
        self.admit(peer, version)?;
        if peer.remote_client.is_some() {
            // Its own node forwards it to its destination.
            return Err(WireError::Denied("a client of another node is not carried on".to_owned()));
        }
        let Some(cluster) = &self.cluster else {
            return Err(WireError::NoNode { name, known: Vec::new() });
        };
        let Some(peer) = cluster.peers.get(&name) else {
            return Err(WireError::NoNode { name, known: self.members().names() });
        };
        match maps_memory {
            true => peer.check_usable()?,
            false => peer.check_live()?,
        }
        let action = Action::Peer(PeerAction::Bridge {
            session,
            seq,
            node: name,
            address: peer.member.address.clone(),
            incarnation: cluster.incarnation,
            first,
            maps_memory,
        });
        self.forget_silent(session);
        Ok(action)
    }
}

/// Sends an answer to another node.
pub(crate) fn answer_peer(token: u64, answer: &Answer) -> Action {
    let body = postcard::to_allocvec(answer).unwrap_or_default();
    Action::Peer(PeerAction::Answer { token, body })
}
