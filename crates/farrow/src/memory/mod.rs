//! Memory that the node has granted to this client, before it belongs to an object.
//!
//! * `node`: what this room asks of the session above it, as a trait.
//! * `extents`: granted ranges, used and unused; `room`: the requests for more.
//! * `arena`: small objects, several to a page; `pool`: buffers of Arrow.
//! * `unused`: memory that this process has stopped using.
//! * `blocks`: sealed memory that this client holds, so that a put can refer to it.
//! * `background`: page table work outside of calls.

pub(crate) mod arena;
pub(crate) mod background;
pub(crate) mod blocks;
pub(crate) mod extents;
pub(crate) mod node;
pub(crate) mod pool;
pub(crate) mod room;
pub(crate) mod unused;
