//! Dissociated IPC: stock arrow-rs and our own importer read our exports in place.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

use arrow_array::{Array, ArrayRef, RecordBatch, make_array};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_ipc::{convert::try_fb_to_schema, root_as_message};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use farrow_arrow::dissociated::{Export, Importer, Messages, body_of, import};
use farrow_arrow::testing::{
    ForgeOutcome, RegionBytes, SplitMix64, any_table, exercise_messages, message_seed,
    random_array, sample_types,
};
use farrow_arrow::{ArrowObject, BatchData, CopyOut, ExportError, Kind, SchemaNode};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Copies the buffers of an object that `choose` selects into an arena, and exports the object.
fn export(object: &ArrowObject, arena: &mut RegionBytes) -> Result<(Messages, u64), ExportError> {
    let export = arena.plan(|locate| Export::new(object, locate))?;
    let base = arena.append(export.copy_bytes() as usize, |area| {
        for copy in export.copies() {
            let CopyOut { offset, length, .. } = copy;
            copy.fill(&mut area[offset as usize..(offset + length) as usize]);
        }
    });
    let region_bytes = arena.as_buffer().len() as u64;
    Ok((export.messages(base, region_bytes), export.copy_bytes()))
}

fn table(schema: &Schema, batches: Vec<BatchData>) -> ArrowObject {
    let schema = Arc::new(SchemaNode::try_from(schema).unwrap());
    ArrowObject { kind: Kind::Table, schema, batches }
}

fn metadata(message: &[u8]) -> arrow_ipc::Message<'_> {
    assert_eq!(message[..4], [0xff; 4]);
    assert_eq!(message.len() % 8, 0);
    root_as_message(&message[8..]).unwrap()
}

/// Reads with the functions of arrow-rs alone, with the region as the body.
fn read_stock(messages: &Messages, region: &Buffer) -> (SchemaRef, Vec<RecordBatch>) {
    let schema = metadata(&messages.schema);
    let schema = Arc::new(try_fb_to_schema(schema.header_as_schema().unwrap()).unwrap());
    let mut dictionaries: HashMap<i64, ArrayRef> = HashMap::new();
    let mut batches = Vec::new();
    for batch in &messages.batches {
        for dictionary in &batch.dictionaries {
            let message = metadata(dictionary);
            let dictionary = message.header_as_dictionary_batch().unwrap();
            let version = message.version();
            read_dictionary(region, dictionary, &schema, &mut dictionaries, &version).unwrap();
        }
        let message = metadata(&batch.record_batch);
        let record = message.header_as_record_batch().unwrap();
        let version = message.version();
        let schema = Arc::clone(&schema);
        batches.push(
            read_record_batch(region, record, schema, &dictionaries, None, &version).unwrap(),
        );
    }
    (schema, batches)
}

fn assert_inside(arena: &RegionBytes, array: &ArrayData) {
    for buffer in array.buffers().iter().chain(array.nulls().map(|nulls| nulls.buffer())) {
        let inside = arena.locate(buffer.as_ptr(), buffer.len()).is_some();
        assert!(inside || buffer.is_empty() || array.is_empty(), "{}", array.data_type());
    }
    array.child_data().iter().for_each(|child| assert_inside(arena, child));
}

fn check(object: &ArrowObject, arena: &mut RegionBytes) -> u64 {
    let (messages, copied) = export(object, arena).unwrap();
    let back = import(&messages, &|offset, length| arena.resolve(offset, length), true).unwrap();
    assert_eq!(back.schema, object.schema);
    let (_, stock) = read_stock(&messages, arena.as_buffer());
    assert_eq!(back.batches.len(), object.batches.len());
    for ((back, batch), stock) in back.batches.iter().zip(&object.batches).zip(&stock) {
        assert_eq!(back.rows, batch.rows);
        assert_eq!(stock.num_rows(), batch.rows);
        for (index, column) in batch.columns.iter().enumerate() {
            assert_eq!(&back.columns[index], column);
            assert_inside(arena, &back.columns[index]);
            let stock = stock.column(index).to_data();
            assert_eq!(&stock, column, "stock {}", column.data_type());
            assert_inside(arena, &stock);
        }
    }
    for batch in &messages.batches {
        assert_eq!(body_of(&batch.record_batch).unwrap().len() % 16, 0);
    }
    copied
}

