//! The state of one node, and the calls of its owner.

use std::collections::{BTreeMap, VecDeque};

use super::ballots::{Proposal, VoteRequest};
use super::joining::Joining;
use super::message::{
    Body, ClashError, Message, Output, PersistentState, Reachability, Refusal, Sender,
};
use super::options::{Options, OptionsError};
use super::types::{Epoch, Incarnation, NodeName, NodeNumber};
use super::view::{JoinCandidate, View};

/// Most names informed of a view within a quarter of a lease; further ones wait.
const NOTIFIED_MAX: usize = 256;

/// State of another member, as this node knows it.
#[derive(Debug, Clone)]
pub(super) struct PeerState {
    pub(super) name: NodeName,
    pub(super) incarnation: Incarnation,
    pub(super) address: String,
    /// Time of the last message of this life.
    pub(super) heard_ms: u64,
    /// Time when this node last acknowledged one of its beats.
    pub(super) granted_ms: u64,
    /// The beat that this node acknowledges.
    pub(super) vouched: Option<u64>,
    /// Time when the last own beat was sent that this member acknowledged.
    pub(super) acked_ms: Option<u64>,
    /// Time when it last received a beat out of turn.
    pub(super) urgent_ms: u64,
    /// Another member hears it: no proposal excludes it before this time.
    pub(super) spared_until_ms: u64,
    pub(super) reach: Reachability,
    pub(super) has_left: bool,
    /// Its life is over, although it is still in the view.
    pub(super) has_ended: bool,
}

/// Faults that the tests inject and must detect.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MembershipMutant {
    ForgetsPromise,
    HalfIsQuorum,
    LeaseFromReceipt,
    ExcludesTheLiving,
    CountsOldVotes,
}

/// One node's part in the membership. See the crate documentation.
#[derive(Debug)]
pub struct Membership {
    pub(super) options: Options,
    pub(super) retained: PersistentState,
    /// `retained` differs from the last output.
    pub(super) must_be_stored: bool,
    pub(super) now_ms: u64,
    /// Time of the last detected pause of this node: silence before it does not count.
    pub(super) woke_ms: u64,
    pub(super) installed_ms: u64,
    pub(super) random: u64,
    pub(super) peers: BTreeMap<NodeNumber, PeerState>,
    pub(super) view_sent_ms: BTreeMap<NodeName, u64>,
    pub(super) joining: Joining,
    pub(super) candidates: BTreeMap<NodeName, (JoinCandidate, u64)>,
    /// Beats sent in this view, with their times.
    pub(super) sent: VecDeque<(u64, u64)>,
    pub(super) beat: u64,
    pub(super) next_beat_ms: u64,
    pub(super) next_probe_ms: u64,
    pub(super) probes: u64,
    pub(super) self_acked_ms: Option<u64>,
    pub(super) lease_until_ms: u64,
    had_lease: bool,
    has_lost_lease: bool,
    pub(super) proposal: Option<Proposal>,
    pub(super) round_seen: u64,
    pub(super) next_try_ms: u64,
    pub(super) wish_since_ms: Option<u64>,
    /// Another node may have accepted a next view: acknowledge no beats until it is decided.
    pub(super) is_moving: bool,
    is_over: bool,
    clash_ms: Option<u64>,
    pub(super) out: Vec<Output>,
    #[cfg(test)]
    pub(crate) mutant: Option<MembershipMutant>,
}

