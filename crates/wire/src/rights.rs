//! Rights of a node in a namespace of another node, and the rules that permit them.

use std::fmt;
use std::str::FromStr;

use farrow_membership::NodeName;
use farrow_store::NAMESPACE_NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Stands for all namespaces, or all nodes.
pub const ANY: &str = "*";

/// A set of rights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Rights(u8);

/// Each right with its word, in the order of the bits.
const WORDS: [(Rights, &str); 3] =
    [(Rights::READ, "read"), (Rights::WRITE, "write"), (Rights::DELETE, "delete")];

impl Rights {
    /// No right.
    pub const NONE: Self = Self(0);
    /// Wait for objects and events, restore spilled objects.
    pub const READ: Self = Self(1);
    /// Get memory, reserve names, seal, pin, arrive at barriers, set flags.
    pub const WRITE: Self = Self(2);
    /// Delete, evict, unpin, replace.
    pub const DELETE: Self = Self(4);
    /// All three rights.
    pub const ALL: Self = Self(7);

    /// Whether the set contains every right of `other`.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both sets.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set is empty.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The word of each right in the set.
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
    /// Writes `read,write,delete`, or `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        f.write_str(&self.words().collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Rights {
    type Err = RuleError;

    /// Reads words separated by commas; `all`; `none`.
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

/// Why a rule is not valid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The text does not have the form of a rule.
    #[error("{text:?} is not NAMESPACE:NODE:RIGHTS")]
    Form {
        /// The text.
        text: String,
    },
    /// No right has this word.
    #[error("there is no right {word:?}: read, write, delete, all, none")]
    NoRight {
        /// The word.
        word: String,
    },
    /// The name is not valid for a node.
    #[error("{name:?} is neither the name of a node nor \"*\"")]
    NoNode {
        /// The name.
        name: String,
    },
    /// The name is not valid for a namespace.
    #[error("a namespace has a name of at most {max} B without NUL, not {bytes} B")]
    NoNamespace {
        /// Bytes of the name.
        bytes: usize,
        /// Largest allowed number of bytes.
        max: u64,
    },
    /// The table is full.
    #[error("{max} rules are taken")]
    TooMany {
        /// Largest number of rules.
        max: usize,
    },
}

/// The rights of a node in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Name of the namespace; empty: the default one; [`ANY`]: all.
    pub namespace: String,
    /// Name of the node; [`ANY`]: all.
    pub node: String,
    /// Rights of the node.
    pub rights: Rights,
}

impl Rule {
    /// Checks that both names are valid.
    ///
    /// # Errors
    ///
    /// The name that is not valid.
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

    /// Reads `NAMESPACE:NODE:RIGHTS`; the name of the namespace may contain colons.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
