//! The loops over numbers, strings, dictionaries and bits against plain ones.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow_array::types::Int16Type;
use arrow_array::{
    Array, BooleanArray, DictionaryArray, FixedSizeBinaryArray, Int16Array, LargeStringArray,
    StringArray, StringViewArray,
};
use arrow_buffer::{NullBuffer, i256};
use proptest::prelude::*;

use super::numbers::{self, F16, Number};
use super::scan::{Bounds, Comparable, OrderedValues, RangeStatistics};
use super::texts;
use super::values::Part;

/// The definition: bounds of values, some of them null or unordered with themselves, and order.
fn plain<'a>(values: &[Option<Comparable<'a>>]) -> RangeStatistics<'a> {
    let is_nan = |value: &Comparable<'_>| value.partial_cmp(value).is_none();
    let present: Vec<_> = values.iter().flatten().copied().collect();
    let nulls = values.len() - present.len();
    let mut bounds = Bounds::Absent;
    for value in present.iter().copied().filter(|value| !is_nan(value)) {
        bounds = match bounds {
            Bounds::Found(min, max) => Bounds::Found(
                if value < min { value } else { min },
                if value > max { value } else { max },
            ),
            _ => Bounds::Found(value, value),
        };
    }
    let has_nan = present.iter().any(is_nan);
    let (Some(first), Some(last)) = (present.first().copied(), present.last().copied()) else {
        return RangeStatistics {
            length: values.len() as u64,
            nulls: Some(nulls as u64),
            ..RangeStatistics::empty()
        };
    };
    let steps = |ordering: Ordering| {
        let pairs = present.windows(2).map(|pair| pair[0].partial_cmp(&pair[1]));
        nulls == 0 && !has_nan && pairs.into_iter().all(|step| step != Some(ordering))
    };
    let (is_ascending, is_descending) = (steps(Ordering::Greater), steps(Ordering::Less));
    let order = OrderedValues { first, last, is_ascending, is_descending };
    RangeStatistics {
        length: values.len() as u64,
        nulls: Some(nulls as u64),
        has_nan,
        bounds,
        order: (is_ascending || is_descending).then_some(order),
    }
}

/// Small numbers, mostly unordered, ordered, or equal, and whether each is valid.
fn rows() -> impl Strategy<Value = (Vec<u8>, Vec<bool>)> {
    let values = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        prop::collection::vec(any::<u8>(), 4000..4600),
        (0..4600_usize).prop_map(|length| (0..length).map(|at| (at / 40) as u8).collect()),
        (0..4600_usize).prop_map(|length| (0..length).map(|at| 130 - (at / 40) as u8).collect()),
        (any::<u8>(), 0..2100_usize).prop_map(|(value, length)| vec![value; length]),
    ];
    let swaps = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2);
    let valid = prop_oneof![
        Just(vec![true]),
        Just(vec![false]),
        prop::collection::vec(prop::bool::weighted(0.9), 64..200),
        prop::collection::vec(prop::bool::weighted(0.02), 64..200),
        (1..300_usize).prop_map(|length| (0..length).map(|at| at != length / 2).collect()),
    ];
    (values, swaps, valid).prop_map(|(mut values, swaps, valid)| {
        for (at, value) in swaps {
            if !values.is_empty() {
                let at = at.index(values.len());
                values[at] = value;
            }
        }
        let valid = valid.iter().copied().cycle().take(values.len()).collect();
        (values, valid)
    })
}

/// Compares the loops over numbers, from `start` on.
fn check_numbers<T: Number<N>, const N: usize>(cells: &[[u8; N]], valid: &[bool], start: usize) {
    let nulls = NullBuffer::from(valid.to_vec()).slice(start, cells.len() - start);
    let cells = &cells[start..];
    let rows = cells.iter().zip(&valid[start..]);
    let rows: Vec<_> = rows.map(|(cell, valid)| valid.then(|| T::read(*cell).key())).collect();
    let nulls = Some(&nulls);
    let all = |found: RangeStatistics<'static>| RangeStatistics {
        nulls: nulls.map(|nulls| nulls.null_count() as u64),
        ..found
    };
    let wanted = plain(&rows);
    assert_eq!(all(numbers::numbers::<T, N>(cells, nulls)), wanted);
    assert_eq!(all(numbers::numbers_in_lanes::<T, N, { numbers::LANES }>(cells, nulls)), wanted);
    if rows.iter().all(Option::is_some) {
        assert_eq!(numbers::numbers::<T, N>(cells, None), wanted);
    }
}

