//! Names and metadata of the objects of a table.
//!
//! The root of a table, `<name>`, is an empty Arrow table of its schema. Its chunks are named
//! `<name>/<id of the table>/<version>`, each in the memory of any node. Its members, `<name>/<id of
//! the table>/node/<number>`, are in the memory of the root's node and list the nodes that may have
//! chunks. Both are numbered from 1 on without a gap. Names are unique in the cluster, so exactly
//! one client creates each version. The id of a table is that of its first root. A root that moved
//! has it in its metadata, and the members up to then.

use std::fmt::Display;
use std::str::FromStr;

use farrow_arrow::SchemaNode;
use farrow_store::{Metadata, NAME_BYTES_MAX, ObjectId};

use super::keys::TableOrder;
use crate::error::Error;

/// Version of this layout, recorded in the metadata of the root.
const FORMAT: &str = "1";
/// The same with an order or partitions, which a client that knows only the first would break.
const ORDERED_FORMAT: &str = "2";
/// The same of a table whose root has moved: a client that does not know it would find no chunks.
const MOVED_FORMAT: &str = "3";

const FORMAT_KEY: &str = "farrow.huge_table";
const POSITION_KEY: &str = "position";
const ROWS_KEY: &str = "rows";
pub(super) const STATISTICS_KEY: &str = "statistics";
const SORT_KEY: &str = "sort_by";
const PARTITION_KEY: &str = "partition_by";
const TABLE_KEY: &str = "table";
const NODES_KEY: &str = "nodes";
const RECORDS_KEY: &str = "records";
const REMOVED_KEY: &str = "removed";
const NODE_KEY: &str = "node";
const REGION_KEY: &str = "region";

/// The longest statistics of a chunk: in base64, they fit into its metadata with its other pairs.
pub(super) const STATISTICS_BYTES_MAX: usize = 3000;

/// Digits of a version, or of a member's number.
const NUMBER_DIGITS: usize = 10;

/// The highest version: the largest number with [`NUMBER_DIGITS`] digits.
pub(super) const VERSIONS_MAX: u64 = 9_999_999_999;

/// Length in bytes of the longest suffix that a name below a root adds to that of the root.
const SUFFIX_BYTES_MAX: usize = "/".len() + 32 + "/node/".len() + NUMBER_DIGITS;

/// A node that may have chunks of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChunkNode {
    /// Uid of its region.
    pub(super) region: u64,
    /// Its name when it was added.
    pub(super) node: String,
}

/// The nodes that may have chunks of a table, as its records say up to one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ChunkNodes {
    /// The nodes, each with the number of its record; 0: it is in the metadata of the root.
    pub(super) nodes: Vec<(u64, ChunkNode)>,
    /// Number of the last record.
    pub(super) records: u64,
}

impl ChunkNodes {
    /// Takes in the next record.
    pub(super) fn add(&mut self, node: ChunkNode, is_removed: bool) {
        self.records += 1;
        let known = self.nodes.iter().position(|(_, one)| one.region == node.region);
        match known {
            Some(place) if is_removed => drop(self.nodes.remove(place)),
            None if !is_removed => self.nodes.push((self.records, node)),
            _ => {}
        }
    }

    /// The number of the record of the node with this region, and the node.
    pub(super) fn find(&self, region: u64) -> Option<&(u64, ChunkNode)> {
        self.nodes.iter().find(|(_, node)| node.region == region)
    }
}

/// Checks that a table's name leaves room for the longest name below it.
pub(super) fn check_name(namespace: &str, name: &str) -> Result<(), Error> {
    let namespace_bytes = if namespace.is_empty() { 0 } else { namespace.len() + 1 };
    let most = (NAME_BYTES_MAX as usize).saturating_sub(SUFFIX_BYTES_MAX + namespace_bytes);
    let bytes = name.len();
    if bytes == 0 || bytes > most || name.contains('\0') {
        return Err(Error::InvalidArgument(format!(
            "a huge table's name of {bytes} B; here it has 1 to {most} B, without NUL"
        )));
    }
    Ok(())
}

pub(super) fn chunk_name(table: &str, root: ObjectId, version: u64) -> String {
    format!("{table}/{root}/{version:0NUMBER_DIGITS$}")
}

pub(super) fn member_name(table: &str, root: ObjectId, number: u64) -> String {
    format!("{table}/{root}/node/{number:0NUMBER_DIGITS$}")
}

/// The common prefix of all names but that of the root.
pub(super) fn prefix(table: &str, root: ObjectId) -> String {
    format!("{table}/{root}/")
}

