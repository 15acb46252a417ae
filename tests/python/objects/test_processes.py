"""Several processes: the same bytes at once, read-only; crashes of clients and of the node."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrow_cases
import farrow
from arrow_cases import arrays
from conftest import LIMIT_SECONDS, python_process, run_python, wait_until


def test_every_type_in_another_process(node: Any, client: farrow.Client) -> None:
    for name, array in arrays().items():
        client.put(array, name)
    script = """
import sys, farrow
sys.path.insert(0, sys.argv[2])
from arrow_cases import arrays
client = farrow.connect(sys.argv[1])
for name, array in arrays().items():
    back = client.get(name)
    back.validate(full=True)
    assert back.type == array.type, name
    assert back.to_pylist() == array.to_pylist(), name
    assert all(place["in_region"] or place["bytes"] <= 8 for place in client.locate(back)), name
    print(name)
"""
    out = run_python(script, node.socket, os.path.dirname(arrow_cases.__file__))
    assert out.splitlines() == list(arrays())


def test_the_same_addresses_or_offsets(node: Any, client: farrow.Client) -> None:
    table = pa.table({"n": range(100_000), "s": ["text"] * 100_000})
    client.put(table, "t")
    mine = [place["offset"] for place in client.locate(client.get("t"))]
    script = """
import sys, farrow
client = farrow.connect(sys.argv[1])
table = client.get("t")
print([place["offset"] for place in client.locate(table)])
print(sum(table["n"].to_pylist()))
"""
    out = run_python(script, node.socket).splitlines()
    assert out == [str(mine), str(sum(range(100_000)))]


WRITE = """
import ctypes, sys, pyarrow as pa, farrow
client = farrow.connect(sys.argv[1])
how = sys.argv[2]
if how == "got":
    value = client.get("t")
elif how == "put":
    value = pa.table({"n": pa.array(range(100_000), memory_pool=client.memory_pool())})
    client.put(value)
elif how == "small":
    value = client.get(client.put(pa.table({"n": [1, 2, 3]})))
place = client.locate(value)[0]
assert place["in_region"]
print("writing", flush=True)
ctypes.memset(place["address"], 1, 1)
print("written", flush=True)
"""


@pytest.mark.parametrize("how", ["got", "put", "small"])
def test_no_process_can_write(node: Any, client: farrow.Client, how: str) -> None:
    """Not a reader, not the creator: the store faults."""
    client.put(pa.table({"n": range(100_000)}), "t")
    done = python_process(WRITE, node.socket, how)
    assert done.stdout == "writing\n", done.stderr
    assert done.returncode == -11


HOLD = """
import sys, pyarrow as pa, farrow
client = farrow.connect(sys.argv[1])
kept = [client.get("held"), client.create(32 << 20), client.create(1000, "unfinished")]
kept.append(pa.array(range(1 << 20), memory_pool=client.memory_pool()))
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_client_leaves_nothing(node: Any, client: farrow.Client) -> None:
    client.put(bytes(10 << 20), "held")
    client.put(b"", "takes what this client keeps for small objects")
    before = client.stats()
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, node.socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            during = client.stats()
            assert during["clients"] == before["clients"] + 1
            assert during["holds"] == before["holds"] + 1
            assert during["free"] <= before["free"] - (32 << 20)
            with pytest.raises(farrow.AlreadyExists):
                client.put(b"", "unfinished")
        finally:
            process.kill()
            process.wait(LIMIT_SECONDS)
            process.communicate()
        wait_until(lambda: client.stats()["clients"] == before["clients"], "the client to go")
        wait_until(lambda: client.stats()["holds"] == before["holds"], "its holds to go")
        wait_until(lambda: client.stats()["free"] >= before["free"], "its space to come back")
        client.delete(client.put(b"", "unfinished"))
    client.delete("held")
    wait_until(lambda: client.stats()["free"] >= before["free"] + (10 << 20), "the space")


def test_a_killed_node_is_adopted(node: Any, client: farrow.Client) -> None:
    """Sealed objects are all back; a live reader notices nothing; its client connects again."""
    table = pa.table({"n": range(200_000), "s": [f"row {i}" for i in range(200_000)]})
    client.put(table, "t")
    references = client.put_many([b"%d" % i for i in range(100)])
    live = client.get("t")
    writer = client.create(100, "unsealed")
    pooled = pa.array(range(100_000), memory_pool=client.memory_pool())
    for round_ in range(3):
        node.restart()
        assert live.equals(table)
        fresh = farrow.connect(node.socket)
        assert fresh.get("t").equals(table)
        for i, reference in enumerate(references):
            assert fresh.get(reference).to_pybytes() == b"%d" % i
        client.put(b"after", f"after {round_}")
        assert fresh.get(f"after {round_}").to_pybytes() == b"after"
    # The client is known again: what it was granted is still its own.
    assert client.get(client.put(pooled)).equals(pooled)
    writer.buffer[:5] = b"going"
    writer.seal()
    assert client.get("unsealed").to_pybytes()[:5] == b"going"
    client.delete("t")
    assert live.equals(table)


def test_holds_survive_a_restart(node: Any, client: farrow.Client) -> None:
    array = np.arange(1 << 20)
    reference = client.put(array)
    held = client.get(reference)
    node.restart()
    client.delete(reference)
    for i in range(30):  # would overwrite it, had the space been given away
        client.delete(client.put(np.full(1 << 20, i)))
    assert np.array_equal(held, array)


def test_fork(node: Any, client: farrow.Client) -> None:
    script = """
import os, sys, warnings, pyarrow as pa, farrow
warnings.simplefilter("ignore", DeprecationWarning)
client = farrow.connect(sys.argv[1])
client.put(b"parent", "p")
held = client.get("p")
pooled = pa.array(range(100_000), memory_pool=client.memory_pool())
pid = os.fork()
if pid == 0:
    try:
        assert held.to_pybytes() == b"parent"
        try:
            client.put(b"child")
        except farrow.Disconnected:
            pass
        else:
            raise AssertionError("a fork used its parent's place")
        spilled = pa.array(range(1000), memory_pool=client.memory_pool())
        assert spilled[999].as_py() == 999
        own = farrow.connect(sys.argv[1])
        own.put(b"child", "c")
        assert own.get("p").to_pybytes() == b"parent"
        del held, pooled, spilled, client, own
        os._exit(0)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
assert held.to_pybytes() == b"parent"
assert pooled[99_999].as_py() == 99_999
assert client.get(client.put(pooled)).equals(pooled)
assert client.get("c").to_pybytes() == b"child"
print("ok")
"""
    assert run_python(script, node.socket) == "ok\n"


def test_multiprocessing_workers_get_by_reference(node: Any, client: farrow.Client) -> None:
    script = """
import multiprocessing, sys, farrow, pyarrow as pa

def work(socket, reference):
    import farrow
    table = farrow.connect(socket).get(reference)
    return sum(table["n"].to_pylist())

if __name__ == "__main__":
    client = farrow.connect(sys.argv[1])
    reference = client.put(pa.table({"n": list(range(1000))}))
    context = multiprocessing.get_context("forkserver")
    with context.Pool(2) as pool:
        print(pool.starmap(work, [(sys.argv[1], reference)] * 4))
"""
    path = os.path.join(os.path.dirname(node.socket), "workers.py")
    with open(path, "w") as file:
        file.write(script)
    done = subprocess.run(
        [sys.executable, path, node.socket],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == f"{[499500] * 4}\n", done.stderr
