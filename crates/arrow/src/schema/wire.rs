//! The schema section of a descriptor.

use super::{FLAGS_KNOWN, SchemaNode, SchemaParts};
use crate::error::{InvalidDescriptor, SchemaError};
use crate::wire::{DescriptorReader, DescriptorWriter};

/// Bits of a node's first byte above the three flags of the C Data Interface.
const HAS_NAME: u8 = 1 << 3;
const HAS_METADATA: u8 = 1 << 4;
const HAS_CHILDREN: u8 = 1 << 5;
const HAS_DICTIONARY: u8 = 1 << 6;
const UNKNOWN: u8 = 1 << 7;

/// The shortest node: its first byte, and a format of length zero.
const NODE_BYTES_MIN: usize = 2;
/// The shortest metadata pair: two lengths.
const PAIR_BYTES_MIN: usize = 2;

/// Appends the tree, parents before children.
pub(crate) fn write_schema(writer: &mut DescriptorWriter, node: &SchemaNode) {
    let mut head = node.flags & FLAGS_KNOWN;
    let mut set = |bit: u8, on: bool| head |= if on { bit } else { 0 };
    set(HAS_NAME, node.name.is_some());
    set(HAS_METADATA, !node.metadata.is_empty());
    set(HAS_CHILDREN, !node.children.is_empty());
    set(HAS_DICTIONARY, node.dictionary.is_some());
    writer.byte(head);
    writer.text(node.format.as_bytes());
    if let Some(name) = &node.name {
        writer.text(name);
    }
    if !node.metadata.is_empty() {
        writer.number(node.metadata.len() as u64);
        for (key, value) in &node.metadata {
            writer.text(key);
            writer.text(value);
        }
    }
    if !node.children.is_empty() {
        writer.number(node.children.len() as u64);
        for child in &node.children {
            write_schema(writer, child);
        }
    }
    if let Some(dictionary) = &node.dictionary {
        write_schema(writer, dictionary);
    }
}

/// Reads a tree. `depth` is the number of levels above it.
pub(crate) fn read_schema(
    reader: &mut DescriptorReader<'_>,
    depth: usize,
    depth_max: usize,
) -> Result<SchemaNode, InvalidDescriptor> {
    if depth >= depth_max {
        return Err(SchemaError::TooDeep { max: depth_max }.into());
    }
    let head = reader.byte()?;
    if head & UNKNOWN != 0 {
        return Err(reader.bad("schema node flags", head.into()));
    }
    let format = std::str::from_utf8(reader.text()?)
        .map_err(|_| SchemaError::BadText { what: "a format string" })?;
    let mut parts =
        SchemaParts { format: format.into(), flags: head & FLAGS_KNOWN, ..Default::default() };
    if head & HAS_NAME != 0 {
        parts.name = Some(c_text(reader.text()?, "a field name")?.into());
    }
    if head & HAS_METADATA != 0 {
        let count = reader.count("metadata count", PAIR_BYTES_MIN)?;
        for _ in 0..count {
            parts.metadata.push((reader.text()?.into(), reader.text()?.into()));
        }
    }
    if head & HAS_CHILDREN != 0 {
        let count = reader.count("children count", NODE_BYTES_MIN)?;
        for _ in 0..count {
            parts.children.push(read_schema(reader, depth + 1, depth_max)?);
        }
    }
    if head & HAS_DICTIONARY != 0 {
        parts.dictionary = Some(Box::new(read_schema(reader, depth + 1, depth_max)?));
    }
    c_text(parts.format.as_bytes(), "a format string")?;
    Ok(SchemaNode::new(parts)?)
}

/// Checks text that an export turns into a C string.
fn c_text<'a>(bytes: &'a [u8], what: &'static str) -> Result<&'a [u8], SchemaError> {
    if bytes.contains(&0) { Err(SchemaError::BadText { what }) } else { Ok(bytes) }
}
