//! Objects at one node: how they are written, sealed, held and deleted.
//!
//! * `put` and `batch`: one value, many values. `writer`: bytes that the caller writes in place.
//!   `draft`: a value that is written before its name is known.
//! * Before a write: `name_claim` and `object_reservation` reserve a name and a place in the quota.
//! * `table_statistics`: by which readers of a table skip rows.
//! * `block`: what a value needs, and what stays in place. `write_batch` combines small writes.
//! * `written`: an object between its write and the answer to its seal.
//! * The seal: `local` without a message, `seal` by one. `late`: answers that arrive after
//!   their calls.
//! * `object` and `held_bytes`: objects that this client holds. `delete` deletes.
//! * `subscription`: events of objects.

pub(crate) mod batch;
pub(crate) mod block;
pub(crate) mod delete;
pub(crate) mod draft;
pub(crate) mod held_bytes;
pub(crate) mod late;
pub(crate) mod local;
pub(crate) mod name_claim;
pub(crate) mod object;
pub(crate) mod object_reservation;
pub(crate) mod put;
pub(crate) mod seal;
pub(crate) mod subscription;
pub(crate) mod table_statistics;
pub(crate) mod write_batch;
pub(crate) mod writer;
pub(crate) mod written;
