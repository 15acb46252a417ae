"""Datasets over huge tables: what is pruned, that it is right, and that nothing is copied."""

from __future__ import annotations

import datetime as dt
import math
import os
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import farrow
import farrow._scan._ranges
import farrow.dataset
from conftest import run_python
from engine_cases import RandomTable
from farrow._scan import _chunks, _views

if TYPE_CHECKING:
    from conftest import Cluster, Node

# 10,000 filters: FARROW_FILTERS=10000.
FILTERS = int(os.environ.get("FARROW_FILTERS", "300"))
FILTERS_PER_TABLE = 20
SEED = int(os.environ.get("FARROW_FILTERS_SEED", "7"))

SCHEMA = pa.schema({"day": pa.int32(), "price": pa.float64(), "name": pa.string()})


def day_rows(day: int, rows: int = 100) -> pa.RecordBatch:
    columns = [
        pa.array([day] * rows, pa.int32()),
        pa.array([float(number) for number in range(rows)]),
        pa.array([f"name {number % 7}" for number in range(rows)]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@pytest.fixture
def trades(client: farrow.Client) -> farrow.HugeTable:
    """Ten chunks, one for each day."""
    table = client.huge_table("trades", SCHEMA)
    for day in range(10):
        table.append(day_rows(day))
    return table


def positions(dataset: farrow.dataset.FarrowDataset, filter: pc.Expression) -> list[int]:
    return [part.position for part in dataset.partitions(filter)]


def test_only_chunks_that_can_match_are_read(trades: farrow.HugeTable) -> None:
    dataset = trades.dataset()
    assert isinstance(dataset, ds.Dataset)
    day = pc.field("day")
    assert positions(dataset, day == 3) == [300]
    assert positions(dataset, (day > 7) & (pc.field("price") >= 0)) == [800, 900]
    assert positions(dataset, ~(day >= 1)) == [0]
    assert positions(dataset, day.isin([2, 5])) == [200, 500]
    assert positions(dataset, day.is_null()) == []
    assert positions(dataset, pc.field("name") > "name 6") == []
    assert positions(dataset, pc.field("price") == 5.0) == list(range(0, 1000, 100))
    assert len(list(dataset.get_fragments(day == 3))) == 1
    assert len(list(dataset.get_fragments())) == 10
    found = dataset.to_table(columns=["price"], filter=day == 3)
    assert found.schema.names == ["price"]
    assert found.num_rows == 100


def test_methods_of_a_dataset_agree_with_the_table(trades: farrow.HugeTable) -> None:
    dataset, table = trades.dataset(), trades.table()
    day = pc.field("day")
    assert dataset.to_table().equals(table)
    assert dataset.count_rows() == 1000
    assert dataset.count_rows(filter=day > 7) == 200
    assert dataset.head(3).equals(table.slice(0, 3))
    assert dataset.take(pa.array([5, 995])).equals(table.take([5, 995]))
    filtered = dataset.filter(day > 7).filter(day < 9)
    assert positions(filtered, pc.scalar(True)) == [800]
    assert filtered.count_rows() == filtered.to_table().num_rows == 100
    assert filtered.to_table(filter=pc.field("price") < 10).num_rows == 10
    assert filtered.sort_by([("price", "descending")]).to_table()["price"][0].as_py() == 99.0
    with pytest.raises(ValueError, match="no fragments"):
        list(filtered.get_fragments())
    other = ds.dataset(pa.table({"day": pa.array([3], pa.int32()), "holiday": [True]}))
    assert dataset.join(other, "day", join_type="inner").to_table().num_rows == 100
    batches = dataset.scanner(
        columns={"twice": pc.field("price") * 2}, filter=day == 0
    ).to_batches()
    assert sum(batch.num_rows for batch in batches) == 100
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(dataset)
    with pytest.raises(pa.ArrowInvalid, match="nosuch"):
        dataset.to_table(filter=pc.field("nosuch") == 1)


def test_a_count_of_all_rows_reads_none(
    trades: farrow.HugeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = trades.dataset()

    def scan(*_: Any, **__: Any) -> None:
        raise AssertionError("a scan")

    monkeypatch.setattr(farrow.dataset.FarrowDataset, "scanner", scan)
    assert dataset.count_rows() == 1000
    with pytest.raises(AssertionError, match="a scan"):
        dataset.count_rows(filter=pc.field("day") == 1)


def test_versions_and_sources(trades: farrow.HugeTable, client: farrow.Client) -> None:
    assert trades.dataset(2).count_rows() == 200
    assert farrow.dataset.dataset("trades", client, version=3).count_rows() == 300
    before = trades.dataset()
    trades.append(day_rows(10))
    assert before.count_rows() == 1000
    assert trades.dataset().count_rows() == 1100
    client.put(trades.table(), "put")
    for source in ("put", client.get("put"), day_rows(0)):
        dataset = farrow.dataset.dataset(source, client)
        assert dataset.count_rows(filter=pc.field("day") == 0) == 100
    client.put(b"bytes", "bytes")
    with pytest.raises(farrow.InvalidArgument, match="no columns"):
        farrow.dataset.dataset("bytes", client)
    with pytest.raises(farrow.InvalidArgument, match="no versions"):
        farrow.dataset.dataset("put", client, version=1)
    with pytest.raises(farrow.NotFound):
        farrow.dataset.dataset("none", client)


def test_nothing_is_copied(trades: farrow.HugeTable, client: farrow.Client) -> None:
    big = client.huge_table("big", pa.schema({"n": pa.int64()}))
    for first in (0, 1_000_000):
        big.append(pa.table({"n": pa.array(range(first, first + 1_000_000))}))
    before = pa.total_allocated_bytes()
    dataset = big.dataset()
    fragments = list(dataset.get_fragments(pc.field("n") >= 1_500_000))
    batches = [batch for fragment in fragments for batch in fragment.to_batches()]
    assert pa.total_allocated_bytes() - before < 64 << 10
    assert sum(batch.num_rows for batch in batches) == 500_000, "the chunk is sorted"
    for batch in batches:
        data = batch.column(0).buffers()[1]
        assert client._offset(data.address, data.size) is not None


def statistics_of(client: farrow.Client, array: pa.Array) -> farrow.dataset.ColumnStatistics:
    table = client.huge_table("one", pa.schema([pa.field("c", array.type)]))
    table.append(pa.table([array], names=["c"]))
    [chunk] = farrow.dataset.statistics(table)
    table.drop()
    assert chunk.columns is not None
    return chunk.columns[("c",)]


def test_statistics_are_those_of_the_values(client: farrow.Client) -> None:
    found = statistics_of(client, pa.array([3, None, 1]))
    assert (found.nulls, found.min.as_py(), found.max.as_py(), found.order) == (1, 1, 3, "")
    assert found.is_min_exact
    assert found.is_max_exact
    assert statistics_of(client, pa.array([1, 2, 2])).order == "ascending"
    assert statistics_of(client, pa.array([2, 1])).order == "descending"
    assert statistics_of(client, pa.array([2, 2])).order == "constant"
    found = statistics_of(client, pa.array([1.0, math.nan, -0.0]))
    assert (found.has_nan, found.min.as_py(), found.max.as_py()) == (True, 0.0, 1.0)
    found = statistics_of(client, pa.array(["\u00e9" * 40, "a"]))
    assert found.min.as_py() == "a"
    assert found.max.as_py() == "\u00e9" * 15 + "\u00ea"
    assert not found.is_max_exact
    found = statistics_of(client, pa.nulls(3, pa.int64()))
    assert (found.nulls, found.min, found.max) == (3, None, None)
    found = statistics_of(client, pa.array(["b", None, "a"]).dictionary_encode())
    assert (found.nulls, found.min.as_py(), found.max.as_py()) == (1, "a", "b")
    for array in (
        pa.array(["b", "a", None], pa.string_view()),
        pa.array([True, False]),
        pa.array([b"ab", b"aa"], pa.binary(2)),
    ):
        found = statistics_of(client, array)
        assert found.min.as_py() == min(value for value in array.to_pylist() if value is not None)


def test_fields_of_nested_types_have_statistics(client: farrow.Client) -> None:
    values = pa.table(
        {
            "s": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]),
            "l": pa.array([[1, 2], None, [7]]),
            "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    table = client.huge_table("nested", values.schema)
    table.append(values)
    [chunk] = farrow.dataset.statistics(table)
    columns = chunk.columns
    assert columns is not None
    assert columns[("s",)].nulls == 1
    assert (columns[("s", "a")].nulls, columns[("s", "a")].max.as_py()) == (2, 1)
    element = values.schema.field("l").type.value_field.name
    assert (columns[("l", element)].nulls, columns[("l", element)].max.as_py()) == (0, 7)
    assert columns[("m", "entries", "key")].min.as_py() == "k"
    dataset = table.dataset()
    assert positions(dataset, pc.field("s", "a") > 1) == []
    assert positions(dataset, pc.field("s", "b") == "y") == [0]


def test_a_chunk_without_statistics_is_read(trades: farrow.HugeTable) -> None:
    """Chunks of earlier versions have none, nor those whose append did not want any."""
    trades.append(day_rows(99), statistics=False)
    assert farrow.dataset.statistics(trades)[-1].columns is None
    dataset = trades.dataset()
    assert positions(dataset, pc.field("day") == 3) == [300, 1000]
    assert dataset.to_table(filter=pc.field("day") == 99).num_rows == 100


def test_statistics_of_wide_tables_cover_the_first_columns(client: farrow.Client) -> None:
    schema = pa.schema([pa.field(f"c{number}", pa.int64()) for number in range(300)])
    table = client.huge_table("wide", schema)
    for value in range(2):
        columns = [pa.array([value] * 1000)] * len(schema)
        table.append(pa.table(columns, schema=schema))
    for chunk in farrow.dataset.statistics(table):
        assert chunk.columns is not None
        assert 100 < len(chunk.columns) < 300
    dataset = table.dataset()
    assert positions(dataset, pc.field("c0") == 1) == [1000]
    assert positions(dataset, pc.field("c299") == 1) == [0, 1000]
    assert dataset.count_rows(filter=pc.field("c299") == 1) == 1000


def test_nan_and_nulls_are_not_lost(client: farrow.Client) -> None:
    """A comparison is false for NaN, so its negation is true: bounds say nothing about that row."""
    table = client.huge_table("nan", pa.schema({"x": pa.float64()}))
    table.append(pa.table({"x": [1.0, math.nan]}))
    table.append(pa.table({"x": [1.0, None]}))
    dataset = table.dataset()
    x = pc.field("x")
    assert dataset.count_rows(filter=~(x <= 1.0)) == 1
    assert dataset.count_rows(filter=x.is_null()) == 1
    assert dataset.count_rows(filter=x.is_nan()) == 1
    assert positions(dataset, x > 1.0) == [0]


def test_a_nan_in_the_filter_loses_no_rows(client: farrow.Client) -> None:
    """``x < nan`` is false, so ``~(x < nan)`` matches each row; Arrow's simplification says that it
    matches none. Random filters found it."""
    schema = pa.schema({"x": pa.float64(), "s": pa.struct([pa.field("x", pa.float32())])})
    table = client.huge_table("floats", schema)
    table.append(pa.table({"x": [1.0, 2.0], "s": [{"x": 1.0}, {"x": 2.0}]}, schema=schema))
    dataset = table.dataset()
    for field, kind in ((pc.field("x"), pa.float64()), (pc.field("s", "x"), pa.float32())):
        for nothing in (pc.scalar(math.nan), pc.divide(pc.scalar(0.0), pc.scalar(0.0))):
            assert dataset.count_rows(filter=~(field < nothing)) == 2
            assert dataset.count_rows(filter=(field <= 1.0) & ~(field < nothing)) == 1
        assert positions(dataset, field > 5.0) == []
        assert positions(dataset, ~(field <= 5.0) | field.isin(pa.array([7.0], kind))) == []


def test_a_filter_that_cannot_be_shown(client: farrow.Client) -> None:
    """Arrow's text of a filter cuts long strings within a character, and is then not UTF-8."""
    table = client.huge_table("long", pa.schema({"s": pa.string()}))
    for letter in ("\ud7ff", "\ue000"):
        table.append(pa.table({"s": [letter * 200]}))
    expression = (pc.field("s") == "\ue000" * 200) & (pc.field("s") != b"\xff".hex())
    assert table.dataset().to_table(filter=expression).num_rows == 1


def test_chunks_of_several_nodes(nodes: Cluster) -> None:
    table = nodes.client("a").huge_table("spread", SCHEMA)
    for day, node in enumerate(nodes.names):
        table.append(day_rows(day), node=node)
    dataset = farrow.dataset.dataset("spread", nodes.client("b"))
    [part] = dataset.partitions(pc.field("day") == 2)
    assert part.node == nodes.names[2]
    assert dataset.count_rows(filter=pc.field("day") == 2) == 100
    table.drop()


def test_statistics_survive_the_daemon(trades: farrow.HugeTable, node: Node) -> None:
    node.restart()
    again = farrow.connect(node.socket).huge_table("trades")
    assert positions(again.dataset(), pc.field("day") == 3) == [300]


def test_a_child_process_scans_too(trades: farrow.HugeTable, node: Node) -> None:
    """The parent's indexes are of use after a fork, and so are connections of the child's own."""
    script = """
import os, sys, farrow, farrow.dataset, pyarrow.compute as pc
dataset = farrow.dataset.dataset("trades", farrow.connect(sys.argv[1]))
day = pc.field("day")
assert dataset.count_rows(filter=day == 3) == 100
child = os.fork()
if child == 0:
    same = [part.position for part in dataset.partitions(day == 4)] == [400]
    own = farrow.dataset.dataset("trades", farrow.connect(sys.argv[1]))
    os._exit(0 if same and own.count_rows() == 1000 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    run_python(script, node.socket)


def test_pruned_equals_plain(client: farrow.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random filters over random tables of all types."""
    # Ranges of these short chunks are read too.
    monkeypatch.setattr(farrow._scan._ranges, "ROWS_MIN", 1)
    pruned = skipped = 0
    for number in range(FILTERS // FILTERS_PER_TABLE):
        seed = SEED * 1_000_000 + number
        random_table = RandomTable(seed)
        table = client.huge_table("random", random_table.schema)
        for chunk in random_table.chunks:
            table.append(chunk)
        plain = ds.dataset(table.table())
        dataset = table.dataset()
        for turn in range(FILTERS_PER_TABLE):
            expression = random_table.filter()
            context = f"FARROW_FILTERS_SEED={SEED}, table {seed}, filter {turn}"
            wanted, failure = _result(plain, expression)
            found, other = _result(dataset, expression)
            if wanted is None and _views.has_views(table.schema):
                wanted, failure = _by_mask(plain, expression)
                if wanted is None:
                    # Arrow has no is_in of views: a dataset has, without views.
                    without = ds.dataset(_views.without_views(table.table()))
                    wanted, failure = _result(without, expression)
            if wanted is None:
                # A chunk that cannot match need not fail.
                assert found is None or found.num_rows == 0, f"{context}: {failure}"
                continue
            assert found is not None, f"{context}: {other}"
            assert found.num_rows == wanted.num_rows, context
            assert str(found.to_pylist()) == str(wanted.to_pylist()), context
            assert dataset.count_rows(filter=expression) == wanted.num_rows, context
            chosen = dataset.partitions(expression)
            pruned += len(random_table.chunks) - len(chosen)
            skipped += sum(part.rows for part in chosen) - rows_read(dataset, expression)
        table.drop()
    assert pruned > FILTERS // 4, "the filters are to prune chunks"
    assert skipped > FILTERS // 20, "the filters are to skip rows of sorted chunks"


def _result(dataset: Any, expression: pc.Expression) -> tuple[pa.Table | None, str]:
    try:
        return dataset.to_table(filter=expression), ""
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        return None, str(error)


def _by_mask(plain: ds.Dataset, expression: pc.Expression) -> tuple[pa.Table | None, str]:
    """As :func:`_result`, of views, whose rows Arrow compares and cannot select."""
    try:
        mask = plain.to_table(columns={"mask": expression})["mask"].to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        return None, str(error)
    rows = plain.to_table()
    some = [rows.slice(number, 1) for number, is_in in enumerate(mask) if is_in]
    return pa.concat_tables([rows.slice(0, 0), *some]), ""


def sorted_rows(first: int, rows: int) -> pa.Table:
    n = pa.array(range(first, first + rows))
    columns = {
        "up": n,
        "down": pc.negate(n).cast(pa.int32()),
        "time": n.cast(pa.timestamp("ms")),
        "zoned": n.cast(pa.timestamp("us", "Europe/Berlin")),
        "day": pc.divide(n, 1000).cast(pa.int32()).cast(pa.date32()),
        "big": pc.add(n.cast(pa.uint64()), pa.scalar(2**63, pa.uint64())),
    }
    return pa.table(columns)


def rows_read(dataset: farrow.dataset.FarrowDataset, filter: pc.Expression) -> int:
    return sum(batch.num_rows for some in dataset._read(filter, None)[1] for batch in some)


def test_of_a_sorted_chunk_only_a_range_is_read(client: farrow.Client) -> None:
    """A range of 0.3 % of the rows once filtered whole chunks."""
    table = client.huge_table("sorted", sorted_rows(0, 1).schema)
    for first in range(0, 60_000, 20_000):
        table.append(sorted_rows(first, 20_000))
    dataset, plain = table.dataset(), ds.dataset(table.table())
    up, down = pc.field("up"), pc.field("down")
    epoch = dt.datetime(1970, 1, 1)

    def at(milliseconds: int) -> dt.datetime:
        return epoch + dt.timedelta(milliseconds=milliseconds)

    zone = dt.timezone.utc
    big = pa.scalar(2**63 + 30_000, pa.uint64())
    for expression, count in [
        ((up >= 19_990) & (up < 20_010), 20),
        (up == 30_000, 1),
        ((up > 5) & (up < 7) & (down < 0), 1),
        ((down >= -25_000) & (down <= -24_991), 10),
        (pc.field("time") > at(59_000), 999),
        (pc.field("zoned") == (epoch + dt.timedelta(microseconds=30_000)).replace(tzinfo=zone), 1),
        (pc.field("day") == dt.date(1970, 1, 31), 1000),
        (pc.field("big") >= big, 30_000),
        ((up >= 100) & (up <= 199) & up.is_valid() & (up != 150), 100),
        (up < 0, 0),
    ]:
        assert rows_read(dataset, expression) == count, str(expression)
        assert dataset.to_table(filter=expression).equals(plain.to_table(filter=expression))
        assert dataset.count_rows(filter=expression) == plain.count_rows(filter=expression)
    # What is no conjunction of comparisons narrows nothing within a chunk.
    for expression in (~(up > 10), (up < 10) | (up > 59_990), up.isin([5]), up.cast("int8") == 5):
        assert rows_read(dataset, expression) % 20_000 == 0
    [fragment] = dataset.get_fragments(up == 30_000)
    assert fragment.count_rows() == 1


def test_a_date64_with_a_time_of_day_loses_no_rows(client: farrow.Client) -> None:
    """Arrow prints a date64 as a day, which the range of a filter was read from."""
    hours = pa.array(range(-2400, 21_600), pa.int64())
    milliseconds = pc.multiply(hours, 3_600_000)
    days = pc.subtract(pc.divide(pc.add(hours, 2400), 24), 100).cast(pa.int32()).cast(pa.date32())
    columns = {"d64": milliseconds.view(pa.date64()), "d32": days}
    rows = pa.table({**columns, "time": milliseconds.cast(pa.timestamp("ms"))})
    table = client.huge_table("days", rows.schema)
    # The second chunk begins with day 400.
    for first in (0, 12_000):
        table.append(rows.slice(first, 12_000))
    dataset, plain = table.dataset(), ds.dataset(rows)
    compare = pc.Expression
    for name in rows.schema.names:
        for hour in (-3000, -2400, -36, -24, -5, 0, 12, 9599, 9600, 9601, 21_599, 30_000):
            constant = pa.array([hour * 3_600_000], pa.int64()).view(pa.date64())[0]
            for operator in (
                compare.__eq__, compare.__lt__, compare.__le__, compare.__gt__, compare.__ge__
            ):  # fmt: skip
                expression = operator(pc.field(name), constant)
                found = dataset.to_table(filter=expression)
                assert found.equals(plain.to_table(filter=expression)), (name, hour, expression)
    # Chunks of days are left out as before.
    day = dt.date(1970, 1, 1) + dt.timedelta(days=400)
    for name in ("d32", "d64"):
        assert positions(dataset, pc.field(name) >= day) == [12_000]
    assert positions(dataset, pc.field("d32") < day) == [0]
    assert rows_read(dataset, pc.field("d32") == day) == 24


def test_texts_that_look_like_comparisons_narrow_nothing(client: farrow.Client) -> None:
    """Ranges are found in the text of a filter; names and strings can look like anything."""
    names = ["n", "5", "s"]
    schema = pa.schema([("n", pa.int64()), ("5", pa.int64()), ("s", pa.string())])
    table = client.huge_table("texts", schema)
    n = pa.array(range(10_000))
    table.append(pa.table([n, pa.array([9_000] * 10_000), n.cast(pa.string())], names=names))
    dataset, plain = table.dataset(), ds.dataset(table.table())
    for expression in (
        pc.field("n") >= pc.field("5"),
        pc.field("n") == 5,
        (pc.field("s") == "7) and (n > 9000") | (pc.field("s") == "9"),
        (pc.field("s") != 'a" and (n > 9000)') & (pc.field("n") < 9),
    ):
        assert dataset.to_table(filter=expression).equals(plain.to_table(filter=expression))
    tricky = client.huge_table("tricky", pa.schema([("n", pa.int64()), ("a) and (n > 7", n.type)]))
    tricky.append(pa.table([n, n], names=["n", "a) and (n > 7"]))
    expression = pc.field("n") == pc.field("a) and (n > 7")
    assert tricky.dataset().count_rows(filter=expression) == 10_000


def test_sets_that_the_scan_rounds_lose_no_rows(client: farrow.Client) -> None:
    """Arrow compares the values of a set with the bounds before it converts them as the scan does:
    0.1 is less than the float32 next to it."""
    day = dt.date(2024, 1, 3)
    floats, days = pa.array([0.1, 0.3], pa.float32()), pa.array([day, day.replace(day=5)])
    for rows, values in (
        (floats, [0.1]),
        (floats.dictionary_encode(), [0.1]),
        (days, [dt.datetime(2024, 1, 3, 12)]),
        (days.cast(pa.date64()), [dt.datetime(2024, 1, 3, 12)]),
    ):
        name = f"sets/{rows.type}"
        table = client.huge_table(name, pa.schema({"x": rows.type}))
        for start in (0, 1):
            table.append(pa.table({"x": rows.slice(start)}))
        expression = pc.field("x").isin(values)
        plain = ds.dataset(table.table()).to_table(filter=expression)
        found = table.dataset().to_table(filter=expression)
        assert found.equals(plain), name
        assert found.num_rows == 1, name


def test_a_nan_is_compared_with_integers_too(client: farrow.Client) -> None:
    table = client.huge_table("whole", pa.schema({"h": pa.int64(), "s": pa.string()}))
    for first in (1, 5):
        table.append(pa.table({"h": [first, first + 1], "s": ["nan", "nan"]}))
    dataset, h = table.dataset(), pc.field("h")
    for nothing in (math.nan, pc.scalar("nan").cast(pa.float64()), pc.field("s").cast("double")):
        assert dataset.count_rows(filter=~(h < nothing)) == 4
    # Filters without NaN leave chunks out as before.
    assert positions(dataset, h.is_null()) == []
    assert positions(dataset, h.isin([2, 9])) == [0]


def test_a_filter_on_a_column_that_does_not_exist(client: farrow.Client) -> None:
    table = client.huge_table("named", pa.schema({"day": pa.int64()}))
    table.append(pa.table({"day": [1, 2]}))
    dataset = table.dataset()
    for expression in (
        pc.field("Day") == 1,
        (pc.field("Day") == 1) & (pc.field("day") == 99),
        (pc.field("day") == 99) & (pc.field("day", "x") == 1),
    ):
        for ask in (dataset.partitions, dataset.get_fragments):
            with pytest.raises(pa.ArrowInvalid, match="FieldRef"):
                list(ask(expression))
        with pytest.raises(farrow.InvalidArgument, match="day"):
            _chunks.chunks(client, "named", expression)
    client.put(table.table(), "named/put")
    with pytest.raises(farrow.InvalidArgument, match="day"):
        _chunks.chunks(client, "named/put", pc.field("Day") == 1)


def test_chunks_without_columns(client: farrow.Client) -> None:
    table = client.huge_table("bare", pa.schema([]))
    nothing = pa.table({"n": [1, 2, 3]}).select([])
    for _ in range(2):
        table.append(nothing)
    dataset = table.dataset()
    assert dataset.count_rows() == 6
    assert [chunk.rows for chunk in dataset.partitions()] == [3, 3]
