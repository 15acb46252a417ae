//! Comparison of schemas.

use farrow_arrow::SchemaNode;

/// The first difference between the columns of two schemas; metadata is ignored.
pub(super) fn difference(ours: &SchemaNode, theirs: &SchemaNode) -> Option<String> {
    children("", ours, theirs)
}

fn children(path: &str, ours: &SchemaNode, theirs: &SchemaNode) -> Option<String> {
    let pairs = ours.children().iter().zip(theirs.children()).enumerate();
    for (number, (one, other)) in pairs {
        if one.name().unwrap_or_default() != other.name().unwrap_or_default() {
            let (one, other) = (one.name_text(), other.name_text());
            return Some(format!("column {number}{path} is {one:?} in the table, not {other:?}"));
        }
        if let Some(found) = field(path, one, other) {
            return Some(found);
        }
    }
    let (count, other) = (ours.children().len(), theirs.children().len());
    if count == other {
        return None;
    }
    let (longer, whose) = if count > other {
        (ours, "is in the table alone")
    } else {
        (theirs, "is not in the table")
    };
    let name = longer.children().get(count.min(other)).map(|one| one.name_text().into_owned());
    let name = name.unwrap_or_default();
    Some(format!("{count} columns{path} in the table, not {other}: {name:?} {whose}"))
}

fn field(path: &str, one: &SchemaNode, other: &SchemaNode) -> Option<String> {
    let name = one.name_text();
    if one.format() != other.format() {
        let (is, is_not) = (one.data_type(), other.data_type());
        return Some(format!("column {name:?}{path} is {is} in the table, not {is_not}"));
    }
    if one.is_nullable() != other.is_nullable() {
        let says = |node: &SchemaNode| if node.is_nullable() { "nullable" } else { "not null" };
        let (is, is_not) = (says(one), says(other));
        return Some(format!("column {name:?}{path} is {is} in the table, not {is_not}"));
    }
    if one.flags() != other.flags() {
        let text = "differs in the order of its dictionary or its map keys";
        return Some(format!("column {name:?}{path} {text}"));
    }
    let inner = format!(" of {name:?}{path}");
    let values = match (one.dictionary(), other.dictionary()) {
        (Some(one), Some(other)) => field(&format!(" in the dictionary{inner}"), one, other),
        (None, None) => None,
        (ours, _) => {
            let word = if ours.is_some() { "has" } else { "has no" };
            Some(format!("column {name:?}{path} {word} dictionary in the table"))
        }
    };
    values.or_else(|| children(&inner, one, other))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use arrow_schema::{DataType, Field, Fields, Schema};

    use super::*;

    fn node(fields: Vec<Field>) -> SchemaNode {
        SchemaNode::try_from(&Schema::new(fields)).unwrap()
    }

    fn text(key: DataType, values: DataType) -> DataType {
        DataType::Dictionary(Box::new(key), Box::new(values))
    }

    #[test]
    fn the_first_difference_is_named() {
        let int = || Field::new("n", DataType::Int64, true);
        let list = |name: &str, of: DataType| {
            Field::new("l", DataType::List(Arc::new(Field::new(name, of, true))), true)
        };
        let inner = |of: DataType| {
            let fields = Fields::from(vec![Field::new("x", of, true)]);
            Field::new("s", DataType::Struct(fields), true)
        };
        let dictionary = |key: DataType, values: DataType| Field::new("d", text(key, values), true);
        for (ours, theirs, says) in [
            (vec![int()], vec![], "1 columns in the table, not 0: \"n\" is in the table alone"),
            (vec![int()], vec![int(), inner(DataType::Int8)], "\"s\" is not in the table"),
            (
                vec![int()],
                vec![Field::new("m", DataType::Int64, true)],
                "\"n\" in the table, not \"m\"",
            ),
            (
                vec![int()],
                vec![Field::new("n", DataType::Int32, true)],
                "Int64 in the table, not Int32",
            ),
            (vec![int()], vec![Field::new("n", DataType::Int64, false)], "nullable in the table"),
            (vec![list("item", DataType::Int8)], vec![list("element", DataType::Int8)], "of \"l\""),
            (vec![list("item", DataType::Int8)], vec![list("item", DataType::Int16)], "of \"l\""),
            (vec![inner(DataType::Utf8)], vec![inner(DataType::Binary)], "\"x\" of \"s\""),
            (
                vec![dictionary(DataType::Int8, DataType::Utf8)],
                vec![dictionary(DataType::Int8, DataType::Binary)],
                "in the dictionary of \"d\"",
            ),
            (
                vec![dictionary(DataType::Int8, DataType::Utf8)],
                vec![Field::new("d", DataType::Int8, true)],
                "has dictionary in the table",
            ),
        ] {
            let (ours, theirs) = (node(ours), node(theirs));
            let found = difference(&ours, &theirs).unwrap();
            assert!(found.contains(says), "{found}");
            assert!(difference(&theirs, &ours).is_some());
            assert_eq!(difference(&ours, &ours), None);
        }
    }

    #[test]
    fn metadata_plays_no_part() {
        let plain = Field::new("n", DataType::Int64, true);
        let pairs: HashMap<String, String> = [("unit".to_owned(), "m".to_owned())].into();
        let marked = plain.clone().with_metadata(pairs.clone());
        let schema = Schema::new(vec![marked]).with_metadata(pairs);
        let marked = SchemaNode::try_from(&schema).unwrap();
        assert_eq!(difference(&node(vec![plain]), &marked), None);
    }
}
