"""The parts of farrow-sql that need no node: bytes of plans, columns, shares of rows."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import farrow
from conftest import Node, wait_until

pytest.importorskip("datafusion")
farrow_sql = pytest.importorskip("farrow_sql")


def test_children_are_exchanged_in_bytes() -> None:
    from farrow_sql._plans._wire import replace_children

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    plan = field(3, field(1, b"left") + b"\x10\x07" + field(2, b"right"))
    other = replace_children(plan, [(b"left", b"x" * 200), (b"right", b"r")])
    assert b"x" * 200 in other
    assert other.endswith(field(2, b"r"))
    assert replace_children(other, [(b"x" * 200, b"left"), (b"r", b"right")]) == plan
    with pytest.raises(farrow_sql.CannotDistribute, match="1 of 1 children are not in their plan"):
        replace_children(plan, [(b"none", b"x")])
    for end in range(1, len(plan)):
        with pytest.raises(farrow_sql.CannotDistribute):
            replace_children(plan[:end], [(b"right", b"x")])


def test_columns_are_read_in_place_and_never_beyond_their_rows() -> None:
    from farrow_sql._columns import Column

    values = pa.chunked_array([[0, 1, 2], [], [3, 4]])
    column = Column(values, 100)
    one = column(pa.array([100, 101]))
    assert one.buffers()[1].address == values.chunk(0).buffers()[1].address
    assert column(pa.array([102, 103])).to_pylist() == [2, 3]
    assert column(pa.array([104, 100, 103])).to_pylist() == [4, 0, 3]
    assert column(pa.array([100, 102])).to_pylist() == [0, 2]
    assert column(pa.array([], pa.int64())).to_pylist() == []
    for wrong in ([99], [105], [100, None]):
        with pytest.raises(farrow_sql.QueryFailed):
            column(pa.array(wrong, pa.int64()))


def test_rows_are_divided_by_node() -> None:
    from farrow_sql._run._schedule import shares
    from farrow_sql._tables import Part

    parts = [Part(bytes([n]), 10, "abc"[n % 3], 80, n * 10) for n in range(6)]
    found = shares(parts, ["a", "b", "b"])
    for node, ranges in zip(["a", "b", "b"], found, strict=True):
        own = [one for one in ranges if one[3] == node]
        assert sum(end - begin for _, begin, end, _ in own) == {"a": 20, "b": 10}[node]
    everything = sorted(
        (id, row) for ranges in found for id, begin, end, _ in ranges for row in range(begin, end)
    )
    assert everything == [(bytes([n]), row) for n in range(6) for row in range(10)]


def test_a_plan_brings_no_code_and_no_files(tmp_path: Path) -> None:
    """A worker gets plans from whoever can read its announcement."""
    import datafusion

    from farrow_sql._plans._stages import check_operators, operators
    from farrow_sql._sessions import bytes_of, session

    def code(values: pa.Array) -> pa.Array:
        (tmp_path / "ran").touch()
        return values

    other = datafusion.SessionContext().with_python_udf_inlining(enabled=True)
    other.register_udf(datafusion.udf(code, [pa.int64()], pa.int64(), "volatile", name="code"))
    plan = other.sql("select code(value) from range(0, 3)").execution_plan()
    with pytest.raises(Exception, match=r"(?i)inlin|code"):
        datafusion.ExecutionPlan.from_bytes(session(1), bytes_of(plan, other))
    assert not (tmp_path / "ran").exists()

    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    other.register_csv("secret", str(secret))
    plan = other.sql("select * from secret").execution_plan()
    read = datafusion.ExecutionPlan.from_bytes(session(1), bytes_of(plan, other))
    with pytest.raises(farrow_sql.CannotDistribute, match="runs on one node only"):
        check_operators(operators(read))


def _arrays() -> dict[str, pa.Array]:
    """Arrays of 1,000 rows of each layout, with nulls."""
    numbers = [None if n % 7 == 0 else n for n in range(1000)]
    texts = [None if n % 5 == 0 else f"text {n}" for n in range(1000)]
    found = {
        "int64": pa.array(numbers),
        "int8, no nulls": pa.array([n % 100 for n in range(1000)], pa.int8()),
        "bool": pa.array([None if n is None else n % 3 == 0 for n in numbers]),
        "decimal": pa.array(numbers, pa.decimal128(10, 2)),
        "timestamp": pa.array(numbers, pa.timestamp("ns", "UTC")),
        "interval": pa.array([None if n is None else pa.MonthDayNano([n, 1, 2]) for n in numbers]),
        "fixed": pa.array([b"%04d" % n for n in range(1000)], pa.binary(4)),
        "null": pa.nulls(1000),
        "list": pa.array([None if n is None else [n, None] for n in numbers]),
        "struct": pa.array([None if n is None else {"a": n, "b": "x" * 50} for n in numbers]),
        "dictionary": pa.array(
            [None if n is None else "abc"[n % 3] for n in numbers]
        ).dictionary_encode(),
        "uuid": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([b"%016d" % n for n in range(1000)], pa.binary(16))
        ),
    }
    for kind in (pa.string(), pa.large_string(), pa.binary(), pa.string_view()):
        found[str(kind)] = pa.array(texts, kind)
    return found


@pytest.mark.parametrize(("name", "values"), _arrays().items(), ids=list(_arrays()))
def test_a_late_range_has_only_its_own_memory(name: str, values: pa.Array) -> None:
    """DataFusion counts buffers from their beginning: sorts failed for want of memory."""
    from farrow_sql._columns import Column

    column = Column(pa.chunked_array([values.slice(1)]), 0)
    for begin in (7, 8, 900):
        found = column(pa.array(range(begin, begin + 20)))
        found.validate(full=True)
        assert found.equals(values.slice(begin + 1, 20))
        assert found.offset == 0
        size = sum(buffer.size for buffer in found.buffers() if buffer is not None)
        assert size <= 20 * (64 + 50) + 128, size
    if name in ("int64", "decimal", "string"):
        # In place.
        low = values.buffers()[-1]
        assert low.address < found.buffers()[-1].address < low.address + low.size


def test_chunks_may_have_more_categories_together_than_their_index_counts() -> None:
    """Each append of a categorical column has a dictionary of its own."""
    from farrow_sql._columns import Column

    chunks = [
        pa.DictionaryArray.from_arrays(
            pa.array([None, *range(100)], pa.int8()), [f"{letter}{n}" for n in range(100)]
        )
        for letter in "abc"
    ]
    column = Column(pa.chunked_array(chunks), 0)
    everything = [value for chunk in chunks for value in chunk.to_pylist()]
    for rows in (range(303), range(0, 303, 2), [302, 5, 150], range(50, 60), []):
        found = column(pa.array(list(rows), pa.int64()))
        found.validate(full=True)
        assert found.type == pa.dictionary(pa.int32(), pa.string())
        assert found.to_pylist() == [everything[row] for row in rows]


def test_a_timeout_of_the_store_keeps_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was reported as a query that did not end within None s."""
    from farrow_sql._run import _query

    def run(query: Any, prepared: Any) -> Any:
        raise farrow.Timeout("object 5 was not sealed within 10000 ms")

    monkeypatch.setattr(_query.Query, "prepare", lambda _: _query.Prepared([], [], [], None))
    monkeypatch.setattr(_query.Query, "_run", run)
    for timeout in (None, 60.0):
        with pytest.raises(farrow.Timeout, match="object 5 was not sealed within 10000 ms"):
            _query.Query("select 1", client=None, timeout=timeout).run()


