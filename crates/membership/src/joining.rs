//! Joining: asking for admission, admitting, and founding a cluster.

use std::collections::VecDeque;

use super::ballots::ProposedChange;
use super::message::{Body, ClashError, Reachability, Refusal, SEEDS_MAX, Sender};
use super::options::Options;
use super::state::{Membership, mix, next_random};
use super::types::{ClusterId, Epoch, MEMBERS_MAX, NodeNumber, NodeSet};
use super::view::{JoinCandidate, View};

/// Most candidates at a time: a full cluster that restarts.
const CANDIDATES_MAX: usize = 2 * MEMBERS_MAX;

/// Time in leases that a node asks before it reports that its name is in use. An earlier life that
/// was killed counts as live for a lease, or two on a slow machine.
const IN_USE_LEASES: u64 = 4;

/// Time in leases that a node that knows of a cluster asks before it founds another one. The
/// members must first detect that its old life is over, and agree. Twice that time.
const PATIENCE_LEASES: u64 = 4;

/// Addresses to ask for admission, and their answers.
#[derive(Debug)]
pub(super) struct Joining {
    /// Its own address and all seeds, sorted: the electorate of the first view.
    electorate: Vec<String>,
    pub(super) electorate_hash: u64,
    /// Addresses learned from others, the oldest first.
    hints: VecDeque<String>,
    /// The echoes of the addresses that sent [`Body::Wait`].
    echoes: Vec<(String, u64)>,
    pub(super) next_ask_ms: u64,
    since_ms: u64,
    /// Time when a cluster without this node was last reported.
    pub(super) wait_at_ms: Option<u64>,
    nonce: u64,
}

impl Joining {
    pub(super) fn new(options: &Options, now_ms: u64, nonce: u64) -> Self {
        let mut electorate = options.seeds.clone();
        electorate.push(options.address.clone());
        electorate.sort();
        electorate.dedup();
        Self {
            electorate_hash: electorate.iter().fold(1, |hash, address| hash_of(hash, address)),
            electorate,
            hints: VecDeque::new(),
            echoes: Vec::new(),
            next_ask_ms: now_ms,
            since_ms: now_ms,
            wait_at_ms: None,
            nonce,
        }
    }

    /// Restarts the requests for a new life.
    pub(super) fn begin(&mut self, now_ms: u64) {
        self.echoes.clear();
        self.next_ask_ms = now_ms;
        self.since_ms = now_ms;
    }

    /// Adds an address to ask.
    pub(super) fn hint(&mut self, address: &str, own: &str) {
        let is_known = self.electorate.iter().chain(&self.hints).any(|known| known == address);
        if is_known || address == own {
            return;
        }
        if self.hints.len() >= SEEDS_MAX {
            self.hints.pop_front();
        }
        self.hints.push_back(address.to_owned());
    }

    pub(super) fn places(&self) -> NodeSet {
        NodeNumber::all().take(self.electorate.len()).collect()
    }

    pub(super) fn place_of(&self, address: &str) -> Option<NodeNumber> {
        let place = self.electorate.binary_search_by(|known| known.as_str().cmp(address)).ok()?;
        NodeNumber::new(u8::try_from(place).ok()?)
    }

    pub(super) fn other_addresses(&self, own: &str) -> Vec<String> {
        self.electorate.iter().filter(|address| *address != own).cloned().collect()
    }

    fn echo_of(&self, address: &str) -> u64 {
        let known = self.echoes.iter().find(|(known, _)| known == address);
        known.map_or(0, |(_, echo)| *echo)
    }
}

