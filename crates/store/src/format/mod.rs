//! The byte formats of a region and of a spill file: `docs/formats/region.md`, `spill.md`.

pub(crate) mod client_entry;
pub(crate) mod entry;
pub(crate) mod full_name;
pub(crate) mod hash;
pub(crate) mod header;
pub(crate) mod ids;
pub(crate) mod layout;
pub(crate) mod metadata;
pub(crate) mod options;
pub(crate) mod spill_file;
