"""The parts of farrow-sql that need no node: bytes of plans, columns, shares of rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("datafusion")
farrow_sql = pytest.importorskip("farrow_sql")


def test_children_are_exchanged_in_bytes() -> None:
    from farrow_sql._wire import replace_children

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
    from farrow_sql._schedule import shares
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

    from farrow_sql._sessions import bytes_of, session
    from farrow_sql._stages import check_operators, operators

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
