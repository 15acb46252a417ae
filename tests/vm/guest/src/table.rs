//! The tables of the tests: made from a seed, and compared value by value.

use std::slice;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use farrow::{ArrowObject, BatchData, Object, Rebuilt, SchemaNode};

use crate::report::{Anything, same};

pub(crate) const ROWS: i64 = 20_000;

/// A table that follows from its seed alone, with nulls.
pub(crate) fn table(seed: i64, rows: i64) -> RecordBatch {
    let number = |n: i64| (n ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64.cast_signed());
    let numbers = Int64Array::from_iter((0..rows).map(|n| (n % 7 != seed % 7).then(|| number(n))));
    let words =
        StringArray::from_iter((0..rows).map(|n| (n % 5 != 0).then(|| format!("{seed}.{n}"))));
    let columns: [(&str, ArrayRef); 2] =
        [("numbers", Arc::new(numbers)), ("words", Arc::new(words))];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))
        .unwrap_or_else(|error| unreachable!("columns of one length: {error}"))
}

/// What a client puts.
pub(crate) fn value_of(batch: &RecordBatch) -> Anything<(SchemaNode, BatchData)> {
    Ok((SchemaNode::try_from(&*batch.schema())?, BatchData::from(batch)))
}

/// Compares all values, and sees that each buffer is where it should be; the bytes of the buffers.
pub(crate) fn check_table(
    object: &Object,
    seed: i64,
    is_in_place: impl Fn(*const u8, usize) -> bool,
) -> Anything<usize> {
    let Rebuilt::Arrow(found) = object.rebuild_checked()? else {
        return Err("not a table".into());
    };
    compare(&found.record_batches()?, &[table(seed, ROWS)])?;
    let mut bytes = 0;
    for column in found.batches.iter().flat_map(|batch| &batch.columns) {
        let nulls = column.nulls().map(|nulls| nulls.buffer());
        for buffer in column.buffers().iter().chain(nulls) {
            if !is_in_place(buffer.as_ptr(), buffer.len()) {
                return Err(format!("a buffer of {} B is a copy", buffer.len()).into());
            }
            bytes += buffer.len();
        }
    }
    Ok(bytes)
}

/// Compares all values of a table, or of a part of one.
pub(crate) fn check_rows(found: &ArrowObject, expected: &[RecordBatch]) -> Anything {
    compare(&found.record_batches()?, expected)
}

/// Batches may be divided otherwise.
fn compare(found: &[RecordBatch], expected: &[RecordBatch]) -> Anything {
    let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
    same("rows", rows(found), rows(expected))?;
    let (mut left, mut right) = (found.to_vec(), expected.to_vec());
    while let (Some(found), Some(expected)) = (left.first_mut(), right.first_mut()) {
        let count = found.num_rows().min(expected.num_rows());
        let (of_found, of_expected) = (found.slice(0, count), expected.slice(0, count));
        let is_right = of_found.columns() == of_expected.columns();
        same("the values are those of the maker", is_right, true)?;
        advance(&mut left, count);
        advance(&mut right, count);
    }
    Ok(())
}

/// Drops the first rows of the first batch.
fn advance(batches: &mut Vec<RecordBatch>, count: usize) {
    let rest = batches[0].num_rows() - count;
    if rest == 0 {
        batches.remove(0);
    } else {
        batches[0] = batches[0].slice(count, rest);
    }
}

/// The comparison would see another table.
pub(crate) fn check_the_checks() -> Anything {
    let (first, second) = (table(1, ROWS), table(2, ROWS));
    compare(&[first.slice(0, 7), first.slice(7, 19_993)], slice::from_ref(&first))?;
    let is_seen = compare(slice::from_ref(&first), &[second]).is_err();
    same("another table is seen", is_seen, true)?;
    let is_seen = compare(&[first.slice(0, 19_999)], &[first]).is_err();
    same("a row too few is seen", is_seen, true)
}
