//! Random schemas and arrays of every Arrow type, for property tests (feature `testing`).
//!
//! Types are drawn from proptest strategies, so that failures shrink to small types. Values are
//! drawn from a seeded generator, so that failures repeat.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "it is for tests")]

mod arena;
mod arrays;
mod forge;
mod messages;
mod types;

pub use arena::RegionBytes;
pub use arrays::{SplitMix64, random_array};
pub use forge::{ForgeOutcome, exercise, mutate, seed, split_input};
pub use messages::{exercise_messages, join_messages, message_seed, split_messages};
pub use types::{any_type, sample_types};

use crate::BatchData;
use arrow_data::ArrayData;
use arrow_schema::{Field, Schema};
use proptest::prelude::*;
use std::collections::HashMap;

/// Any array of any type: with nulls, with offsets at every level, sliced.
pub fn any_array() -> impl Strategy<Value = ArrayData> {
    (any_type(), 0..40usize, any::<u64>()).prop_map(|(data_type, length, seed)| {
        let mut random = SplitMix64::new(seed);
        random_slice(&mut random, &random_field("f", data_type), length)
    })
}

/// Any field, and chunks of its type.
pub fn any_chunks() -> impl Strategy<Value = (Field, Vec<ArrayData>)> {
    let lengths = prop::collection::vec(0..30usize, 0..5);
    (any_type(), lengths, any::<u64>()).prop_map(|(data_type, lengths, seed)| {
        let mut random = SplitMix64::new(seed);
        let field = random_field("chunks", data_type).with_metadata(random_metadata(&mut random));
        let chunks = lengths.into_iter().map(|length| random_slice(&mut random, &field, length));
        let chunks = chunks.collect();
        (field, chunks)
    })
}

/// Any schema and batches of it, possibly without columns, rows or batches. Some batches are
/// slices of one array, so that dictionaries and buffers are shared.
pub fn any_table() -> impl Strategy<Value = (Schema, Vec<BatchData>)> {
    let types = prop::collection::vec(any_type(), 0..4);
    let lengths = prop::collection::vec(0..20usize, 0..4);
    (types, lengths, any::<u64>()).prop_map(|(types, lengths, seed)| {
        let mut random = SplitMix64::new(seed);
        let fields: Vec<Field> = types
            .into_iter()
            .enumerate()
            .map(|(index, data_type)| {
                let field = random_field(&format!("column {index}"), data_type);
                field.with_metadata(random_metadata(&mut random))
            })
            .collect();
        let shared = random.chance(2);
        let total: usize = lengths.iter().sum();
        let whole: Vec<ArrayData> =
            fields.iter().map(|field| random_slice(&mut random, field, total)).collect();
        let mut at = 0;
        let mut batches = Vec::new();
        for rows in lengths {
            let columns = fields.iter().zip(&whole).map(|(field, whole)| match shared {
                true => whole.slice(at, rows),
                false => random_slice(&mut random, field, rows),
            });
            batches.push(BatchData { rows, columns: columns.collect() });
            at += rows;
        }
        let schema = Schema::new_with_metadata(fields, random_metadata(&mut random));
        (schema, batches)
    })
}

fn random_field(name: &str, data_type: arrow_schema::DataType) -> Field {
    Field::new(name, data_type, true)
}

fn random_metadata(random: &mut SplitMix64) -> HashMap<String, String> {
    let pairs = random.below(3);
    (0..pairs).map(|index| (format!("key {index}"), "v\u{e4}lue".repeat(index))).collect()
}

/// An array of `length` elements, possibly a slice of a longer one.
fn random_slice(random: &mut SplitMix64, field: &Field, length: usize) -> ArrayData {
    let (before, after) = match random.below(3) {
        0 => (0, 0),
        1 => (random.below(10), random.below(10)),
        _ => (random.below(3) * 8, random.below(20)),
    };
    let nullable = field.is_nullable();
    let longer = random_array(random, field.data_type(), before + length + after, nullable);
    if before + after == 0 { longer } else { longer.slice(before, length) }
}
