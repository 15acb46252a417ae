"""``get(lazy=True)``: pages of objects of unmapped nodes come when they are first read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import farrow
from conftest import LIMIT_SECONDS, Cluster, Node, as_nobody, run_python, scrape, wait_until
from farrow import aio
from farrow._native import node_main
from farrow._nodes._ports import free_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MB = 1 << 20
CHUNK = 64 << 10
ONLY = ("--plaintext", "--net=only", "--no-prepare", "--metrics")
ROWS = 200_000


def has_right() -> bool:
    """Whether this process may serve page faults inside system calls."""
    setting = Path("/proc/sys/vm/unprivileged_userfaultfd")
    is_open = setting.exists() and setting.read_text().strip() == "1"
    return is_open or os.access("/dev/userfaultfd", os.R_OK | os.W_OK)


needs_right = pytest.mark.skipif(not has_right(), reason="no right to serve page faults")


@contextlib.contextmanager
def open_nodes() -> Iterator[Callable[..., Node]]:
    folder = Path(tempfile.mkdtemp(prefix="farrow-test-", dir="/dev/shm"))
    folder.chmod(0o711)
    nodes: list[Node] = []

    def make(*flags: str) -> Node:
        own = folder / str(len(nodes))
        own.mkdir(mode=0o711)
        own.chmod(0o711)
        nodes.append(Node(own, *flags))
        return nodes[-1]

    try:
        yield make
    finally:
        for node in nodes:
            node.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def mortal(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Nodes that map nothing of each other, for a test that ends one."""
    return make_cluster(2, *ONLY)


@pytest.fixture(scope="module")
def lasting() -> Iterator[Cluster]:
    with open_nodes() as make:
        yield Cluster(make, 2, *ONLY, "--allow-uid", "65534")


@pytest.fixture
def two(lasting: Cluster) -> Iterator[Cluster]:
    """Such nodes for all tests that end none, with nothing in them."""
    yield lasting
    client = lasting.client("b")
    client.delete(client.list(all_nodes=True)["id"].to_pylist())


def table(columns: int = 8) -> pa.Table:
    rng = np.random.default_rng(7)
    wide = {f"c{number}": rng.integers(0, 1 << 40, ROWS) for number in range(columns)}
    words = pa.array([f"word {number}" for number in range(ROWS)])
    return pa.table({**wide, "word": words})


