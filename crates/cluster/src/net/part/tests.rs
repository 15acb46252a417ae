//! Parts of an object in memory: what they read of it, and the arrays over their blocks alone.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure is the result")]

use arrow_schema::{DataType, Field, Schema};
use farrow_arrow::testing::{RegionBytes, SplitMix64, random_array, sample_types};
use farrow_arrow::{BatchData, DescriptorStamp, Plan, Rebuilt, SchemaNode};
use farrow_store::ObjectId;

use super::*;

const ROWS: usize = 20_000;

/// The bytes of the spans that a step reads.
type Arrived = Result<Vec<Vec<u8>>, NetFault>;

/// Where the data section of the home has the object.
const SECTION_AT: u64 = 1 << 30;

/// An object of one block, which begins at offset 128 of its region.
struct HomeObject {
    batch: BatchData,
    bytes: Vec<u8>,
    opened: Opened,
    /// Spans that were read, in all calls.
    reads: Vec<Vec<Span>>,
}

impl HomeObject {
    /// A table with a column of each of these types.
    fn new(types: &[DataType]) -> Self {
        let field =
            |(number, of): (usize, &DataType)| Field::new(format!("c{number}"), of.clone(), true);
        let schema = Schema::new(types.iter().enumerate().map(field).collect::<Vec<_>>());
        let columns = types.iter().map(|of| random_array(&mut SplitMix64::new(3), of, ROWS, true));
        let batch = BatchData { rows: ROWS, columns: columns.collect() };
        let schema = SchemaNode::try_from(&schema).unwrap();
        let plan = Plan::table(&schema, std::slice::from_ref(&batch), &mut |_, _| None).unwrap();
        let mut bytes = vec![0; plan.copy_bytes().next_multiple_of(BLOCK_BYTES) as usize];
        plan.write_copies(&mut bytes).unwrap();
        let descriptor = plan.descriptor(DescriptorStamp { region: 7, epoch: 1 }, BLOCK_BYTES);
        let length = Length::from(bytes.len());
        let head = SpillHead {
            id: ObjectId { hi: 7, lo: 1 << 32 },
            kind: ObjectKind::Table,
            size: length,
            descriptor_bytes: descriptor.len() as u64,
            metadata_bytes: 0,
            origins: vec![Span::new(Offset(BLOCK_BYTES), length)],
        };
        let brought = Brought {
            head: head.encode(),
            name: None,
            descriptor_crc: crc32c::crc32c(&descriptor),
            descriptor,
            metadata: Vec::new(),
            metadata_crc: 0,
            sealed_at_ns: 0,
        };
        let entry = brought.encode().unwrap();
        let blocks = vec![Span::new(Offset(SECTION_AT), length)];
        let opened = Opened { blocks, entry, inline: Vec::new() };
        Self { batch, bytes, opened, reads: Vec::new() }
    }

    fn bytes_at(&self, span: Span) -> &[u8] {
        let start = (span.offset.0 - SECTION_AT) as usize;
        &self.bytes[start..start + span.length.as_usize()]
    }

    fn part(&mut self, columns: &[usize], rows: (i64, i64)) -> OpenedPart {
        let columns = columns.iter().map(|number| format!("c{number}")).collect();
        let spec = PartSpec { columns: Some(columns), start: Some(rows.0), stop: Some(rows.1) };
        let opened = self.opened.clone();
        part_of(&opened, &spec, &mut |spans| {
            let bytes = spans.iter().map(|span| self.bytes_at(*span).to_vec()).collect();
            self.reads.push(spans.to_vec());
            Ok(bytes)
        })
        .unwrap()
    }

    /// Compares the arrays over the blocks of a part with the rows of the object.
    fn check(&self, part: &OpenedPart, columns: &[usize], (start, stop): (usize, usize)) {
        let (brought, head) = Brought::decode(&part.opened.entry).unwrap();
        assert_eq!(head.origins.len(), part.opened.blocks.len());
        let end = head.origins.iter().map(|origin| origin.end().unwrap().0).max().unwrap();
        let mut region = vec![0xA5; end as usize];
        for (origin, block) in head.origins.iter().zip(&part.opened.blocks) {
            assert_eq!(origin.length, block.length);
            let bytes = match block.offset == NEW_BLOCK_AT {
                true => &part.new_block[..],
                false => self.bytes_at(*block),
            };
            let start = origin.offset.0 as usize;
            region[start..start + bytes.len()].copy_from_slice(bytes);
        }
        let region = RegionBytes::new(&region);
        let decoded = Decoded::parse(&brought.descriptor, &Limits::default()).unwrap();
        let resolve = |offset: u64, length: u64| {
            let span = Span::new(Offset(offset), Length(length));
            let is_there = head.origins.iter().any(|origin| origin.contains(span));
            region.resolve(offset, length).filter(|_| is_there)
        };
        let Rebuilt::Arrow(object) = decoded.rebuild_checked(&resolve).unwrap() else {
            panic!("no Arrow object")
        };
        for (found, number) in object.batches[0].columns.iter().zip(columns) {
            assert_eq!(*found, self.batch.columns[*number].slice(start, stop - start));
        }
    }
}

