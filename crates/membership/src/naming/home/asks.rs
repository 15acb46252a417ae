//! Requests for names: claimed at their authorities, and answered.

use std::collections::BTreeMap;

use super::super::debt::batches;
use super::super::{NAMES_MAX, NameOutput, NameRefusal, NameRequest, Verdict, is_name};
use super::{Naming, PendingNames, UnansweredRequest};
use crate::NodeNumber;

impl Naming {
    /// Requests names, until a deadline. Granted names are held until [`Self::settle`]. `exists`
    /// returns whether a sealed object anywhere in the view has the name.
    pub fn ask(
        &mut self,
        NameRequest { ticket, names, deadline_ms }: NameRequest,
        now_ms: u64,
        exists: &dyn Fn(&str) -> bool,
        out: &mut Vec<NameOutput>,
    ) {
        if !self.has_lease || self.members.is_none() {
            let results = vec![Err(NameRefusal::NoLease); names.len()];
            out.push(NameOutput::Answer { ticket, results });
            return;
        }
        let id = self.next_id();
        let (mut results, mut names_to_claim) = (Vec::with_capacity(names.len()), Vec::new());
        for (place, name) in names.into_iter().enumerate() {
            let refusal = if !is_name(&name) {
                Some(NameRefusal::Invalid { bytes: name.len() })
            } else if self.held.contains(&name) || self.pending.contains_key(&name) {
                Some(NameRefusal::Taken)
            } else if self.held.len() + self.pending.len() >= NAMES_MAX {
                Some(NameRefusal::TooMany { limit: NAMES_MAX })
            } else {
                let refused = |node| {
                    if exists(&name) { NameRefusal::Taken } else { NameRefusal::Unread { node } }
                };
                self.unread.lost.map(refused)
            };
            results.push(refusal.map(Err));
            if refusal.is_none() {
                self.pending.insert(name.clone(), (id, place));
                names_to_claim.push(name);
            }
        }
        let left = names_to_claim.len();
        self.asks.insert(id, UnansweredRequest { ticket, deadline_ms, results, left });
        self.claim(id, names_to_claim);
        self.answer_if_whole(id, out);
        self.claim_own(exists);
        self.decide(exists, out);
        self.pay(now_ms, out);
    }

    /// Creates claims for names, one or more for each authority.
    pub(super) fn claim(&mut self, ask: u64, names: Vec<String>) {
        let Some(members) = &self.members else { return };
        let mut by_authority: BTreeMap<NodeNumber, Vec<String>> = BTreeMap::new();
        for name in names {
            let to = members.authority_of(&name);
            // The name is claimed again, so its settlement is cancelled.
            if let Some(debt) = self.debts.get_mut(&to) {
                debt.settled.remove(&name);
            }
            by_authority.entry(to).or_default().push(name);
        }
        for (to, names) in by_authority {
            for names in batches(names) {
                let id = self.next_id();
                self.claims
                    .insert(id, PendingNames { to, ask, names, next_ms: 0, is_again: false });
            }
        }
    }

    pub(super) fn claimed(
        &mut self,
        from: NodeNumber,
        claim: u64,
        verdicts: &[Verdict],
        out: &mut Vec<NameOutput>,
    ) {
        let is_it = |claim: &PendingNames| claim.to == from && claim.names.len() == verdicts.len();
        if !self.claims.get(&claim).is_some_and(is_it) {
            return;
        }
        let Some(PendingNames { ask, names, is_again, .. }) = self.claims.remove(&claim) else {
            return;
        };
        let mut refused = Vec::new();
        for (name, verdict) in names.into_iter().zip(verdicts) {
            let Some((_, place)) = self.pending.remove(&name) else { continue };
            let result = match verdict {
                Verdict::Granted => Ok(()),
                Verdict::Taken => Err(NameRefusal::Taken),
                Verdict::NotAllowed => Err(NameRefusal::NotAllowed { authority: from }),
                Verdict::Unread(node) => Err(NameRefusal::Unread { node: *node }),
            };
            if result.is_ok() {
                self.held.insert(name);
            } else if is_again {
                refused.push(name);
            }
            self.note(ask, place, result);
        }
        // A late copy of the claim may be granted although this one was not.
        self.owe_settled(refused);
        self.answer_if_whole(ask, out);
    }

    fn note(&mut self, ask: u64, place: usize, result: Result<(), NameRefusal>) {
        let Some(ask) = self.asks.get_mut(&ask) else { return };
        if let Some(open @ None) = ask.results.get_mut(place) {
            *open = Some(result);
            ask.left = ask.left.saturating_sub(1);
        }
    }

    fn answer_if_whole(&mut self, id: u64, out: &mut Vec<NameOutput>) {
        if self.asks.get(&id).is_some_and(|ask| ask.left == 0)
            && let Some(ask) = self.asks.remove(&id)
        {
            let results = ask.results.into_iter().flatten().collect();
            out.push(NameOutput::Answer { ticket: ask.ticket, results });
        }
    }

    /// Answers a request after its deadline; later grants are given up.
    pub(super) fn give_up(&mut self, id: u64, out: &mut Vec<NameOutput>) {
        let claims: Vec<u64> =
            self.claims.iter().filter(|(_, claim)| claim.ask == id).map(|(id, _)| *id).collect();
        for claim in claims {
            let Some(PendingNames { to, names, .. }) = self.claims.remove(&claim) else { continue };
            for name in &names {
                if let Some((_, place)) = self.pending.remove(name) {
                    self.note(id, place, Err(NameRefusal::NoResponse { authority: to }));
                }
            }
            self.owe_settled(names);
        }
        self.answer_if_whole(id, out);
    }

    pub(super) fn refuse_all(&mut self, out: &mut Vec<NameOutput>) {
        self.pending.clear();
        for ask in std::mem::take(&mut self.asks).into_values() {
            let none = || Err(NameRefusal::NoLease);
            let results = ask.results.into_iter().map(|result| result.unwrap_or_else(none));
            out.push(NameOutput::Answer { ticket: ask.ticket, results: results.collect() });
        }
    }
}
