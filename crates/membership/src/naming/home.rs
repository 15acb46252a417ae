//! The names of a node: requested, held and settled.

mod asks;
mod decisions;

use std::collections::{BTreeMap, BTreeSet};

use super::authority::{ListPart, NameAuthority};
use super::debt::{Debt, batches};
use super::{
    NAMES_MAX, NameChecks, NameMessage, NameMessageBody, NameOutput, NameRefusal, NumberedLife,
    RETRY_MS, Unread, hash_of_member, highest, is_name,
};
use crate::{ClusterId, Epoch, Incarnation, NodeName, NodeNumber, View};

/// The relevant part of a view.
#[derive(Debug)]
struct ViewMembers {
    cluster: ClusterId,
    epoch: Epoch,
    own: NodeNumber,
    incarnation: Incarnation,
    /// Number, incarnation and hash of each member.
    all: Vec<(NodeNumber, Incarnation, u64)>,
}

impl ViewMembers {
    fn authority_of(&self, name: &str) -> NodeNumber {
        let scored = self.all.iter().map(|(number, _, hash)| (*number, *hash));
        highest(scored, name).unwrap_or(self.own)
    }
}

/// A request without an answer.
#[derive(Debug)]
struct UnansweredRequest {
    ticket: u64,
    deadline_ms: u64,
    results: Vec<Option<Result<(), NameRefusal>>>,
    left: usize,
}

/// Names of one request with the same authority.
#[derive(Debug)]
struct PendingNames {
    to: NodeNumber,
    ask: u64,
    names: Vec<String>,
    next_ms: u64,
    /// It was sent more than once, so a copy may arrive after the answer.
    is_again: bool,
}

/// Who claims names.
#[derive(Debug, Clone, Copy)]
struct ClaimSender {
    home: NodeNumber,
    session: u64,
    serial: u64,
}

/// Sessions of home and authority, and the message's number in the former.
#[derive(Debug, Clone, Copy)]
struct Header {
    session: u64,
    authority: u64,
    serial: u64,
}

/// Where a message of this epoch is from, and which process it is for.
#[derive(Debug, Clone, Copy)]
struct Provenance {
    from: NumberedLife,
    header: Header,
    /// It is for this process as an authority.
    is_queried: bool,
    /// It answers a message of this process.
    is_own: bool,
}

/// One node's part in keeping names unique. See the module.
#[derive(Debug)]
pub struct Naming {
    own: NodeName,
    session: u64,
    members: Option<ViewMembers>,
    has_lease: bool,
    serial: u64,
    next_id: u64,
    asks: BTreeMap<u64, UnansweredRequest>,
    /// Requested names: the request, and the position in it.
    pending: BTreeMap<String, (u64, usize)>,
    claims: BTreeMap<u64, PendingNames>,
    held: BTreeSet<String>,
    debts: BTreeMap<NodeNumber, Debt>,
    /// The last known session of each member.
    sessions: BTreeMap<(NodeNumber, Incarnation), u64>,
    pub(super) authority: NameAuthority,
    /// The nodes with directories that this node cannot read.
    unread: Unread,
    /// Faults that the tests must detect.
    #[cfg(test)]
    pub(super) hears_old_epochs: bool,
    #[cfg(test)]
    pub(super) unread_fault: Option<UnreadFault>,
}

/// Faults of an authority that cannot read all directories.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnreadFault {
    /// Unreadable directories count as empty.
    AsksNone,
    /// The first answer decides.
    AsksOne,
    /// A name is not in flight for its home while members are queried.
    AdmitsWaiting,
}

impl Naming {
    /// Creates a node without requests. `session` is above 0, and above that of every earlier
    /// process of the same life. `held` contains the names that such a process handed over.
    #[must_use]
    pub fn new(own: NodeName, session: u64, held: impl IntoIterator<Item = String>) -> Self {
        Self {
            own,
            session,
            members: None,
            has_lease: false,
            serial: 0,
            next_id: 0,
            asks: BTreeMap::new(),
            pending: BTreeMap::new(),
            claims: BTreeMap::new(),
            held: held.into_iter().filter(|name| is_name(name)).take(NAMES_MAX).collect(),
            debts: BTreeMap::new(),
            sessions: BTreeMap::new(),
            authority: NameAuthority::default(),
            unread: Unread::default(),
            #[cfg(test)]
            hears_old_epochs: false,
            #[cfg(test)]
            unread_fault: None,
        }
    }