/// The root to which an object of this name belongs, if it is part of a table with that name.
pub(super) fn root_of(table: &str, name: &str) -> Option<ObjectId> {
    let (root, rest) = name.strip_prefix(table)?.strip_prefix('/')?.split_once('/')?;
    let number = rest.strip_prefix("node/").unwrap_or(rest);
    let is_number = number.len() == NUMBER_DIGITS && number.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| root.parse().ok())?
}

/// The version of a chunk, from its name.
pub(super) fn version_of(prefix: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    (digits.len() == NUMBER_DIGITS).then(|| digits.parse().ok())?
}

pub(super) fn root_metadata(order: &TableOrder) -> Result<Metadata, Error> {
    let format = if order.is_empty() { FORMAT } else { ORDERED_FORMAT };
    pairs([(FORMAT_KEY, format.to_owned())].into_iter().chain(encode_order(order)))
}

/// The metadata of a root that moves, with all members that the table has.
pub(super) fn moved_root_metadata(
    order: &TableOrder,
    table: ObjectId,
    members: &ChunkNodes,
) -> Result<Metadata, Error> {
    let nodes = members.nodes.iter();
    let nodes: Vec<String> =
        nodes.map(|(_, one)| format!("{}={:x}", one.node, one.region)).collect();
    let count = nodes.len();
    let labels = [
        (FORMAT_KEY, MOVED_FORMAT.to_owned()),
        (TABLE_KEY, table.to_string()),
        (NODES_KEY, nodes.join(",")),
        (RECORDS_KEY, members.records.to_string()),
    ];
    Metadata::new(labels.into_iter().chain(encode_order(order))).map_err(|error| {
        Error::NotMoved(format!("the list of its {count} nodes does not fit: {error}"))
    })
}

/// The id of a table, which is part of its names, and the members in the metadata of its root.
pub(super) fn read_root(
    name: &str,
    root: ObjectId,
    metadata: &Metadata,
) -> Result<(ObjectId, ChunkNodes), Error> {
    if metadata.get(FORMAT_KEY) != Some(MOVED_FORMAT) {
        return Ok((root, ChunkNodes::default()));
    }
    let table: ObjectId = read(name, metadata, TABLE_KEY)?;
    let text = metadata.get(NODES_KEY).unwrap_or_default();
    let member = |one: &str| {
        let (node, region) = one.split_once('=')?;
        let region = u64::from_str_radix(region, 16).ok()?;
        Some((0, ChunkNode { region, node: node.to_owned() }))
    };
    let nodes = text.split(',').filter(|one| !one.is_empty()).map(member);
    let nodes = nodes.collect::<Option<Vec<_>>>().ok_or_else(|| {
        Error::InvalidDescriptor(format!("{NODES_KEY} of {name:?}: {text:?} is no list of nodes"))
    })?;
    let records = read(name, metadata, RECORDS_KEY)?;
    Ok((table, ChunkNodes { nodes, records }))
}

/// Checks that an object is the root of a table in a layout known to this client.
pub(super) fn check_root(name: &str, metadata: &Metadata) -> Result<(), Error> {
    match metadata.get(FORMAT_KEY) {
        Some(FORMAT | ORDERED_FORMAT | MOVED_FORMAT) => Ok(()),
        Some(other) => Err(Error::InvalidArgument(format!(
            "huge table {name:?} has layout {other}, this client knows {FORMAT} to {MOVED_FORMAT}"
        ))),
        None => Err(Error::InvalidArgument(format!("object {name:?} is no huge table"))),
    }
}

/// The numbers of an order as the root's metadata has them.
fn encode_order(order: &TableOrder) -> Vec<(&'static str, String)> {
    let mut pairs = Vec::new();
    if let Some(number) = order.sort_by {
        pairs.push((SORT_KEY, number.to_string()));
    }
    if !order.partition_by.is_empty() {
        let numbers: Vec<String> = order.partition_by.iter().map(usize::to_string).collect();
        pairs.push((PARTITION_KEY, numbers.join(",")));
    }
    pairs
}

