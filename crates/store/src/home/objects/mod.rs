//! Objects in memory: seal, registration, retention and deletion.

mod delete;
mod keep;
mod labels;
mod local;
mod registration;
mod replica;
mod seal;
mod takeover;
mod unname;

pub(super) use delete::unknown_block;
pub use delete::{Deleted, Reclaimed};
pub(super) use keep::{Retained, sealed_in_place};
pub use labels::LabelledObject;
pub(super) use registration::BatchLooks;
pub use registration::EntryRegistration;
pub use replica::{ReplicaSeal, ReplicasFirst};
pub use seal::{Replacement, SealRequest};
pub(super) use takeover::TakeoverOutcome;