    /// Whether an object may be sealed under the name now: the name was granted and is not settled,
    /// and this node has the lease.
    #[must_use]
    pub fn holds(&self, name: &str) -> bool {
        self.has_lease && self.held.contains(name)
    }

    /// Whether an authority may still have the settled name in flight for this node.
    #[must_use]
    pub fn owes(&self, name: &str) -> bool {
        self.debts.values().any(|debt| debt.settled.contains_key(name))
    }

    /// Whether [`Self::owes`] is true for any name.
    #[must_use]
    pub fn owes_any(&self) -> bool {
        self.debts.values().any(|debt| !debt.settled.is_empty())
    }

    /// All held names, to be handed over to the next process of the same life.
    pub fn held(&self) -> impl Iterator<Item = &str> {
        self.held.iter().map(String::as_str)
    }

    /// Sets the nodes with unreadable directories. Call it before every call that takes `exists`.
    pub fn set_unread(&mut self, unread: Unread) {
        self.unread = unread;
    }

    /// Handles an installed view. A view without this node acts as [`Self::outcast`].
    pub fn view_installed(&mut self, view: &View, now_ms: u64, out: &mut Vec<NameOutput>) {
        let Some(member) = view.named(&self.own) else {
            self.outcast(out);
            return;
        };
        let old = self.members.as_ref().map(|old| (old.cluster, old.incarnation));
        if old.is_some_and(|old| old != (view.cluster, member.incarnation)) {
            self.outcast(out);
        }
        let all = view.members.iter().map(|m| (m.number, m.incarnation, hash_of_member(m)));
        let members = ViewMembers {
            cluster: view.cluster,
            epoch: view.epoch,
            own: member.number,
            incarnation: member.incarnation,
            all: all.collect(),
        };
        self.authority.begin(view.numbers());
        let numbers: Vec<NodeNumber> = members.all.iter().map(|(number, ..)| *number).collect();
        self.sessions.retain(|(number, life), _| {
            members.all.iter().any(|(member, theirs, _)| (member, theirs) == (number, life))
        });
        self.members = Some(members);
        self.debts.clear();
        for number in numbers {
            self.owe_list(number);
        }
        // Old claims end with their epoch, and so do the grants that they may have led to.
        for claim in std::mem::take(&mut self.claims).into_values() {
            self.claim(claim.ask, claim.names);
        }
        self.pay(now_ms, out);
    }

    /// Queues the current list of held names for an authority.
    fn owe_list(&mut self, to: NodeNumber) {
        let Some(members) = &self.members else { return };
        let held = self.held.iter().filter(|name| members.authority_of(name) == to);
        let parts = batches(held.cloned());
        let parts_all = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        if members.own == to {
            let (session, serial) = (self.session, self.serial);
            for (part, names) in (0..).zip(parts) {
                let list = ListPart { session, serial, part, parts: parts_all, names };
                self.authority.list(to, list);
            }
            return;
        }
        let sessions = self.sessions.iter();
        let session = sessions.filter(|((number, _), _)| *number == to).map(|(_, s)| *s).next();
        let parts = (0..).zip(parts).collect();
        let debt = Debt { parts, parts_all, to: session.unwrap_or(0), ..Debt::default() };
        self.debts.insert(to, debt);
    }

    /// Ends this life: no name stays held, and all requests are refused.
    pub fn outcast(&mut self, out: &mut Vec<NameOutput>) {
        self.members = None;
        self.has_lease = false;
        self.claims.clear();
        self.debts.clear();
        self.held.clear();
        self.authority.begin(Default::default());
        self.refuse_all(out);
    }

    /// Sets whether this node has the lease. Without it, all requests are refused at once.
    pub fn lease(&mut self, has_lease: bool, out: &mut Vec<NameOutput>) {
        self.has_lease = has_lease;
        if !has_lease {
            self.authority.undecided.clear();
            for claim in std::mem::take(&mut self.claims).into_values() {
                self.owe_settled(claim.names);
            }
            self.refuse_all(out);
        }
    }

