//! Objects of other nodes whose pages are brought when they are first read.
//!
//! | Task | Module |
//! | --- | --- |
//! | open such an object, and rebuild its value over it | `open` |
//! | ask the node for its bytes, also the next node | `source` |
//! | show pages, and give them up | `object` |
//! | serve the page faults of its readers | `faults` |
//! | choose how much to bring for a fault | `ahead` |
//!
//! A thread of this process serves the faults of one object. It takes no lock that a thread may
//! hold while it reads the object, allocates no memory of a region, and needs no Python.

mod ahead;
mod faults;
mod object;
mod open;
mod source;

pub use object::fetch;
pub(crate) use open::{FoundLazy, open};

/// What the node is asked for at the least, and to which ranges are rounded.
const CHUNK_BYTES: u64 = 64 << 10;
