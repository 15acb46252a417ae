"""Spilling to a bucket: S3 as the emulator moto speaks it, on a port of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import farrow
from conftest import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from bucket_cases import Bucket
    from conftest import Node

pytest_plugins = ["bucket_cases"]

MIB = 1 << 20


@pytest.fixture
def spilling(make_node: Callable[..., Node], bucket: Bucket) -> Node:
    return make_node("--memory", "64MiB", "--spill", bucket.url)


def test_more_than_fits_goes_to_the_bucket_and_comes_back(spilling: Node, bucket: Bucket) -> None:
    client = farrow.connect(spilling.socket)
    # Each is written in several parts.
    for i in range(5):
        client.put(bytes([i]) * 20 * MIB, f"o{i}", wait=30)
    files = bucket.files()
    assert len(files) >= 2
    assert all(file.startswith("spilled/here/") for file in files)
    for i in range(5):
        assert client.get(f"o{i}", timeout=30).to_pybytes() == bytes([i]) * 20 * MIB
    client.delete([f"o{i}" for i in range(5)])
    wait_until(lambda: not bucket.files(), "the files to go")


def test_a_table_in_a_bucket_survives_a_restart(spilling: Node, bucket: Bucket) -> None:
    client = farrow.connect(spilling.socket)
    table = pa.table({"n": range(1000), "s": [str(n) for n in range(1000)]})
    client.put(table, "t", metadata={"k": "v"})
    client.evict(1)
    assert len(bucket.files()) == 1
    spilling.restart()
    assert client.get("t", timeout=30).equals(table)
    assert client.metadata("t") == {"k": "v"}


def test_what_is_missing_in_a_bucket_is_named(spilling: Node, bucket: Bucket) -> None:
    client = farrow.connect(spilling.socket)
    client.put(b"bytes", "x")
    client.evict(1)
    (file,) = bucket.files()
    bucket.remove(file)
    with pytest.raises(farrow.NotRestored, match=file.rsplit("/", 1)[1]) as caught:
        client.get("x", timeout=30)
    assert caught.value.file.startswith(bucket.url)


def test_a_node_without_its_bucket_does_not_start(bucket: Bucket, tmp_path: Path) -> None:
    arguments = ["--socket", str(tmp_path / "s"), "--memory", "8MiB", "--spill", "s3://nowhere"]
    program = "import sys; from farrow._native import node_main; sys.exit(node_main(sys.argv[1:]))"
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert "s3://nowhere" in ended.stderr
    assert "NoSuchBucket" in ended.stderr
    # Nor has it mounted memory that nobody would unmount.
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
