//! The schema of an object as a tree of C Data Interface nodes.
//!
//! arrow-rs types cannot represent some schemas of the C Data Interface: metadata and ordered
//! flag of dictionary values, metadata that is not UTF-8, missing names. The descriptor
//! therefore stores this tree, and each node also holds the arrow-rs type.

mod format;
mod wire;

pub(crate) use wire::{read_schema, write_schema};

use crate::error::SchemaError;
use crate::kind::Kind;
use arrow_schema::{DataType, Field, FieldRef, Fields, Metadata, Schema};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum nesting depth of types; Arrow C++ allows 64 in IPC.
pub(crate) const DEPTH_MAX: usize = 64;

/// Flags of the C Data Interface.
pub(crate) const FLAG_DICTIONARY_ORDERED: u8 = 1;
pub(crate) const FLAG_NULLABLE: u8 = 2;
pub(crate) const FLAG_MAP_KEYS_SORTED: u8 = 4;
pub(crate) const FLAGS_KNOWN: u8 = 7;

/// Key and value bytes of metadata.
pub(crate) type Pairs = Vec<(Box<[u8]>, Box<[u8]>)>;

/// One field or type, with all its attributes in the C Data Interface.
///
/// The root of a table's schema is a struct node whose children are the columns and whose
/// metadata is the schema's.
#[derive(Debug, Clone)]
pub struct SchemaNode {
    format: Box<str>,
    name: Option<Box<[u8]>>,
    flags: u8,
    metadata: Pairs,
    children: Vec<SchemaNode>,
    dictionary: Option<Box<SchemaNode>>,
    data_type: DataType,
}

/// The parts of a node.
#[derive(Debug, Default)]
pub(crate) struct SchemaParts {
    pub format: Box<str>,
    pub name: Option<Box<[u8]>>,
    pub flags: u8,
    pub metadata: Pairs,
    pub children: Vec<SchemaNode>,
    pub dictionary: Option<Box<SchemaNode>>,
}

impl SchemaNode {
    /// Checks that the parts name an Arrow type, and builds the node.
    pub(crate) fn new(parts: SchemaParts) -> Result<Self, SchemaError> {
        let SchemaParts { format, name, flags, metadata, children, dictionary } = parts;
        let keys_sorted = flags & FLAG_MAP_KEYS_SORTED != 0;
        let index = format::data_type(&format, keys_sorted, &children)?;
        let data_type = match &dictionary {
            None => index,
            Some(_) if !index.is_dictionary_key_type() => {
                let reason = "dictionary indices must be integers";
                return Err(SchemaError::BadChild { format: format.into(), reason });
            }
            Some(values) => {
                DataType::Dictionary(Box::new(index), Box::new(values.data_type.clone()))
            }
        };
        let flags = flags & FLAGS_KNOWN;
        Ok(SchemaNode { format, name, flags, metadata, children, dictionary, data_type })
    }

    /// The arrow-rs type.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// The format string of the C Data Interface (of the indices, for a dictionary).
    pub fn format(&self) -> &str {
        &self.format
    }

