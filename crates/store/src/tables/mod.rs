//! The tables of a region. The home writes them, and has private state about them; clients read
//! some of them.

pub(crate) mod client_pages;
pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod control;
pub(crate) mod directory;
pub(crate) mod entry_area;
pub(crate) mod grants;
pub(crate) mod holds;
pub(crate) mod names;
pub(crate) mod namespaces;
pub(crate) mod pins;
pub(crate) mod slot_set;