fn is_expressible(data_type: &DataType) -> bool {
    let below = |fields: &[&DataType]| fields.iter().all(|below| is_expressible(below));
    match data_type {
        DataType::Dictionary(_, values) => {
            !matches!(values.as_ref(), DataType::Dictionary(_, _)) && is_expressible(values)
        }
        DataType::Struct(fields) => fields.iter().all(|field| is_expressible(field.data_type())),
        DataType::Union(fields, _) => fields.iter().all(|(_, f)| is_expressible(f.data_type())),
        DataType::RunEndEncoded(_, values) => is_expressible(values.data_type()),
        DataType::List(f)
        | DataType::LargeList(f)
        | DataType::ListView(f)
        | DataType::LargeListView(f)
        | DataType::FixedSizeList(f, _)
        | DataType::Map(f, _) => below(&[f.data_type()]),
        _ => true,
    }
}

#[test]
fn every_type_is_read_by_stock_arrow() {
    for data_type in sample_types().iter().filter(|data_type| is_expressible(data_type)) {
        let schema = Schema::new(vec![Field::new("c", data_type.clone(), true)]);
        let mut random = SplitMix64::new(5);
        let array = random_array(&mut random, data_type, 40, true);
        for (start, length) in [(0, 40), (3, 14), (8, 12), (5, 0)] {
            let (start, length) = if array.is_empty() { (0, 0) } else { (start, length) };
            let mut arena = RegionBytes::default();
            let array = arena.adopt(&array, &mut || true).slice(start, length);
            let batch = BatchData { rows: length, columns: vec![array] };
            check(&table(&schema, vec![batch]), &mut arena);
        }
    }
}

