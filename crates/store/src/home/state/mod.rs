//! Private state of the home that is not in the region. Adoption rebuilds it.

mod accounts;
mod locals;
mod restoring;
mod spilled;

pub(super) use accounts::ClientAccounts;
pub(super) use locals::{KnownEntry, Locals};
pub(super) use restoring::Restoring;
pub(super) use spilled::Spilled;
