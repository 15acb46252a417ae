//! Tests of home and readers together, over real mapped memory.

mod accounts;
mod batch_holds;
mod cluster;
mod damage;
mod damaged_names;
mod events;
mod evict;
mod evict_races;
mod golden;
mod kills;
mod lives;
mod local;
mod local_races;
mod many;
mod model;
mod namespaces;
mod nodes;
pub(crate) mod poison;
mod quarantine;
mod races;
mod replace;
mod replicas;
mod requests;
mod room;
mod spill;
mod staged;
mod support;
