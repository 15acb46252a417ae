//! The methods of [`Client`], by topic. They choose a node and call the rooms below.
//!
//! * `client`: connecting, puts, waits, lists, statistics.
//! * `get`: searches and waits for objects; `residency`: pins and eviction.
//! * `put_on`: puts into the memory of a named node.
//! * `namespaces`, `sync`: quotas and permissions; barriers and flags.

mod client;
mod get;
mod namespaces;
mod put_on;
mod residency;
mod sync;

pub use client::{Client, FabricStats, ListedObject, Stats};
