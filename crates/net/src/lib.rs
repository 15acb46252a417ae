//! Far memory over a network: a mirror of a peer's memory, and the data path that fills it.
//!
//! Where a peer's memory cannot be mapped, this crate brings ranges of its objects: to chosen places of a
//! map, or into a mirror, a file with the same offsets. It knows no names, no Arrow and no
//! membership: the daemon (`farrow-cluster`) decides, and answers the traits of this crate. Calls
//! block, so they belong on worker threads and not on the daemon's event loop.
//!
//! | module | what |
//! | --- | --- |
//! | [`frame`] | headers and bodies as bytes: decoded, checked, limited |
//! | [`records`] | record layers below the frames: plain, and TLS 1.3 |
//! | [`ticket`] | 32 bytes, used once, that tie a connection to the life of a member |
//! | [`cache`] | the node's mirrors, their room and eviction; chunks, holds, claims |
//! | [`source`] | traits for the daemon: the ranges that a peer may read or write |
//! | [`server`] | the home's side: listens, admits, sends, receives pushes; cuts a member off |
//! | [`peer`] | the reader's side: opens, fetches, pushes; one object for each peer |
//! | [`window`] | the number of bytes that are requested ahead |
//!
//! **A fetch.** [`peer::Peer::open`] finds and holds an object at its home and returns its blocks.
//! [`cache::Mirror::insert`] puts it into the mirror and returns a [`cache::Held`], a local hold.
//! [`peer::Peer::fetch`] claims the chunks that are neither complete nor arriving, waits for room for
//! all of them ([`cache`]), requests them, and waits until all chunks of its ranges are complete.
//!
//! [`peer::Peer::read`] brings ranges to chosen places instead, which belong to the caller: no thread writes
//! there after it has returned.
//!
//! **A delete.** The home calls [`server::Server::notify_gone`]; the reader's daemon gets it by
//! [`peer::Control::gone`], removes the object from its tables and from the mirror
//! ([`cache::Mirror::remove`]), and answers [`peer::Peer::acknowledge_gone`].
//!
//! **A member is lost.** Its home calls [`server::Server::cut`], which returns when no thread reads
//! or writes for that member any more; then holds and grants can be given up. Its readers call
//! [`peer::Peer::lose`], and all waiting calls end with an error.
//!
//! **A push.** [`peer::Peer::push`] sends ranges of a grant; the server checks the grant by
//! [`source::PushTarget`] and receives straight into the heap. It acknowledges when every byte is in
//! place. A push that ends early has committed nothing: its object is sealed by a message that its
//! client sends afterwards.

#![forbid(unsafe_code)]

pub mod cache;
mod error;
pub mod frame;
pub mod peer;
pub mod records;
pub mod server;
mod socket;
pub mod source;
pub mod ticket;
pub mod window;

pub use error::{BodyError, CacheError, ConnectionError, FrameError, NetError};

/// Bytes of a chunk, the unit of fetching: 16 small pages. Smaller chunks would need more requests,
/// larger ones would fetch more bytes that no reader asked for.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Most bytes in one frame of data, and the alignment of such frames: four chunks, which are still in
/// the second-level cache of a core when their checksum is computed.
pub const PIECE_BYTES_MAX: u64 = 4 * CHUNK_BYTES;
