//! Format strings of the Arrow C Data Interface, to and from arrow-rs types.
//! Source: <https://arrow.apache.org/docs/format/CDataInterface.html#data-type-description-format-strings>

use super::{SchemaNode, fields_of};
use crate::error::SchemaError;
use arrow_schema::{
    DataType, Field, FieldRef, Fields, IntervalUnit, TimeUnit, UnionFields, UnionMode,
};
use std::borrow::Cow;
use std::sync::Arc;

/// Type codes of a union are 0..=127 in the Arrow columnar format.
const UNION_CODES_MAX: usize = 128;

/// The arrow-rs type of a format string and its children (not of a dictionary's values).
pub(super) fn data_type(
    format: &str,
    keys_sorted: bool,
    children: &[SchemaNode],
) -> Result<DataType, SchemaError> {
    if let Some(simple) = simple(format) {
        expect_children(format, children, 0)?;
        return Ok(simple);
    }
    if format.starts_with('+') {
        return nested(format, keys_sorted, children);
    }
    expect_children(format, children, 0)?;
    let (head, parameter) = format
        .split_once(':')
        .ok_or_else(|| SchemaError::UnknownFormat { format: format.into() })?;
    let unit = match head {
        "w" => return Ok(DataType::FixedSizeBinary(size(format, parameter)?)),
        "d" => return decimal(format, parameter),
        "tss" => TimeUnit::Second,
        "tsm" => TimeUnit::Millisecond,
        "tsu" => TimeUnit::Microsecond,
        "tsn" => TimeUnit::Nanosecond,
        _ => return Err(SchemaError::UnknownFormat { format: format.into() }),
    };
    let zone = (!parameter.is_empty()).then(|| Arc::from(parameter));
    Ok(DataType::Timestamp(unit, zone))
}

fn simple(format: &str) -> Option<DataType> {
    Some(match format {
        "n" => DataType::Null,
        "b" => DataType::Boolean,
        "c" => DataType::Int8,
        "C" => DataType::UInt8,
        "s" => DataType::Int16,
        "S" => DataType::UInt16,
        "i" => DataType::Int32,
        "I" => DataType::UInt32,
        "l" => DataType::Int64,
        "L" => DataType::UInt64,
        "e" => DataType::Float16,
        "f" => DataType::Float32,
        "g" => DataType::Float64,
        "z" => DataType::Binary,
        "Z" => DataType::LargeBinary,
        "vz" => DataType::BinaryView,
        "u" => DataType::Utf8,
        "U" => DataType::LargeUtf8,
        "vu" => DataType::Utf8View,
        "tdD" => DataType::Date32,
        "tdm" => DataType::Date64,
        "tts" => DataType::Time32(TimeUnit::Second),
        "ttm" => DataType::Time32(TimeUnit::Millisecond),
        "ttu" => DataType::Time64(TimeUnit::Microsecond),
        "ttn" => DataType::Time64(TimeUnit::Nanosecond),
        "tDs" => DataType::Duration(TimeUnit::Second),
        "tDm" => DataType::Duration(TimeUnit::Millisecond),
        "tDu" => DataType::Duration(TimeUnit::Microsecond),
        "tDn" => DataType::Duration(TimeUnit::Nanosecond),
        "tiM" => DataType::Interval(IntervalUnit::YearMonth),
        "tiD" => DataType::Interval(IntervalUnit::DayTime),
        "tin" => DataType::Interval(IntervalUnit::MonthDayNano),
        _ => return None,
    })
}

fn nested(
    format: &str,
    keys_sorted: bool,
    children: &[SchemaNode],
) -> Result<DataType, SchemaError> {
    let one = || -> Result<FieldRef, SchemaError> {
        expect_children(format, children, 1)?;
        let child = children.first().ok_or_else(|| bad_child(format, "needs a child"))?;
        Ok(Arc::new(child.to_field()))
    };
    Ok(match format {
        "+l" => DataType::List(one()?),
        "+L" => DataType::LargeList(one()?),
        "+vl" => DataType::ListView(one()?),
        "+vL" => DataType::LargeListView(one()?),
        "+s" => DataType::Struct(fields_of(children)),
        "+m" => DataType::Map(map_entries(format, one()?)?, keys_sorted),
        "+r" => run_end_encoded(format, children)?,
        _ => match format.split_once(':') {
            Some(("+w", items)) => DataType::FixedSizeList(one()?, size(format, items)?),
            Some(("+ud", codes)) => union(format, codes, children, UnionMode::Dense)?,
            Some(("+us", codes)) => union(format, codes, children, UnionMode::Sparse)?,
            _ => return Err(SchemaError::UnknownFormat { format: format.into() }),
        },
    })
}

