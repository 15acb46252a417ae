//! Names of nodes, in messages and in certificates.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest name of a node: it is one label of a DNS name (RFC 1035, 2.3.4).
pub const NODE_NAME_CHARS_MAX: usize = 63;

/// Suffix of a node's name in its certificate. `internal` is reserved for private use (ICANN,
/// 2024), so no public authority certifies such a name.
pub const CERTIFICATE_DOMAIN: &str = ".farrow.internal";

/// Name of a node: 1 to 63 of `a-z`, `0-9` and `-`, with no `-` at either end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(Arc<str>);

/// The text is not a valid name of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name of a node: 1 to {NODE_NAME_CHARS_MAX} of a-z, 0-9 and -, with no - at an end"
)]
pub struct NodeNameError(String);

impl NodeName {
    /// A checked name.
    ///
    /// # Errors
    ///
    /// The name is not valid.
    pub fn new(name: impl AsRef<str>) -> Result<Self, NodeNameError> {
        name.as_ref().parse()
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name in the certificate of the node.
    #[must_use]
    pub fn certificate_name(&self) -> String {
        format!("{}{CERTIFICATE_DOMAIN}", self.0)
    }

    /// The node of a name in a certificate, if the name has the suffix.
    #[must_use]
    pub fn from_certificate_name(name: &str) -> Option<Self> {
        name.strip_suffix(CERTIFICATE_DOMAIN)?.parse().ok()
    }
}

impl TryFrom<String> for NodeName {
    type Error = NodeNameError;

    fn try_from(name: String) -> Result<Self, NodeNameError> {
        name.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NodeName {
    type Err = NodeNameError;

    fn from_str(text: &str) -> Result<Self, NodeNameError> {
        let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        let is_name = (1..=NODE_NAME_CHARS_MAX).contains(&text.len())
            && text.bytes().all(is_plain)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if is_name {
            return Ok(Self(text.into()));
        }
        // The name may be from a peer and is logged, so it is cut.
        Err(NodeNameError(text.chars().take(NODE_NAME_CHARS_MAX + 1).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_lower_case_label() {
        for name in ["a", "node-1", "0", &"n".repeat(63)] {
            assert_eq!(name.parse::<NodeName>().unwrap().as_str(), name);
        }
        for name in ["", "-a", "a-", "A", "a.b", "a b", "a\0", "ä", "*", "../a", &"n".repeat(64)] {
            assert!(name.parse::<NodeName>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_certificate_names_a_node_only_in_our_domain() {
        let name: NodeName = "b-2".parse().unwrap();
        assert_eq!(NodeName::from_certificate_name(&name.certificate_name()), Some(name));
        for other in ["b-2", "b-2.farrow.internal.x", "x.b-2.farrow.internal", ".farrow.internal"] {
            assert_eq!(NodeName::from_certificate_name(other), None, "{other}");
        }
    }
}
