"""The demo: it runs on any table, tells no lies about agreement, and leaves nothing behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from farrow import demo
from farrow.demo import _questions
from farrow.demo._measure import full_pass_seconds, memory_of, table_bytes
from farrow.graph import generate

pytest.importorskip("numpy")
MEMORY = 96 << 20


@pytest.fixture
def traces(tmp_path, monkeypatch):
    """What a demo left: scratch folders, files in /dev/shm and processes, by name."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def left() -> list[str]:
        found = [path.name for path in tmp_path.glob("farrow-demo-*")]
        found += [path.name for path in Path("/dev/shm").glob("farrow-demo-*")]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                environment = (process / "environ").read_bytes()
            except OSError:
                continue
            # The demo's processes inherit the folder for temporary files set above.
            if f"TMPDIR={tmp_path}\0".encode() in environment:
                found.append(command.replace(b"\0", b" ").decode())
        return found

    return left


def play(data: Path | None, **options) -> tuple[int, str]:
    text = io.StringIO()
    out = Console(file=text, width=160, highlight=False)
    code = demo.run(demo.Options(data, memory_bytes=MEMORY, **options), out=out)
    return code, text.getvalue()


def test_generated_data(traces) -> None:
    code, out = play(None, rows=50_000)
    assert code == 0
    assert "50,000 rows" in out
    assert "it was built there: no copy" in out
    assert "the same bytes" in out
    assert " agree" in out
    assert "NOT AGREE" not in out
    assert "OTHER BYTES" not in out
    assert "NO" not in out.split()
    assert traces() == []


def test_a_table_that_is_no_transfers(traces, tmp_path) -> None:
    table = pa.table(
        {
            "n": pa.array([1, 2, None] * 100, pa.int16()),
            "word": pa.array(["a", "b", None] * 100).dictionary_encode(),
            "list": pa.array([[1], [], None] * 100),
            "nested": pa.array([{"x": 1.5}, {"x": None}, None] * 100),
        }
    )
    path = tmp_path / "other.parquet"
    pq.write_table(table, path)
    code, out = play(path)
    assert code == 0, out
    assert "distinct" in out
    assert "nested" in out
    assert traces() == []


def test_edge_lists(traces, tmp_path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("".join(f"{i % 7} {i % 11} {1_082_040_961 + 977 * i}\n" for i in range(500)))
    code, out = play(path)
    assert code == 0, out
    assert "number of rows" in out
    assert "hour of the day" in out
    assert traces() == []


@pytest.mark.parametrize("name", ["nothing.csv", "broken.parquet", "empty.csv"])
def test_failures_are_reported_in_one_line(traces, tmp_path, capsys, name: str) -> None:
    if name != "nothing.csv":
        (tmp_path / name).write_bytes(b"PAR1" + bytes(64) if "parquet" in name else b"")
    code, _ = play(tmp_path / name)
    assert code == 1
    err = capsys.readouterr().err
    assert err.startswith("farrow: demo: ")
    assert "Traceback" not in err
    assert traces() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_it_clears_up(traces, tmp_path, number: int) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "farrow.cli", "demo", "--rows", "1000000", "--memory", "512M"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + 60
    while not list(tmp_path.glob("farrow-demo-*/node.sock")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert traces() == []


def test_engines_agree() -> None:
    table = generate.transactions(20_000)
    roles = _questions.guess_roles(table)
    assert roles is not None
    assert (roles.account, roles.time, roles.amount) == (
        "from account",
        "timestamp",
        "amount paid",
    )
    wanted = _questions.ask("pyarrow", table, roles)
    assert sum(wanted.histogram) == table.num_rows
    for engine in ("duckdb", "polars"):
        pytest.importorskip(engine)
        found = _questions.ask(engine, table, roles)
        assert found.histogram == wanted.histogram
        assert [name for name, _ in found.top] == [name for name, _ in wanted.top]
        assert [volume for _, volume in found.top] == pytest.approx([v for _, v in wanted.top])


def test_roles_of_other_tables() -> None:
    steps = pa.table(
        {
            "sourceNodeId": [1, 2, 1],
            "targetNodeId": [3, 4, 5],
            "value": [1.0, 2.0, 3.5],
            "time": [1, 9, 200],
        }
    )
    roles = _questions.guess_roles(steps)
    assert roles is not None
    assert (roles.account, roles.amount, roles.low, roles.width) == ("sourceNodeId", "value", 1, 9)
    answer = _questions.ask("pyarrow", steps, roles)
    assert answer.top[0] == ("1", 4.5)
    assert sum(answer.histogram) == 3
    assert _questions.guess_roles(pa.table({"x": [1], "y": ["a"]})) is None
    assert _questions.guess_roles(steps.slice(0, 0)) is None


def test_measures() -> None:
    table = pa.table({"a": pa.array([1, 2, 3], pa.int8()), "b": ["x", None, "yz"]})
    assert table_bytes(table) > 0
    assert full_pass_seconds(table) > 0
    mine = memory_of(os.getpid())
    assert mine.total >= mine.private > 0
    assert mine.page_tables > 0
