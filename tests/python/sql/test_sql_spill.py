"""Operators of a worker that spill, and the files to which they do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, Node, run_python, wait_until
from sql_cases import WORKERS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("datafusion")
farrow_sql = pytest.importorskip("farrow_sql")

# Twice the memory of the worker.
ROWS = 4_000_000


@pytest.fixture
def spilling(node: Node, tmp_path: Path) -> Iterator[tuple[farrow.Client, Path]]:
    """A client of a node with a worker of 32 MiB and a table of one chunk of 64 MB, and the folder
    for temporary files of the worker."""
    client = farrow.connect(node.socket)
    random = np.random.default_rng(1)
    client.put(pa.table({"a": random.permutation(ROWS), "b": np.arange(ROWS) / 2}), "numbers")
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "farrow.cli", "sql-worker", "--memory", "32MiB"]
    worker = subprocess.Popen(
        [*command, "--socket", node.socket],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        wait_until(lambda: client.list(WORKERS).num_rows == 1, "a worker")
        yield client, folder
    finally:
        worker.terminate()
        worker.wait(LIMIT_SECONDS)
        assert list(folder.iterdir()) == []


def test_a_sort_of_one_large_chunk_spills(spilling: tuple[farrow.Client, Path]) -> None:
    client, _ = spilling
    query = farrow_sql._run._query.Query("select a, b from numbers order by a", client, timeout=100)
    found, prepared = query.run()
    assert prepared.plan is not None, prepared.reason
    assert np.array_equal(found["a"].to_numpy(), np.arange(ROWS))


def test_groups_spill(spilling: tuple[farrow.Client, Path]) -> None:
    """As many groups as rows, whose table of groups takes more than the worker's memory."""
    client, folder = spilling
    query = "select a, sum(b) as total, count(*) as n from numbers group by a"
    seen: list[Path] = []
    ended = threading.Event()

    def look() -> None:
        while not seen and not ended.wait(0.01):
            seen.extend(spilled(folder))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        found = farrow.sql(query, client, timeout=100).to_pandas().sort_values("a")
    finally:
        ended.set()
        looking.join()
    assert seen
    assert np.array_equal(found["a"], np.arange(ROWS))
    numbers = client.get("numbers").to_pandas().sort_values("a")
    assert np.array_equal(found["total"], numbers["b"])
    assert (found["n"] == 1).all()


def spilled(folder: Path) -> list[Path]:
    """The files of operators."""
    # Folders may be removed meanwhile.
    return [Path(root) / name for root, _, names in os.walk(folder) for name in names]


def test_files_of_a_killed_query_are_removed(spilling: tuple[farrow.Client, Path]) -> None:
    client, folder = spilling
    sort = "select a, b from numbers order by a"
    [supervisor] = folder.iterdir()
    processes = set(supervisor.iterdir())
    script = f"import farrow, sys; farrow.sql({sort!r}, farrow.connect(sys.argv[1]))"
    with subprocess.Popen([sys.executable, "-c", script, client.address]) as process:
        wait_until(lambda: bool(spilled(folder)), "the sort spills")
        process.kill()
    # The process that served it ends itself, and another one takes its place.
    wait_until(lambda: spilled(folder) == [], "the files are removed", 5.0)
    wait_until(lambda: set(supervisor.iterdir()) - processes != set(), "another process")
    assert len(list(supervisor.iterdir())) == len(processes)


def test_folders_of_killed_workers_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farrow_sql._worker._spill import SpillFolder

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    live = SpillFolder()
    (live.add() / "rows").touch()
    script = (
        "import os; from farrow_sql._worker._spill import SpillFolder; folder = SpillFolder();"
        "(folder.add() / 'rows').touch(); os._exit(0)"
    )
    run_python(script, env={"TMPDIR": str(tmp_path)})
    retained = tmp_path / "kept"
    retained.mkdir()
    prefix = f"farrow-sql-spill-{os.uname().nodename}"
    left = [f"{prefix}-link", f"{prefix}-file", "farrow-sql-spill-of-another-machine-1"]
    (tmp_path / left[0]).symlink_to(retained)
    (tmp_path / left[1]).touch()
    (tmp_path / left[2]).mkdir()
    assert len(list(tmp_path.iterdir())) == 6
    other = SpillFolder()
    assert len(spilled(tmp_path)) == 2
    assert len(list(tmp_path.iterdir())) == 6
    other.close()
    live.close()
    assert {path.name for path in tmp_path.iterdir()} == {"kept", *left}


def test_a_folder_may_be_removed_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farrow_sql._worker._spill import SpillFolder

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    make, made = tempfile.mkdtemp, []

    def removed_at_first(**options: Any) -> str:
        made.append(make(**options))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr("tempfile.mkdtemp", removed_at_first)
    folder = SpillFolder()
    assert len(made) == 2
    folder.close()


def test_where_the_system_hides_processes_no_end_is_proved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from farrow_sql._worker._processes import has_ended, identity

    ended = {**identity(), "started": "0"}
    assert has_ended(ended)

    def hidden(*_: Any) -> str:
        raise PermissionError

    monkeypatch.setattr("os.readlink", hidden)
    assert not has_ended(ended)
    assert "boot" not in identity()