class SlowClient:
    """A client whose reads take half a second each."""

    node = ""

    def __init__(self) -> None:
        self.reads = 0

    def get(self, id: bytes, columns: list[str], rows: slice) -> pa.Table:
        self.reads += 1
        time.sleep(0.5)
        return pa.table({"a": list(range(rows.stop))})


def test_the_time_of_a_query_ends_reads_in_the_client() -> None:
    from farrow_sql._deadline import Deadline
    from farrow_sql._errors import Late
    from farrow_sql._run._local import LocalQuery
    from farrow_sql._tables import Part, Source

    parts = [Part(bytes([n]), 3, "b", 24, n) for n in range(20)]
    source = Source("t", pa.schema({"a": pa.int64()}), parts, True, None)
    client: Any = SlowClient()
    with pytest.raises(Late):
        LocalQuery(client, "select sum(a) from t", Deadline(1.0)).run([source])
    assert client.reads < 20
    source.parts = parts[:2]
    found = LocalQuery(client, "select sum(a) as s from t", Deadline(60.0)).run([source])
    assert found.to_pydict() == {"s": [6]}


def test_the_time_of_a_query_ends_what_the_client_waits_for(shared: farrow.Client) -> None:
    """Not only the wait for it: its thread ends as well."""
    from farrow_sql._deadline import Deadline
    from farrow_sql._errors import Late

    def ends() -> bool:
        return not any(one.name == "farrow-sql query" for one in threading.enumerate())

    with pytest.raises(Late):
        Deadline(0.2).read(lambda: shared.get("no such object", timeout=1e6))
    wait_until(ends, "the thread ends")
    with pytest.raises(farrow.NotFound):
        Deadline(60.0).read(lambda: shared.get("no such object"))


