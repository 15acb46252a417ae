//! Requests of clients that have joined, one file for each kind.

pub(super) mod deletes;
pub(super) mod memory;
pub(super) mod objects;
pub(super) mod overview;
pub(super) mod replace;
pub(super) mod settings;
pub(super) mod stats;
pub(super) mod watch;
