//! Types: a fixed sample of each, and a strategy for nested ones.

use arrow_schema::{
    DataType, Field, FieldRef, Fields, IntervalUnit, TimeUnit, UnionFields, UnionMode,
};
use proptest::prelude::*;
use std::sync::Arc;

fn field(name: &str, data_type: DataType) -> FieldRef {
    Arc::new(Field::new(name, data_type, true))
}

fn leaf_types() -> Vec<DataType> {
    use DataType as T;
    let mut types = vec![
        T::Null,
        T::Boolean,
        T::Int8,
        T::Int16,
        T::Int32,
        T::Int64,
        T::UInt8,
        T::UInt16,
        T::UInt32,
        T::UInt64,
        T::Float16,
        T::Float32,
        T::Float64,
        T::Decimal32(7, 2),
        T::Decimal64(15, -3),
        T::Decimal128(30, 4),
        T::Decimal256(60, 5),
        T::Date32,
        T::Date64,
        T::Time32(TimeUnit::Second),
        T::Time32(TimeUnit::Millisecond),
        T::Time64(TimeUnit::Microsecond),
        T::Time64(TimeUnit::Nanosecond),
        T::Timestamp(TimeUnit::Nanosecond, None),
        T::Timestamp(TimeUnit::Millisecond, Some("Europe/Paris".into())),
        T::Interval(IntervalUnit::YearMonth),
        T::Interval(IntervalUnit::DayTime),
        T::Interval(IntervalUnit::MonthDayNano),
        T::FixedSizeBinary(0),
        T::FixedSizeBinary(5),
        T::Binary,
        T::LargeBinary,
        T::BinaryView,
        T::Utf8,
        T::LargeUtf8,
        T::Utf8View,
    ];
    for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond] {
        types.push(T::Duration(unit));
        types.push(T::Timestamp(unit, None));
    }
    types.push(T::Duration(TimeUnit::Nanosecond));
    types
}

fn list_types(item: DataType) -> Vec<DataType> {
    use DataType as T;
    let item = field("item", item);
    vec![
        T::List(item.clone()),
        T::LargeList(item.clone()),
        T::ListView(item.clone()),
        T::LargeListView(item.clone()),
        T::FixedSizeList(item.clone(), 0),
        T::FixedSizeList(item, 3),
    ]
}

fn map_type(key: DataType, value: DataType, sorted: bool) -> DataType {
    let key = Arc::new(Field::new("key", key, false));
    let entries = DataType::Struct(Fields::from(vec![key, field("value", value)]));
    DataType::Map(Arc::new(Field::new("entries", entries, false)), sorted)
}

fn union_type(codes: &[i8], types: Vec<DataType>, mode: UnionMode) -> DataType {
    let fields = types.into_iter().enumerate().map(|(index, data_type)| {
        let code = codes.get(index).copied().unwrap_or(index as i8);
        (code, field(&format!("u{index}"), data_type))
    });
    DataType::Union(fields.collect::<UnionFields>(), mode)
}

fn run_type(ends: DataType, values: DataType) -> DataType {
    let ends = Arc::new(Field::new("run_ends", ends, false));
    DataType::RunEndEncoded(ends, field("values", values))
}

fn dictionary_type(key: DataType, values: DataType) -> DataType {
    DataType::Dictionary(Box::new(key), Box::new(values))
}

fn key_types() -> Vec<DataType> {
    use DataType as T;
    vec![T::Int8, T::Int16, T::Int32, T::Int64, T::UInt8, T::UInt16, T::UInt32, T::UInt64]
}

/// At least one type of each kind.
pub fn sample_types() -> Vec<DataType> {
    use DataType as T;
    let mut types = leaf_types();
    types.extend(list_types(T::Int16));
    types.extend(list_types(T::Utf8));
    types.push(T::Struct(Fields::empty()));
    let fields = vec![field("a", T::Int32), field("a", T::Utf8View), field("b", T::Boolean)];
    types.push(T::Struct(Fields::from(fields)));
    types.push(map_type(T::Utf8, T::Int32, false));
    types.push(map_type(T::Int32, T::Utf8, true));
    for mode in [UnionMode::Sparse, UnionMode::Dense] {
        types.push(union_type(&[5, 9], vec![T::Int32, T::Utf8], mode));
        types.push(union_type(&[], vec![], mode));
    }
    for ends in [T::Int16, T::Int32, T::Int64] {
        types.push(run_type(ends, T::Utf8));
    }
    types.extend(key_types().into_iter().map(|key| dictionary_type(key, T::Utf8)));
    types.push(dictionary_type(T::Int8, dictionary_type(T::Int16, T::Decimal128(9, 2))));
    types.push(T::List(field("item", dictionary_type(T::Int32, T::Utf8View))));
    types
}

/// Any type, nested up to four levels.
pub fn any_type() -> impl Strategy<Value = DataType> {
    // Map keys must not be null; the other types can hold nulls without a bitmap.
    let map_keys: Vec<DataType> =
        leaf_types().into_iter().filter(|t| *t != DataType::Null).collect();
    let leaf = prop::sample::select(leaf_types());
    leaf.prop_recursive(4, 12, 3, move |inner| {
        let many = prop::collection::vec(inner.clone(), 0..4);
        let modes = prop::sample::select(vec![UnionMode::Sparse, UnionMode::Dense]);
        let ends = prop::sample::select(vec![DataType::Int16, DataType::Int32, DataType::Int64]);
        let keys = prop::sample::select(key_types());
        let lists =
            (inner.clone(), 0..6usize).prop_map(|(item, kind)| list_types(item).swap_remove(kind));
        prop_oneof![
            3 => lists,
            2 => many.clone().prop_map(|types| {
                let fields = types.into_iter().enumerate();
                let fields = fields.map(|(index, ty)| field(&format!("s{index}"), ty));
                DataType::Struct(fields.collect())
            }),
            1 => (prop::sample::select(map_keys.clone()), inner.clone(), any::<bool>())
                .prop_map(|(key, value, sorted)| map_type(key, value, sorted)),
            2 => (prop::collection::vec(inner.clone(), 1..4), modes)
                .prop_map(|(types, mode)| union_type(&[7, 0, 127], types, mode)),
            1 => (ends, inner.clone()).prop_map(|(ends, values)| run_type(ends, values)),
            2 => (keys, inner).prop_map(|(key, values)| dictionary_type(key, values)),
        ]
    })
}
