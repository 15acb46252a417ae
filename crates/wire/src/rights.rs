//! What other nodes may do in the namespaces of this one: the rules alone.
//!
//! A rule is for a namespace and a node, each by name or `*` for all. The closest one decides: that
//! for both names, then that for the namespace, then that for the node, then that for all. Where
//! there is none a node may do everything, as it has a certificate of the cluster.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use farrow_membership::NodeName;
use farrow_store::NAMESPACE_NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::cluster::node_key;

/// All namespaces, or all nodes.
pub const ANY: &str = "*";

/// Most rules: with the longest names they take 17 KiB of the 192 KiB that a node keeps, beside two
/// views of 64 members with all that those may say.
pub const RULES_MAX: usize = 128;

/// A set of rights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Rights(u8);

/// The words for each, in the order of their bits.
const WORDS: [(Rights, &str); 3] =
    [(Rights::READ, "read"), (Rights::WRITE, "write"), (Rights::DELETE, "delete")];

impl Rights {
    /// None.
    pub const NONE: Self = Self(0);
    /// Wait for objects and events, bring spilled ones back.
    pub const READ: Self = Self(1);
    /// Get memory, take names, seal, pin, come to barriers, set flags.
    pub const WRITE: Self = Self(2);
    /// Delete, evict, unpin.
    pub const DELETE: Self = Self(4);
    /// All three.
    pub const ALL: Self = Self(7);

    /// Whether all of `other` are in it.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether it is none.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Each by its word.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        WORDS.into_iter().filter(move |(right, _)| self.has(*right)).map(|(_, word)| word)
    }
}

impl From<Rights> for u8 {
    fn from(rights: Rights) -> Self {
        rights.0
    }
}

impl TryFrom<u8> for Rights {
    type Error = RuleError;

    fn try_from(bits: u8) -> Result<Self, RuleError> {
        if bits & !Self::ALL.0 != 0 {
            return Err(RuleError::NoRight { word: format!("{bits:#x}") });
        }
        Ok(Self(bits))
    }
}

impl fmt::Display for Rights {
    /// `read,write,delete`, or `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        f.write_str(&self.words().collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Rights {
    type Err = RuleError;

    /// Words with commas between them; `all`; `none`.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        let mut rights = Self::NONE;
        for word in text.split(',').map(str::trim) {
            let known = WORDS.into_iter().find(|(_, known)| *known == word);
            let more = match (known, word) {
                (Some((right, _)), _) => right,
                (None, "all") => Self::ALL,
                (None, "none") => Self::NONE,
                _ => return Err(RuleError::NoRight { word: word.to_owned() }),
            };
            rights = rights.with(more);
        }
        Ok(rights)
    }
}

/// Why a rule is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RuleError {
    /// Not of the form.
    #[error("{text:?} is not NAMESPACE:NODE:RIGHTS")]
    Form {
        /// What it is.
        text: String,
    },
    /// A right that there is not.
    #[error("there is no right {word:?}: read, write, delete, all, none")]
    NoRight {
        /// What was asked for.
        word: String,
    },
    /// No node can have this name.
    #[error("{name:?} is neither the name of a node nor \"*\"")]
    NoNode {
        /// The name.
        name: String,
    },
    /// No namespace can have this name.
    #[error("a namespace has a name of at most {max} B without NUL, not {bytes} B")]
    NoNamespace {
        /// Bytes of the name.
        bytes: usize,
        /// Most bytes.
        max: u64,
    },
    /// The table is full.
    #[error("{max} rules are taken")]
    TooMany {
        /// Most rules.
        max: usize,
    },
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Name of the namespace; empty: the default one; [`ANY`]: all.
    pub namespace: String,
    /// Name of the node; [`ANY`]: all.
    pub node: String,
    /// What it may do.
    pub rights: Rights,
}

impl Rule {
    /// Whether there can be such a namespace and such a node.
    ///
    /// # Errors
    ///
    /// What there cannot be.
    pub fn check(&self) -> Result<(), RuleError> {
        let (bytes, max) = (self.namespace.len(), NAMESPACE_NAME_BYTES_MAX);
        if bytes as u64 > max || self.namespace.contains('\0') {
            return Err(RuleError::NoNamespace { bytes, max });
        }
        if self.node != ANY && self.node.parse::<NodeName>().is_err() {
            return Err(RuleError::NoNode { name: self.node.clone() });
        }
        Ok(())
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    /// `NAMESPACE:NODE:RIGHTS`; the name of the namespace may have colons in it.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        let mut parts = text.rsplitn(3, ':');
        let (Some(rights), Some(node), Some(namespace)) =
            (parts.next(), parts.next(), parts.next())
        else {
            return Err(RuleError::Form { text: text.to_owned() });
        };
        let rule = Self {
            namespace: namespace.to_owned(),
            node: node.to_owned(),
            rights: rights.parse()?,
        };
        rule.check().map(|()| rule)
    }
}

/// All rules, by namespace and node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RightsTable {
    rules: BTreeMap<(String, String), Rights>,
}

impl RightsTable {
    /// Nothing for anybody.
    pub fn closed() -> Self {
        let all = (ANY.to_owned(), ANY.to_owned());
        Self { rules: [(all, Rights::NONE)].into_iter().collect() }
    }

    /// Sets a rule, over that for the same two names.
    ///
    /// # Errors
    ///
    /// The table is full, or the rule is none.
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

    /// Takes a rule out; false if there is none.
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

    /// What the node with this key may do in a namespace.
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
    fn words_become_rights_and_rights_become_words() {
        for bits in 0..8_u8 {
            let rights = Rights::try_from(bits).unwrap();
            assert_eq!(rights.to_string().parse(), Ok(rights));
        }
        assert_eq!("read, delete".parse(), Ok(Rights(5)));
        assert_eq!("all".parse(), Ok(Rights::ALL));
        assert_eq!(Rights::NONE.to_string(), "none");
        for wrong in ["", "reed", "read;write", "read,,write"] {
            assert!(matches!(wrong.parse::<Rights>(), Err(RuleError::NoRight { .. })), "{wrong}");
        }
        assert!(Rights::try_from(8).is_err());
        assert!(postcard::from_bytes::<Rights>(&[8]).is_err());
    }

    #[test]
    fn rules_are_read_from_the_right() {
        let rule: Rule = "a:b:c:d:read".parse().unwrap();
        assert_eq!((&*rule.namespace, &*rule.node, rule.rights), ("a:b:c", "d", Rights::READ));
        let rule: Rule = ":*:none".parse().unwrap();
        assert_eq!((&*rule.namespace, &*rule.node, rule.rights), ("", ANY, Rights::NONE));
        let long = format!("{}:b:all", "x".repeat(64));
        for wrong in ["", "b:read", "x:B:read", "x::read", "x:b:", "x:b:rad", "a\0b:c:read", &long]
        {
            assert!(wrong.parse::<Rule>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_closest_rule_decides() {
        let all = table(&["*:*:none", "*:b:read", "team:*:write", "team:b:delete"]);
        let of = |table: &RightsTable, space: &str, node: &str| table.of(space, node_key(node));
        assert_eq!(of(&all, "team", "b"), Rights::DELETE);
        assert_eq!(of(&all, "team", "c"), Rights::WRITE);
        assert_eq!(of(&all, "else", "b"), Rights::READ);
        assert_eq!(of(&all, "", "c"), Rights::NONE);
        // The namespace is closer than the node.
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
}
