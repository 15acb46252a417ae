//! A node among others: who is there, where their memory lies, which names are free.
//!
//! The state machines of membership and naming decide; this joins them to the store and to the
//! requests of clients. What goes to other nodes comes out as [`PeerAction`].

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

pub(crate) use remote_clients::node_key;

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
use peers::Peer;
use waits::Awaited;

/// How long a question to another node may take, in leases: what is to be found out does not
/// change sooner.
const ASK_LEASES_MAX: u64 = 3;

/// What another node has to hear of is told so long, longer than a link is broken that is not lost,
const TELL_MS_MAX: u64 = 30_000;
/// after pauses of so long,
const TELL_AGAIN_MS: u64 = 100;
/// and as much of it is retained.
const UNTOLD_MAX: usize = 65_536;

/// What a node is to the others.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Its name.
    pub name: NodeName,
    /// Where the others reach it.
    pub address: String,
    /// How the nodes agree on who they are.
    pub agreement: AgreementKind,
    /// Where it finds others, unless they agree by etcd.
    pub seeds: Vec<String>,
    /// After so long without a word a node is thought lost.
    pub lease_ms: u64,
    /// How its memory is reached.
    pub offer: Offer,
    /// Where its data server listens; `None`: it has none.
    pub net: Option<String>,
    /// A number that grows from one start of a node without memory to the next.
    pub incarnation: u64,
    /// A random number.
    pub seed: u64,
}

/// Something to do with other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerAction {
    /// Send a message of the membership protocol; it may be lost.
    Tell {
        /// To where.
        address: String,
        /// Which life of this node sends it.
        incarnation: u64,
        /// The message.
        body: Vec<u8>,
    },
    /// Ask another node; [`NodeState::answered`] is called by the deadline.
    Ask {
        /// Names the question.
        token: u64,
        /// Which node.
        node: String,
        /// Where it is.
        address: String,
        /// Which life of this node asks.
        incarnation: u64,
        /// The question.
        body: Vec<u8>,
        /// How long it may take.
        timeout_ms: u64,
    },
    /// Answer what another node asked.
    Answer {
        /// Names the question.
        token: u64,
        /// The answer.
        body: Vec<u8>,
    },
    /// Map the memory of a node and call [`NodeState::mapped`].
    Map {
        /// Which.
        node: String,
        /// How.
        offer: Offer,
    },
    /// Carry the messages of a client to another node and back.
    Bridge {
        /// The client's connection.
        session: SessionId,
        /// Its first request's number.
        seq: u64,
        /// Which node.
        node: String,
        /// Where it is.
        address: String,
        /// Which life of this node this is.
        incarnation: u64,
        /// The first message for the other node: `Hello` or `Listen`.
        first: RequestBody,
        /// The client maps the other node's memory.
        maps_memory: bool,
    },
    /// A node is lost: end the connections that are carried to it.
    CutOff {
        /// Which.
        node: String,
        /// Where it was.
        address: String,
    },
    /// Look after a process of this node for another one, for a while, and answer.
    WatchProcess {
        /// Names the question.
        token: u64,
        /// The process.
        pid: u32,
        /// Its start time.
        start_time: u64,
    },
    /// Watch the process of a client that runs on another node of this machine, and call
    /// [`NodeState::orphan_died`].
    WatchRemoteClient {
        /// Its place.
        slot: ClientSlot,
    },
    /// Ask etcd, which keeps the membership; [`NodeState::etcd_answered`] is called by a deadline.
    AskEtcd {
        /// Names the question.
        id: u64,
        /// What.
        request: etcd::EtcdRequest,
    },
    /// Drop from this machine's caches what is written back of these parts of a mapped region.
    Clean {
        /// Names the question.
        token: u64,
        /// Whose region.
        node: String,
        /// Parts of it.
        spans: Vec<farrow_wire::WireSpan>,
    },
}

/// Why a node cannot be one of several.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The region cannot be read.
    #[error(transparent)]
    Store(#[from] farrow_store::StoreError),
    /// The options make no sense.
    #[error(transparent)]
    Options(#[from] farrow_membership::OptionsError),
}

/// What a question that is under way is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) enum PendingQuestion {
    /// The protocol for names repeats by itself.
    Naming,
    /// Whether the process of the client in that place is there.
    Watch(ClientSlot, PeerIdentity),
    /// Whether processes read through the place of a client that has ended.
    Family(ClientSlot),
    /// A barrier or flags of a client.
    Sync(u64),
    /// What a member retained that this node keeps by the view of an epoch.
    HandOver {
        /// Which node.
        node: String,
        /// Which epoch.
        epoch: Epoch,
    },
    /// What a client of another machine left in its caches.
    Clean(ClientSlot),
    /// Names that clients wait for.
    Await(String),
    /// Whether a node whose memory is not mapped has a name.
    Has {
        /// Which lookup.
        lookup: u64,
        /// The node that is asked.
        node: String,
    },
    /// Where a node's data server listens.
    DataAddress {
        /// Which node.
        node: String,
        /// Which life of it.
        incarnation: u64,
    },
    /// A ticket for a connection.
    Ticket {
        /// Which node.
        node: String,
        /// Names the request.
        number: u64,
    },
    /// Whether a member has dropped its replica of an object.
    Gone {
        /// Which.
        member: MemberLife,
        /// Which object.
        id: ObjectId,
    },
    /// A delete that is another node's to do.
    Delete {
        /// Which node.
        node: String,
        /// The delete, and which of its objects.
        which: (u64, usize),
    },
    /// Something that the other node has to hear of: told again until it has, for a while.
    Told {
        /// Which node.
        node: String,
        /// What.
        question: Question,
        /// No longer than this.
        until_ms: u64,
    },
}

