//! Ids of objects in messages.

use farrow_store::ObjectId;
use serde::{Deserialize, Serialize};

/// The id of an object, as messages write it.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct WireObjectId {
    /// As in [`ObjectId`].
    pub hi: u64,
    /// As in [`ObjectId`].
    pub lo: u64,
}

impl From<ObjectId> for WireObjectId {
    fn from(ObjectId { hi, lo }: ObjectId) -> Self {
        Self { hi, lo }
    }
}

impl From<WireObjectId> for ObjectId {
    fn from(WireObjectId { hi, lo }: WireObjectId) -> Self {
        Self { hi, lo }
    }
}