/// FNV-1a over the length and the bytes of each text.
fn hash_of(seed: u64, text: &str) -> u64 {
    let length = (text.len() as u64).to_le_bytes();
    length.iter().chain(text.as_bytes()).fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Membership {
    pub(super) fn ask_when_due(&mut self) {
        if self.retained.view.is_some() || self.now_ms < self.joining.next_ask_ms {
            return;
        }
        self.joining.next_ask_ms = self.now_ms + self.options.lease_ms / 4;
        let mut addresses = self.joining.other_addresses(&self.options.address);
        addresses.extend(self.joining.hints.iter().cloned());
        for address in addresses {
            self.ask(&address);
        }
    }

    fn ask(&mut self, address: &str) {
        let echo = self.joining.echo_of(address);
        let info = self.options.info.clone();
        self.send(address, Body::Ask { info, echo });
    }

    pub(super) fn on_wait(&mut self, from: &Sender, echo: u64) {
        let address = &from.address;
        let mut candidates = self.joining.electorate.iter().chain(&self.joining.hints);
        let is_news = self.retained.view.is_none()
            && candidates.any(|known| known == address)
            && self.joining.echo_of(address) != echo;
        if is_news {
            self.joining.echoes.retain(|(known, _)| known != address);
            // With more echoes than addresses to ask, some are stale: all are dropped.
            if self.joining.echoes.len() >= 2 * SEEDS_MAX {
                self.joining.echoes.clear();
            }
            self.joining.echoes.push((address.clone(), echo));
            self.ask(address);
        }
    }

    pub(super) fn refused(&mut self, from: Sender, reason: Refusal) {
        if self.retained.view.is_some() {
            return;
        }
        let is_long = self.now_ms - self.joining.since_ms >= IN_USE_LEASES * self.options.lease_ms;
        match reason {
            Refusal::Stale { known } => {
                if let Some(next) =
                    known.0.checked_add(1).filter(|_| known >= self.retained.incarnation)
                {
                    self.retained.incarnation.0 = next;
                    self.must_be_stored = true;
                    self.ask(&from.address);
                }
            }
            Refusal::NameInUse { address } if is_long => {
                self.clash(ClashError::NameInUse { name: self.options.name.clone(), address });
            }
            Refusal::NameInUse { .. } => {}
            Refusal::Lease { lease_ms } => self.clash(ClashError::Lease {
                address: from.address,
                own_ms: self.options.lease_ms,
                theirs_ms: lease_ms,
            }),
            Refusal::Full => self.clash(ClashError::Full { members: MEMBERS_MAX }),
        }
    }

    /// Handles a request for admission.
    pub(super) fn on_join_request(&mut self, from: Sender, info: Vec<u8>, echo: u64) {
        let Some(view) = &self.retained.view else {
            self.note_candidate(from, info);
            return;
        };
        if view.number_of_sender(&from).is_some() {
            self.send_view(&from);
            return;
        }
        if let Some(known) = view.last_life(&from.name).filter(|last| *last >= from.incarnation) {
            self.send(&from.address, Body::Refused(Refusal::Stale { known }));
            return;
        }
        let is_full = view.members.len() >= MEMBERS_MAX && view.named(&from.name).is_none();
        if self.mark_life_ended(&from, None) {
            return;
        }
        if is_full {
            self.send(&from.address, Body::Refused(Refusal::Full));
            return;
        }
        let old = self.peers.values().find(|peer| peer.name == from.name);
        if let Some(old) =
            old.filter(|old| old.reach == Reachability::Live && old.address != from.address)
        {
            let address = old.address.clone();
            self.send(&from.address, Body::Refused(Refusal::NameInUse { address }));
            self.clash(ClashError::NameInUse { name: from.name, address: from.address });
            return;
        }
        let secret = self.joining.nonce ^ from.incarnation.0;
        // 0 is the echo of a first request.
        let expected = mix(hash_of(secret, from.name.as_str())) | 1;
        if echo != expected {
            self.send(&from.address, Body::Wait { echo: expected });
            return;
        }
        self.note_candidate(from.clone(), info.clone());
        let is_better = |(number, peer): &(&NodeNumber, &super::state::PeerState)| {
            peer.reach == Reachability::Live && !peer.has_left && Some(**number) < self.number()
        };
        if let Some((_, first)) = self.peers.iter().find(is_better) {
            let address = first.address.clone();
            let Sender { name, incarnation, address: theirs } = from;
            let candidate = JoinCandidate { name, incarnation, address: theirs, info };
            self.send(&address, Body::Forward(candidate));
        }
        self.propose_when_due();
    }

    pub(super) fn forwarded(&mut self, from: &Sender, epoch: Epoch, candidate: JoinCandidate) {
        // A request from an earlier epoch may be of a life that no longer waits; a waiting node
        // asks again.
        let is_now = self.retained.view.as_ref().is_some_and(|view| view.epoch == epoch);
        if !is_now || self.peer_of(from).is_none() || candidate.name == self.options.name {
            return;
        }
        let JoinCandidate { name, incarnation, address, info } = candidate;
        self.note_candidate(Sender { name, incarnation, address }, info);
        self.propose_when_due();
    }

    fn note_candidate(&mut self, from: Sender, info: Vec<u8>) {
        let (now_ms, lease_ms) = (self.now_ms, self.options.lease_ms);
        if self.candidates.len() >= CANDIDATES_MAX {
            self.candidates.retain(|_, (_, heard_ms)| now_ms - *heard_ms < 2 * lease_ms);
        }
        let Sender { name, incarnation, address } = from;
        let known = self.candidates.get(&name);
        if known.is_some_and(|(known, _)| known.incarnation > incarnation)
            || known.is_none() && self.candidates.len() >= CANDIDATES_MAX
        {
            return;
        }
        let candidate = JoinCandidate { name: name.clone(), incarnation, address, info };
        self.candidates.insert(name, (candidate, now_ms));
    }

    /// The candidates that now ask from an address of the electorate.
    pub(super) fn present(&self) -> Vec<(NodeNumber, &JoinCandidate)> {
        let lease_ms = self.options.lease_ms;
        let fresh =
            self.candidates.values().filter(|(_, heard_ms)| self.now_ms - heard_ms < lease_ms);
        let place_of = |candidate: &JoinCandidate| self.joining.place_of(&candidate.address);
        fresh.filter_map(|(candidate, _)| Some((place_of(candidate)?, candidate))).collect()
    }

    /// The first view, once no reachable node can have one.
    pub(super) fn first_view(&self) -> Option<ProposedChange> {
        let lease_ms = self.options.lease_ms;
        let own = self.joining.place_of(&self.options.address)?;
        let present = self.present();
        let places: NodeSet = present.iter().map(|(place, _)| *place).chain([own]).collect();
        let is_waiting = self
            .joining
            .wait_at_ms
            .is_some_and(|wait_at_ms| self.now_ms - wait_at_ms < PATIENCE_LEASES * lease_ms);
        let is_alone = self.joining.electorate.len() == 1;
        let patience_ms = match (is_alone, self.joining.hints.is_empty()) {
            (true, true) => 0,
            (true, false) => PATIENCE_LEASES * lease_ms,
            (false, _) => lease_ms / 2,
        };
        let is_early = self.now_ms - self.joining.since_ms < patience_ms;
        if is_waiting || is_early || !self.joining.places().is_majority(places) {
            return None;
        }
        let mut random = self.random ^ self.now_ms;
        let cluster = ClusterId(next_random(&mut random));
        let empty = View { cluster, epoch: Epoch(0), members: Vec::new(), former: Vec::new() };
        let mut joins: Vec<JoinCandidate> = present.into_iter().map(|(_, c)| c.clone()).collect();
        joins.push(JoinCandidate {
            name: self.options.name.clone(),
            incarnation: self.retained.incarnation,
            address: self.options.address.clone(),
            info: self.options.info.clone(),
        });
        joins.sort_by(|a, b| a.address.cmp(&b.address));
        let value = empty.next(NodeSet::default(), NodeSet::default(), &joins);
        Some(ProposedChange { value, without: NodeSet::default(), is_unfinished: false })
    }
}