fn transferred(part: &OpenedPart) -> u64 {
    part.opened.blocks.iter().map(|block| block.length.0).sum()
}

#[test]
fn a_part_of_each_type_has_the_rows_and_little_more() {
    let list = |item| DataType::List(Field::new("item", item, true).into());
    let mut types: Vec<DataType> = sample_types()
        .into_iter()
        .filter(|of| !random_array(&mut SplitMix64::new(3), of, 8, true).is_empty())
        .collect();
    types.push(list(list(DataType::Utf8)));
    let mut object = HomeObject::new(&types);
    let columns: Vec<usize> = (0..types.len()).collect();
    let part = object.part(&columns, (10_003, 10_013));
    object.check(&part, &columns, (10_003, 10_013));
    // Lists of lists of strings need three steps.
    assert_eq!(object.reads.len(), 3, "{:?}", object.reads);
    assert!(!part.new_block.is_empty());
    let read: u64 = object.reads.iter().flatten().map(|span| span.length.0).sum();
    let bytes = read + transferred(&part);
    let whole = object.bytes.len() as u64;
    // Random list views refer to all items, and each small column stays whole.
    assert!(bytes < whole / 4, "{bytes} of {whole} bytes");
    // One column alone.
    let last = types.len() - 1;
    object.reads.clear();
    let part = object.part(&[last], (10_003, 10_013));
    object.check(&part, &[last], (10_003, 10_013));
    let read: u64 = object.reads.iter().flatten().map(|span| span.length.0).sum();
    assert!(read + transferred(&part) < 8192, "{read} and {} bytes", transferred(&part));
}

#[test]
fn small_columns_and_objects_that_are_here_need_no_steps() {
    let mut object = HomeObject::new(&[DataType::Boolean, DataType::Utf8]);
    let part = object.part(&[0], (5, 50));
    object.check(&part, &[0], (5, 50));
    let part = object.part(&[1, 1], (5, 19_990));
    object.check(&part, &[1, 1], (5, 19_990));
    assert_eq!((object.reads.len(), part.new_block.len()), (0, 0));
    object.opened.inline = object.bytes.clone();
    let part = object.part(&[1], (5, 50));
    assert_eq!((object.reads.len(), part.new_block.len()), (0, 0));
    assert_eq!(part.opened.inline.len() as u64, transferred(&part));
}

#[test]
fn contents_that_do_not_arrive_or_contradict_are_errors() {
    let object = HomeObject::new(&[DataType::Utf8]);
    let spec = PartSpec { columns: None, start: Some(100), stop: Some(200) };
    let part = |answer: &dyn Fn(&[Span]) -> Arrived| {
        part_of(&object.opened, &spec, &mut |spans| answer(spans))
    };
    let filled = |byte| {
        part(&|spans| Ok(spans.iter().map(|span| vec![byte; span.length.as_usize()]).collect()))
    };
    for (result, message) in [
        (part(&|_| Err(NetFault::Busy("later".into()))), "later"),
        (part(&|_| Ok(Vec::new())), "did not arrive"),
        (part(&|spans| Ok(vec![vec![0; 7]; spans.len()])), "did not arrive"),
        (filled(0xff), "negative"),
        (filled(0x7f), "values"),
    ] {
        let error = format!("{:?}", result.unwrap_err());
        assert!(error.contains(message), "{error}, not {message:?}");
    }
    // Zeros are the offsets of empty strings: the rows that such a home has.
    assert!(filled(0).is_ok());
}

#[test]
fn new_blocks_have_a_limit_and_go_with_their_hold() {
    let blocks = NewBlocks::default();
    let key = |hold| ("a".to_owned(), hold);
    for hold in 0..8 {
        blocks.add(key(hold), vec![0; 32 << 20]).unwrap();
    }
    let error = blocks.add(key(8), vec![0; 1]).unwrap_err();
    assert!(matches!(&error, NetFault::Busy(text) if text.contains("8 parts")), "{error:?}");
    assert_eq!(blocks.take("b", 3), None);
    assert_eq!(blocks.take("a", 3).map(|block| block.len()), Some(32 << 20));
    assert_eq!(blocks.take("a", 3), None);
    blocks.add(key(8), vec![0; 1]).unwrap();
    blocks.add(key(9), Vec::new()).unwrap();
    assert_eq!(blocks.take("a", 9), None);
}

#[test]
fn what_is_no_object_is_refused() {
    let nothing = Opened { blocks: Vec::new(), entry: vec![1, 2, 3], inline: Vec::new() };
    let part = part_of(&nothing, &PartSpec::default(), &mut |_| panic!("nothing to read"));
    assert!(part.is_err());
}
