//! One error type for each kind of operation; variants carry the numbers.

use crate::kind::Kind;
use thiserror::Error;

/// A schema that cannot be expressed, or that names no Arrow type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// The format string is not one of the C Data Interface.
    #[error("unknown Arrow format string {format:?}")]
    UnknownFormat {
        /// The format string.
        format: String,
    },
    /// A parameter in the format string is missing or out of range.
    #[error("bad parameter in Arrow format string {format:?}: {reason}")]
    BadParameter {
        /// The format string.
        format: String,
        /// The problem.
        reason: &'static str,
    },
    /// A type has the wrong number of children.
    #[error("format {format:?} takes {expected} children, got {found}")]
    Children {
        /// The format string.
        format: String,
        /// Children that the format takes.
        expected: usize,
        /// Children found.
        found: usize,
    },
    /// A child has a type that its parent does not allow.
    #[error("format {format:?}: {reason}")]
    BadChild {
        /// The format string of the parent.
        format: String,
        /// The parent's requirement.
        reason: &'static str,
    },
    /// The type nests deeper than allowed.
    #[error("type nests deeper than {max} levels")]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// The arrow-rs type has no C Data Interface format.
    #[error("arrow type {data_type} has no format string")]
    NoFormat {
        /// The type.
        data_type: String,
    },
    /// Text that must be UTF-8, and free of NUL bytes, is not.
    #[error("{what} is not valid text")]
    BadText {
        /// The name of the text.
        what: &'static str,
    },
}

/// An array that cannot be described.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DescribeError {
    /// The schema is invalid.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The data's type is not the schema's type.
    #[error("column {column} has type {found}, the schema says {expected}")]
    TypeMismatch {
        /// Column number (0 for an array).
        column: usize,
        /// The schema's type.
        expected: String,
        /// The data's type.
        found: String,
    },
    /// A batch and the schema differ in their number of columns.
    #[error("batch {batch} has {found} columns, the schema has {expected}")]
    ColumnCount {
        /// Batch number.
        batch: usize,
        /// Columns in the schema.
        expected: usize,
        /// Columns in the batch.
        found: usize,
    },
    /// A column and its batch differ in their number of rows.
    #[error("column {column} of batch {batch} has {found} rows, the batch has {expected}")]
    RowCount {
        /// Batch number.
        batch: usize,
        /// Column number.
        column: usize,
        /// Rows of the batch.
        expected: usize,
        /// Rows of the column.
        found: usize,
    },
    /// The array breaks its own layout, so describing it would read out of bounds.
    #[error("malformed {data_type} array: {reason} (needs {needed}, has {found})")]
    Malformed {
        /// The type.
        data_type: String,
        /// The problem.
        reason: &'static str,
        /// The size that the layout needs.
        needed: u64,
        /// The size that the array has.
        found: u64,
    },
    /// The type nests deeper than allowed.
    #[error("array nests deeper than {max} levels")]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// A NumPy shape and its bytes disagree.
    #[error("array of {items} items of {item_bytes} bytes needs {needed} bytes, got {found}")]
    NdArraySize {
        /// Items in the shape.
        items: u64,
        /// Bytes of one item.
        item_bytes: u64,
        /// Items times bytes.
        needed: u64,
        /// Bytes given.
        found: u64,
    },
    /// A count overflowed 64 bits.
    #[error("size overflow: {what}")]
    Overflow {
        /// The quantity that was counted.
        what: &'static str,
    },
    /// The area given to `write_copies` is too small.
    #[error("copied area holds {found} bytes, needs {needed}")]
    AreaTooSmall {
        /// Bytes needed.
        needed: u64,
        /// Bytes given.
        found: u64,
    },
}

