//! State of barriers and flags under way between nodes.

use std::collections::{BTreeMap, BTreeSet};

use farrow_membership::{Epoch, Incarnation, Member, View};

use super::budget::EntryBudget;
use super::name_state::NameState;

/// Approximate limit of the bytes of a page with more than one name: far below a message.
pub(super) const PAGE_BYTES_MAX: usize = 256 << 10;

/// Upper bound of the cost of a name, and of a member of a barrier, beside their bytes.
pub(super) const COST_BYTES: usize = 32;

/// A member that has not yet reported the end of its state for this node.
#[derive(Debug)]
pub(super) struct MoveSource {
    /// The last name received from it.
    pub(super) after: Option<String>,
    /// Time of the next request; `None`: an answer is under way.
    pub(super) again_at_ms: Option<u64>,
}

/// Faults that the tests must notice.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MoveMutant {
    /// Answers before all state has arrived.
    AnswersAtOnce,
    /// Answers for flags without the lease.
    NeedsNoLease,
    /// Hands over state in any epoch.
    HandsOverInAnyEpoch,
}

/// State under way between nodes.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Epoch of the view that decides on owners; `None`: this node is in no view.
    pub(super) epoch: Option<Epoch>,
    /// The members of that view, each with its incarnation.
    pub(super) members: BTreeSet<(String, Incarnation)>,
    pub(super) sources: BTreeMap<String, MoveSource>,
    /// By the current owner, and by name.
    pub(super) set_aside: BTreeMap<String, BTreeMap<String, NameState>>,
    /// State from leaving nodes, with the owner by the current view.
    pub(super) inherited: BTreeMap<String, (String, NameState)>,
    /// Of their members.
    pub(super) inherited_budget: EntryBudget,
    /// State that this leaving node has sent. It no longer changes.
    pub(super) sent: BTreeMap<String, NameState>,
    #[cfg(test)]
    pub(super) mutant: Option<MoveMutant>,
}

impl Moves {
    /// Forgets everything at the end of this incarnation.
    pub(super) fn clear(&mut self) {
        self.epoch = None;
        self.members.clear();
        self.sources.clear();
        self.set_aside.clear();
        self.inherited.clear();
        self.sent.clear();
    }

    /// Begins an epoch: no state of the members has arrived.
    pub(super) fn begin(&mut self, view: &View, own: &str, now_ms: u64) {
        let life = |member: &Member| (member.name.to_string(), member.incarnation);
        let members: BTreeSet<_> = view.members.iter().map(life).collect();
        let is_next = self.epoch.is_some_and(|epoch| epoch.next() == view.epoch);
        let is_source =
            |one: &&(String, Incarnation)| one.0 != own && (!is_next || self.members.contains(one));
        let source = || MoveSource { after: None, again_at_ms: Some(now_ms) };
        let sources = members.iter().filter(is_source);
        self.sources = sources.map(|(name, _)| (name.clone(), source())).collect();
        self.epoch = Some(view.epoch);
        self.members = members;
    }

    pub(super) fn check_epoch(&self, epoch: Epoch) -> Result<(), String> {
        #[cfg(test)]
        if self.mutant == Some(MoveMutant::HandsOverInAnyEpoch) {
            return Ok(());
        }
        match self.epoch {
            Some(own) if own == epoch => Ok(()),
            Some(own) => Err(format!("the view here is of epoch {}, not {}", own.0, epoch.0)),
            None => Err(format!("this node is in no view, and not in that of epoch {}", epoch.0)),
        }
    }

    /// The next names for a node; none: it has all. It has received those up to `after`.
    pub(super) fn page(&mut self, node: &str, after: Option<&String>) -> Vec<(String, NameState)> {
        let Some(retained) = self.set_aside.get_mut(node) else {
            return Vec::new();
        };
        retained.retain(|name, _| after.is_none_or(|after| name > after));
        let (mut bytes, mut page) = (0, Vec::new());
        for (name, retained) in retained.iter() {
            let members = retained.members.iter().map(|party| party.node.len() + COST_BYTES);
            bytes += name.len() + COST_BYTES + members.sum::<usize>();
            if bytes > PAGE_BYTES_MAX && !page.is_empty() {
                break;
            }
            page.push((name.clone(), retained.clone()));
        }
        if page.is_empty() {
            self.set_aside.remove(node);
        }
        page
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.sources.values().filter_map(|source| source.again_at_ms).min()
    }
}