fn bad_child(format: &str, reason: &'static str) -> SchemaError {
    SchemaError::BadChild { format: format.into(), reason }
}

fn bad_parameter(format: &str, reason: &'static str) -> SchemaError {
    SchemaError::BadParameter { format: format.into(), reason }
}

fn expect_children(
    format: &str,
    children: &[SchemaNode],
    expected: usize,
) -> Result<(), SchemaError> {
    if children.len() == expected {
        return Ok(());
    }
    Err(SchemaError::Children { format: format.into(), expected, found: children.len() })
}

/// A size: 0 to `i32::MAX`.
fn size(format: &str, text: &str) -> Result<i32, SchemaError> {
    match text.parse::<i32>() {
        Ok(size) if size >= 0 => Ok(size),
        _ => Err(bad_parameter(format, "the size must be 0..=2147483647")),
    }
}

fn decimal(format: &str, parameter: &str) -> Result<DataType, SchemaError> {
    let mut parts = parameter.split(',');
    let precision = parts.next().and_then(|part| part.parse::<u8>().ok());
    let scale = parts.next().and_then(|part| part.parse::<i8>().ok());
    let bits = parts.next().unwrap_or("128");
    let (Some(precision), Some(scale), None) = (precision, scale, parts.next()) else {
        return Err(bad_parameter(format, "a decimal is d:precision,scale[,bits]"));
    };
    let (digits, data_type) = match bits {
        "32" => (9, DataType::Decimal32(precision, scale)),
        "64" => (18, DataType::Decimal64(precision, scale)),
        "128" => (38, DataType::Decimal128(precision, scale)),
        "256" => (76, DataType::Decimal256(precision, scale)),
        _ => return Err(bad_parameter(format, "a decimal has 32, 64, 128 or 256 bits")),
    };
    if precision == 0 || precision > digits {
        return Err(bad_parameter(format, "the precision does not fit the width"));
    }
    Ok(data_type)
}

/// Entries of a map: a struct of key and value. Producers differ in the nullable flags of the
/// entries and the key. arrow-rs requires "not nullable", so the arrow-rs type always uses it.
fn map_entries(format: &str, entries: FieldRef) -> Result<FieldRef, SchemaError> {
    let DataType::Struct(fields) = entries.data_type() else {
        return Err(bad_child(format, "the child of a map must be a struct"));
    };
    let [key, value] = &fields[..] else {
        return Err(bad_child(format, "the child of a map must have a key and a value"));
    };
    if !entries.is_nullable() && !key.is_nullable() {
        return Ok(entries);
    }
    let key = Arc::new(key.as_ref().clone().with_nullable(false));
    let fields = DataType::Struct(Fields::from(vec![key, value.clone()]));
    let entries =
        Field::new(entries.name(), fields, false).with_metadata(entries.metadata().clone());
    Ok(Arc::new(entries))
}

fn run_end_encoded(format: &str, children: &[SchemaNode]) -> Result<DataType, SchemaError> {
    let [ends, values] = children else {
        return Err(SchemaError::Children {
            format: format.into(),
            expected: 2,
            found: children.len(),
        });
    };
    if !ends.data_type().is_run_ends_type() {
        return Err(bad_child(format, "run ends must be int16, int32 or int64"));
    }
    let ends = ends.to_field().with_nullable(false);
    Ok(DataType::RunEndEncoded(Arc::new(ends), Arc::new(values.to_field())))
}

fn union(
    format: &str,
    codes: &str,
    children: &[SchemaNode],
    mode: UnionMode,
) -> Result<DataType, SchemaError> {
    if children.len() > UNION_CODES_MAX {
        return Err(bad_parameter(format, "a union has at most 128 types"));
    }
    let mut seen = [false; UNION_CODES_MAX];
    let mut fields = Vec::with_capacity(children.len());
    let mut children_left = children.iter();
    for text in codes.split(',').filter(|_| !codes.is_empty()) {
        let code = text.parse::<i8>().ok();
        let code = code.filter(|code| *code >= 0);
        let code = code.ok_or_else(|| bad_parameter(format, "a type code is 0..=127"))?;
        match seen.get_mut(code as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(bad_parameter(format, "a type code occurs twice")),
        }
        let child = children_left
            .next()
            .ok_or_else(|| bad_parameter(format, "more type codes than children"))?;
        fields.push((code, Arc::new(child.to_field())));
    }
    if children_left.next().is_some() {
        return Err(bad_parameter(format, "fewer type codes than children"));
    }
    Ok(DataType::Union(fields.into_iter().collect::<UnionFields>(), mode))
}

