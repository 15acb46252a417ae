"""The C++ bridge is one library for each libarrow; without a fitting one only the pool is missing.

The extension was linked to libarrow of one pyarrow series, and refused every other one at import:
an upgrade of pyarrow broke a program that never asked for a pool.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import farrow
from conftest import run_python
from farrow import _native

PACKAGE = Path(farrow.__file__).parent
SMOKE = Path(__file__).resolve().parents[2] / "matrix_smoke.py"

# Without a pool: what a put and a get return, and the error of the pool.
SCRIPT = """
import sys, farrow, pyarrow as pa
from farrow import _native
client = farrow.connect(sys.argv[1])
table = pa.table({"n": [1, None], "s": ["a", "b"]})
back = client.get(client.put(table))
print(_native.bridge_series(), back.equals(table), client.locate(back)[0]["in_region"])
for arguments in ({}, {"strict": True}, {"expect": 4096}):
    try:
        client.memory_pool(**arguments)
    except ImportError as error:
        print(error)
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package whose bridges a test may change."""
    shutil.copytree(PACKAGE, tmp_path / "site" / "farrow", symlinks=True)
    return tmp_path / "site"


def bridge(site: Path) -> Path:
    return site / "farrow" / "_bridge" / f"arrow_{pa.cpp_build_info.so_version}.so"


def run_without_pool(node: Any, **env: str) -> str:
    lines = run_python(SCRIPT, node.socket, env=env).splitlines()
    assert lines[0] == "None True True"
    assert len(lines) == 4
    assert len(set(lines[1:])) == 1
    assert f"no memory pool for pyarrow {pa.__version__}" in lines[1]
    return lines[1]


def test_the_bridge_of_this_pyarrow_is_used(client: farrow.Client) -> None:
    assert _native.bridge_series() == pa.cpp_build_info.so_version
    assert client.memory_pool().backend_name == "farrow"


def test_no_bridge_for_this_pyarrow(node: Any, copied: Path) -> None:
    """The message has the series that there are."""
    bridge(copied).rename(bridge(copied).with_name("arrow_9900.so"))
    message = run_without_pool(node, PYTHONPATH=str(copied))
    assert "has pools for pyarrow 99, not for" in message
    assert f"libarrow.so.{pa.cpp_build_info.so_version}" in message
    assert "pip install" in message
    shutil.rmtree(bridge(copied).parent)
    assert "pools for pyarrow of no series" in run_without_pool(node, PYTHONPATH=str(copied))


def test_a_damaged_bridge(node: Any, copied: Path) -> None:
    bridge(copied).write_bytes(b"no library")
    message = run_without_pool(node, PYTHONPATH=str(copied))
    assert str(bridge(copied)) in message


def test_a_bridge_of_another_build(node: Any, copied: Path) -> None:
    """A file that an older installation left behind has other structures."""
    from_the_build = _native.__version__.encode() + b" "
    library = bridge(copied).read_bytes()
    assert library.count(from_the_build) == 1
    at = library.index(from_the_build) + len(from_the_build)
    bridge(copied).write_bytes(library[:at] + b"0123456789abcdef" + library[at + 16 :])
    message = run_without_pool(node, PYTHONPATH=str(copied))
    assert "built with other sources" in message
    assert "0123456789abcdef" in message


def test_switched_off(node: Any) -> None:
    assert "FARROW_BRIDGE=off" in run_without_pool(node, FARROW_BRIDGE="off")


@pytest.mark.parametrize("mode", ["pool", "no-pool"])
def test_both_ways_give_the_same_values(node: Any, mode: str) -> None:
    """The checks of the matrix, with the bridge and with the C Data Interface alone."""
    env = {**os.environ, "FARROW_SOCKET": node.socket}
    if mode == "no-pool":
        env["FARROW_BRIDGE"] = "off"
    subprocess.run([sys.executable, str(SMOKE), mode], env=env, timeout=120, check=True)


def test_a_view_of_a_writer_keeps_the_memory(client: farrow.Client) -> None:
    """Memory that Python exports is unmapped when its last view is gone, not before."""
    writer = client.create(4096, None)
    part = memoryview(writer.buffer)[10:20]
    assert part.format == "B"
    assert not part.readonly
    part[:] = b"0123456789"
    memory = type(writer.buffer.obj)
    empty = memory()
    assert bytes(memoryview(empty)) == b""
    del empty
    whole = writer.buffer.obj
    del writer
    assert bytes(memoryview(whole)[10:20]) == b"0123456789"
    assert bytes(part) == b"0123456789"