/// The order of a table, as read from untrusted metadata.
pub(super) fn read_order(
    name: &str,
    metadata: &Metadata,
    schema: &SchemaNode,
) -> Result<TableOrder, Error> {
    let columns = schema.children().len();
    let number = |key: &str, text: &str| match text.parse::<usize>() {
        Ok(number) if number < columns => Ok(number),
        _ => Err(Error::InvalidDescriptor(format!(
            "{key} of {name:?}: {text:?} of {columns} columns"
        ))),
    };
    if metadata.get(FORMAT_KEY) == Some(FORMAT) {
        return Ok(TableOrder::default());
    }
    let sort_by = metadata.get(SORT_KEY).map(|text| number(SORT_KEY, text)).transpose()?;
    let partition_by = metadata.get(PARTITION_KEY).map_or(Ok(Vec::new()), |text| {
        text.split(',').map(|text| number(PARTITION_KEY, text)).collect()
    })?;
    Ok(TableOrder { sort_by, partition_by })
}

/// The encoded length depends on that of the statistics alone.
pub(super) fn chunk_metadata(
    position: u64,
    rows: u64,
    statistics: Option<String>,
) -> Result<Metadata, Error> {
    let numbers = [(POSITION_KEY, position), (ROWS_KEY, rows)];
    let numbers = numbers.map(|(key, number)| (key, format!("{number:020}")));
    pairs(numbers.into_iter().chain(statistics.map(|text| (STATISTICS_KEY, text))))
}

/// First row and number of rows, as read from untrusted metadata.
pub(super) fn read_chunk(name: &str, metadata: &Metadata) -> Result<(u64, u64), Error> {
    Ok((read(name, metadata, POSITION_KEY)?, read(name, metadata, ROWS_KEY)?))
}

/// The record that a node may have chunks, or, `is_removed`, has none any more.
pub(super) fn member_metadata(member: &ChunkNode, is_removed: bool) -> Result<Metadata, Error> {
    let labels = [(NODE_KEY, member.node.clone()), (REGION_KEY, member.region.to_string())];
    pairs(labels.into_iter().chain(is_removed.then(|| (REMOVED_KEY, "1".to_owned()))))
}

/// A node, and whether it has no chunks any more.
pub(super) fn read_member(name: &str, metadata: &Metadata) -> Result<(ChunkNode, bool), Error> {
    let region = read(name, metadata, REGION_KEY)?;
    let node = ChunkNode { region, node: read(name, metadata, NODE_KEY)? };
    Ok((node, metadata.get(REMOVED_KEY).is_some()))
}

fn read<T: FromStr<Err: Display>>(name: &str, metadata: &Metadata, key: &str) -> Result<T, Error> {
    let wrong = |why: String| Error::InvalidDescriptor(format!("{key} of {name:?}: {why}"));
    let text = metadata.get(key).ok_or_else(|| wrong("it has none".into()))?;
    text.parse().map_err(|error| wrong(format!("{error} in {text:?}")))
}

