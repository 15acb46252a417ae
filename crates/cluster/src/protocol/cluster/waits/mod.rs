//! Waiting for names of other nodes. `awaited` is the state, `remote` handles events.

pub(super) mod awaited;
pub(super) mod remote;