impl Membership {
    /// Creates a node, with `retained` where the last process stopped. The retained state counts
    /// only if name, address and info are the same; otherwise a new life begins.
    ///
    /// # Errors
    ///
    /// An option exceeds its limits.
    pub fn new(
        options: Options,
        retained: Option<PersistentState>,
        now_ms: u64,
    ) -> Result<Self, OptionsError> {
        options.check()?;
        let mut random = options.seed;
        let beat = next_random(&mut random) >> 32;
        let joining = Joining::new(&options, now_ms, next_random(&mut random));
        let old = retained.filter(|retained| retained.name == options.name);
        let last = old.as_ref().map_or(0, |retained| retained.incarnation.0.saturating_add(1));
        let blank = PersistentState {
            name: options.name.clone(),
            incarnation: Incarnation(options.incarnation.0.max(last)),
            address: options.address.clone(),
            info: options.info.clone(),
            is_leaving: false,
            is_over: false,
            electorate: joining.electorate_hash,
            view: None,
            promised: None,
            accepted: None,
        };
        let resumed = old.filter(|retained| is_usable(retained, &options, joining.electorate_hash));
        let must_be_stored = resumed.is_none();
        let mut membership = Self {
            options,
            retained: resumed.unwrap_or(blank),
            must_be_stored,
            now_ms,
            woke_ms: now_ms,
            installed_ms: now_ms,
            random,
            peers: BTreeMap::new(),
            view_sent_ms: BTreeMap::new(),
            joining,
            candidates: BTreeMap::new(),
            sent: VecDeque::new(),
            beat,
            next_beat_ms: now_ms,
            next_probe_ms: now_ms,
            probes: 0,
            self_acked_ms: None,
            lease_until_ms: now_ms,
            had_lease: false,
            has_lost_lease: false,
            proposal: None,
            round_seen: 0,
            next_try_ms: now_ms,
            wish_since_ms: None,
            is_moving: false,
            is_over: false,
            clash_ms: None,
            out: Vec::new(),
            #[cfg(test)]
            mutant: None,
        };
        if let Some(view) = membership.retained.view.clone() {
            membership.meet_peers(&view);
            membership.out.push(Output::View(view));
        }
        Ok(membership)
    }

    /// Continues after [`Output::Outcast`] or [`Output::Left`] as a new life, with a higher
    /// incarnation. Otherwise it does nothing.
    pub fn rejoin(&mut self, incarnation: Incarnation, now_ms: u64) {
        if !self.is_over {
            return;
        }
        self.now_ms = self.now_ms.max(now_ms);
        self.is_over = false;
        self.retained.is_over = false;
        let least = self.retained.incarnation.0.saturating_add(1);
        self.retained.incarnation = Incarnation(incarnation.0.max(least));
        self.must_be_stored = true;
        self.joining.begin(self.now_ms);
    }

    /// Handles a received message.
    pub fn handle(&mut self, message: Message, now_ms: u64, out: &mut Vec<Output>) {
        self.enter(now_ms);
        if !self.is_over && message.is_sound() {
            self.read(message);
        }
        self.finish(out);
    }

