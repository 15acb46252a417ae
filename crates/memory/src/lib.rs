//! Regions of shared memory: mapping, bounds checks, publish and refresh.
//!
//! This crate turns (region, offset, length) into memory and is the only one that makes pointers.
//! It handles fabrics, pages and cache lines. It has no notion of objects, names or Arrow, and it
//! never prints. Its background threads end when they are idle: the helpers of [`copy`], and the
//! thread of [`fork`] that waits for forked children. `farrow-store` builds objects on this crate.
//! `farrow-cluster` and `farrow` open and pass the descriptors.
//!
//! Read memory that another process can write with [`Region::words`] or [`Region::copy_out`] only.
//! Sealed memory has no writer, so [`Region::sealed`] may borrow it.
//!
//! ```
//! use std::sync::Arc;
//! use farrow_memory::{Access, Geometry, Length, Offset, Region, Span, page_bytes, shm::ShmFabric};
//!
//! let page = page_bytes();
//! let geometry = Geometry { control: Length(page), data: Length(4 * page) };
//! let fabric = Arc::new(ShmFabric::memfd("example", geometry)?);
//! let region = Arc::new(Region::map(fabric, Access::Home, None)?);
//! region.write(Offset(0), b"header")?;
//!
//! let span = Span::new(Offset(page), Length(page));
//! let alias = region.alias(span)?;
//! alias.write(span.offset, b"payload")?;
//! assert_eq!(&region.sealed(Span::new(span.offset, Length(7)))?[..], b"payload");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(not(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")))]
compile_error!("Farrow regions need Linux, 64-bit addresses and little-endian words");

pub mod cache;
pub mod copy;
mod error;
mod fabric;
pub mod family;
mod file_map;
pub mod fork;
mod inherited;
pub mod lazy;
mod locks;
mod lost_pages;
mod mapping;
mod maps;
mod process;
pub mod profile;
mod region;
mod shared_words;
mod signals;
pub mod survey;
pub mod sync;
mod system;
pub mod timing;
mod units;
mod write_way;

pub use error::{AccessError, BoundsError, FabricError, MapError};
pub use fabric::fd_passing::{PassedFabric, PassedParts};
pub use fabric::held::{HeldMemory, is_in_tmpfs, is_in_use, is_lent};
pub use fabric::{
    CoherenceClass, Fabric, FabricKind, Maintenance, Proximity, RegionSize, device, mount, shm,
};
pub use file_map::{FileBytes, FileMap};
pub use inherited::{close_inherited, take_inherited};
pub use lost_pages::{lost_pages, survive_lost_pages};
#[cfg(any(test, feature = "failpoints"))]
pub use maps::trial as maps_trial;
pub use maps::{are_maps_scarce, check_maps};
pub use process::{process_id, process_number};
pub use region::alias::{AfterCopy, Alias};
pub use region::sealed::SealedBytes;
pub use region::words::{Words, WordsMut};
pub use region::writable::{Retired, WritableBytes};
pub use region::{Access, Counters, Populate, Region};
pub use shared_words::SharedWords;
pub use signals::BlockedSignals;
pub use system::heap::{grow_heap_in_large_steps, trim_heap};
pub use units::{
    Address, Geometry, HUGE_PAGE_BYTES_USUAL, Length, Offset, Section, Span, WINDOW_BASE,
    WINDOW_END, page_bytes,
};
