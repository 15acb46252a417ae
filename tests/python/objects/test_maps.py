"""A client that runs out of memory maps.

Every other 4 KiB buffer of a pool was put in place, which divides a map in three each time, until
``vm.max_map_count``: then the next ``list()`` ended in SIGABRT, since no library could allocate any
more.  Now some hundreds of maps are left, small buffers are copied where maps are scarce, and what
cannot go on without a map says how many there are.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from conftest import python_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node

# Others' maps count as well: the child takes most of its own before it uses the client.
CHILD = """
import ctypes, mmap, sys
import numpy as np
import pyarrow as pa
import farrow

limit = int(open("/proc/sys/vm/max_map_count").read())
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def maps():
    return sum(1 for _ in open("/proc/self/maps"))

def take(left):
    # Every other page has another protection: a map for each.
    count = limit - maps() - left
    start = libc.mmap(None, count * 4096, mmap.PROT_READ, 0x22, -1, 0)
    assert start not in (None, 2**64 - 1)
    for page in range(0, count, 2):
        assert libc.mprotect(start + page * 4096, 4096, 0) == 0, page

client = farrow.connect(sys.argv[1])
pool = client.memory_pool(strict=True)
client.put(pa.table({"x": [1]}), "table")
print("before", maps())
"""


def _run(node: Node, script: str) -> None:
    done = python_process(CHILD + script, node.socket)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stdout} {done.stderr}"


PUTS = """
buffers = []
for number in range(6000):
    buffers.append(pa.allocate_buffer(4096, memory_pool=pool))
    np.frombuffer(buffers[-1], np.int64)[:] = number
take(4000)
for number in range(0, len(buffers), 2):
    array = pa.Array.from_buffers(pa.int64(), 512, [None, buffers[number]])
    client.put(array, f"a-{number}")
    if number % 500 == 0:
        assert client.get("table")["x"].to_pylist() == [1]
left = limit - maps()
assert left > 256, f"only {left} maps are left"
assert client.list().num_rows == len(buffers) // 2 + 1
for number in range(0, len(buffers), 2):
    assert client.get(f"a-{number}").to_pylist() == [number] * 512
"""


def test_puts_in_place_stop_before_the_last_map_and_go_on_by_copy(
    make_node: Callable[..., Node],
) -> None:
    node = make_node("--memory", "128MiB", "--objects-max", "20000")
    _run(node, PUTS)


WRITERS = """
writers = [client.create(8192) for _ in range(2000)]
sealed = []
take(1200)
error = None
try:
    for writer in writers[::2]:
        writer.seal()
        sealed += [True, False]
except farrow.LimitReached as caught:
    error = caught
assert error is not None
assert f"vm.max_map_count ({limit})" in str(error), error
assert error.limit == limit
left = limit - maps()
assert left > 256, f"only {left} maps are left"
before = client.list().num_rows
client.put(b"small", "small")
client.put(bytes(1 << 20), "large")
assert client.list().num_rows == before + 2
assert bytes(client.get("small")) == b"small"
# What is given up in between goes back when there is room, and all of it in the end.
for number, writer in [*enumerate(writers)][::-1]:
    if number % 2 or number >= len(sealed):
        writer.abort()
del writers, writer
# There is room again.
for writer in [client.create(8192) for _ in range(10)][::2]:
    writer.seal()
"""


def test_writers_are_refused_with_the_numbers(make_node: Callable[..., Node]) -> None:
    _run(make_node("--memory", "256MiB", "--objects-max", "20000"), WRITERS)


NEIGHBOURS = """
buffers = [pa.allocate_buffer(4096, memory_pool=pool) for _ in range(2000)]
before = maps()
for number in [*range(0, 2000, 2), *range(1, 2000, 2)]:
    array = pa.Array.from_buffers(pa.int64(), 512, [None, buffers[number]])
    client.put(array)
after = maps()
# Read-only neighbours are one map again, whatever the order in which they were sealed.
assert after < before + 100, (before, after)
"""


def test_sealed_neighbours_are_one_map(make_node: Callable[..., Node]) -> None:
    assert Path("/proc/sys/vm/max_map_count").exists()
    _run(make_node("--memory", "64MiB", "--objects-max", "20000"), NEIGHBOURS)
