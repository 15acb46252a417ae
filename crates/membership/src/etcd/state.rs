//! The state of one node, and the calls of its owner.

use std::collections::BTreeMap;

use super::mirror::EtcdMirror;
use super::types::{
    EtcdOutput, EtcdPersistentState, EtcdReply, EtcdRequest, EtcdSnapshot, Key, LeaseId, Revision,
};
use crate::message::{ClashError, Output, Reachability};
use crate::options::{Options, OptionsError};
use crate::state::next_random;
use crate::types::{Epoch, Incarnation, NodeName, NodeNumber};
use crate::view::{JoinCandidate, View};

/// A node that waits for its name longer than this, or than two leases, reports it: etcd keeps the
/// sign of life of the previous process for at least 2 s, and checks leases twice in a second.
const NAME_WAIT_MS: u64 = 5_000;

/// Faults that the tests inject and must detect.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EtcdMutant {
    LeaseFromReceipt,
    ExcludesAtOnce,
    ComparesViewOnly,
    TrustsKeepAlive,
}

/// A request without a reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct EtcdInFlight {
    id: u64,
    at_ms: u64,
}

/// The purpose of a change in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangePurpose {
    Register,
    Leave,
    View,
    Clean,
}

/// A node that was found absent.
#[derive(Debug)]
pub(super) struct Absence {
    pub(super) marks: [(Key, Revision); 2],
    /// Time of the first reply that showed the absence.
    pub(super) since_ms: u64,
}

/// One node's part in a membership in etcd. See the module.
#[derive(Debug)]
pub struct EtcdMembership {
    pub(super) options: Options,
    pub(super) retained: EtcdPersistentState,
    must_be_stored: bool,
    pub(super) now_ms: u64,
    pub(super) random: u64,
    pub(super) mirror: EtcdMirror,
    next_id: u64,
    look: Option<EtcdInFlight>,
    /// Time when the last look was requested.
    looked_ms: Option<u64>,
    pub(super) next_look_ms: u64,
    is_failing: bool,
    grant: Option<EtcdInFlight>,
    renewal: Option<EtcdInFlight>,
    next_renewal_ms: u64,
    pub(super) change: Option<(u64, ChangePurpose)>,
    /// The lease of etcd for this node's sign of life.
    pub(super) etcd_lease: Option<LeaseId>,
    /// A registration with this lease was requested.
    pub(super) is_lease_used: bool,
    pub(super) absences: BTreeMap<NodeName, Absence>,
    reach: BTreeMap<NodeNumber, Reachability>,
    pub(super) no_view_since_ms: Option<u64>,
    pub(super) wish_since_ms: Option<u64>,
    pub(super) name_taken_since_ms: Option<u64>,
    is_leaving: bool,
    is_over: bool,
    lease_until_ms: u64,
    had_lease: bool,
    has_lost_lease: bool,
    clash_ms: Option<u64>,
    pub(super) out: Vec<EtcdOutput>,
    #[cfg(test)]
    pub(super) mutant: Option<EtcdMutant>,
}

impl EtcdMembership {
    /// The info of this node in a state that an earlier process retained; `None` for other data.
    pub fn retained_info(retained: &[u8]) -> Option<Vec<u8>> {
        EtcdPersistentState::decode(retained).map(|retained| retained.own.info)
    }

