//! The nodes that use the memory of this one.

use std::fmt;

/// One incarnation of a node as a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberLife {
    /// Name of the node.
    pub name: String,
    /// Its incarnation.
    pub incarnation: u64,
}

impl fmt::Display for MemberLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (incarnation {})", self.name, self.incarnation)
    }
}
