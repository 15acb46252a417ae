//! The client side: find objects, hold them, seal the client's own.

pub(crate) mod entry_table;
pub(crate) mod hold_table;
pub(crate) mod reader;
pub(crate) mod refreshed;
pub(crate) mod uses;