    /// Creates a node, with `retained` where the last process stopped. The retained state counts
    /// only if name, address and info are the same; otherwise a new life begins. The seeds of the
    /// options are not used.
    ///
    /// # Errors
    ///
    /// An option exceeds its limits.
    pub fn new(
        options: Options,
        retained: Option<&[u8]>,
        now_ms: u64,
    ) -> Result<Self, OptionsError> {
        options.check()?;
        let own = JoinCandidate {
            name: options.name.clone(),
            incarnation: options.incarnation,
            address: options.address.clone(),
            info: options.info.clone(),
        };
        let old =
            retained.and_then(EtcdPersistentState::decode).filter(|old| old.own.name == own.name);
        let retained = match old {
            Some(old) if !old.is_over && is_same_node(&old.own, &own) => old,
            old => {
                let former = old.map(|old| old.own.incarnation);
                let least = former.map_or(0, |former| former.0.saturating_add(1));
                let incarnation = Incarnation(own.incarnation.0.max(least));
                let own = JoinCandidate { incarnation, ..own };
                EtcdPersistentState { own, former, is_over: false, view: None }
            }
        };
        let random = options.seed;
        let mut membership = Self {
            options,
            retained,
            must_be_stored: true,
            now_ms,
            random,
            mirror: EtcdMirror::default(),
            next_id: 0,
            look: None,
            looked_ms: None,
            next_look_ms: now_ms,
            is_failing: false,
            grant: None,
            renewal: None,
            next_renewal_ms: now_ms,
            change: None,
            etcd_lease: None,
            is_lease_used: false,
            absences: BTreeMap::new(),
            reach: BTreeMap::new(),
            no_view_since_ms: None,
            wish_since_ms: None,
            name_taken_since_ms: None,
            is_leaving: false,
            is_over: false,
            lease_until_ms: now_ms,
            had_lease: false,
            has_lost_lease: false,
            clash_ms: None,
            out: Vec::new(),
            #[cfg(test)]
            mutant: None,
        };
        if let Some(view) = membership.retained.view.clone() {
            membership.announce_view(&view);
        }
        Ok(membership)
    }

    /// Continues after an end as a new life, with a higher incarnation. Otherwise it does nothing.
    pub fn rejoin(&mut self, incarnation: Incarnation, now_ms: u64) {
        if !self.is_over {
            return;
        }
        self.now_ms = self.now_ms.max(now_ms);
        self.is_over = false;
        let last = self.retained.own.incarnation;
        self.retained.former = Some(last);
        self.retained.own.incarnation = Incarnation(incarnation.0.max(last.0.saturating_add(1)));
        self.retained.is_over = false;
        self.must_be_stored = true;
        self.next_look_ms = self.now_ms;
    }

    /// Handles a reply of etcd.
    pub fn on_response(
        &mut self,
        id: u64,
        reply: EtcdReply,
        now_ms: u64,
        out: &mut Vec<EtcdOutput>,
    ) {
        self.enter(now_ms);
        if let Some(sent) = self.look.take_if(|sent| sent.id == id) {
            match reply {
                EtcdReply::Looked(snapshot) => self.looked(sent.at_ms, snapshot),
                other => self.failed(other),
            }
        } else if self.grant.take_if(|sent| sent.id == id).is_some() {
            match reply {
                EtcdReply::Granted { lease } => {
                    (self.etcd_lease, self.is_lease_used) = (Some(lease), false);
                    self.next_renewal_ms = self.now_ms + self.options.lease_ms / 4;
                    self.act();
                }
                other => self.failed(other),
            }
        } else if let Some(sent) = self.renewal.take_if(|sent| sent.id == id) {
            match reply {
                EtcdReply::RetainedAlive { is_there: false } => self.etcd_lease = None,
                EtcdReply::RetainedAlive { is_there: true } => self.retained_alive(sent.at_ms),
                other => self.failed(other),
            }
        } else if let Some((_, purpose)) = self.change.take_if(|(pending, _)| *pending == id) {
            match reply {
                EtcdReply::Changed { is_done: true } if purpose == ChangePurpose::Leave => {
                    self.end(None)
                }
                // The next look shows the outcome.
                EtcdReply::Changed { .. } => {}
                other => self.failed(other),
            }
            self.next_look_ms = self.now_ms;
        }
        self.finish(out);
    }

    /// Handles a notification of etcd that something changed, or may have.
    pub fn poked(&mut self, now_ms: u64, out: &mut Vec<EtcdOutput>) {
        self.enter(now_ms);
        self.next_look_ms = self.now_ms;
        self.finish(out);
    }

