"""Operators of a worker that spill, and the files to which they do."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import farrow
from conftest import LIMIT_SECONDS, Node, wait_until
from sql_cases import WORKERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


def test_a_sort_of_one_large_chunk_spills(spilling: tuple[farrow.Client, Path]) -> None:
    client, _ = spilling
    query = farrow_sql._query.Query("select a, b from numbers order by a", client, timeout=100)
    found, prepared = query.run()
    assert prepared.plan is not None, prepared.reason
    assert np.array_equal(found["a"].to_numpy(), np.arange(ROWS))
