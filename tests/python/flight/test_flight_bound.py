"""Parameters of prepared statements keep their values and types."""

from __future__ import annotations

import decimal
import uuid

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import farrow
from farrow.flight import _engine
from farrow.flight._bound import bound_rows
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


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["start", "end"], {"Start": 2, "End": 6}),
        (["END", "$Start"], {"End": 2, "Start": 6}),
        # In the order in which the parameters are described.
        (["0", "1"], {"End": 2, "Start": 6}),
        (["a", "b"], {"End": 2, "Start": 6}),
    ],
)
def test_named_parameters_ignore_case(names: list[str], found: dict[str, int]) -> None:
    statement = _engine.Statement("", "SELECT", ["End", "Start"])
    assert statement.by_name(dict(zip(names, (2, 6), strict=True))) == found


@pytest.mark.parametrize("names", [["start", "ende"], ["Start", "start"]])
def test_a_part_of_the_names_is_refused(names: list[str]) -> None:
    statement = _engine.Statement("", "SELECT", ["End", "Start"])
    with pytest.raises(pa.ArrowInvalid, match=r"parameters \['End', 'Start'\], bound are \['[sS]t"):
        statement.by_name(dict(zip(names, (2, 6), strict=True)))


NANOSECONDS = {
    "duration": pa.array([2000, None, 1999], pa.duration("ns")),
    "interval": pa.array([None, pa.MonthDayNano([1, -2, 3001])]),
    "dictionary": pa.array([1999], pa.duration("ns")).dictionary_encode(),
    "list": pa.array([[2000, 1]], pa.list_(pa.duration("ns"))),
    "fixed size list": pa.array([[2000, 1]], pa.list_(pa.duration("ns"), 2)),
    "struct": pa.array([{"a": [pa.MonthDayNano([0, 0, 1])]}]),
    "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.duration("ns"))),
    "large list": pa.array([None, [1]], pa.large_list(pa.duration("ns"))),
    "list of a map": pa.array([[[(1, "a")]]], pa.list_(pa.map_(pa.duration("ns"), pa.string()))),
    "union": pa.UnionArray.from_sparse(
        pa.array([0], pa.int8()), [pa.array([1], pa.duration("ns")), pa.array(["a"])]
    ),
    "run": pa.RunEndEncodedArray.from_arrays([1], pa.array([1], pa.duration("ns"))),
}


@pytest.mark.parametrize("name", NANOSECONDS)
def test_nanoseconds_that_duckdb_cuts_off_are_refused(name: str) -> None:
    duckdb = pytest.importorskip("duckdb", minversion="2")
    with duckdb.connect() as connection:
        whole = pa.array([2000], pa.duration("ns"))
        found = bound_rows(connection, pa.table({"a": whole, "b": [[2000]]}))
        assert found[0]["a"].object == "00:00:00.000002"
        with pytest.raises(pa.ArrowInvalid, match=r"parameter 'x': DuckDB keeps .* microseconds"):
            bound_rows(connection, pa.table({"x": NANOSECONDS[name]}))


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