    /// Handles the passage of time. Due at [`Self::next_deadline_ms`]; earlier or repeated calls do
    /// no harm.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<EtcdOutput>) {
        self.enter(now_ms);
        self.finish(out);
    }

    /// Starts to leave. The node gives up the lease at once; [`Output::Left`] follows when etcd has
    /// stored it.
    pub fn leave(&mut self, now_ms: u64, out: &mut Vec<EtcdOutput>) {
        self.enter(now_ms);
        if !self.is_over && !self.is_leaving {
            self.is_leaving = true;
            self.retained.is_over = true;
            self.must_be_stored = true;
            self.act();
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
        let look = self.look.is_none().then(|| self.look_due_ms());
        let renewal = self.is_renewed().then_some(self.next_renewal_ms);
        let lease = self.had_lease.then_some(self.lease_until_ms);
        [look, renewal, lease].into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// The current view.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.retained.view.as_ref()
    }

    /// This node's incarnation; it grows at [`Self::rejoin`] and while the node waits for
    /// admission.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.retained.own.incarnation
    }

    /// Whether no view without this node can be written at `now_ms`.
    #[must_use]
    pub fn has_lease(&self, now_ms: u64) -> bool {
        self.retained.view.is_some() && !self.is_leaving && now_ms < self.lease_until_ms
    }

    /// How long [`Self::has_lease`] stays true without further replies.
    #[must_use]
    pub fn lease_left_ms(&self, now_ms: u64) -> u64 {
        if self.has_lease(now_ms) { self.lease_until_ms - now_ms } else { 0 }
    }

    /// Runs before each call: checks the lease.
    fn enter(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        if self.had_lease && !self.has_lease(self.now_ms) {
            self.had_lease = false;
            self.has_lost_lease = true;
        }
    }

    fn finish(&mut self, out: &mut Vec<EtcdOutput>) {
        if !self.is_over {
            self.look_when_due();
            self.renew_when_due();
        }
        let has_lease = self.has_lease(self.now_ms);
        if self.had_lease && !has_lease {
            self.has_lost_lease = true;
        }
        if std::mem::take(&mut self.has_lost_lease) {
            out.push(EtcdOutput::Membership(Output::LeaseLost));
            self.had_lease = false;
        }
        if std::mem::take(&mut self.must_be_stored) {
            out.push(EtcdOutput::Keep(self.retained.encode()));
        }
        out.append(&mut self.out);
        if has_lease && !self.had_lease {
            self.had_lease = true;
            out.push(EtcdOutput::Membership(Output::LeaseFound));
        }
    }

    /// Time of the next look. At most 64 looks are due in a lease, however often keys change.
    fn look_due_ms(&self) -> u64 {
        let pause_ms = self.options.lease_ms / 64;
        let least_ms = self.looked_ms.map_or(0, |looked_ms| looked_ms + pause_ms);
        self.next_look_ms.max(least_ms)
    }

    fn look_when_due(&mut self) {
        if self.look.is_some() || self.now_ms < self.look_due_ms() {
            return;
        }
        let id = self.ask(EtcdRequest::Look { since: self.mirror.since() });
        self.look = Some(EtcdInFlight { id, at_ms: self.now_ms });
        self.looked_ms = Some(self.now_ms);
        self.next_look_ms = self.now_ms + self.options.lease_ms / 4;
    }

    fn is_renewed(&self) -> bool {
        self.etcd_lease.is_some() && self.renewal.is_none()
    }

    fn renew_when_due(&mut self) {
        let Some(lease) = self.etcd_lease.filter(|_| self.is_renewed()) else { return };
        if self.now_ms >= self.next_renewal_ms {
            let id = self.ask(EtcdRequest::KeepAlive { lease });
            self.renewal = Some(EtcdInFlight { id, at_ms: self.now_ms });
            self.next_renewal_ms = self.now_ms + self.options.lease_ms / 4;
        }
    }

    pub(super) fn ask(&mut self, request: EtcdRequest) -> u64 {
        self.next_id += 1;
        self.out.push(EtcdOutput::Ask { id: self.next_id, request });
        self.next_id
    }

    /// Requests a lease of etcd, unless a request is in progress.
    pub(super) fn ask_for_lease(&mut self) {
        if self.grant.is_none() {
            let ttl_s = self.options.lease_ms.div_ceil(1000);
            let id = self.ask(EtcdRequest::Grant { ttl_s });
            self.grant = Some(EtcdInFlight { id, at_ms: self.now_ms });
        }
    }

    /// Handles a failed or mismatched reply.
    fn failed(&mut self, reply: EtcdReply) {
        let reason = match reply {
            EtcdReply::Failed { reason } => reason,
            other => format!("an answer to another question: {other:?}"),
        };
        let pause_ms = self.options.lease_ms / 8;
        let jitter_ms = self.below(pause_ms);
        self.next_look_ms = self.now_ms + pause_ms + jitter_ms;
        // One lost reply is not worth a report.
        if std::mem::replace(&mut self.is_failing, true) {
            self.clash(ClashError::Etcd { reason });
        }
    }

    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "a fault that tests put in"))]
    fn retained_alive(&mut self, _sent_ms: u64) {
        #[cfg(test)]
        if self.mutant == Some(EtcdMutant::TrustsKeepAlive) && self.retained.view.is_some() {
            self.hold_from(_sent_ms);
        }
    }

    /// Extends the lease: it lasts from the sending of a look. Clocks of two machines differ in
    /// rate by less than one part in a thousand, and each of the two times is truncated to
    /// milliseconds.
    fn hold_from(&mut self, sent_ms: u64) {
        let lasts_ms = self.options.lease_ms - self.options.lease_ms / 32 - 1;
        self.lease_until_ms = self.lease_until_ms.max(sent_ms + lasts_ms);
    }

    fn looked(&mut self, sent_ms: u64, snapshot: EtcdSnapshot) {
        if self.is_over {
            return;
        }
        let is_whole = self.mirror.since() == Revision(0);
        if !self.mirror.apply(snapshot) {
            self.next_look_ms = self.now_ms;
            if is_whole {
                self.failed(EtcdReply::Failed { reason: "keys without their values".to_owned() });
            }
            return;
        }
        self.is_failing = false;
        let view = match self.mirror.view() {
            Ok(view) => view.cloned(),
            Err(Revision(revision)) => {
                let reason = format!("the view of revision {revision} cannot be read");
                return self.clash(ClashError::Etcd { reason });
            }
        };
        self.follow(view);
        if self.is_over {
            return;
        }
        self.note_absences();
        let is_member = self.retained.view.is_some();
        if is_member && !self.is_leaving && self.is_registered() {
            #[cfg(test)]
            let sent_ms = match self.mutant {
                Some(EtcdMutant::LeaseFromReceipt) => self.now_ms,
                _ => sent_ms,
            };
            self.hold_from(sent_ms);
        }
        self.act();
    }

    /// Applies the view in etcd to this life.
    fn follow(&mut self, found: Option<View>) {
        if found.is_some() {
            self.no_view_since_ms = None;
        } else {
            self.no_view_since_ms.get_or_insert(self.now_ms);
        }
        let own = &self.retained.own;
        let is_in = |view: &View| view.number_of(&own.name, own.incarnation).is_some();
        match (&self.retained.view, found) {
            (Some(known), Some(found)) if *known == found => {}
            (Some(known), Some(found)) => {
                let is_later = known.cluster == found.cluster && known.epoch < found.epoch;
                match is_later && is_in(&found) {
                    true => self.install(found),
                    false => self.end(Some(&found)),
                }
            }
            (None, Some(found)) if is_in(&found) => self.install(found),
            (Some(_), None) => self.end(None),
            (None, _) => {}
        }
    }

    fn install(&mut self, view: View) {
        self.retained.view = Some(view.clone());
        self.must_be_stored = true;
        self.announce_view(&view);
    }

    fn announce_view(&mut self, view: &View) {
        self.out.push(EtcdOutput::Membership(Output::View(view.clone())));
        let peers = view.members.iter().filter(|member| member.name != self.options.name);
        self.reach = peers.map(|member| (member.number, Reachability::Live)).collect();
    }

    /// Ends this life; `view` is a view without it.
    fn end(&mut self, view: Option<&View>) {
        let old = self.retained.view.take();
        let epoch = view.or(old.as_ref()).map_or(Epoch(0), |view| view.epoch);
        self.retained.is_over = true;
        self.must_be_stored = true;
        self.is_over = true;
        for (number, _) in std::mem::take(&mut self.reach) {
            let lost = Output::Reach { number, state: Reachability::Lost };
            self.out.push(EtcdOutput::Membership(lost));
        }
        self.absences.clear();
        self.wish_since_ms = None;
        self.lease_until_ms = self.now_ms;
        let has_left = std::mem::take(&mut self.is_leaving);
        let output = if has_left { Output::Left } else { Output::Outcast { epoch } };
        self.out.push(EtcdOutput::Membership(output));
    }

    /// Updates the absent nodes, with the time since when, and the reachability of the members.
    fn note_absences(&mut self) {
        let members = self.retained.view.iter().chain(self.mirror.view().ok().flatten());
        let members = members.flat_map(|view| &view.members);
        let mut absent: BTreeMap<NodeName, [(Key, Revision); 2]> = members
            .filter(|member| !self.mirror.is_present(&member.name, member.incarnation))
            .map(|member| (member.name.clone(), self.mirror.marks_of(&member.name)))
            .collect();
        for record in self.mirror.records() {
            let name = &record.node.name;
            if !self.mirror.is_alive(name) {
                absent.insert(name.clone(), self.mirror.marks_of(name));
            }
        }
        let mut known = std::mem::take(&mut self.absences);
        for (name, marks) in absent {
            let known = known.remove(&name).filter(|known| known.marks == marks);
            let fresh = Absence { marks, since_ms: self.now_ms };
            self.absences.insert(name, known.unwrap_or(fresh));
        }
        let Some(view) = &self.retained.view else { return };
        for member in view.members.iter().filter(|one| one.name != self.options.name) {
            let is_there = self.mirror.is_present(&member.name, member.incarnation);
            let state = if is_there { Reachability::Live } else { Reachability::Suspect };
            let number = member.number;
            if self.reach.insert(number, state).is_some_and(|before| before != state) {
                self.out.push(EtcdOutput::Membership(Output::Reach { number, state }));
            }
        }
    }

    /// Whether the last look found this life registered and present.
    pub(super) fn is_registered(&self) -> bool {
        let name = &self.options.name;
        let is_own = self.mirror.record(name).is_some_and(|one| one.node == self.retained.own);
        is_own && self.mirror.is_present(name, self.retained.own.incarnation)
    }

    /// Does the next step after a look.
    fn act(&mut self) {
        if self.is_over || self.change.is_some() || self.looked_ms.is_none() {
            return;
        }
        if self.is_leaving {
            if !self.write_farewell() {
                self.end(None);
            }
        } else if !self.is_registered() {
            self.register();
        } else {
            self.etcd_lease = self.mirror.lease_of(&self.options.name);
            self.name_taken_since_ms = None;
            self.propose();
        }
    }

    /// Begins a life above a known one.
    pub(super) fn rise_above(&mut self, known: Incarnation) {
        self.retained.own.incarnation = Incarnation(known.0.saturating_add(1));
        self.must_be_stored = true;
    }

    /// Waits while another node has the name.
    pub(super) fn wait_for_name(&mut self, address: String) {
        let since_ms = *self.name_taken_since_ms.get_or_insert(self.now_ms);
        let patience_ms = NAME_WAIT_MS.max(2 * self.options.lease_ms);
        if self.now_ms - since_ms >= patience_ms {
            let name = self.options.name.clone();
            self.clash(ClashError::NameInUse { name, address });
        }
    }

    pub(super) fn clash(&mut self, error: ClashError) {
        let is_due = |at_ms: u64| self.now_ms - at_ms >= 4 * self.options.lease_ms;
        if self.clash_ms.is_none_or(is_due) {
            self.clash_ms = Some(self.now_ms);
            self.out.push(EtcdOutput::Membership(Output::Clash(error)));
        }
    }

    /// A random number below a limit.
    fn below(&mut self, limit: u64) -> u64 {
        next_random(&mut self.random) % limit.max(1)
    }
}

/// Whether two lives have the same address and info.
fn is_same_node(one: &JoinCandidate, other: &JoinCandidate) -> bool {
    one.address == other.address && one.info == other.info
}
