"""The benchmark of loads reads the same rows into both pools, and knows where they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import farrow

if TYPE_CHECKING:
    from conftest import Node

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import loads

    return loads


def test_each_kind_of_file_has_the_rows(loads: Any, node: Node, tmp_path: Path) -> None:
    client = farrow.connect(node.socket)
    files = loads._files(tmp_path, 4 << 20)
    assert files["csv"].stat().st_size == pytest.approx(4 << 20, rel=0.05)
    readers = loads._readers(client.memory_pool())
    tables = {kind: readers[kind](str(path)) for kind, path in files.items()}
    for table in tables.values():
        assert table.select(["id", "symbol", "price"]).equals(
            tables["arrow"].select(["id", "symbol", "price"])
        )
        assert all(buffer["in_region"] for buffer in client.locate(table))


def test_a_run_has_all_cases(loads: Any, node: Node, tmp_path: Path) -> None:
    files = loads._files(tmp_path, 1 << 20)
    run = loads.Run()
    # Each process is this program again.
    loads._measure(run, "csv", files["csv"], node.socket, True)
    assert run.cases() == [
        "first load of a process, csv",
        "put after first load of a process, csv",
        "load, csv",
        "put after load, csv",
    ]
    processes, later = loads.QUICK_PROCESSES, loads.QUICK_LOADS
    for pool in loads.POOLS:
        assert len(run.found["first load of a process, csv", pool, "s"]) == processes
        assert len(run.found["load, csv", pool, "s"]) == processes * later
    assert len(loads._table(run).splitlines()) == 2 + len(run.cases())
    assert farrow.connect(node.socket).list().num_rows == 0


def test_buffers_outside_of_the_pool_are_seen(loads: Any) -> None:
    """The canary: a pool that is full would measure private memory."""
    answer = {"bytes": 100, "bytes_in_region": 60, "load": 1.0, "faults": 1, "put": 1.0}
    with pytest.raises(AssertionError, match="60 of 100 B"):
        loads._add(loads.Run(), "csv", loads.FARROW, True, answer)
