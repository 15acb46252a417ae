//! The output of the walk: a descriptor, or an IPC message.

use super::place::{Reference, write_reference};
use crate::layout::ArrayLayout;
use crate::wire::DescriptorWriter;

/// Bits of a node's first byte in a descriptor.
pub(crate) const HAS_OFFSET: u8 = 1;
pub(crate) const HAS_VALIDITY: u8 = 1 << 1;
pub(crate) const NULL_COUNT_UNKNOWN: u8 = 1 << 2;
pub(crate) const DICTIONARY_REFERENCE: u8 = 1 << 3;
pub(crate) const NODE_FLAGS_KNOWN: u8 = 15;

/// Attributes of a node that precede its buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeHead {
    pub layout: ArrayLayout,
    pub length: usize,
    /// Elements before the first one.
    pub offset: usize,
    pub null_count: Option<usize>,
    pub shares_dictionary: bool,
}

/// Receives nodes, parents before children, each followed by its buffers.
pub(crate) trait Sink {
    /// Whether nodes must begin at their first element, with no offsets, buffers aligned to 8
    /// bytes, and separate dictionaries, as IPC requires.
    const IS_NORMALISED: bool;

    fn batch(&mut self, rows: u64);
    fn node(&mut self, head: NodeHead);
    /// Validity, for nodes that have a null count.
    fn validity(&mut self, bit_offset: usize, bits: Reference);
    /// Number of data buffers; precedes the buffers of a view array.
    fn data_buffers(&mut self, count: usize);
    fn buffer(&mut self, bytes: Reference);
    /// Number of a dictionary that is already written.
    fn shared_dictionary(&mut self, number: u64);
    /// Number of bytes written, which limits the number of nodes.
    fn bytes(&self) -> u64;
}

impl Sink for DescriptorWriter {
    const IS_NORMALISED: bool = false;

    fn batch(&mut self, rows: u64) {
        self.number(rows);
    }

    fn node(&mut self, head: NodeHead) {
        let flag = |bit: u8, on: bool| if on { bit } else { 0 };
        self.byte(
            flag(HAS_OFFSET, head.offset > 0)
                | flag(HAS_VALIDITY, head.null_count.is_some())
                | flag(DICTIONARY_REFERENCE, head.shares_dictionary),
        );
        self.number(head.length as u64);
        if head.offset > 0 {
            self.number(head.offset as u64);
        }
        if let Some(null_count) = head.null_count {
            self.number(null_count as u64);
        }
    }

    fn validity(&mut self, bit_offset: usize, bits: Reference) {
        self.number(bit_offset as u64);
        write_reference(self, bits);
    }

    fn data_buffers(&mut self, count: usize) {
        self.number(count as u64);
    }

    fn buffer(&mut self, bytes: Reference) {
        write_reference(self, bytes);
    }

    fn shared_dictionary(&mut self, number: u64) {
        self.number(number);
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}
