//! The C interface of Farrow, declared in `cpp/include/farrow/farrow.h`.
//!
//! It converts handles, C strings and Arrow's C structures to calls of the `farrow` crate and back,
//! and contains no logic of its own. `make install-c` installs it as `libfarrow`. The Python
//! extension contains it for the memory pool alone.
//!
//! No function unwinds into C: panics are caught and become `FARROW_PANIC`. Every pointer from C is
//! checked for NULL; the caller guarantees that it points to the documented type.

mod error;
mod handles;
mod interrupt;
mod library;
mod listing;
mod object;
mod options;
pub mod pool;
mod put;
mod status;

pub use error::CallFailure;
pub use handles::{FarrowClient, FarrowObjectId};
pub use listing::{FarrowList, FarrowListed, FarrowMetadata, FarrowTarget};
pub use object::FarrowObject;
pub use options::{FarrowPair, FarrowPutOptions};
pub use pool::FarrowPool;
pub use put::FarrowWriter;
pub use status::FarrowStatus;

/// The version of `farrow.h` this crate implements: `FARROW_API_VERSION` there.
pub const API_VERSION: u32 = 5;

/// The version of `farrow.h` this library implements.
#[unsafe(no_mangle)]
pub extern "C" fn farrow_api_version() -> u32 {
    API_VERSION
}