    /// Handles the passage of time. Due at [`Self::next_deadline_ms`]; earlier or repeated calls do
    /// no harm.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        self.enter(now_ms);
        if !self.is_over {
            self.beat_when_due();
            self.probe_when_due();
            self.ask_when_due();
            self.look_around();
            self.propose_when_due();
        }
        self.finish(out);
    }

    /// Starts to leave. The node gives up the lease at once. [`Output::Left`] follows when the
    /// others have a view without it, so continue until then, or stop earlier.
    pub fn leave(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        self.enter(now_ms);
        if !self.is_over {
            self.retained.is_leaving = true;
            self.must_be_stored = true;
            self.next_beat_ms = self.now_ms;
            if self.peers.is_empty() {
                self.end(None);
            } else {
                self.beat_when_due();
            }
        }
        self.finish(out);
    }

    /// When [`Self::tick`] is due, in milliseconds of the same clock.
    #[must_use]
    pub fn next_deadline_ms(&self) -> u64 {
        if self.is_over {
            return u64::MAX;
        }
        if self.must_be_stored || !self.out.is_empty() {
            return self.now_ms;
        }
        let mut next_ms = match self.retained.view {
            Some(_) => self.next_beat_ms.min(self.next_probe_ms),
            None => self.joining.next_ask_ms,
        };
        if self.had_lease {
            next_ms = next_ms.min(self.lease_until_ms);
        }
        if let Some(proposal) = &self.proposal {
            next_ms = next_ms.min(proposal.deadline_ms);
        } else if self.wish_since_ms.is_some() && self.next_try_ms > self.now_ms {
            next_ms = next_ms.min(self.next_try_ms);
        }
        for peer in self.peers.values() {
            let silent_ms = self.heard_ms(peer).saturating_add(self.options.lease_ms);
            if silent_ms > self.now_ms {
                next_ms = next_ms.min(silent_ms);
            }
        }
        next_ms
    }

    /// The current view.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.retained.view.as_ref()
    }

    /// This node's incarnation; it grows at [`Self::rejoin`] and while the node asks for admission.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.retained.incarnation
    }

    /// This node's number in the view.
    #[must_use]
    pub fn number(&self) -> Option<NodeNumber> {
        let view = self.retained.view.as_ref()?;
        view.number_of(&self.options.name, self.retained.incarnation)
    }

    /// Whether no view without this node can be installed anywhere at `now_ms`.
    #[must_use]
    pub fn has_lease(&self, now_ms: u64) -> bool {
        self.retained.view.is_some() && !self.retained.is_leaving && now_ms < self.lease_until_ms
    }

    /// How long [`Self::has_lease`] stays true without further messages.
    #[must_use]
    pub fn lease_left_ms(&self, now_ms: u64) -> u64 {
        if self.has_lease(now_ms) { self.lease_until_ms - now_ms } else { 0 }
    }

    /// Reachability of a node; the own node is live.
    #[must_use]
    pub fn reach(&self, number: NodeNumber) -> Reachability {
        match self.peers.get(&number) {
            Some(peer) => peer.reach,
            None if self.number() == Some(number) => Reachability::Live,
            None => Reachability::Lost,
        }
    }

    /// Runs before each call: checks the lease, and detects a pause of this node.
    fn enter(&mut self, now_ms: u64) {
        let now_ms = now_ms.max(self.now_ms);
        if self.had_lease && !self.has_lease(now_ms) {
            self.had_lease = false;
            self.has_lost_lease = true;
        }
        // Without a pause, a call follows at least every quarter of a lease.
        if now_ms - self.now_ms >= self.options.lease_ms / 2 {
            self.woke_ms = now_ms;
            self.proposal = None;
        }
        self.now_ms = now_ms;
    }

    fn finish(&mut self, out: &mut Vec<Output>) {
        let has_lease = self.has_lease(self.now_ms);
        if self.had_lease && !has_lease {
            self.has_lost_lease = true;
        }
        if std::mem::take(&mut self.has_lost_lease) {
            out.push(Output::LeaseLost);
            self.had_lease = false;
        }
        if std::mem::take(&mut self.must_be_stored) {
            out.push(Output::Keep(self.retained.clone()));
        }
        out.append(&mut self.out);
        if has_lease && !self.had_lease {
            self.had_lease = true;
            out.push(Output::LeaseFound);
        }
    }

    fn read(&mut self, message: Message) {
        let Message { from, cluster, epoch, body } = message;
        if from.name == self.options.name {
            return self.on_namesake(from, body);
        }
        if let Some(peer) = self.peer_of(&from)
            && cluster.is_some()
            && cluster == self.retained.view.as_ref().map(|view| view.cluster)
        {
            self.heard(peer);
        }
        match body {
            Body::Ask { info, echo } => self.on_join_request(from, info, echo),
            Body::Wait { echo } => self.on_wait(&from, echo),
            Body::Refused(reason) => self.refused(from, reason),
            Body::Forward(candidate) => self.forwarded(&from, epoch, candidate),
            Body::Beat(beat) => self.beaten(&from, cluster, epoch, beat),
            Body::Probe { is_answer } => self.met(&from, cluster, epoch, !is_answer),
            Body::Prepare { ballot, electorate, without } => {
                self.prepare(VoteRequest { from, epoch, ballot, electorate }, without);
            }
            Body::Promise { ballot, accepted } => self.promised(&from, epoch, &ballot, accepted),
            Body::Accept { ballot, electorate, value, is_adopted } => {
                let request = VoteRequest { from, epoch, ballot, electorate };
                self.accept(request, value, is_adopted);
            }
            Body::Accepted { ballot } => self.accepted(&from, epoch, &ballot),
            Body::Nack { ballot, promised, hears } => {
                self.refused_vote(&from, epoch, &ballot, promised, hears);
            }
            Body::Decided { view, is_live } => self.decided(&from, view, is_live),
        }
    }

    /// Handles a message of another process with the name of this node.
    fn on_namesake(&mut self, from: Sender, body: Body) {
        let is_elsewhere = from.address != self.options.address;
        let is_asking = matches!(body, Body::Ask { .. });
        match body {
            Body::Ask { .. } if is_elsewhere && self.retained.view.is_some() => {
                let address = self.options.address.clone();
                self.send(&from.address, Body::Refused(Refusal::NameInUse { address }));
            }
            Body::Refused(reason @ Refusal::NameInUse { .. }) if is_elsewhere => {
                return self.refused(from, reason);
            }
            _ => {}
        }
        if from.incarnation > self.retained.incarnation || is_elsewhere && is_asking {
            let Sender { name, address, .. } = from;
            self.clash(ClashError::NameInUse { name, address });
        }
    }

    /// Installs a view, or ends this life if it is not in it.
    pub(super) fn install(&mut self, view: View) {
        if view.number_of(&self.options.name, self.retained.incarnation).is_none() {
            self.end(Some(&view));
            return;
        }
        self.retained.electorate = view.cluster.0;
        self.retained.promised = None;
        self.retained.accepted = None;
        self.must_be_stored = true;
        self.out.push(Output::View(view.clone()));
        self.meet_peers(&view);
        self.retained.view = Some(view);
        if self.retained.is_leaving && self.peers.is_empty() {
            self.end(None);
        }
    }

    /// Tracks the members of a new view from now on.
    fn meet_peers(&mut self, view: &View) {
        let mut old = std::mem::take(&mut self.peers);
        for member in view.members.iter().filter(|member| member.name != self.options.name) {
            let known = old
                .remove(&member.number)
                .filter(|peer| peer.name == member.name && peer.incarnation == member.incarnation);
            let is_known = known.is_some();
            let fresh = PeerState {
                name: member.name.clone(),
                incarnation: member.incarnation,
                address: member.address.clone(),
                heard_ms: self.now_ms,
                granted_ms: self.now_ms,
                vouched: None,
                acked_ms: None,
                urgent_ms: 0,
                spared_until_ms: 0,
                reach: Reachability::Live,
                has_left: false,
                has_ended: false,
            };
            let peer = PeerState { vouched: None, acked_ms: None, ..known.unwrap_or(fresh) };
            self.peers.insert(member.number, peer);
            if !is_known {
                self.out.push(Output::Reach { number: member.number, state: Reachability::Live });
            }
            self.candidates.retain(|name, (candidate, _)| {
                *name != member.name || candidate.incarnation > member.incarnation
            });
        }
        for number in old.into_keys().filter(|number| view.member(*number).is_none()) {
            self.out.push(Output::Reach { number, state: Reachability::Lost });
        }
        self.installed_ms = self.now_ms;
        self.sent.clear();
        self.self_acked_ms = None;
        self.proposal = None;
        self.wish_since_ms = None;
        self.is_moving = false;
        self.round_seen = 0;
        self.next_beat_ms = self.now_ms;
        self.next_probe_ms = self.now_ms.saturating_add(self.options.lease_ms);
        self.next_try_ms = self.now_ms;
    }

    /// Ends this life; `view` is a view without it.
    pub(super) fn end(&mut self, view: Option<&View>) {
        let old = self.retained.view.take();
        for member in old.iter().chain(view).flat_map(|view| &view.members) {
            self.joining.hint(&member.address, &self.options.address);
        }
        let epoch = view.or(old.as_ref()).map_or(Epoch(0), |view| view.epoch);
        let has_left = std::mem::take(&mut self.retained.is_leaving);
        self.retained.electorate = self.joining.electorate_hash;
        self.retained.promised = None;
        self.retained.accepted = None;
        self.must_be_stored = true;
        self.is_over = true;
        self.retained.is_over = true;
        for number in std::mem::take(&mut self.peers).into_keys() {
            self.out.push(Output::Reach { number, state: Reachability::Lost });
        }
        self.candidates.clear();
        self.proposal = None;
        self.lease_until_ms = self.now_ms;
        self.out.push(if has_left { Output::Left } else { Output::Outcast { epoch } });
    }

    /// The peer with exactly this life.
    pub(super) fn peer_of(&self, from: &Sender) -> Option<NodeNumber> {
        let is_it =
            |peer: &PeerState| peer.name == from.name && peer.incarnation == from.incarnation;
        self.peers.iter().find(|(_, peer)| is_it(peer)).map(|(number, _)| *number)
    }

    pub(super) fn send(&mut self, address: &str, body: Body) {
        let from = Sender {
            name: self.options.name.clone(),
            incarnation: self.retained.incarnation,
            address: self.options.address.clone(),
        };
        let view = self.retained.view.as_ref();
        let cluster = view.map(|view| view.cluster);
        let epoch = view.map_or(Epoch(0), |view| view.epoch);
        let message = Message { from, cluster, epoch, body };
        self.out.push(Output::Send { address: address.to_owned(), message });
    }

    /// Informs a candidate that its lease differs from that of this node.
    pub fn refuse_lease(&mut self, from: &Sender, out: &mut Vec<Output>) {
        let lease_ms = self.options.lease_ms;
        self.send(&from.address, Body::Refused(Refusal::Lease { lease_ms }));
        out.append(&mut self.out);
    }

    /// Sends the current view to a node, at most four times in a lease.
    pub(super) fn send_view(&mut self, to: &Sender) {
        let Some(view) = self.retained.view.clone() else { return };
        let quarter_ms = self.options.lease_ms / 4;
        let now_ms = self.now_ms;
        if self
            .view_sent_ms
            .get(&to.name)
            .is_some_and(|view_sent_ms| now_ms - view_sent_ms < quarter_ms)
        {
            return;
        }
        if self.view_sent_ms.len() >= NOTIFIED_MAX {
            self.view_sent_ms.retain(|_, view_sent_ms| now_ms - *view_sent_ms < quarter_ms);
            if self.view_sent_ms.len() >= NOTIFIED_MAX {
                return;
            }
        }
        self.view_sent_ms.insert(to.name.clone(), now_ms);
        let is_live = self.has_lease(now_ms);
        self.send(&to.address, Body::Decided { view, is_live });
    }

    pub(super) fn clash(&mut self, error: ClashError) {
        let is_due = |at_ms: u64| self.now_ms - at_ms >= 4 * self.options.lease_ms;
        if self.clash_ms.is_none_or(is_due) {
            self.clash_ms = Some(self.now_ms);
            self.out.push(Output::Clash(error));
        }
    }

    /// A random number below a limit.
    pub(super) fn jitter_ms(&mut self, below_ms: u64) -> u64 {
        next_random(&mut self.random) % below_ms.max(1)
    }
}

#[cfg(test)]
impl Membership {
    /// Whether the retained state equals the last output.
    pub(super) fn is_retained(&self) -> bool {
        !self.must_be_stored
    }

    pub(super) fn is_mutant(&self, mutant: MembershipMutant) -> bool {
        self.mutant == Some(mutant)
    }
}

/// Whether a node may continue with the retained state.
fn is_usable(retained: &PersistentState, options: &Options, electorate: u64) -> bool {
    let is_same = retained.address == options.address && retained.info == options.info;
    let is_whole = match &retained.view {
        Some(view) => {
            view.is_sound() && view.number_of(&retained.name, retained.incarnation).is_some()
        }
        None => retained.electorate == electorate,
    };
    // A node that leaves never has the lease again: that life ends with the process that began to leave.
    is_same && is_whole && !retained.is_over && !retained.is_leaving
}

/// The next pseudorandom number (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
/// Generators", OOPSLA 2014).
pub(super) fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// Mixes the bits of a number; from the same paper.
pub(super) fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
