//! State of a name that moves to its new owner.

use farrow_membership::NodeName;
use serde::{Deserialize, Serialize};

use super::barrier::{PARTIES_MAX, Party};

/// State that moves to the new owner of a name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameState {
    /// The flags.
    pub flags: u64,
    /// The parties that passed the barrier last.
    pub members: Vec<Party>,
}

impl NameState {
    /// Whether there is no state to move.
    pub fn is_empty(&self) -> bool {
        self.flags == 0 && self.members.is_empty()
    }

    /// Checks state from another node.
    ///
    /// # Errors
    ///
    /// There are more members than a barrier can have, or a name is not that of a node.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.members.len() > PARTIES_MAX as usize {
            let members = self.members.len();
            return Err(format!("a barrier of {members} parties: {PARTIES_MAX} are possible"));
        }
        let is_name = |party: &Party| party.node.parse::<NodeName>().is_ok();
        match self.members.iter().find(|party| !is_name(party)) {
            Some(party) => Err(format!("a party of a node with a name of {} B", party.node.len())),
            None => Ok(()),
        }
    }

    /// Merges state that arrived twice.
    pub(super) fn add(&mut self, other: Self) {
        self.flags |= other.flags;
        let more = other.members.into_iter().filter(|party| !self.members.contains(party));
        let more: Vec<Party> = more.collect();
        self.members.extend(more);
    }
}
