"""The benchmark of SQL over a cluster: its engines return the same rows, and its table is whole."""

from __future__ import annotations

import decimal
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("duckdb", "datafusion", "farrow_sql"):
        pytest.importorskip(name)
    if not Path(sys.executable).with_name("tpchgen-cli").exists():
        pytest.skip("tpchgen-cli is not installed")
    monkeypatch.syspath_prepend(str(BENCH))
    import sql

    return sql


def test_a_quick_run(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "QUICK_SCALE", 0.02)
    words = ["sql.py", "--quick", "--no-spark", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    assert bench.main() == 0
    [path] = tmp_path.glob("*-sql-quick.json")
    samples = json.loads(path.read_text())["samples"]
    assert len(samples) == 22 * (3 + 3)
    moved = {one["case"]: one["samples"][0] for one in samples if one["unit"] == "bytes"}
    assert len(moved) == 22
    exchanged = [one["samples"][0] for one in samples if one["variant"] == "farrow.sql, exchanges"]
    # Query 6 exchanges sums only, query 9 rows of joins.
    assert exchanged[5] < 1000 < exchanged[8]
    # All tables are where their tasks are.
    assert all(one["samples"] == [0] for one in samples if one["variant"].endswith("tables"))
    lines = path.with_suffix(".md").read_text().splitlines()
    assert {line.count("|") for line in lines[:25]} == {8}
    assert lines[24].startswith("| geometric mean |")


def test_another_answer_is_seen(bench: Any) -> None:
    """The canary."""
    assert bench.same([(1, "a", 0.5)], [(1, "a", decimal.Decimal("0.5"))])
    assert not bench.same([(1, "a", 0.5)], [(1, "a", 0.51)])
    assert not bench.same([(None,)], [(0.0,)])
    assert not bench.same([(1, "a")], [(1, "b")])
    assert not bench.same([(1,)], [(1,), (2,)])
