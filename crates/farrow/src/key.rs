//! By what an object is asked for.

use farrow_store::ObjectId;
use farrow_wire::WireTarget;

/// The key of an object: its id or its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ObjectKey {
    /// By id.
    Id(ObjectId),
    /// By name.
    Name(String),
}

impl From<ObjectId> for ObjectKey {
    fn from(id: ObjectId) -> Self {
        Self::Id(id)
    }
}

impl From<&str> for ObjectKey {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

impl ObjectKey {
    pub(crate) fn store(&self) -> farrow_store::Target<'_> {
        match self {
            Self::Id(id) => farrow_store::Target::Id(*id),
            Self::Name(name) => farrow_store::Target::Name(name),
        }
    }

    pub(crate) fn wire(&self) -> WireTarget {
        match self {
            Self::Id(id) => WireTarget::Id((*id).into()),
            Self::Name(name) => WireTarget::Name(name.clone()),
        }
    }
}
