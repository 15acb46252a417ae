//! A client's side: find objects, hold them, seal its own.

pub(crate) mod entry_table;
pub(crate) mod hold_table;
pub(crate) mod reader;
pub(crate) mod refreshed;
pub(crate) mod uses;