def test_the_time_of_a_query_limits_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that did not answer took three seconds each, whatever the limit."""
    from farrow_sql._deadline import NEVER, Deadline
    from farrow_sql._worker import _workers

    announced = {
        "protocol": _workers.PROTOCOL, "datafusion": _workers.datafusion.__version__,
        "host": "a", "port": 1, "key": "00", "certificate": "", "node": "",
    }  # fmt: skip
    given: list[float] = []

    def silent(address: Any, certificate: str, key: bytes, seconds: float) -> None:
        given.append(seconds)
        raise TimeoutError("timed out")

    monkeypatch.setattr(_workers, "client_channel", silent)
    monkeypatch.setattr(_workers, "announcements", lambda *_: [(_workers.PREFIX + "x", announced)])
    for deadline in (Deadline(2.0), NEVER):
        found = _workers.workers(None, (), deadline)  # type: ignore[arg-type]
        assert found.unused == ["worker x: timed out"]
    assert 0.0 <= given[0] <= 2.0
    assert given[1] == _workers._CONNECT_SECONDS
    assert Deadline(0.0).left(1.0) == 0.0


def test_a_late_query_ends_the_connections_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    from farrow_sql._deadline import Deadline
    from farrow_sql._run import _query
    from farrow_sql._worker._workers import Found

    class Connected:
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    worker: Any = Connected()
    query = _query.Query("select 1", None, timeout=60.0)  # type: ignore[arg-type]

    def connect(*_: Any) -> Any:
        query._deadline = Deadline(0.0)
        return Found([worker])

    monkeypatch.setattr(_query, "sources", lambda *_: ([], {}))
    monkeypatch.setattr(_query, "workers", connect)
    with pytest.raises(farrow.Timeout):
        query.prepare()
    assert worker.is_closed


def test_a_worker_says_once_that_it_is_not_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], node: Node
) -> None:
    from farrow_sql.worker import Supervisor

    worker = Supervisor(lambda: farrow.connect(node.socket))

    def deny() -> None:
        raise farrow.PermissionDenied("not now")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_put_announcement", deny)
        with pytest.raises(farrow.PermissionDenied):
            worker._announce()
        for error in (
            farrow.OutOfMemory("1 B is free"), farrow.OutOfMemory("2 B are free"),
            farrow.Disconnected("no node"), farrow.OutOfMemory("3 B are free"),
        ):  # fmt: skip

            def refuse(error: Exception = error) -> None:
                raise error

            patch.setattr(worker, "_put_announcement", refuse)
            worker._announce()
    said = [line.partition("announced: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said == ["1 B is free", "no node", "3 B are free"]
    worker._announce()
    assert farrow.connect(node.socket).contains(worker.name)
    # What is refused later may be allowed again.
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_put_announcement", deny)
        worker._announce()
    assert "not announced: not now" in capsys.readouterr().err
    worker._end()


@pytest.mark.parametrize(
    "statement",
    [
        "create table x as select 1 as a",
        "create view x as select * from t",
        "insert into t select 1",
        "copy (select a from t) to '{}/x.csv'",
        "create external table x stored as csv location '{}'",
        "set datafusion.execution.batch_size = 1",
        "drop table t",
    ],
)
def test_nothing_is_executed_before_the_check_of_the_statement(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DataFusion executed definitions where the filters of a query are found, for hours."""
    import datafusion

    from farrow_sql import _tables

    made: list[datafusion.SessionContext] = []

    def session(partitions: int) -> datafusion.SessionContext:
        made.append(datafusion.SessionContext())
        return made[-1]

    monkeypatch.setattr(_tables, "session", session)
    part = _tables.Part(b"", 3, "", 24, 0)
    source = _tables.Source("t", pa.schema({"a": pa.int64()}), [part], False, None)
    assert _tables.prune(statement.format(tmp_path), [source]) == [[part]]
    [context] = made
    assert context.table_exist("t")
    assert not context.table_exist("x")
    assert list(tmp_path.iterdir()) == []
    assert context.sql("select a from t").schema().names == ["a"]
