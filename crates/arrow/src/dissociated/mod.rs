//! Export and import for Arrow's Dissociated IPC protocol: metadata messages separate from bodies.
//!
//! Every message is an encapsulated IPC message without its body. Its buffer offsets count
//! from the start of the region. A stock IPC reader that receives the whole region as the body
//! of the message reads the data in place. IPC has no offset within an array, so slices that do
//! not begin at a whole byte of their bitmaps, or at a multiple of 8 bytes, are normalised by a
//! copy ([`Export::copies`]).
//!
//! A batch lists the dictionaries that must be read before it, in order: all of them for the
//! first batch, later those that changed (replacement in IPC terms).
//!
//! Source: <https://arrow.apache.org/docs/format/DissociatedIPC.html>,
//! <https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format>

mod export;
mod import;
mod message;

pub use export::Export;
pub use import::{Importer, import};
pub use message::body_of;

/// Messages of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Messages {
    /// The schema message.
    pub schema: Vec<u8>,
    /// One entry for each record batch.
    pub batches: Vec<BatchMessages>,
}

/// Messages of one record batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchMessages {
    /// Dictionary batches to read first, in this order.
    pub dictionaries: Vec<Vec<u8>>,
    /// The record batch.
    pub record_batch: Vec<u8>,
}
