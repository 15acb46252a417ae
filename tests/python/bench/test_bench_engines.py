"""The benchmark of query engines: each also has memory of its own to read.

polars and DataFusion once stood beside a compressed file alone, which they had to decode.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("duckdb", "datafusion", "polars"):
        pytest.importorskip(name)
    if not BENCH.is_dir():
        pytest.skip("the benchmark is not part of the package")
    monkeypatch.syspath_prepend(str(BENCH))
    import engines

    return engines


def test_a_quick_run(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "QUICK_ROWS", 2000)
    monkeypatch.setattr(bench, "ROUNDS", 1)
    monkeypatch.setattr(sys, "argv", ["engines.py", "--quick", "--output", str(tmp_path)])
    assert bench.main() == 0
    [path] = tmp_path.glob("*-engines-quick.json")
    samples = json.loads(path.read_text())["samples"]
    for case in ("group-by", "range"):
        found = {one["variant"] for one in samples if one["case"] == case}
        for engine in ("polars", "DataFusion"):
            assert {
                f"{engine} over {source}" for source in ("Farrow", "its own memory", "Parquet")
            } <= found
        assert {f"DuckDB over {one}" for one in ("Farrow", "its own table", "Parquet")} <= found
    lines = path.with_suffix(".md").read_text()
    assert "polars over its own memory" in lines


def test_batches_are_in_a_part_for_each_core(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.os, "sched_getaffinity", lambda _: {0, 1})
    assert bench._parts([1, 2, 3]) == [[1, 3], [2]]
    assert bench._parts([1]) == [[1]]
