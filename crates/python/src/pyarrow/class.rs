//! The classes of pyarrow that hold values.

/// The pyarrow class of an object: `fb_class` in `bridge.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueClass {
    None,
    Table,
    Batch,
    Array,
    Chunked,
    Buffer,
}
