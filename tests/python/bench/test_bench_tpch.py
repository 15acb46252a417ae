"""The 22 queries of TPC-H over huge tables return what they return over DuckDB's own tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import farrow

if TYPE_CHECKING:
    from conftest import Node

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def tpch(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("duckdb")
    if not Path(sys.executable).with_name("tpchgen-cli").exists():
        pytest.skip("tpchgen-cli is not installed")
    monkeypatch.syspath_prepend(str(BENCH))
    import tpch

    return tpch


def test_all_queries_agree(tpch: Any, node: Node, tmp_path: Path) -> None:
    assert list(tpch.queries()) == list(range(1, 23))
    paths = tpch.generate(tmp_path / "data", 0.01)
    connections = tpch.sources(farrow.connect(node.socket), paths)
    samples = tpch.measure(connections, 1, 0)
    assert len(samples) == 22 * 3
    rows = connections[tpch.FARROW].execute("select count(*) from lineitem").fetchall()
    assert rows == [(60_175,)]
    # The answer of query 1 at this scale has four groups, so no filter lost everything.
    assert len(connections[tpch.FARROW].execute(tpch.queries()[1]).fetchall()) == 4


def test_another_answer_is_seen(tpch: Any) -> None:
    """The canary."""
    assert tpch.same([(1, "a", 0.5)], [(1, "a", 0.5 + 1e-15)])
    assert not tpch.same([(1, "a", 0.5)], [(1, "a", 0.6)])
    assert not tpch.same([(1, "a")], [(1, "b")])
    assert not tpch.same([(1,)], [(1,), (2,)])