    /// The name as bytes; `None` if the producer gave none.
    pub fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    /// The name as text.
    pub fn name_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.name().unwrap_or_default())
    }

    /// Flags of the C Data Interface: 1 ordered dictionary, 2 nullable, 4 sorted map keys.
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Whether the field may hold nulls.
    pub fn is_nullable(&self) -> bool {
        self.flags & FLAG_NULLABLE != 0
    }

    /// Metadata in the producer's order; keys and values are any bytes.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.metadata.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    /// Child fields (the columns, at the root of a table).
    pub fn children(&self) -> &[SchemaNode] {
        &self.children
    }

    /// The type of a dictionary's values.
    pub fn dictionary(&self) -> Option<&SchemaNode> {
        self.dictionary.as_deref()
    }

    /// This node as an arrow-rs field. Invalid UTF-8 is replaced, and only the last value of a
    /// repeated metadata key is retained. Name, flags and metadata of dictionary values are
    /// dropped, since arrow-rs cannot represent them.
    pub fn to_field(&self) -> Field {
        let field = Field::new(self.name_text(), self.data_type.clone(), self.is_nullable());
        let field = field.with_dict_is_ordered(self.flags & FLAG_DICTIONARY_ORDERED != 0);
        if self.metadata.is_empty() { field } else { field.with_metadata(self.metadata_map()) }
    }

    /// This node as an arrow-rs schema: its children are the fields. `None` unless it is a
    /// struct. [`SchemaNode::to_field`] lists the losses.
    pub fn to_schema(&self) -> Option<Schema> {
        match &self.data_type {
            DataType::Struct(fields) => {
                Some(Schema::new(fields.clone()).with_metadata(self.metadata_map()))
            }
            _ => None,
        }
    }

    /// The same node with some of its children, by their numbers.
    pub(crate) fn with_children(&self, chosen: &[usize]) -> Result<Self, SchemaError> {
        SchemaNode::new(SchemaParts {
            format: self.format.clone(),
            name: self.name.clone(),
            flags: self.flags,
            metadata: self.metadata.clone(),
            children: chosen.iter().filter_map(|one| self.children.get(*one)).cloned().collect(),
            dictionary: self.dictionary.clone(),
        })
    }

    /// Fails if the tree has more levels than a reader accepts in an object of that kind.
    pub(crate) fn check_depth(&self, kind: Kind) -> Result<(), SchemaError> {
        fn check(node: &SchemaNode, levels_left: usize) -> Result<(), SchemaError> {
            let below =
                levels_left.checked_sub(1).ok_or(SchemaError::TooDeep { max: DEPTH_MAX })?;
            let mut children = node.children.iter().chain(node.dictionary());
            children.try_for_each(|child| check(child, below))
        }
        // The root of a table is no array itself.
        check(self, DEPTH_MAX + usize::from(kind.is_tabular()))
    }

    fn metadata_map(&self) -> HashMap<String, String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.metadata().map(|(key, value)| (text(key), text(value))).collect()
    }

    fn from_parts_of(
        data_type: &DataType,
        name: Option<&str>,
        flags: u8,
        metadata: &Metadata,
        levels_left: usize,
    ) -> Result<Self, SchemaError> {
        let below = levels_left.checked_sub(1).ok_or(SchemaError::TooDeep { max: DEPTH_MAX })?;
        let mut flags = flags;
        let (index, dictionary) = match data_type {
            DataType::Dictionary(index, values) => {
                let none = Metadata::default();
                let values = Self::from_parts_of(values, None, FLAG_NULLABLE, &none, below)?;
                (index.as_ref(), Some(Box::new(values)))
            }
            other => (other, None),
        };
        if matches!(index, DataType::Map(_, true)) {
            flags |= FLAG_MAP_KEYS_SORTED;
        }
        let children = child_fields(index)
            .iter()
            .map(|child| Self::from_field_at(child, below))
            .collect::<Result<Vec<_>, _>>()?;
        let mut metadata: Pairs = metadata
            .iter()
            .map(|(key, value)| (key.as_bytes().into(), value.as_bytes().into()))
            .collect();
        metadata.sort();
        Ok(SchemaNode {
            format: format::format_of(index)?.into(),
            name: name.map(|name| name.as_bytes().into()),
            flags,
            metadata,
            children,
            dictionary,
            data_type: data_type.clone(),
        })
    }

    fn from_field_at(field: &Field, levels_left: usize) -> Result<Self, SchemaError> {
        let mut flags = if field.is_nullable() { FLAG_NULLABLE } else { 0 };
        if field.dict_is_ordered() == Some(true) {
            flags |= FLAG_DICTIONARY_ORDERED;
        }
        let name = Some(field.name().as_str());
        Self::from_parts_of(field.data_type(), name, flags, field.metadata(), levels_left)
    }
}

/// Fields of the children of a type, in the order of the C Data Interface.
fn child_fields(data_type: &DataType) -> Vec<&FieldRef> {
    match data_type {
        DataType::List(child)
        | DataType::LargeList(child)
        | DataType::ListView(child)
        | DataType::LargeListView(child)
        | DataType::FixedSizeList(child, _)
        | DataType::Map(child, _) => vec![child],
        DataType::Struct(fields) => fields.iter().collect(),
        DataType::Union(fields, _) => fields.iter().map(|(_, field)| field).collect(),
        DataType::RunEndEncoded(ends, values) => vec![ends, values],
        _ => Vec::new(),
    }
}

impl TryFrom<&Field> for SchemaNode {
    type Error = SchemaError;

    fn try_from(field: &Field) -> Result<Self, SchemaError> {
        Self::from_field_at(field, DEPTH_MAX)
    }
}

impl TryFrom<&Schema> for SchemaNode {
    type Error = SchemaError;

    fn try_from(schema: &Schema) -> Result<Self, SchemaError> {
        let root = DataType::Struct(schema.fields().clone());
        Self::from_parts_of(&root, None, 0, schema.metadata(), DEPTH_MAX + 1)
    }
}

impl PartialEq for SchemaNode {
    /// Arrow's equality: metadata in any order, a missing name equals an empty one.
    fn eq(&self, other: &Self) -> bool {
        let sorted = |node: &SchemaNode| {
            let mut pairs = node.metadata.clone();
            pairs.sort();
            pairs
        };
        self.format == other.format
            && self.name().unwrap_or_default() == other.name().unwrap_or_default()
            && self.flags == other.flags
            && self.children == other.children
            && self.dictionary == other.dictionary
            && self.metadata.len() == other.metadata.len()
            && sorted(self) == sorted(other)
    }
}

impl Eq for SchemaNode {}

/// arrow-rs fields of the nodes, for the type of their parent.
pub(crate) fn fields_of(children: &[SchemaNode]) -> Fields {
    children.iter().map(|child| Arc::new(child.to_field())).collect()
}
