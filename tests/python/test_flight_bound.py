"""Parameters of prepared statements keep their values and types."""

from __future__ import annotations

import decimal
import uuid

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import farrow
from flight_cases import RawClient

pytest_plugins = ["flight_cases"]

D = decimal.Decimal

# One value of each type that DuckDB reads: where Python's own value would lose something, one that
# it would lose.
VALUES = {
    "bool": pa.array([True]),
    "int8": pa.array([-3], pa.int8()),
    "int64": pa.array([-(2**63)], pa.int64()),
    "uint64": pa.array([2**64 - 1], pa.uint64()),
    "float": pa.array([0.1], pa.float32()),
    "double": pa.array([1e-310]),
    "nan": pa.array([float("nan")]),
    "decimal": pa.array([D("1.10")], pa.decimal128(38, 2)),
    "date32": pa.array([4_000_000], pa.date32()),
    "date64": pa.array([86_400_000], pa.date64()),
    "time32": pa.array([5], pa.time32("s")),
    "time64 us": pa.array([1_000_001], pa.time64("us")),
    "time64 ns": pa.array([1_000_000_001], pa.time64("ns")),
    "timestamp s": pa.array([5], pa.timestamp("s")),
    "timestamp ms": pa.array([5], pa.timestamp("ms")),
    "timestamp us": pa.array([5], pa.timestamp("us")),
    "timestamp ns": pa.array([1_000_000_001], pa.timestamp("ns")),
    "timestamp us tz": pa.array([-3_000_000_000_000_001], pa.timestamp("us", "Europe/Berlin")),
    "timestamp ns tz": pa.array([1_000_000_001], pa.timestamp("ns", "UTC")),
    "after 9999": pa.array([253_402_300_800_000_005], pa.timestamp("us")),
    "before 1": pa.array([-92_135_596_800_000_005], pa.timestamp("us")),
    "duration": pa.array([1_000_001], pa.duration("us")),
    "interval": pa.array([pa.MonthDayNano([1, -2, 3000])]),
    "string": pa.array(["a\0b NULL '"]),
    "large string": pa.array([""], pa.large_string()),
    "string view": pa.array(["x" * 20], pa.string_view()),
    "binary": pa.array([b"\0\xff\\x00"]),
    "fixed size binary": pa.array([b"\0\xff"], pa.binary(2)),
    "uuid": pa.array([uuid.UUID(int=7).bytes], pa.uuid()),
    "list": pa.array([["NULL", None, "a,b", "it's", "", " x ", "\\", '"q"', "["]]),
    "list ns": pa.array([[1_000_000_001, None]], pa.list_(pa.timestamp("ns"))),
    "fixed size list": pa.array([[1, 2]], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"a b": 1, "c": b"\0"}]),
    "map": pa.array([[("k=", 1), ("}", None)]], pa.map_(pa.string(), pa.int32())),
    "dictionary": pa.array(["x"]).dictionary_encode(),
}


def executed(raw: RawClient, sql: str, bound: pa.Table) -> pa.Table:
    handle, _, _ = raw.prepare(sql)
    raw.bind(handle, bound)
    return raw.ask("CommandPreparedStatementQuery", (1, handle))


@pytest.mark.parametrize("name", VALUES)
def test_a_bound_value_finds_its_row(raw: RawClient, client: farrow.Client, name: str) -> None:
    value = VALUES[name]
    client.put(pa.table({"x": value, "n": [7]}), "values")
    found = executed(raw, "select n from values where x = ?", pa.table({"1": value}))
    assert found["n"].to_pylist() == [7]


DECIMALS = pa.array([D("1.50"), D("22.50"), D("12345678.90")], pa.decimal128(10, 2))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (pa.array([1, 3_000_000_000]), pa.int64()),
        (pa.array([None, "a", None]), pa.string()),
        (pa.array([None, 7], pa.int8()), pa.int32()),
        (pa.array([2**64 - 1], pa.uint64()), pa.uint64()),
        (DECIMALS, pa.decimal128(10, 2)),
        (pa.array([None, [1, 2]]), pa.list_(pa.int64())),
    ],
)
def test_rows_of_parameters_have_one_type(
    raw: RawClient, values: pa.Array, found: pa.DataType
) -> None:
    rows = executed(raw, "select ? as x", pa.table({"1": values}))
    assert rows["x"].to_pylist() == values.to_pylist()
    # DuckDB has its own names for the fields of lists.
    kind = rows.schema.field("x").type
    assert kind == found or kind.id == found.id == pa.list_(pa.int64()).id


