//! `farrow_arrow` describes any Arrow array as a small, position-independent descriptor and
//! rebuilds it over mapped memory with no copy.
//!
//! It does not know regions, objects, files or sockets. Callbacks map buffers to region offsets
//! ([`Plan`]) and region offsets to buffers ([`Decoded::rebuild`]). The client (`crates/farrow`)
//! and the bindings call it. A descriptor is never trusted: every value that decides which bytes
//! a view covers is checked before the view is created. `docs/formats/descriptor.md` specifies
//! the bytes.
//!
//! ```
//! use arrow_array::{Array, Int64Array};
//! use arrow_buffer::Buffer;
//! use arrow_schema::{DataType, Field};
//! use farrow_arrow::{Decoded, DescriptorStamp, Limits, Plan, Rebuilt, SchemaNode};
//!
//! let field = SchemaNode::try_from(&Field::new("n", DataType::Int64, true))?;
//! let array = Int64Array::from(vec![Some(1), None, Some(3)]);
//!
//! // Nothing lies in place here, so everything is copied into an area at offset 4096.
//! let plan = Plan::array(&field, &array.to_data(), &mut |_, _| None)?;
//! let mut area = vec![0u8; plan.copy_bytes() as usize];
//! plan.write_copies(&mut area)?;
//! let descriptor = plan.descriptor(DescriptorStamp { region: 7, epoch: 1 }, 4096);
//!
//! let area = Buffer::from(area);
//! let decoded = Decoded::parse(&descriptor, &Limits::default())?;
//! let rebuilt = decoded.rebuild(&|offset, length| {
//!     let start = usize::try_from(offset.checked_sub(4096)?).ok()?;
//!     let length = usize::try_from(length).ok()?;
//!     (start.checked_add(length)? <= area.len()).then(|| area.slice_with_length(start, length))
//! })?;
//! let Rebuilt::Arrow(object) = rebuilt else { unreachable!() };
//! assert_eq!(object.batches[0].columns[0], array.to_data());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod decode;
mod describe;
pub mod dissociated;
mod error;
pub mod ffi;
mod foreign;
mod kind;
mod layout;
mod schema;
mod select;
pub mod statistics;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod wire;

pub use decode::{ArrowObject, BeforeRead, Decoded, Limits, Rebuilt, Resolve};
pub use describe::{
    BatchData, CopyOut, CopySource, DescriptorStamp, Locate, Plan, Rewritten, restamp,
};
pub use error::{
    DescribeError, ExportError, ImportError, InvalidDescriptor, SchemaError, SelectError,
};
pub use foreign::foreign_buffer;
pub use kind::{Kind, NdArray, Order};
pub use schema::SchemaNode;
pub use select::{PartContents, RowSlice, SelectStep, Selected};
pub use wire::{HEADER_BYTES, MAGIC, VERSION};

/// Alignment in bytes of copied buffers within the copied area: Arrow's recommendation, one
/// cache line on most machines.
pub const COPY_ALIGNMENT: u64 = 64;
