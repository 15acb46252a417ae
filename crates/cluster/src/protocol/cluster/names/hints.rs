//! Where names are, as reported to the name authority when they were sealed: a hint that saves questions.
//!
//! A home reports a name as settled once an object has it, or once it is given up. The authority
//! remembers the last such homes. A hint may be old or missing: the hinted node is asked first, and
//! all others if it does not have the name. So no answer depends on a hint.

use farrow_membership::naming::NameMessageBody;
use farrow_store::Home;
use farrow_wire::Rights;

use super::hint_table::HintFor;
use crate::protocol::Action;
use crate::protocol::cluster::{Answer, OptionalCluster, PeerQuestion, PendingQuestion, Question};
use crate::protocol::rights::RightsTable;

/// Unmapped nodes from which on the authority is asked first. Below, asking all of them is as many
/// messages, and one round trip less.
const HINTS_FROM_NODES: usize = 3;

/// Limit of the time for an authority's answer: then all nodes are asked.
const HINT_MS_MAX: u64 = 500;

/// Which nodes a search asks first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) enum AskFirst {
    All,
    Node(String),
    /// The authority was asked, and the search goes on with its answer.
    Authority,
}

/// A search for an object by its full name, and the nodes that may have it.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct NameSearch<'a> {
    pub(in crate::protocol) full: &'a str,
    pub(in crate::protocol) nodes: &'a [String],
    pub(in crate::protocol) by: HintFor,
}

impl OptionalCluster {
    /// Which nodes to ask first.
    pub(in crate::protocol) fn ask_first(
        &mut self,
        home: &Home,
        search: NameSearch<'_>,
        out: &mut Vec<Action>,
    ) -> AskFirst {
        let NameSearch { full, nodes, by } = search;
        if nodes.len() < HINTS_FROM_NODES {
            return AskFirst::All;
        }
        let authority = self.authority_name(full);
        if authority == self.own_name() {
            let hint = self.hinted_home(home, full);
            return hint.filter(|node| nodes.contains(node)).map_or(AskFirst::All, AskFirst::Node);
        }
        let question = Question::Where { name: full.to_owned() };
        let about = PendingQuestion::Where(by);
        let (node, question, timeout_ms) = (authority.as_str(), &question, HINT_MS_MAX);
        match self.ask(PeerQuestion { node, question, about, timeout_ms }, out) {
            true => AskFirst::Authority,
            false => AskFirst::All,
        }
    }

    fn hinted_home(&self, home: &Home, full: &str) -> Option<String> {
        if home.has_name(full).unwrap_or(false) {
            return Some(self.own_name());
        }
        self.0.as_ref()?.hints.home_of(full).map(str::to_owned)
    }

    /// Remembers what a home reported to this authority.
    pub(in crate::protocol::cluster) fn note_hints(&mut self, home: &str, body: &NameMessageBody) {
        if let (Some(cluster), NameMessageBody::Settle { names }) = (&mut self.0, body) {
            names.iter().for_each(|name| cluster.hints.note(home, name.clone()));
        }
    }

    /// Answers another node's question where a name is.
    pub(in crate::protocol::cluster) fn where_is(
        &self,
        home: &Home,
        rules: &RightsTable,
        from: &str,
        full: &str,
    ) -> Answer {
        let may_read = rules.may(from, Rights::READ, full);
        Answer::Where(self.hinted_home(home, full).filter(|_| may_read))
    }
}
