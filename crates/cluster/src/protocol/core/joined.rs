//! The names that this node brought into its life in the cluster, while they are compared with those
//! of the other members.

use std::collections::BTreeMap;

use farrow_membership::NodeNumber;
use farrow_membership::naming::JoinedNames;
use farrow_store::{Home, ObjectId};

/// The comparison of names.
#[derive(Debug, Default)]
pub(in crate::protocol) struct JoinedState {
    /// The incarnation for which all members have answered. `None`: the region is of an earlier
    /// version, which compared nothing.
    pub(in crate::protocol) compared_for: Option<u64>,
    /// The incarnation for which names are being compared.
    pub(in crate::protocol) incarnation: u64,
    pub(in crate::protocol) names: Option<JoinedNames>,
    /// Objects that are about to lose their names, by these.
    pub(in crate::protocol) losing: BTreeMap<String, ObjectId>,
    /// Number of names that objects of this node lost since this daemon started.
    pub(in crate::protocol) lost: u64,
}

impl JoinedState {
    /// A daemon starts, with what the region keeps.
    pub(in crate::protocol) fn resumed(compared_for: Option<u64>) -> Self {
        Self { compared_for, ..Self::default() }
    }

    /// Ends a comparison whose incarnation is over.
    pub(in crate::protocol) fn outcast(&mut self) {
        self.names = None;
        self.losing.clear();
    }

    /// Whether a member may have another object of this name.
    pub(in crate::protocol) fn is_doubtful(&self, name: &str) -> bool {
        self.losing.contains_key(name)
            || self.names.as_ref().is_some_and(|names| names.is_doubtful(name))
    }

    /// The name was granted to this node, or moved here.
    pub(in crate::protocol) fn settle(&mut self, name: &str) {
        if let Some(names) = &mut self.names {
            names.settle(name);
        }
    }

    /// Whether this node's object of a name keeps it, if an object of a joining node has it too.
    pub(in crate::protocol) fn outranks(
        &self,
        name: &str,
        own: NodeNumber,
        joining: NodeNumber,
    ) -> bool {
        let outranks = |names: &JoinedNames| names.outranks(name, own, joining);
        !self.losing.contains_key(name) && self.names.as_ref().is_none_or(outranks)
    }

    /// Objects of this node that have a name of `losing` by now, since they replaced the first one.
    /// Names that no object has any more are done.
    pub(in crate::protocol) fn replaced(&mut self, home: &Home) -> Vec<ObjectId> {
        let mut replaced = Vec::new();
        self.losing.retain(|name, id| match home.own_named(name) {
            Ok(None) => false,
            Ok(Some(now)) if now != *id => {
                *id = now;
                replaced.push(now);
                true
            }
            Ok(Some(_)) | Err(_) => true,
        });
        replaced
    }
}
