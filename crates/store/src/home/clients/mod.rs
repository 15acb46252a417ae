//! Clients: what the home assigns to them, what each one uses, and what remains of a lost one.

mod accounts;
mod lend;
mod quarantine;
mod reserved;

pub use lend::RECLAIMED_MAX;
pub use quarantine::Quarantined;
pub(super) use reserved::Reserved;