fn pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> Result<Metadata, Error> {
    Metadata::new(pairs).map_err(|error| Error::InvalidArgument(error.to_string()))
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field, Schema};

    use super::*;

    const ROOT: ObjectId = ObjectId { hi: 0xab, lo: 7 };

    #[test]
    fn names_say_what_they_belong_to() {
        let chunk = chunk_name("a/b", ROOT, 12);
        assert_eq!(chunk, "a/b/00000000000000ab0000000000000007/0000000012");
        assert_eq!(root_of("a/b", &chunk), Some(ROOT));
        assert_eq!(root_of("a/b", &member_name("a/b", ROOT, 3)), Some(ROOT));
        assert_eq!(version_of(&prefix("a/b", ROOT), &chunk), Some(12));
        assert_eq!(version_of(&prefix("a/b", ROOT), &member_name("a/b", ROOT, 3)), None);
        for name in ["a/b", "a/b/", "a/b/c/0000000001", "a/b/00000000000000ab0000000000000007/1"] {
            assert_eq!(root_of("a/b", name), None, "{name}");
        }
        assert_eq!(root_of("a", &chunk), None, "another table's");
    }

    #[test]
    fn the_longest_name_leaves_room_for_all_below_it() {
        let most = NAME_BYTES_MAX as usize - SUFFIX_BYTES_MAX;
        let longest = "x".repeat(most);
        check_name("", &longest).unwrap();
        let below = member_name(&longest, ROOT, VERSIONS_MAX);
        assert_eq!(below.len() as u64, NAME_BYTES_MAX);
        assert!(chunk_name(&longest, ROOT, VERSIONS_MAX).len() <= below.len());
        assert!(check_name("team", &longest).is_err());
        check_name("team", &longest[5..]).unwrap();
        assert!(check_name("", &format!("{longest}x")).is_err());
        assert!(check_name("", "").is_err());
    }

    #[test]
    fn metadata_survives_and_nonsense_is_refused() {
        let long = chunk_metadata(u64::MAX, 1, None).unwrap();
        assert_eq!(read_chunk("c", &long).unwrap(), (u64::MAX, 1));
        assert_eq!(long.encode().len(), chunk_metadata(0, 10, None).unwrap().encode().len());
        let member = ChunkNode { region: u64::MAX, node: "a".into() };
        for is_removed in [false, true] {
            let metadata = member_metadata(&member, is_removed).unwrap();
            assert_eq!(read_member("m", &metadata).unwrap(), (member.clone(), is_removed));
        }
        for wrong in [[("position", "-1"), ("rows", "1")], [("position", "1"), ("row", "1")]] {
            let metadata = Metadata::new(wrong).unwrap();
            let error = read_chunk("c", &metadata).unwrap_err();
            assert!(matches!(error, Error::InvalidDescriptor(_)), "{error}");
        }
        let order = TableOrder { sort_by: Some(1), partition_by: vec![0, 2] };
        let plain = root_metadata(&TableOrder::default()).unwrap();
        let ordered = root_metadata(&order).unwrap();
        check_root("t", &plain).unwrap();
        check_root("t", &ordered).unwrap();
        let fields = |count: u8| {
            let fields = (0..count).map(|n| Field::new(n.to_string(), DataType::Int8, true));
            SchemaNode::try_from(&Schema::new(fields.collect::<Vec<_>>())).unwrap()
        };
        assert_eq!(read_order("t", &plain, &fields(3)).unwrap(), TableOrder::default());
        assert_eq!(read_order("t", &ordered, &fields(3)).unwrap(), order);
        assert!(read_order("t", &ordered, &fields(2)).is_err());
        assert!(check_root("t", &Metadata::default()).is_err());
        assert!(check_root("t", &Metadata::new([(FORMAT_KEY, "4")]).unwrap()).is_err());
    }

    #[test]
    fn a_moved_root_has_the_id_and_the_members_of_its_table() {
        let new = ObjectId { hi: 0xcd, lo: 9 };
        let nodes = [("a", 0xab), ("node-b", u64::MAX)]
            .map(|(node, region)| (0, ChunkNode { region, node: node.into() }));
        let members = ChunkNodes { nodes: nodes.to_vec(), records: 5 };
        let order = TableOrder { sort_by: Some(1), partition_by: vec![0] };
        let moved = moved_root_metadata(&order, ROOT, &members).unwrap();
        check_root("t", &moved).unwrap();
        assert_eq!(read_root("t", new, &moved).unwrap(), (ROOT, members));
        let fields = ["a", "b"].map(|name| Field::new(name, DataType::Int8, true));
        let schema = SchemaNode::try_from(&Schema::new(fields.to_vec())).unwrap();
        assert_eq!(read_order("t", &moved, &schema).unwrap(), order);
        let plain = root_metadata(&TableOrder::default()).unwrap();
        assert_eq!(read_root("t", new, &plain).unwrap(), (new, ChunkNodes::default()));
        for (table, nodes) in [("", "a=1"), ("x", "a=1"), (&ROOT.to_string(), "a"), ("1", "a=g")] {
            let pairs = [(TABLE_KEY, table), (NODES_KEY, nodes), (RECORDS_KEY, "1")];
            let wrong = pairs.into_iter().chain([(FORMAT_KEY, "3")]);
            assert!(read_root("t", new, &Metadata::new(wrong).unwrap()).is_err(), "{pairs:?}");
        }
        let node = |n| (0, ChunkNode { region: u64::MAX, node: format!("node{n}") });
        let many = ChunkNodes { nodes: (0..200).map(node).collect(), records: 200 };
        let error = moved_root_metadata(&order, ROOT, &many).unwrap_err();
        assert!(error.to_string().contains("200 nodes"), "{error}");
    }

    #[test]
    fn records_add_and_remove_nodes() {
        let node = |region| ChunkNode { region, node: format!("n{region}") };
        let mut nodes = ChunkNodes::default();
        for (region, is_removed) in [(1, false), (2, false), (2, false), (1, true), (3, true)] {
            nodes.add(node(region), is_removed);
        }
        assert_eq!((nodes.nodes.clone(), nodes.records), (vec![(2, node(2))], 5));
        nodes.add(node(1), false);
        assert_eq!(nodes.find(1), Some(&(6, node(1))));
        assert_eq!(nodes.find(3), None);
    }
}