/// Strings of which many begin alike, and as many as differ by zeros or by their length.
fn text(value: u8, prefix: usize) -> String {
    let letters = ["", "\0", "a", "ab", "abcdefg", "abcdefg\0", "abcdefgh", "abcdefghi"];
    let short = format!("{}{}", letters[value as usize % 8], letters[value as usize / 8 % 8]);
    if value >= 250 { short } else { format!("{}{short}", "p".repeat(prefix)) }
}

fn check_texts(array: &dyn Array, texts: &[Option<&[u8]>], start: usize) {
    let data = array.to_data();
    let wanted =
        plain(&texts[start..].iter().map(|one| one.map(Comparable::Bytes)).collect::<Vec<_>>());
    let nulls = data.nulls().map(|nulls| nulls.slice(start, data.len() - start));
    let part = Part { data: &data, rows: start..data.len(), nulls };
    assert_eq!(part.count(), wanted, "{}", data.data_type());
    let sliced = array.slice(start, array.len() - start).to_data();
    let part = Part { data: &sliced, rows: 0..sliced.len(), nulls: sliced.nulls().cloned() };
    assert_eq!(part.count(), wanted, "{}, sliced", data.data_type());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn numbers_of_all_types_agree((values, valid) in rows(), start in any::<prop::sample::Index>()) {
        let start = if values.is_empty() { 0 } else { start.index(values.len().min(70)) };
        macro_rules! check {
            ($($native:ty, $bytes:literal;)*) => {$(
                let cells: Vec<[u8; $bytes]> =
                    values.iter().map(|value| (*value as $native).to_le_bytes()).collect();
                check_numbers::<$native, $bytes>(&cells, &valid, start);
                // Of all bits; of floating point, with NaN.
                let cells: Vec<[u8; $bytes]> = values.iter().map(|value| [*value; $bytes]).collect();
                check_numbers::<$native, $bytes>(&cells, &valid, start);
            )*};
        }
        check! {
            i8, 1; u8, 1; i16, 2; u16, 2; i32, 4; u32, 4; i64, 8; u64, 8; i128, 16; f32, 4; f64, 8;
        }
        let cells: Vec<[u8; 2]> = values.iter().map(|value| [*value, value | 0x78]).collect();
        check_numbers::<F16, 2>(&cells, &valid, start);
        let cells: Vec<[u8; 32]> =
            values.iter().map(|value| i256::from_i128((*value).into()).to_le_bytes()).collect();
        check_numbers::<i256, 32>(&cells, &valid, start);
    }

    #[test]
    fn nan_and_zeros_agree((values, valid) in rows(), nan in any::<prop::sample::Index>()) {
        let mut floats: Vec<f64> = values.iter().map(|value| f64::from(*value) - 40.0).collect();
        floats.iter_mut().filter(|value| **value == 3.0).for_each(|value| *value = -0.0);
        let cells: Vec<[u8; 8]> = floats.iter().map(|value| value.to_le_bytes()).collect();
        check_numbers::<f64, 8>(&cells, &valid, 0);
        if !floats.is_empty() {
            floats[nan.index(values.len())] = f64::NAN;
        }
        let cells: Vec<[u8; 8]> = floats.iter().map(|value| value.to_le_bytes()).collect();
        check_numbers::<f64, 8>(&cells, &valid, 0);
    }

    #[test]
    fn strings_of_all_types_agree(
        (values, valid) in rows(),
        start in any::<prop::sample::Index>(),
        prefix in prop_oneof![Just(0_usize), 0..10_usize, 0..70_usize],
        is_sorted in any::<bool>(),
    ) {
        let length = values.len().min(1200);
        let mut all: Vec<String> = values[..length].iter().map(|value| text(*value, prefix)).collect();
        if is_sorted {
            all.sort();
        }
        let start = if length == 0 { 0 } else { start.index(length.min(300)) };
        let rows = all.iter().zip(&valid).map(|(text, valid)| valid.then_some(text.as_str()));
        let rows: Vec<Option<&str>> = rows.collect();
        let bytes: Vec<Option<&[u8]>> = rows.iter().map(|row| row.map(str::as_bytes)).collect();
        check_texts(&StringArray::from(rows.clone()), &bytes, start);
        check_texts(&LargeStringArray::from(rows.clone()), &bytes, start);
        check_texts(&StringViewArray::from(rows.clone()), &bytes, start);
        let whole = StringArray::from(rows.clone()).to_data();
        let (offsets, _) = whole.buffers()[0].as_slice().as_chunks::<4>();
        let offsets = texts::Short { offsets, values: whole.buffers()[1].as_slice() };
        let nulls = whole.nulls();
        let places = whole.offset()..whole.offset() + whole.len();
        let plain_lanes = texts::texts_in_lanes::<_, { numbers::LANES }>(&offsets, places.clone(), nulls);
        prop_assert_eq!(plain_lanes, texts::texts(&offsets, places, nulls));
        let mut equal: Vec<Vec<u8>> = all.into_iter().map(String::into_bytes).collect();
        equal.iter_mut().for_each(|text| text.resize(prefix.max(1), b'z'));
        let equal: Vec<Option<&[u8]>> =
            equal.iter().zip(&valid).map(|(text, valid)| valid.then_some(&text[..])).collect();
        let width = prefix.max(1) as i32;
        let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(equal.iter().copied(), width);
        check_texts(&fixed.unwrap(), &equal, start);
    }

    #[test]
    fn dictionaries_and_booleans_agree(
        (values, valid) in rows(),
        start in any::<prop::sample::Index>(),
    ) {
        let start = if values.is_empty() { 0 } else { start.index(values.len().min(70)) };
        let bits = values.iter().zip(&valid).map(|(value, valid)| valid.then_some(value % 2 == 1));
        let bits: Vec<Option<bool>> = bits.collect();
        let wanted = plain(
            &bits[start..].iter().map(|bit| bit.map(|bit| Comparable::Int(bit.into()))).collect::<Vec<_>>(),
        );
        let data = BooleanArray::from(bits).slice(start, values.len() - start).to_data();
        let part = Part { data: &data, rows: 0..data.len(), nulls: data.nulls().cloned() };
        prop_assert_eq!(part.count(), RangeStatistics { order: None, ..wanted });
        let keys = values.iter().zip(&valid).map(|(value, valid)| valid.then_some(i16::from(*value)));
        let texts: Vec<Option<String>> =
            (0..=255).map(|value| (value % 9 > 0).then(|| text(value, 30))).collect();
        let rows: Vec<Option<Comparable<'_>>> = values[start..]
            .iter()
            .zip(&valid[start..])
            .map(|(value, valid)| texts[*value as usize].as_ref().filter(|_| *valid))
            .map(|text| text.map(|text| Comparable::Bytes(text.as_bytes())))
            .collect();
        let keys = Int16Array::from(keys.collect::<Vec<_>>());
        let dictionary =
            DictionaryArray::<Int16Type>::new(keys, Arc::new(StringArray::from(texts.clone())));
        let data = dictionary.slice(start, values.len() - start).to_data();
        let part = Part { data: &data, rows: 0..data.len(), nulls: data.nulls().cloned() };
        prop_assert_eq!(part.count(), RangeStatistics { order: None, ..plain(&rows) });
    }
}

/// Among hundreds of strings one whose key is wrong can be neither the least nor the greatest.
#[test]
fn three_strings_agree_in_every_order() {
    let texts = [
        "",
        "\0",
        "a",
        "a\0",
        "ab",
        "b",
        "abcdef",
        "abcdefg",
        "abcdefg\0",
        "abcdefgh",
        "abcdefh",
        "abcdefghijklmn",
        "abcdefghijklmno",
        "abcdefghijklmo",
        "\u{ff}",
    ];
    for one in texts {
        for two in texts {
            for three in texts {
                let rows = [Some(one), Some(two), Some(three)];
                let bytes = rows.map(|row| row.map(str::as_bytes));
                check_texts(&StringArray::from(rows.to_vec()), &bytes, 0);
                check_texts(&StringViewArray::from(rows.to_vec()), &bytes, 0);
            }
        }
    }
}