/// A descriptor, or a Dissociated IPC message, that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidDescriptor {
    /// The descriptor ends too early.
    #[error("descriptor truncated at byte {at} of {length}")]
    Truncated {
        /// Position of the first missing byte.
        at: usize,
        /// Length of the descriptor.
        length: usize,
    },
    /// The descriptor does not begin with the magic bytes.
    #[error("not a descriptor: begins with {found:02x?}")]
    BadMagic {
        /// The bytes found.
        found: [u8; 4],
    },
    /// The descriptor has an unsupported format version.
    #[error("descriptor version {found} is not supported (this build reads version {supported})")]
    Version {
        /// Version of the descriptor.
        found: u16,
        /// Version that this build reads.
        supported: u16,
    },
    /// The kind byte is unknown.
    #[error("unknown object kind {found}")]
    UnknownKind {
        /// The kind byte.
        found: u8,
    },
    /// The length field disagrees with the number of bytes given.
    #[error("descriptor says it has {stated} bytes, got {found}")]
    Length {
        /// The length field.
        stated: u64,
        /// Bytes given.
        found: u64,
    },
    /// A field holds a value that has no meaning.
    #[error("bad {what} at byte {at}: {value}")]
    BadValue {
        /// The field.
        what: &'static str,
        /// Byte position just after the field.
        at: usize,
        /// The value.
        value: u64,
    },
    /// Bytes follow the end of the descriptor.
    #[error("{extra} bytes follow the end of the descriptor")]
    TrailingBytes {
        /// Number of extra bytes.
        extra: usize,
    },
    /// The schema is invalid.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The descriptor has more nodes than allowed.
    #[error("descriptor expands to more than {max} array nodes")]
    TooManyNodes {
        /// The limit.
        max: u64,
    },
    /// A range of bytes exceeds the object.
    #[error("bytes {offset}..+{length} do not lie in the object")]
    OutOfBounds {
        /// Region offset.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// A buffer is not aligned as its type needs.
    #[error("buffer {buffer} of {data_type} is not aligned to {alignment} bytes")]
    Misaligned {
        /// The type.
        data_type: String,
        /// Buffer number.
        buffer: usize,
        /// Alignment that the type needs.
        alignment: usize,
    },
    /// A buffer, a child or a count does not fit the length of its array.
    #[error("{data_type} array: {what} needs {needed}, has {found}")]
    Inconsistent {
        /// The type.
        data_type: String,
        /// The part of the array.
        what: &'static str,
        /// The size that the array's length requires.
        needed: u64,
        /// The size found.
        found: u64,
    },
    /// A message uses a feature that this reader does not support.
    #[error("unsupported: {what}")]
    Unsupported {
        /// The feature.
        what: &'static str,
    },
    /// A message is not a valid flatbuffer, or not of the right type.
    #[error("bad IPC message: {reason}")]
    BadMessage {
        /// The reason.
        reason: String,
    },
    /// The check of all data (`rebuild_checked`) failed, or the null count of a small bitmap.
    #[error("data check failed: {reason}")]
    Data {
        /// The failed check; the message of arrow-rs if its validation failed.
        reason: String,
    },
}

/// A part of an object that cannot be selected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SelectError {
    /// The object is not an Arrow object, so it has no rows to select.
    #[error("rows and columns are selected of Arrow objects, this is {kind}")]
    NotArrow {
        /// The kind of the object.
        kind: Kind,
    },
    /// The object is not a table or record batch, so it has no columns.
    #[error("columns are selected of tables and record batches, this is {kind}")]
    NoColumns {
        /// The kind of the object.
        kind: Kind,
    },
    /// No column has the name.
    #[error("no column {name:?}; the columns are {}", names(known))]
    UnknownColumn {
        /// The name.
        name: String,
        /// Names of all columns.
        known: Vec<String>,
    },
    /// Several columns have the name.
    #[error("{count} columns are named {name:?}")]
    AmbiguousColumn {
        /// The name.
        name: String,
        /// Number of columns with the name.
        count: usize,
    },
    /// The descriptor contradicts itself.
    #[error(transparent)]
    Invalid(#[from] InvalidDescriptor),
    /// The schema is invalid.
    #[error(transparent)]
    Schema(#[from] SchemaError),
}

/// Maximum number of names that a message quotes.
const NAMES_SHOWN_MAX: usize = 20;

fn names(all: &[String]) -> String {
    let shown = all.iter().take(NAMES_SHOWN_MAX).map(|name| format!("{name:?}"));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMES_SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// An array that cannot be imported from the C Data Interface.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The schema is invalid.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The structure is already released, or a pointer in it is null.
    #[error("{what} is null or already released")]
    Null {
        /// The structure or pointer.
        what: &'static str,
    },
    /// A count in the structure does not fit the type.
    #[error("{data_type}: {what} needs {needed}, the C structure has {found}")]
    Count {
        /// The type.
        data_type: String,
        /// The count.
        what: &'static str,
        /// Expected.
        needed: i64,
        /// Found.
        found: i64,
    },
    /// The producer of a stream reported an error.
    #[error("the stream's producer failed with code {code}: {message}")]
    Stream {
        /// Its errno.
        code: i32,
        /// Its message, if it gave one.
        message: String,
    },
    /// The array of a record batch is not a struct.
    #[error("expected a struct for record batches, got {data_type}")]
    NotAStruct {
        /// The type.
        data_type: String,
    },
}

/// Batches that cannot be exported as Dissociated IPC.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The arrays cannot be described.
    #[error(transparent)]
    Describe(#[from] DescribeError),
    /// IPC cannot represent the object.
    #[error("Arrow IPC cannot express {what}")]
    NotExpressible {
        /// The feature that IPC lacks.
        what: &'static str,
    },
    /// The schema could not be written.
    #[error("cannot encode the IPC schema: {reason}")]
    Schema {
        /// The reason.
        reason: String,
    },
}