/// Something to tell again, and when.
#[derive(Debug)]
struct Untold {
    at_ms: u64,
    what: (String, Question, u64),
}

/// Notes that a node has to be told again, if it is not lost.
fn cluster_again(cluster: &mut Option<Box<Cluster>>, what: (String, Question, u64), now_ms: u64) {
    let Some(cluster) = cluster else {
        return;
    };
    let is_there = cluster.peers.get(&what.0).is_some_and(|node| !node.is_lost());
    if is_there && cluster.untold.len() < UNTOLD_MAX {
        cluster.untold.push(Untold { at_ms: now_ms + TELL_AGAIN_MS, what });
    }
}

/// All that a node knows of its cluster.
#[derive(Debug)]
pub(in crate::protocol) struct Cluster {
    options: ClusterOptions,
    membership: Agreement,
    naming: Naming,
    incarnation: u64,
    has_lease: bool,
    peers: BTreeMap<String, Peer>,
    parked: Parked,
    awaited: Awaited,
    lookups: Lookups,
    not_joined: NotJoined,
    /// It was in a view since this daemon began.
    was_member: bool,
    asked: BTreeMap<u64, PendingQuestion>,
    next_token: u64,
    /// Remote clients without a connection, each with when its node is asked again.
    watched: BTreeMap<ClientSlot, remote_clients::Watched>,
    /// Remote clients that went, and whose nodes have not cleaned up behind them.
    dirty: BTreeMap<ClientSlot, remote_clients::Dirty>,
    /// What other nodes have to hear of and did not.
    untold: Vec<Untold>,
    /// Clients have to be told.
    has_news: bool,
    /// The others know that it goes.
    has_left: bool,
}

impl NodeState {
    /// Makes this node one of a cluster. What an earlier life retained is found in the region.
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

    /// A message came. `from` is what the certificate of the sender says.
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
        let by_net = cluster.peers.values().filter_map(Peer::ask_by_net_at_ms).min();
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

    /// Whether all that was handed over was taken.
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

    /// Whether nobody has to be told that this node goes.
    pub fn has_left(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.has_left)
    }

    /// Says farewell to the others, so that they need not find out.
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
        // It grows by itself while a node waits to be let in.
        cluster.incarnation = cluster.membership.incarnation().0;
        match told {
            Output::Send { address, message } => {
                let Ok(body) = postcard::to_allocvec(&message) else {
                    return;
                };
                let incarnation = cluster.incarnation;
                out.push(Action::Peer(PeerAction::Tell { address, incarnation, body }));
            }
            // Bytes by now.
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
                self.perform_naming(outputs, now_ms, out);
                self.sync_outcast(now_ms, out);
            }
            Output::Left => cluster.has_left = true,
            Output::Clash(clash) => self.clashed(&clash, now_ms, out),
        }
    }

    /// What is to be known after a kill. Retained before anything that follows from it is sent.
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
            // Their homes wait for this node no longer.
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

    /// Asks a mapped peer; false when it is not known.
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

    /// As [`Self::ask_node`], and no answer within a lease is none.
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

    /// As [`Self::ask_node`], with a time for the answer.
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

    /// The answer to a question of this node, or why there is none.
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
            // By now another client may have that place.
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

    /// Another node asks. `from` is what its certificate says.
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

    /// `None`: the answer comes later.
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
                // Not mapped again yet; its clients' children may be.
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

    /// Tells a mapped peer something that it must not miss: a barrier that was passed, a name that was
    /// sealed. Telling twice does no harm.
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

    /// The name of this node; empty where it is alone.
    pub(in crate::protocol) fn own_name(&self) -> String {
        self.cluster.as_ref().map_or_else(String::new, |one| one.options.name.to_string())
    }

    /// The node that decides on a name, or keeps what has it: the same for all that have this view.
    pub(in crate::protocol) fn authority_name(&self, full: &str) -> String {
        let view = self.cluster.as_ref().and_then(|cluster| cluster.membership.view());
        let member = view.and_then(|view| view.member(naming::authority_of(view, full)?));
        member.map_or_else(|| self.own_name(), |member| member.name.to_string())
    }

    /// Whether no other node can keep flags of the names that this one keeps.
    pub(in crate::protocol) fn may_keep_flags(&self) -> bool {
        self.cluster.as_ref().is_none_or(|cluster| cluster.has_lease)
    }

    /// The same once these nodes have left; `None` if there are no others.
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

    /// What clients are told of the nodes, and `Nodes` is answered with.
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
        let mut nodes: Vec<MemberInfo> = cluster.peers.values().map(Peer::report).collect();
        nodes.push(own);
        nodes.sort_by(|one, other| (one.number, &one.name).cmp(&(other.number, &other.name)));
        Members {
            cluster: view.map_or(0, |view| view.cluster.0),
            epoch: view.map_or(0, |view| view.epoch.0),
            has_lease: cluster.has_lease,
            nodes,
        }
    }

    /// As [`Self::members`], with the nodes that are to be joined and are no members.
    pub(in crate::protocol) fn nodes(&self) -> ReplyBody {
        let mut members = self.members();
        members.nodes.extend(self.not_joined());
        ReplyBody::Nodes(members)
    }

    /// Tells clients of the nodes, if something changed.
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

    /// For which other node the first message of a connection is, if it is for one.
    pub(in crate::protocol) fn other_node(&self, first: &RequestBody) -> Option<String> {
        let (RequestBody::Hello(Hello { node, .. }) | RequestBody::Listen(Listen { node, .. })) =
            first
        else {
            return None;
        };
        let own = self.cluster.as_ref().map(|cluster| cluster.options.name.as_str());
        (!node.is_empty() && own != Some(node)).then(|| node.clone())
    }

    /// A client wants the memory of another node, or to be told of events there.
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
            // Its own node carries it to where it wants.
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