@pytest.mark.parametrize("kind", [pa.int64(), pa.int8(), pa.uint64()])
def test_integers_are_what_functions_of_duckdb_take(raw: RawClient, kind: pa.DataType) -> None:
    """Drivers bind 64 bits, and ``date - BIGINT`` does not exist."""
    sql = "select (date '2020-01-05' - ?)::varchar as a, round(1.26::double, ?) as b, 1 - ? as c"
    bound = pa.table({name: pa.array([2], kind) for name in "123"})
    assert executed(raw, sql, bound).to_pylist() == [{"a": "2020-01-03", "b": 1.26, "c": -1}]


def test_columns_of_parameters_may_have_one_name(raw: RawClient) -> None:
    bound = pa.Table.from_arrays([pa.array([1]), pa.array(["x"])], ["", ""])
    assert executed(raw, "select ? as a, ? as b", bound).to_pylist() == [{"a": 1, "b": "x"}]


def test_what_duckdb_cannot_read_is_refused(raw: RawClient) -> None:
    for value in (pa.array([1.5], pa.float16()), pa.array([D(1)], pa.decimal256(40, 2))):
        with pytest.raises(flight.FlightServerError, match="Unsupported"):
            executed(raw, "select ? as x", pa.table({"1": value}))
    assert executed(raw, "select ? as x", pa.table({"1": [1]})).num_rows == 1


@pytest.mark.parametrize("is_first_null", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_a_null_has_the_type_of_its_column(raw: RawClient, name: str, is_first_null: bool) -> None:
    """Its row had the type "NULL", and the text of that where a result depended on it."""
    values = VALUES[name]
    kind = values.type
    rows = pa.concat_arrays([values, pa.nulls(1, kind)])
    if isinstance(rows, pa.DictionaryArray):
        rows = pa.array(["x", None]).dictionary_encode()
    order = [1, 0] if is_first_null else [0, 1]
    bound = (
        pa.table({"a": rows}).take(pa.array(order))
        if kind != pa.string_view()
        else (pa.table({"a": pa.array([rows[one].as_py() for one in order], kind)}))
    )
    found = executed(raw, "select typeof(?) as t, typeof([$1]) as l, $1 is null as n", bound)
    assert found["n"].to_pylist() == [is_first_null, not is_first_null]
    assert len(set(found["t"].to_pylist())) == len(set(found["l"].to_pylist())) == 1
    assert "NULL" not in found["t"][0].as_py()


def test_nulls_of_all_places_have_types(raw: RawClient) -> None:
    bound = pa.table({"b": pa.array([None, 2], pa.int64()), "a": pa.array(["x", None])})
    named = "select 'ä?$a' as q, typeof($a) || typeof($b) as t, $b + 1 as s, -- ? $a\n $a as a"
    found = executed(raw, named, bound)
    assert found.to_pydict() == {
        "q": ["ä?$a"] * 2,
        "t": ["VARCHARINTEGER"] * 2,
        "s": [None, 3],
        "a": ["x", None],
    }
    found = executed(raw, "explain select typeof(?) || ?", bound)
    assert found.num_rows >= 2
    # Where such a null cannot be, it is one without a type, as before.
    bound = pa.table({"a": pa.array([None], pa.string())})
    assert executed(raw, "select date '2020-01-01' = ? as d", bound)["d"].to_pylist() == [None]
    assert executed(raw, "select 1 as d limit ?", bound)["d"].to_pylist() == [1]
    # A column of nulls of Arrow's type null has no other type.
    bound = pa.table({"a": pa.nulls(1)})
    assert executed(raw, "select typeof(?) as t", bound)["t"].to_pylist() == ['"NULL"']
