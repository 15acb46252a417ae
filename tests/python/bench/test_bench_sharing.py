"""The benchmark of references: both paths of a row do the same work, in turns.

The row of the pool once timed the whole table as an argument beside half of it as a result, and by
reference neither side read a byte.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import farrow

BENCH = Path(__file__).resolve().parents[3] / "bench"
if not BENCH.is_dir():
    pytest.skip("the benchmark is not part of the package", allow_module_level=True)
sys.path.insert(0, str(BENCH))

import sharing  # noqa: E402
from harness.node import running_node  # noqa: E402


def test_a_worker_of_the_pool_has_the_table_and_returns_half(tmp_path: Path) -> None:
    run = sharing.Run()
    with running_node(tmp_path, 64 << 20) as address:
        client = farrow.connect(address)
        client.put(sharing.table_of(20_000), "table")
        sharing.measure_pool(run, address, client.get("table"), 2)
    assert {way: len(seconds) for way, seconds in run.seconds.items()} == {
        ("half", "reference"): 2, ("half", "own path"): 2,
    }  # fmt: skip
    # They took turns.
    assert list(run.seconds) == [("half", "reference"), ("half", "own path")]


def test_ray_is_also_measured_at_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[Any] = []

    class Actor:
        def __init__(self) -> None:
            self.total = SimpleNamespace(remote=self.called)
            self.rows = SimpleNamespace(remote=self.counted)

        def called(self, value: Any) -> float:
            arguments.append(value)
            return sharing.total(value[0] if isinstance(value, tuple) else value)

        def counted(self, value: Any) -> int:
            arguments.append(value)
            return int(value.num_rows)

    ray = SimpleNamespace(
        init=lambda **_: None, shutdown=lambda: None, get=lambda value: value,
        put=lambda value: (value,), remote=lambda _: SimpleNamespace(remote=Actor),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", ray)
    paths: list[str] = []
    monkeypatch.setattr(sharing, "use", paths.append)
    monkeypatch.setattr(sharing.farrow.sharing, "uninstall", lambda: None)
    run = sharing.Run()
    table = sharing.table_of(1000)
    sharing.measure_ray(run, table, 2)
    assert list(run.seconds) == [
        ("ray rows", "reference"), ("ray rows", "own path"),
        ("ray", "reference"), ("ray", "own path"), ("ray put", "own path"),
    ]  # fmt: skip
    assert [type(one) for one in arguments] == [*[pa.Table] * 4, tuple] * 3
    # The table is put without references.
    assert paths[:3] == ["own path", "reference", "own path"]
    run.seconds["sum", "here"] = [0.1]
    run.seconds["ray", "reference"] = [0.5]
    run.seconds["ray put", "own path"] = [1.0]
    run.private = {path: [1.0] for path in sharing.PATHS}
    lines = sharing.report(run, dict.fromkeys(dict(sharing.CASES), 1000), []).splitlines()
    (line,) = (one for one in lines if "object store once beforehand" in one)
    # Beside what a call by reference takes.
    assert line.endswith("| 500 (500 to 500) | 1e+03 (1e+03 to 1e+03) | 2 |")
