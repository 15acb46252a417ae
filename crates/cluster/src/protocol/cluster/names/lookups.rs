//! Lookups of names in memory that this node cannot map: its home is asked, if its authority knows
//! it, and otherwise each such node.

use std::collections::BTreeSet;

use farrow_store::Home;
use farrow_wire::{ReplyBody, WireError};

use super::hint_table::HintFor;
use super::hints::{AskFirst, NameSearch};
use super::parked::NameLookup;
use crate::protocol::action::answer_to;
use crate::protocol::cluster::peers::peer::because;
use crate::protocol::cluster::questions::message::NAMES_MAX;
use crate::protocol::cluster::state::ASK_LEASES_MAX;
use crate::protocol::cluster::{Answer, OptionalCluster, PeerQuestion, PendingQuestion, Question};
use crate::protocol::context::ReplyTo;
use crate::protocol::{Action, SessionId};

/// Limit of lookups at a time.
const LOOKUPS_MAX: usize = 4096;

/// Limit of the time for an answer about a name: less than a client's timeout of 10 s.
const LOOKUP_MS_MAX: u64 = 3_000;

impl OptionalCluster {
    /// The other node with an object of this full name that a client could not find. `None`: nodes
    /// were asked, and the answer follows later.
    pub(in crate::protocol) fn find_lost(
        &mut self,
        home: &Home,
        to: ReplyTo,
        full: &str,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let found = self.lost_with(full);
        let unread = self.unread_members();
        if found.is_some() || unread.is_empty() {
            return self.found_lost(found).map(Some);
        }
        let Some(cluster) = &mut self.0 else {
            return Ok(Some(ReplyBody::FoundLost(None)));
        };
        if cluster.lookups.all.len() >= LOOKUPS_MAX {
            let what = "lookups on other nodes under way".to_owned();
            return Err(WireError::TooMany { what, max: LOOKUPS_MAX as u64 });
        }
        let lookup = cluster.lookups.next;
        cluster.lookups.next += 1;
        let rest = unread.iter().cloned().collect();
        let (waiting, full_name) = (BTreeSet::new(), full.to_owned());
        let one = NameLookup {
            session: to.session,
            seq: to.seq,
            full: full_name,
            waiting,
            rest,
            silent: None,
        };
        cluster.lookups.all.insert(lookup, one);
        let search = NameSearch { full, nodes: &unread, by: HintFor::Lookup(lookup) };
        match self.ask_first(home, search, out) {
            AskFirst::All => self.look_at_hint(lookup, None, out),
            AskFirst::Node(node) => self.look_at_hint(lookup, Some(node), out),
            AskFirst::Authority => {}
        }
        Ok(None)
    }

    /// Asks the hinted node for a name, or without a hint all that are left.
    pub(in crate::protocol::cluster) fn look_at_hint(
        &mut self,
        lookup: u64,
        hint: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.0 else { return };
        let patience_ms = cluster.options.lease_ms.saturating_mul(ASK_LEASES_MAX);
        let Some(one) = cluster.lookups.all.get_mut(&lookup) else { return };
        let nodes = match hint.and_then(|node| one.rest.take(&node)) {
            Some(node) => BTreeSet::from([node]),
            None => std::mem::take(&mut one.rest),
        };
        one.waiting.extend(nodes.iter().cloned());
        let question = Question::Has { names: vec![one.full.clone()] };
        let timeout_ms = patience_ms.min(LOOKUP_MS_MAX);
        for node in nodes {
            let about = PendingQuestion::Has { lookup, node: node.clone() };
            let peer_question =
                PeerQuestion { node: &node, question: &question, about, timeout_ms };
            if !self.ask(peer_question, out) {
                self.on_lookup_response(lookup, &node, Err("it is no member now".to_owned()), out);
            }
        }
    }

    /// Forgets the lookups of an ended session.
    pub(in crate::protocol) fn forget_lookups(&mut self, session: SessionId) {
        if let Some(cluster) = &mut self.0 {
            cluster.lookups.all.retain(|_, one| one.session != session);
        }
    }

    /// The answer for a name that is in no readable memory: a lost node whose names were never
    /// known here may have it.
    pub(in crate::protocol) fn found_lost(
        &self,
        found: Option<String>,
    ) -> Result<ReplyBody, WireError> {
        match (&found, self.lost_unread()) {
            (None, Some(error)) => Err(error),
            _ => Ok(ReplyBody::FoundLost(found)),
        }
    }

    /// Handles a node's answer to a lookup, or its failure.
    pub(in crate::protocol) fn on_lookup_response(
        &mut self,
        lookup: u64,
        node: &str,
        answer: Result<Answer, String>,
        out: &mut Vec<Action>,
    ) {
        let unreachable = self.unreachable(node);
        let is_by_net = self.is_by_net(node);
        let Some(cluster) = &mut self.0 else {
            return;
        };
        let Some(one) = cluster.lookups.all.get_mut(&lookup) else {
            return;
        };
        one.waiting.remove(node);
        let mut found = None;
        match answer {
            // Its memory may have been mapped meanwhile: the client looks there on its next
            // attempt.
            Ok(Answer::Has(has)) if has.contains(&true) && is_by_net => {
                let all = cluster.lookups.all.remove(&lookup);
                if let Some(NameLookup { session, seq, .. }) = all {
                    let body = Ok(ReplyBody::FoundLost(Some(node.to_owned())));
                    out.push(answer_to(session, seq, body));
                }
                return;
            }
            Ok(Answer::Has(has)) if has.contains(&true) => found = Some(unreachable),
            Ok(Answer::Has(_)) => {}
            Ok(Answer::No(reason)) | Err(reason) => {
                one.silent.get_or_insert_with(|| because(&unreachable, &reason));
            }
            Ok(_) => {
                one.silent
                    .get_or_insert_with(|| because(&unreachable, "its answer is of another kind"));
            }
        }
        if found.is_none() && !one.waiting.is_empty() {
            return;
        }
        if found.is_none() && !one.rest.is_empty() {
            return self.look_at_hint(lookup, None, out);
        }
        let Some(NameLookup { session, seq, silent, .. }) = cluster.lookups.all.remove(&lookup)
        else {
            return;
        };
        let body = match found.or(silent) {
            Some(error) => Err(error),
            None => self.found_lost(None),
        };
        out.push(answer_to(session, seq, body));
    }
}

/// Answers another node's question which of these full names the objects of this one have.
pub(in crate::protocol::cluster) fn has_names(home: &Home, names: &[String]) -> Answer {
    if names.len() > NAMES_MAX {
        return Answer::No(format!("{} names, {NAMES_MAX} are taken", names.len()));
    }
    // An unreadable name might exist.
    Answer::Has(names.iter().map(|name| home.has_name(name).unwrap_or(true)).collect())
}
