//! Replicas of objects between nodes whose memory cannot be mapped.
//!
//! **Get.** A client that finds an object nowhere in mapped memory asks its node to fetch it. The
//! node opens the object at its home, allocates memory, has the bytes transferred, and seals a
//! replica under the same name. From then on each process of the node finds the replica by loads.
//!
//! **Pages.** A client may read an object whose bytes are brought page by page ([`lazy`]).
//!
//! **Delete.** The home notes each member that opened an object. Before a delete it rejects further
//! opens and notifies these members. It deletes the object when all of them have dropped their
//! replicas or are lost. Objects held by readers stay readable. Objects with replicas elsewhere are
//! not evicted: other objects could take their names.
//!
//! **Incarnations.** When an incarnation of a node ends, its objects may no longer exist. Replicas
//! of them are dropped, and its interest in objects of this node ends.

mod context;
mod delete;
mod fetch;
mod import;
mod imported;
mod invalidate;
pub(super) mod invalidation_notice;
mod lazy;
mod lazy_objects;
mod listings;
mod replica_table;
mod search;
mod senders;
mod state;
#[cfg(test)]
mod tests;
mod tick;
mod transfers;
pub(super) mod withdrawals;

pub(super) use context::ReplicaContext;
pub(super) use import::ImportReply;
pub(super) use search::pages_elsewhere;
pub(super) use state::{BroughtImport, Replicas};
pub(super) use transfers::{ImportSeal, ImportTarget};
pub(super) use withdrawals::{DeleteOrigin, ReplacingSeal, Withdrawal};