/// Arrays that need no normalisation are not copied.
#[test]
fn whole_arrays_in_the_region_are_not_copied() {
    let columns: Vec<ArrayData> = vec![
        arrow_array::Int64Array::from(vec![Some(1), None, Some(3)]).to_data(),
        arrow_array::StringArray::from(vec!["a", "bc", ""]).to_data(),
        arrow_array::BooleanArray::from(vec![true, false, true]).to_data(),
    ];
    let fields: Vec<Field> =
        columns.iter().map(|c| Field::new("c", c.data_type().clone(), true)).collect();
    let mut arena = RegionBytes::default();
    let columns = arena.adopt_all(&columns, &mut || true);
    let batch = BatchData { rows: 3, columns };
    assert_eq!(check(&table(&Schema::new(fields), vec![batch]), &mut arena), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_table_goes_through(
        (schema, batches) in any_table().prop_filter("IPC can say it", |(schema, _)| {
            schema.fields().iter().all(|field| is_expressible(field.data_type()))
        }),
        choices in any::<u64>(),
    ) {
        let mut arena = RegionBytes::default();
        let mut random = SplitMix64::new(choices);
        let all: Vec<ArrayData> = batches.iter().flat_map(|batch| batch.columns.clone()).collect();
        let mut all = arena.adopt_all(&all, &mut || random.chance(2)).into_iter();
        let batches = batches.into_iter().map(|batch| {
            let columns = all.by_ref().take(batch.columns.len()).collect();
            BatchData { rows: batch.rows, columns }
        });
        let batches = batches.collect();
        check(&table(&schema, batches), &mut arena);
    }
}

/// Chunks that share a dictionary export it once; a chunk with another dictionary replaces it.
#[test]
fn dictionaries_are_replaced_when_they_change() {
    let strings = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let schema = Schema::new(vec![Field::new("d", strings.clone(), true)]);
    let mut random = SplitMix64::new(8);
    let first = random_array(&mut random, &strings, 20, true);
    let second = random_array(&mut random, &strings, 10, true);
    let chunks = [first.slice(0, 10), first.slice(10, 10), second, first.slice(3, 10)];
    let batches = chunks.map(|chunk| BatchData { rows: 10, columns: vec![chunk] });
    let object = table(&schema, batches.to_vec());
    let mut arena = RegionBytes::default();
    let (messages, _) = export(&object, &mut arena).unwrap();
    let counts: Vec<usize> = messages.batches.iter().map(|b| b.dictionaries.len()).collect();
    assert_eq!(counts, [1, 0, 1, 1]);
    check(&object, &mut RegionBytes::default());
}

#[test]
fn deltas_are_appended() {
    let strings = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let schema = Schema::new(vec![Field::new("d", strings.clone(), true)]);
    let mut arena = RegionBytes::default();
    // A stock writer that emits deltas.
    let dictionary = |values: &[&str], keys: &[i8]| {
        let values = arrow_array::StringArray::from(values.to_vec());
        let keys = arrow_array::Int8Array::from(keys.to_vec());
        arrow_array::DictionaryArray::try_new(keys, Arc::new(values)).unwrap()
    };
    let batches = [dictionary(&["a"], &[0, 0]), dictionary(&["a", "b"], &[0, 1])];
    let options = arrow_ipc::writer::IpcWriteOptions::default()
        .with_dictionary_handling(arrow_ipc::writer::DictionaryHandling::Delta);
    let mut stream = Vec::new();
    let mut writer =
        arrow_ipc::writer::StreamWriter::try_new_with_options(&mut stream, &schema, options)
            .unwrap();
    for batch in &batches {
        let columns: Vec<ArrayRef> = vec![Arc::new(batch.clone())];
        writer.write(&RecordBatch::try_new(Arc::new(schema.clone()), columns).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    drop(writer);
    // Split its messages: metadata here, bodies in the arena.
    let mut rest = stream.as_slice();
    let mut importer = None;
    let mut read = Vec::new();
    let mut deltas = 0;
    while rest.len() > 8 {
        let length = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
        let (message, after) = rest.split_at(8 + length);
        let opened = metadata(message);
        let (body, after) = after.split_at(opened.bodyLength() as usize);
        let at = arena.append(body.len(), |to| to.copy_from_slice(body));
        let resolve = |offset: u64, length: u64| arena.resolve(at.checked_add(offset)?, length);
        match &mut importer {
            None => importer = Some(Importer::new(message, true).unwrap()),
            Some(importer) => match opened.header_as_dictionary_batch() {
                Some(dictionary) => {
                    deltas += usize::from(dictionary.isDelta());
                    importer.dictionary(message, &resolve).unwrap();
                }
                None => read.push(importer.record_batch(message, &resolve).unwrap()),
            },
        }
        rest = after;
    }
    assert_eq!(deltas, 1, "the canary: the stock writer wrote a delta");
    for (back, batch) in read.iter().zip(&batches) {
        assert_eq!(make_array(back.columns[0].clone()).as_ref(), batch as &dyn Array);
    }
}

#[test]
fn a_dictionary_of_a_dictionary_is_not_expressible() {
    let inner = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let outer = DataType::Dictionary(Box::new(DataType::Int8), Box::new(inner));
    let array = random_array(&mut SplitMix64::new(1), &outer, 4, true);
    let schema = Schema::new(vec![Field::new("d", outer, true)]);
    let object = table(&schema, vec![BatchData { rows: 4, columns: vec![array] }]);
    let error = export(&object, &mut RegionBytes::default()).unwrap_err();
    assert!(matches!(error, ExportError::NotExpressible { .. }), "{error}");
}

#[test]
fn forged_messages_are_errors() {
    let seeds: Vec<_> = (0..sample_types().len()).filter_map(message_seed).collect();
    let mut random = SplitMix64::new(2);
    let mut counts = [0usize; 4];
    for round in 0..12_000 {
        let (messages, arena) = &seeds[round % seeds.len()];
        let mut messages = messages.clone();
        let batch = &mut messages.batches[0];
        let message = match random.below(3) {
            0 => &mut messages.schema,
            1 if !batch.dictionaries.is_empty() => &mut batch.dictionaries[0],
            _ => &mut batch.record_batch,
        };
        for _ in 0..random.below(4) {
            let at = 8 + random.below(message.len() - 8);
            message[at] ^= 1 << random.below(8);
        }
        let arena = if random.chance(2) { arena.with_noise(&mut random) } else { arena.clone() };
        counts[exercise_messages(&messages, &arena) as usize] += 1;
    }
    // The canary: forged messages that all fail early would test nothing.
    assert!(counts[0] > 1000 && counts[2] > 100 && counts[3] > 1000, "{counts:?}");
}

#[test]
fn truncated_messages_are_errors() {
    for (messages, arena) in (0..sample_types().len()).filter_map(message_seed) {
        for length in 0..messages.schema.len() {
            let schema = messages.schema[..length].to_vec();
            let cut = Messages { schema, ..messages.clone() };
            assert_eq!(exercise_messages(&cut, &arena), ForgeOutcome::Refused);
        }
        for length in 0..messages.batches[0].record_batch.len() {
            let mut cut = messages.clone();
            cut.batches[0].record_batch.truncate(length);
            assert_eq!(exercise_messages(&cut, &arena), ForgeOutcome::Refused);
        }
    }
}
