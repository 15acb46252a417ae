//! The methods of [`Client`], by topic. They choose a node and call the rooms below.
//!
//! * `client`: connecting, puts, deletes. `put_on`: puts into the memory of a named node.
//! * `get`: searches and waits for objects. `search`: which node has an object.
//! * `listing`, `stats`: lists of objects; statistics.
//! * `pins`: pins and eviction. `pool`: the allocator for Arrow.
//! * `nodes`: the members of the cluster, and the client at one of them. `placement`: at one that is
//!   chosen by a rule.
//! * `drain`: objects move to other nodes before a node leaves.
//! * `namespaces`, `sync`: quotas and permissions; barriers and flags. `settings`: what changes while
//!   the node serves.

mod client;
mod drain;
mod get;
mod listing;
mod namespaces;
mod nodes;
mod pins;
mod placement;
mod pool;
mod put_on;
mod search;
mod settings;
mod stats;
mod sync;

pub use client::Client;
pub use get::LazyValue;
pub use listing::{ClusterList, ListedObject};
pub use pool::Pool;
pub use stats::{FabricStats, Stats};