/// The format string of a type (of its indices, for a dictionary).
pub(super) fn format_of(data_type: &DataType) -> Result<Cow<'static, str>, SchemaError> {
    use DataType as T;
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    Ok(Cow::Borrowed(match data_type {
        T::Null => "n",
        T::Boolean => "b",
        T::Int8 => "c",
        T::UInt8 => "C",
        T::Int16 => "s",
        T::UInt16 => "S",
        T::Int32 => "i",
        T::UInt32 => "I",
        T::Int64 => "l",
        T::UInt64 => "L",
        T::Float16 => "e",
        T::Float32 => "f",
        T::Float64 => "g",
        T::Binary => "z",
        T::LargeBinary => "Z",
        T::BinaryView => "vz",
        T::Utf8 => "u",
        T::LargeUtf8 => "U",
        T::Utf8View => "vu",
        T::Date32 => "tdD",
        T::Date64 => "tdm",
        T::Time32(Second) => "tts",
        T::Time32(Millisecond) => "ttm",
        T::Time64(Microsecond) => "ttu",
        T::Time64(Nanosecond) => "ttn",
        T::Duration(Second) => "tDs",
        T::Duration(Millisecond) => "tDm",
        T::Duration(Microsecond) => "tDu",
        T::Duration(Nanosecond) => "tDn",
        T::Interval(IntervalUnit::YearMonth) => "tiM",
        T::Interval(IntervalUnit::DayTime) => "tiD",
        T::Interval(IntervalUnit::MonthDayNano) => "tin",
        T::List(_) => "+l",
        T::LargeList(_) => "+L",
        T::ListView(_) => "+vl",
        T::LargeListView(_) => "+vL",
        T::Struct(_) => "+s",
        T::Map(_, _) => "+m",
        T::RunEndEncoded(_, _) => "+r",
        T::Dictionary(index, _) => return format_of(index),
        other => return format_with_parameter(other).map(Cow::Owned),
    }))
}

fn format_with_parameter(data_type: &DataType) -> Result<String, SchemaError> {
    use DataType as T;
    Ok(match data_type {
        T::FixedSizeBinary(bytes) => format!("w:{bytes}"),
        T::FixedSizeList(_, items) => format!("+w:{items}"),
        T::Decimal32(precision, scale) => format!("d:{precision},{scale},32"),
        T::Decimal64(precision, scale) => format!("d:{precision},{scale},64"),
        T::Decimal128(precision, scale) => format!("d:{precision},{scale}"),
        T::Decimal256(precision, scale) => format!("d:{precision},{scale},256"),
        T::Timestamp(unit, zone) => {
            let unit = match unit {
                TimeUnit::Second => 's',
                TimeUnit::Millisecond => 'm',
                TimeUnit::Microsecond => 'u',
                TimeUnit::Nanosecond => 'n',
            };
            format!("ts{unit}:{}", zone.as_deref().unwrap_or(""))
        }
        T::Union(fields, mode) => {
            let codes: Vec<String> = fields.iter().map(|(code, _)| code.to_string()).collect();
            let letter = if *mode == UnionMode::Dense { 'd' } else { 's' };
            format!("+u{letter}:{}", codes.join(","))
        }
        other => return Err(SchemaError::NoFormat { data_type: other.to_string() }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_broken_formats_are_refused() {
        for format in [
            "",
            "q",
            ":",
            "w",
            "w:",
            "w:-1",
            "w:x",
            "w:99999999999",
            "d:",
            "d:1",
            "d:0,0",
            "d:39,0",
            "d:1,1,1",
            "d:1,1,128,1",
            "tsx:",
            "tss",
            "+",
            "+x",
            "+w",
            "+w:-1",
            "+us:1",
            "+us:,",
            "tdx",
            "vx",
            "+l",
            "+m",
            "+r",
            "+vl",
        ] {
            assert!(data_type(format, false, &[]).is_err(), "{format:?}");
        }
    }

    #[test]
    fn a_union_of_nothing_is_a_type() {
        let union = data_type("+us:", false, &[]).unwrap();
        assert_eq!(format_of(&union).unwrap(), "+us:");
    }
}
