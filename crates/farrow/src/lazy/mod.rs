//! Objects of other nodes whose pages are brought when they are first read.
//!
//! | Task | Module |
//! | --- | --- |
//! | open such an object, and rebuild its value over it | `open` |
//! | ask the node for its bytes, also the next node | `source` |
//! | show pages, and give them up | `object` |
//! | pass the page faults of its readers on to the node, or serve them | `faults` |
//!
//! The node serves the faults, if it may: it has the bytes first. A thread of this process does so if
//! the node does not or no longer does. It takes no lock that a thread may hold while it reads the
//! object, allocates no memory of a region, and needs no Python.

mod faults;
mod object;
mod open;
mod source;

use farrow_memory::lazy::CHUNK_BYTES;
pub use object::fetch;
pub(crate) use open::{FoundLazy, open};
