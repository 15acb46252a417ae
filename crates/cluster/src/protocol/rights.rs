//! Rights of other nodes in the namespaces of this one: the rules alone.
//!
//! A rule is for a namespace and a node, each by name or `*` for all. The most specific rule
//! decides: first that for both names, then for the namespace, then for the node, then for all.
//! Without a rule a node may do everything, since it has a certificate of the cluster.

use std::collections::BTreeMap;

use farrow_store::namespace_of;
use farrow_wire::rights::{ANY, Rights, Rule, RuleError};
use farrow_wire::{NotPermitted, WireError};
use serde::{Deserialize, Serialize};

use super::identity::node_key;

/// Limit of rules. With the longest names they take 17 KiB of the 192 KiB of a node's cluster
/// state, beside two views of 64 members of the largest size.
pub const RULES_MAX: usize = 128;

/// All rules, by namespace and node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RightsTable {
    rules: BTreeMap<(String, String), Rights>,
}

impl RightsTable {
    /// A table without any right for any node.
    pub fn closed() -> Self {
        let all = (ANY.to_owned(), ANY.to_owned());
        Self { rules: [(all, Rights::NONE)].into_iter().collect() }
    }

    /// Sets a rule, replacing one for the same two names.
    ///
    /// # Errors
    ///
    /// The table is full, or the rule is invalid.
    pub fn set(&mut self, rule: Rule) -> Result<(), RuleError> {
        rule.check()?;
        let Rule { namespace, node, rights } = rule;
        let key = (namespace, node);
        if self.rules.len() >= RULES_MAX && !self.rules.contains_key(&key) {
            return Err(RuleError::TooMany { max: RULES_MAX });
        }
        self.rules.insert(key, rights);
        Ok(())
    }

    /// Removes a rule; `false` if there is none.
    pub fn remove(&mut self, namespace: &str, node: &str) -> bool {
        self.rules.remove(&(namespace.to_owned(), node.to_owned())).is_some()
    }

    /// All rules.
    pub fn iter(&self) -> impl Iterator<Item = Rule> + '_ {
        self.rules.iter().map(|((namespace, node), rights)| Rule {
            namespace: namespace.clone(),
            node: node.clone(),
            rights: *rights,
        })
    }

    /// Whether another node has a right on a full name, for a client of its own or for its own
    /// memory.
    pub fn may(&self, node: &str, right: Rights, full: &str) -> bool {
        self.of(namespace_of(full), node_key(node)).has(right)
    }

    /// As [`Self::may`], with the error.
    ///
    /// # Errors
    ///
    /// The node does not have the right.
    pub fn check(&self, node: &str, full: &str, right: Rights) -> Result<(), WireError> {
        if self.may(node, right, full) {
            return Ok(());
        }
        let namespace = namespace_of(full).to_owned();
        let (node, right) = (node.to_owned(), right.to_string());
        Err(WireError::NotPermitted(NotPermitted { node, namespace, right }))
    }

    /// Rights of the node with this key in a namespace.
    pub fn of(&self, namespace: &str, key: u64) -> Rights {
        let closeness = |(space, node): &(String, String)| {
            let by_space = if space == namespace { Some(2) } else { (space == ANY).then_some(0) };
            let by_node = if node == ANY { Some(0) } else { (node_key(node) == key).then_some(1) };
            Some(by_space? + by_node?)
        };
        let meant = self.rules.iter().filter_map(|(key, rights)| Some((closeness(key)?, *rights)));
        meant.max_by_key(|(closeness, _)| *closeness).map_or(Rights::ALL, |(_, rights)| rights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rules: &[&str]) -> RightsTable {
        let mut table = RightsTable::default();
        for rule in rules {
            table.set(rule.parse().unwrap()).unwrap();
        }
        table
    }

    #[test]
    fn the_closest_rule_decides() {
        let all = table(&["*:*:none", "*:b:read", "team:*:write", "team:b:delete"]);
        let of = |table: &RightsTable, space: &str, node: &str| table.of(space, node_key(node));
        assert_eq!(of(&all, "team", "b"), Rights::DELETE);
        assert_eq!(of(&all, "team", "c"), Rights::WRITE);
        assert_eq!(of(&all, "else", "b"), Rights::READ);
        assert_eq!(of(&all, "", "c"), Rights::NONE);
        // The namespace takes precedence over the node.
        assert_eq!(of(&table(&["*:b:all", "team:*:none"]), "team", "b"), Rights::NONE);
        assert_eq!(of(&RightsTable::default(), "team", "b"), Rights::ALL);
        assert_eq!(of(&RightsTable::closed(), "", "b"), Rights::NONE);
    }

    #[test]
    fn the_table_has_an_end_and_can_be_changed_there() {
        let mut table = RightsTable::default();
        for number in 0..RULES_MAX {
            table.set(format!("n{number}:b:read").parse().unwrap()).unwrap();
        }
        let more: Rule = "more:b:read".parse().unwrap();
        assert_eq!(table.set(more.clone()), Err(RuleError::TooMany { max: RULES_MAX }));
        table.set("n0:b:none".parse().unwrap()).unwrap();
        assert!(table.remove("n0", "b") && !table.remove("n0", "b"));
        table.set(more).unwrap();
        let bytes = postcard::to_allocvec(&table).unwrap();
        assert_eq!(postcard::from_bytes(&bytes), Ok(table));
    }

    #[test]
    fn no_node_has_the_name_that_stands_for_all() {
        assert!(
            ANY.parse::<farrow_membership::NodeName>().is_err(),
            "no node is called like all of them"
        );
    }
}
