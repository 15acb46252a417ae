//! The authority's part: decisions on claims.

use super::super::unread::Undecided;
use super::super::{NameChecks, NameMessageBody, NameOutput, Verdict};
#[cfg(test)]
use super::UnreadFault;
use super::{ClaimSender, Header, Naming};
use crate::NodeNumber;

impl Naming {
    /// Whether the name was granted to this node and is not settled.
    #[must_use]
    pub fn has_in_flight(&self, name: &str) -> bool {
        self.held.contains(name)
    }

    /// Decides on a claim as far as this node can read, and queries the other members.
    pub(super) fn consider(
        &mut self,
        sender: ClaimSender,
        claim: u64,
        names: Vec<String>,
        checks: NameChecks<'_>,
    ) {
        let ClaimSender { home, session, serial } = sender;
        let undecided = &self.authority.undecided;
        if undecided.has(home, claim) || !undecided.has_room(home, names.len()) {
            return;
        }
        let own = self.members.as_ref().map(|members| members.own);
        // Names granted earlier stay granted: the answer may have been lost.
        let is_in_flight = |name: &String| self.authority.is_in_flight(home, name);
        let had: Vec<bool> = names.iter().map(is_in_flight).collect();
        let mut verdicts = self.authority.claim(home, &names, checks);
        if let Some(lost) = self.unread.lost {
            let mut refused = Vec::new();
            for ((verdict, name), had) in verdicts.iter_mut().zip(&names).zip(had) {
                if *verdict == Verdict::Granted && !had {
                    *verdict = Verdict::Unread(lost);
                    refused.push(name.clone());
                }
            }
            self.authority.settle(home, &refused);
        }
        // The home is queried too: it may know more about a lost node than this one.
        let own = own.into_iter().collect();
        let waiting = self.authority.members().and(self.unread.members).without(own);
        #[cfg(test)]
        let waiting = match self.unread_fault {
            Some(UnreadFault::AsksNone) => Default::default(),
            Some(UnreadFault::AsksOne) => {
                NodeNumber::all().find(|one| waiting.has(*one)).into_iter().collect()
            }
            Some(UnreadFault::AdmitsWaiting) if !waiting.is_empty() => {
                self.authority.settle(home, &names);
                waiting
            }
            _ => waiting,
        };
        let question = self.next_id();
        let claim = Undecided {
            home,
            claim,
            session,
            serial,
            names,
            verdicts,
            waiting,
            next_ms: 0,
            times: 0,
            members: waiting,
            rounds: if waiting.is_empty() { 0 } else { self.unread.movers },
        };
        self.authority.undecided.add(question, claim);
    }

    /// Handles a member's answer to a query.
    pub(super) fn queried(
        &mut self,
        from: NodeNumber,
        question: u64,
        said: (&[bool], Option<NodeNumber>),
    ) {
        if let Some((home, names)) = self.authority.undecided.on_response(question, from, said) {
            self.authority.settle(home, &names);
        }
    }

    /// Answers the claims with nothing left to wait for.
    pub(super) fn decide(&mut self, exists: &dyn Fn(&str) -> bool, out: &mut Vec<NameOutput>) {
        let own = self.members.as_ref().map(|members| members.own);
        for decided in self.authority.undecided.take_decided() {
            let Undecided { home, claim, session, serial, names, mut verdicts, members, .. } =
                decided;
            if self.unread.movers > 0 && !members.is_empty() {
                // A name may have moved from a member that was asked to a directory that was read.
                let mut taken = Vec::new();
                for (name, verdict) in names.into_iter().zip(&mut verdicts) {
                    if *verdict == Verdict::Granted && exists(&name) {
                        *verdict = Verdict::Taken;
                        taken.push(name);
                    }
                }
                self.authority.settle(home, &taken);
            }
            if !self.has_lease {
                continue;
            }
            if own == Some(home) {
                self.claimed(home, claim, &verdicts, out);
            } else {
                let body = NameMessageBody::Claimed { claim, verdicts };
                let header = Header { session, authority: self.session, serial };
                self.send(home, header, body, out);
            }
        }
    }

    /// Considers the claims for which this node itself is the authority.
    pub(super) fn claim_own(&mut self, exists: &dyn Fn(&str) -> bool) {
        let Some(own) = self.members.as_ref().map(|members| members.own) else { return };
        if !self.has_lease || !self.authority.is_settled() {
            return;
        }
        let undecided = &self.authority.undecided;
        let claims = self.claims.iter();
        let claims = claims.filter(|(id, claim)| claim.to == own && !undecided.has(own, **id));
        let claims: Vec<(u64, Vec<String>)> =
            claims.map(|(id, claim)| (*id, claim.names.clone())).collect();
        for (id, names) in claims {
            let sender = ClaimSender { home: own, session: self.session, serial: self.serial };
            self.consider(sender, id, names, NameChecks { exists, may_name: &|_| true });
        }
    }
}
