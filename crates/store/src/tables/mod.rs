//! The home's tables: those that it alone writes in the region, and its private state about them.

pub(crate) mod blocks;
pub(crate) mod client_pages;
pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod control;
pub(crate) mod directory;
pub(crate) mod entry_area;
pub(crate) mod eviction;
pub(crate) mod grants;
pub(crate) mod holds;
pub(crate) mod names;
pub(crate) mod namespaces;
pub(crate) mod pins;
pub(crate) mod space;
