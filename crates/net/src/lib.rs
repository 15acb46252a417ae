//! Far memory over a network: a mirror of a peer's memory, and the data path that fills it.
//!
//! Where a peer's memory cannot be mapped, this crate copies ranges of its objects: to given
//! offsets of a map, or into a mirror, a file with the same offsets. It does not know names, Arrow
//! or membership: the daemon (`farrow-cluster`) decides, and implements the traits of this crate.
//! Calls block, so they belong on worker threads and not on the daemon's event loop.
//!
//! | module | content |
//! | --- | --- |
//! | [`frame`] | headers and bodies as bytes: decoded, checked, limited |
//! | [`pack`] | pieces that travel compressed, where that saves time |
//! | [`records`] | record layers below the frames: plain, and TLS 1.3 |
//! | [`ticket`] | 32 bytes, used once, that bind a connection to an incarnation of a member |
//! | [`cache`] | the node's mirrors, their capacity and eviction; chunks, holds, claims |
//! | [`source`] | traits for the daemon: the ranges that a peer may read or write |
//! | [`server`] | the home's side: listens, admits, sends, receives pushes; disconnects a member |
//! | [`peer`] | the reader's side: opens, fetches, pushes; one object for each peer |
//! | [`window`] | the number of bytes that are requested ahead |
//!
//! **Fetch.** [`peer::Peer::open`] finds and holds an object at its home, and returns its blocks.
//! [`cache::Mirror::insert`] adds it to the mirror and returns a local [`cache::MirrorHold`].
//! [`peer::Peer::fetch`] claims the chunks that are neither complete nor arriving, and waits for
//! room for all of them ([`cache`]). It requests them, and waits until all its chunks are complete.
//!
//! [`peer::Peer::read`] copies ranges to memory of the caller instead. No thread writes there after
//! the call returns.
//!
//! **Delete.** The home calls [`server::DataServer::send_invalidation`]. The reader's daemon receives
//! [`peer::DaemonControl::on_invalidate`], removes the object from its tables and from the mirror
//! ([`cache::Mirror::remove`]), and calls [`peer::Peer::acknowledge_invalidation`].
//!
//! **Loss of a member.** A home calls [`server::DataServer::cut`], which returns when no thread
//! reads or writes for that member. Its holds and grants can then be released. A reader calls
//! [`peer::Peer::lose`], which ends all waiting calls with an error.
//!
//! **Push.** [`peer::Peer::push`] sends ranges of a grant. The server checks the grant with
//! [`source::PushTarget`], receives into the heap without a copy, and acknowledges when every byte
//! is in place. A push commits nothing: a later message of the client seals the object.

#![forbid(unsafe_code)]

pub mod cache;
mod error;
pub mod frame;
mod member;
pub mod pack;
pub mod peer;
pub mod records;
pub mod server;
mod socket;
pub mod source;
pub mod ticket;
pub mod window;

pub use error::{BodyError, CacheError, ConnectionError, FrameError, NetError};

/// Bytes of a chunk, the unit of fetching: 16 small pages. Smaller chunks need more requests;
/// larger ones fetch more bytes that no reader needs.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Maximum bytes of one data frame, and the alignment of these frames: four chunks, which are still
/// in the L2 cache of a core when their checksum is computed.
pub const PIECE_BYTES_MAX: u64 = 4 * CHUNK_BYTES;