def brought(cluster: Cluster) -> int:
    """Bytes that node a has fetched from other nodes."""
    # A node repeats numbers that are younger.
    time.sleep(0.11)
    text = scrape(cluster.nodes["a"])
    found = re.search(r"^farrow_fetched_bytes_total (\S+)$", text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


@needs_right
def test_only_what_is_read_is_brought(two: Cluster) -> None:
    a, b = two.clients()
    value = table()
    b.put(value, "wide")
    before = brought(two)
    lazy = a.get("wide", lazy=True)
    assert lazy.schema == value.schema
    assert lazy.num_rows == ROWS
    at_open = brought(two) - before
    assert at_open <= 4 * CHUNK, at_open
    assert lazy["c3"].equals(value["c3"])
    column = value["c3"].nbytes
    one = brought(two) - before - at_open
    assert column <= one <= column + 2 * CHUNK, (column, one)
    # A few random rows are a few pages.
    at = sorted(random.Random(3).sample(range(ROWS), 5))
    assert lazy["c5"].take(at).equals(value["c5"].take(at))
    assert brought(two) - before - at_open - one <= 5 * CHUNK
    assert lazy.equals(value)
    lazy.validate(full=True)
    # All of it once.
    assert brought(two) - before <= value.nbytes + 16 * CHUNK


@needs_right
def test_kinds_of_values(two: Cluster) -> None:
    a, b = two.clients()
    rng = np.random.default_rng(1)
    nested = [[number] * (number % 5) if number % 7 else None for number in range(60_000)]
    cases: dict[str, Any] = {
        "array": rng.random((700, 300)),
        "strided": np.asfortranarray(rng.random((300, 200))),
        "batch": pa.record_batch({"x": list(range(80_000)), "y": ["y"] * 80_000}),
        "chunked": pa.chunked_array([list(range(40_000)), list(range(30_000))]),
        "nested": pa.array(nested),
        "words": pa.array(["many words"] * 50_000).dictionary_encode(),
        "views": pa.array([f"a longer word {n}" for n in range(30_000)], pa.string_view()),
        "sliced": table(2).slice(777, 50_000),
        # Brought whole.
        "small": pa.table({"x": [1, None, 3]}),
        "bytes": os.urandom(MB),
        "empty": pa.table({"x": pa.array([], pa.int64())}),
    }
    for name, value in cases.items():
        b.put(value, name)
    for name, value in cases.items():
        found = a.get(name, lazy=True)
        if isinstance(value, bytes):
            assert found.to_pybytes() == value
        elif isinstance(value, np.ndarray):
            assert np.array_equal(found, value), name
            assert not found.flags.writeable
        else:
            assert found.equals(value), name
            found.validate(full=True)
        # In place where the memory is mapped.
        assert type(b.get(name, lazy=True)) is type(found)


@needs_right
def test_as_another_library_and_by_reference(two: Cluster) -> None:
    a, b = two.clients()
    reference = b.put(table(2), "frame")
    frame = a.get(reference, lazy=True, as_="pandas")
    assert frame["c1"].sum() == table(2)["c1"].to_numpy().sum()
    assert a.get(reference, lazy=True, timeout=1)["c0"].equals(table(2)["c0"])
    with pytest.raises(farrow.InvalidArgument, match="lazy"):
        a.get("frame", lazy=True, columns=["c0"])
    with pytest.raises(farrow.InvalidArgument, match="lazy"):
        a.get("frame", lazy=True, rows=slice(0, 1))
    with pytest.raises(farrow.NotFound):
        a.get("nothing", lazy=True)
    with pytest.raises(farrow.Timeout):
        a.get("nothing", lazy=True, timeout=0.05)
    # What was read lazily can be put, as a copy.
    again = a.put(a.get("frame", lazy=True), "copy")
    assert a.get(again).equals(table(2))


@needs_right
def test_asyncio_has_it_too(two: Cluster) -> None:
    two.client("b").put(table(1), "async")

    async def read() -> pa.Table:
        async with await aio.connect(two.nodes["a"].socket) as client:
            return await client.get("async", lazy=True)

    assert asyncio.run(read()).equals(table(1))


READ = """
import sys, farrow
client = farrow.connect(sys.argv[1])
value = client.get("shared", lazy=True)
print(sum(int(value[f"c{n}"].to_numpy().sum()) for n in (0, 1)))
"""


@needs_right
def test_processes_share_one_transfer(two: Cluster) -> None:
    a, b = two.clients()
    value = table(4)
    b.put(value, "shared")
    before = brought(two)
    lazy = a.get("shared", lazy=True)
    expected = sum(int(value[f"c{number}"].to_numpy().sum()) for number in (0, 1))
    assert sum(int(lazy[f"c{number}"].to_numpy().sum()) for number in (0, 1)) == expected
    first = brought(two) - before
    others = [
        subprocess.Popen(
            [sys.executable, "-c", READ, two.nodes["a"].socket], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert [int(one.communicate(timeout=LIMIT_SECONDS)[0]) for one in others] == [expected] * 2
    # Not a byte twice; the opening of a table reads some offsets.
    assert brought(two) - before <= first + 4 * CHUNK


@needs_right
def test_blocks_without_a_gap_are_brought(two: Cluster) -> None:
    """Regression test: such blocks were requested as one range, which the home refuses.

    Each buffer of the pool is a block of whole pages.
    """
    a, b = two.clients()
    pool = b.memory_pool()
    plain = table(6)
    names = [f"c{number}" for number in range(6)]
    expected = pa.table({name: pc.multiply(plain[name], 2) for name in names})
    for name in ("read", "fetched"):
        columns = [pc.multiply(plain[column], 2, memory_pool=pool) for column in names]
        b.put(pa.table(columns, names), name)
    assert a.get("read", lazy=True).equals(expected)
    fetched = a.get("fetched", lazy=True)
    assert farrow.fetch(fetched) > 0
    assert fetched.equals(expected)


@needs_right
def test_threads_read_the_same_pages(two: Cluster) -> None:
    a, b = two.clients()
    value = np.random.default_rng(3).integers(0, 1 << 60, 4 * MB // 8)
    b.put(value, "threads")
    lazy = a.get("threads", lazy=True)
    wrong: list[int] = []

    def read(seed: int) -> None:
        for at in random.Random(seed).sample(range(len(value)), 300):
            if lazy[at] != value[at]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    assert not wrong
    assert np.array_equal(lazy, value)


@needs_right
def test_a_system_call_reads_pages(two: Cluster, tmp_path: Any) -> None:
    """``write(2)`` of a page that is not there yet."""
    a, b = two.clients()
    value = np.random.default_rng(5).bytes(MB)
    b.put(np.frombuffer(value, np.uint8), "written")
    lazy = a.get("written", lazy=True)
    with (tmp_path / "out").open("wb") as out:
        os.write(out.fileno(), memoryview(lazy))
    assert (tmp_path / "out").read_bytes() == value


@needs_right
def test_fetch_brings_what_is_named(mortal: Cluster) -> None:
    a, b = mortal.clients()
    value = table()
    b.put(value, "fetched")
    lazy = a.get("fetched", lazy=True)
    before = brought(mortal)
    assert farrow.fetch(lazy["c2"]) == value["c2"].nbytes
    assert value["c2"].nbytes <= brought(mortal) - before <= value["c2"].nbytes + 2 * CHUNK
    assert farrow.fetch(lazy) >= value.nbytes
    assert farrow.fetch(value) == 0
    assert farrow.fetch(b"bytes") == 0
    # From here on nobody else is needed.
    mortal.nodes["b"].kill9()
    mortal.nodes["a"].kill9()
    assert lazy.equals(value)


@needs_right
def test_a_whole_get_and_a_lazy_one(two: Cluster) -> None:
    """A replica serves a later lazy get, and neither harms the other."""
    a, b = two.clients()
    value = table(3)
    b.put(value, "both")
    lazy = a.get("both", lazy=True)
    assert lazy["c1"].equals(value["c1"])
    assert a.get("both").equals(value)
    before = brought(two)
    third = a.get("both", lazy=True)
    assert farrow.fetch(third) == 0
    assert third.equals(value)
    assert brought(two) == before
    assert lazy.equals(value)


@needs_right
def test_after_a_delete_no_get_finds_it_and_readers_go_on(two: Cluster) -> None:
    a, b = two.clients()
    value = table(3)
    b.put(value, "deleted")
    lazy = a.get("deleted", lazy=True)
    b.delete("deleted")
    for client in (a, b):
        with pytest.raises(farrow.NotFound):
            client.get("deleted", lazy=True)
    # The home holds it for its reader; others take the name and memory.
    b.put(table(1), "deleted")
    assert lazy.equals(value)
    assert a.get("deleted", lazy=True).equals(table(1))
    del lazy
    wait_until(lambda: b.stats()["retiring"] == 0, "the home frees it")


LOST = """
import os, signal, sys
import farrow
client = farrow.connect(sys.argv[1])
value = client.get("lost", lazy=True)
assert value[0] == 0
print("ready", flush=True)
sys.stdin.readline()
how = sys.argv[2]
if how == "fetch":
    try:
        farrow.fetch(value)
    except farrow.FarrowError as error:
        print(type(error).__name__, flush=True)
    assert value[0] == 0
    os._exit(0)
if how == "write":
    try:
        os.write(os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR), memoryview(value)[100_000:])
    except OSError as error:
        print(error.errno, flush=True)
    os._exit(0)
value[-1]
"""


@needs_right
@pytest.mark.parametrize("how", ["read", "write", "fetch"])
def test_a_lost_home(mortal: Cluster, how: str) -> None:
    """A read gets SIGBUS, a system call EFAULT, and ``fetch`` an error."""
    b = mortal.client("b")
    b.put(np.arange(MB), "lost")
    del b
    child = subprocess.Popen(
        [sys.executable, "-c", LOST, mortal.nodes["a"].socket, how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    mortal.nodes["b"].kill9()
    out, _ = child.communicate("go\n", timeout=LIMIT_SECONDS)
    if how == "read":
        assert child.returncode == -signal.SIGBUS
    else:
        assert child.returncode == 0
        assert out.strip() in ("NodeLost", "14"), out


@needs_right
@pytest.mark.parametrize("who", ["reader", "home", "both"])
def test_daemons_that_restart(mortal: Cluster, who: str) -> None:
    """Readers wait for the next daemon; it finds the object, and its bytes are the same."""
    a, b = mortal.clients()
    value = table(6)
    b.put(value, "restarts")
    lazy = a.get("restarts", lazy=True)
    assert lazy["c0"].equals(value["c0"])
    if who in ("reader", "both"):
        mortal.nodes["a"].restart()
    if who in ("home", "both"):
        mortal.nodes["b"].restart()
    mortal.settle(2)
    assert lazy["c3"].equals(value["c3"])
    farrow.fetch(lazy)
    assert lazy.equals(value)
    again = a.get("restarts", lazy=True)
    assert again["c5"].equals(value["c5"])


@needs_right
def test_an_upgrade_of_the_readers_node(mortal: Cluster) -> None:
    a, b = mortal.clients()
    value = table(4)
    b.put(value, "upgrade")
    lazy = a.get("upgrade", lazy=True)
    assert lazy["c0"].equals(value["c0"])
    node = mortal.nodes["a"]
    before = node._process
    assert before is not None
    node._process = subprocess.Popen(
        [*before.args, "--upgrade"],
        stdin=subprocess.DEVNULL,
        stderr=(node.folder / "node.log").open("ab"),
    )
    before.wait(LIMIT_SECONDS)
    assert lazy.equals(value)


FORK = """
import os, sys, numpy as np, farrow
client = farrow.connect(sys.argv[1])
value = client.get("forked", lazy=True)
assert value[5] == 5
pid = os.fork()
if pid == 0:
    if sys.argv[2] == "drop":
        # Its parent's thread goes on.
        try:
            farrow.fetch(value)
        except farrow.Disconnected:
            del value
        os._exit(0)
    os._exit(0 if value[int(sys.argv[2])] >= 0 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
assert np.array_equal(value, np.arange(len(value)))
"""


@needs_right
@pytest.mark.parametrize("index", ["5", "90000", "drop"])
def test_a_fork(two: Cluster, index: str) -> None:
    """A child never reads zeros, and its parent reads on."""
    two.client("b").put(np.arange(100_000), "forked")
    code = int(run_python(FORK, two.nodes["a"].socket, index))
    assert code == (0 if index == "drop" else -signal.SIGSEGV)


@needs_right
def test_a_killed_reader_leaves_nothing(two: Cluster) -> None:
    b = two.client("b")
    b.put(np.arange(MB), "killed")
    script = (
        "import sys, time, farrow; c = farrow.connect(sys.argv[1]); "
        "v = c.get('killed', lazy=True); print(v[0], flush=True); time.sleep(600)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, two.nodes["a"].socket], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "0\n"
    b.delete("killed")
    free = b.stats()["free"]
    child.kill()
    child.wait(LIMIT_SECONDS)
    wait_until(lambda: b.stats()["free"] >= free + 8 * MB, "the home frees it")


@needs_right
def test_the_room_is_taken_at_the_get(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(2, *ONLY, "--cache", "8MiB")
    a, b = cluster.clients()
    for name in ("one", "two"):
        b.put(np.arange(5 * MB // 8), name)
    first = a.get("one", lazy=True)
    with pytest.raises(farrow.OutOfMemory, match="pages on demand"):
        a.get("two", lazy=True)
    assert first[-1] == len(first) - 1
    del first
    wait_until(lambda: is_lazy(a, "two"), "room")


def is_lazy(client: farrow.Client, name: str) -> bool:
    try:
        return bool(client.get(name, lazy=True)[1] == 1)
    except farrow.OutOfMemory:
        return False


@needs_right
def test_a_spilled_object_is_restored_at_home(
    make_cluster: Callable[..., Cluster], tmp_path: Any
) -> None:
    spill = ("--spill", str(tmp_path / "spill"))
    cluster = make_cluster(2, *ONLY, *spill)
    a, b = cluster.clients()
    value = np.arange(20 * MB // 8)
    b.put(value, "spilled")
    for number in range(3):
        b.put(value + number, f"other {number}")
    lazy = a.get("spilled", lazy=True)
    assert np.array_equal(lazy, value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@needs_right
def test_the_right_comes_from_the_node(two: Cluster) -> None:
    """A user without the right reads all the same, also by system calls."""
    two.client("b").put(np.arange(100_000), "right")

    def run() -> None:
        value = farrow.connect(two.nodes["a"].socket).get("right", lazy=True)
        os.write(os.open("/dev/null", os.O_WRONLY), memoryview(value))
        assert np.array_equal(value, np.arange(100_000))

    as_nobody(run)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_the_right_the_error_says_what_to_do() -> None:
    as_nobody(check_without_right)


def check_without_right() -> None:
    """Two nodes of a user who may not open the device, and a client of the first."""
    if has_right():
        return
    first, second = free_addresses(2)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        nodes = []
        for name, own, other in (("a", first, second), ("b", second, first)):
            flags = ["--name", name, "--listen", own, "--join", other, "--memory", "32MiB"]
            flags += ["--socket", f"{folder}/{name}", "--unsupervised", *ONLY[:-1]]
            node = os.fork()
            if node == 0:
                os._exit(node_main(flags))
            nodes.append(node)
        try:
            wait_until(lambda: all(map(os.path.exists, (f"{folder}/a", f"{folder}/b"))), "nodes")
            a, b = farrow.connect(f"{folder}/a"), farrow.connect(f"{folder}/b")
            wait_until(lambda: sum(one.fabric != "" for one in a.nodes()) == 2, "a cluster")
            b.put(np.arange(100_000), "right")
            with pytest.raises(farrow.PermissionDenied, match=r"vm\.unprivileged_userfaultfd=1"):
                a.get("right", lazy=True)
            # Whatever needs no pages works.
            a.put(b"here", "here")
            assert a.get("here", lazy=True).to_pybytes() == b"here"
            assert a.get("right")[7] == 7
        finally:
            for node in nodes:
                os.kill(node, signal.SIGTERM)
                os.waitpid(node, 0)
