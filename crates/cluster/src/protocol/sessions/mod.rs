//! Connections of clients: their first message, their limits and permissions, their end.

pub(super) mod buffered;
mod checks;
pub(super) mod families;
pub(super) mod handover;
pub(super) mod hello;
pub(super) mod permissions;