    /// Settles names that are sealed and visible, or given up: they are no longer held.
    pub fn settle<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        let names: Vec<String> =
            names.into_iter().filter_map(|name| self.held.take(name)).collect();
        self.owe_settled(names);
    }

    fn owe_settled(&mut self, names: Vec<String>) {
        let Some(members) = &self.members else { return };
        for name in names {
            let to = members.authority_of(&name);
            if to == members.own {
                self.authority.settle(to, &[name]);
            } else if let Some(debt) = self.debts.get_mut(&to) {
                debt.settled.insert(name, self.serial);
                if debt.batch.is_none() && debt.parts.is_empty() {
                    debt.next_ms = 0;
                }
            }
        }
    }

    /// Handles a message of a member; `may_name` returns whether the member may have a name.
    pub fn handle(
        &mut self,
        from: NumberedLife,
        message: NameMessage,
        checks: NameChecks<'_>,
        now_ms: u64,
        out: &mut Vec<NameOutput>,
    ) {
        let Some(members) = &self.members else { return };
        let NumberedLife { number, incarnation } = from;
        let is_member = members.all.iter().any(|one| (one.0, one.1) == (number, incarnation));
        let is_now = message.cluster == members.cluster && message.epoch == members.epoch;
        #[cfg(test)]
        let is_now = is_now || self.hears_old_epochs;
        // A member in another epoch repeats its message, until both are in the same.
        if !is_member || !is_now || number == members.own || !message.body.is_sound() {
            return;
        }
        let NameMessage { session, authority, serial, body, .. } = message;
        let is_known = self.debts.get(&number).is_some_and(|debt| debt.to == authority);
        let provenance = Provenance {
            from,
            header: Header { session, authority, serial },
            is_queried: authority == self.session,
            is_own: session == self.session && is_known,
        };
        if let Some(body) = self.on_message(provenance, body, checks, out) {
            self.send(number, Header { session, authority: self.session, serial }, body, out);
        }
        self.claim_own(checks.exists);
        self.decide(checks.exists, out);
        self.pay(now_ms, out);
    }

    /// Acts on a message, and returns the answer that goes to the same session.
    fn on_message(
        &mut self,
        provenance: Provenance,
        body: NameMessageBody,
        checks: NameChecks<'_>,
        out: &mut Vec<NameOutput>,
    ) -> Option<NameMessageBody> {
        let Provenance { from, header, is_queried, is_own } = provenance;
        let NumberedLife { number: from, incarnation: life } = from;
        let Header { session, serial, .. } = header;
        match body {
            NameMessageBody::List { part, parts, names } => {
                self.meet(from, life, session);
                let list = ListPart { session, serial, part, parts, names };
                let is_listed = is_queried && self.authority.list(from, list);
                return is_listed.then_some(NameMessageBody::Listed { part });
            }
            NameMessageBody::Claim { claim, names } if is_queried => {
                let may_grant = self.has_lease && self.authority.is_settled();
                if may_grant && self.authority.is_newest(from, session, serial) {
                    let sender = ClaimSender { home: from, session, serial };
                    self.consider(sender, claim, names, checks);
                }
            }
            NameMessageBody::Query { question, names } => {
                let taken = names.iter().map(|name| (checks.exists)(name)).collect();
                let lost = self.unread.lost;
                let answer = NameMessageBody::Queried { question, taken, lost };
                self.send(from, header, answer, out);
            }
            NameMessageBody::Queried { question, taken, lost } if is_queried => {
                self.queried(from, question, (&taken, lost));
            }
            NameMessageBody::Settle { names } if is_queried => {
                return self.authority.is_newest(from, session, serial).then(|| {
                    self.authority.settle(from, &names);
                    NameMessageBody::Settled
                });
            }
            NameMessageBody::Listed { part } if is_own => self.listed(from, part),
            NameMessageBody::Claimed { claim, verdicts } if is_own => {
                self.claimed(from, claim, &verdicts, out);
            }
            NameMessageBody::Settled if is_own => self.settled(from, serial),
            _ => {}
        }
        None
    }

    /// Notes a new process of a member: as an authority it has no state.
    fn meet(&mut self, from: NodeNumber, life: Incarnation, session: u64) {
        let known = self.sessions.entry((from, life)).or_default();
        if session > *known {
            *known = session;
            self.owe_list(from);
        }
    }

    fn listed(&mut self, from: NodeNumber, part: u32) {
        let Some(debt) = self.debts.get_mut(&from) else { return };
        if debt.parts.remove(&part).is_some() && debt.parts.is_empty() {
            debt.next_ms = 0;
        }
    }

    fn settled(&mut self, from: NodeNumber, serial: u64) {
        let Some(debt) = self.debts.get_mut(&from) else { return };
        let Some((_, names)) = debt.batch.take_if(|(first, _)| *first <= serial) else { return };
        for name in names {
            // A name settled again after that must still be reported.
            if debt.settled.get(&name).is_some_and(|since| *since < serial) {
                debt.settled.remove(&name);
            }
        }
        debt.next_ms = 0;
    }

    /// Handles the passage of time. Due at [`Self::next_deadline_ms`].
    pub fn tick(&mut self, now_ms: u64, exists: &dyn Fn(&str) -> bool, out: &mut Vec<NameOutput>) {
        self.claim_own(exists);
        self.decide(exists, out);
        let late = self.asks.iter().filter(|(_, ask)| ask.deadline_ms <= now_ms);
        let late: Vec<u64> = late.map(|(id, _)| *id).collect();
        for id in late {
            self.give_up(id, out);
        }
        self.pay(now_ms, out);
    }

    /// When [`Self::tick`] is due, in milliseconds of the same clock.
    #[must_use]
    pub fn next_deadline_ms(&self) -> u64 {
        let asks = self.asks.values().map(|ask| ask.deadline_ms);
        let own = self.members.as_ref().map(|members| members.own);
        let claims = self.claims.values().filter(|claim| Some(claim.to) != own);
        let debts = self.debts.values().filter(|debt| !debt.is_paid());
        asks.chain(claims.map(|claim| claim.next_ms))
            .chain(debts.map(|debt| debt.next_ms))
            .chain(self.authority.undecided.next_deadline_ms())
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Sends all messages that are due, or due again.
    fn pay(&mut self, now_ms: u64, out: &mut Vec<NameOutput>) {
        let Some(own) = self.members.as_ref().map(|members| members.own) else { return };
        let mut due: Vec<(NodeNumber, NameMessageBody)> = Vec::new();
        for (to, debt) in self.debts.iter_mut().filter(|(_, debt)| debt.next_ms <= now_ms) {
            if debt.is_paid() {
                continue;
            }
            debt.next_ms = now_ms.saturating_add(RETRY_MS);
            let parts = debt.parts_all;
            let lists = debt.parts.iter().map(|(part, names)| {
                (*to, NameMessageBody::List { part: *part, parts, names: names.clone() })
            });
            due.extend(lists);
            // The list is first: after a settlement it would restore settled names.
            if debt.parts.is_empty() {
                due.push((
                    *to,
                    NameMessageBody::Settle { names: debt.next_batch(self.serial + 1) },
                ));
            }
        }
        for (id, claim) in &mut self.claims {
            if claim.to != own && self.has_lease && claim.next_ms <= now_ms {
                // A time of 0 marks the first attempt.
                claim.is_again |= claim.next_ms > 0;
                claim.next_ms = now_ms.saturating_add(RETRY_MS);
                due.push((
                    claim.to,
                    NameMessageBody::Claim { claim: *id, names: claim.names.clone() },
                ));
            }
        }
        for (question, members, names) in self.authority.undecided.due(now_ms) {
            for to in NodeNumber::all().filter(|number| members.has(*number)) {
                let body = NameMessageBody::Query { question, names: names.clone() };
                let header = Header { session: 0, authority: self.session, serial: 0 };
                self.send(to, header, body, out);
            }
        }
        for (to, body) in due {
            self.serial += 1;
            let authority = self.debts.get(&to).map_or(0, |debt| debt.to);
            let header = Header { session: self.session, authority, serial: self.serial };
            self.send(to, header, body, out);
        }
    }

    fn send(
        &self,
        to: NodeNumber,
        header: Header,
        body: NameMessageBody,
        out: &mut Vec<NameOutput>,
    ) {
        let Some(ViewMembers { cluster, epoch, .. }) = self.members else { return };
        let Header { session, authority, serial } = header;
        let message = NameMessage { cluster, epoch, session, authority, serial, body };
        out.push(NameOutput::Send { to, message });
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
