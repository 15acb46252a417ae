"""Measure tables of many buffers, many names and many clients: ``python bench/many.py [--quick]``.

- A table of 184 chunks and 736 buffers, put in place, put by copy, and copied in private memory.
- A table of 272 buffers, got in another process.
- Objects of 1 kB with names, one by one and 1000 in a call, beside objects without names.
- A huge table of 10,000 chunks, opened in another process.
- A list of all objects of a node.
- Objects of 1 kB put and got beside three clients that put, get, delete and evict.
- Objects of 4 KiB put in a node that is full of them.
- Calls to the node where other processes compute on all cores.
- Answers of a node to one client while it counts, deletes or clears up a million objects of
  another, or 100,000 holds.

Writes the raw samples and a table to bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.node import running_node, wait_for_pages  # noqa: E402
from harness.process import Lines, end_on_signal  # noqa: E402
from harness.tasks import Sample  # noqa: E402

import farrow  # noqa: E402

CHUNKS, COLUMNS, ROWS = 184, 4, 20_000
READ_CHUNKS = 68
HUGE_CHUNKS = 10_000
OBJECTS = 1_000_000
ROUNDS = 15
SMALL = os.urandom(1000)
CALLS = 20_000
CLIENTS = 3
HELD = 100_000
FULL_BYTES = 4096
FULL_CALLS = 100_000
BUSY_SECONDS = 10.0
# The clients that disturb: one object in so many is deleted by its creator, the rest is evicted.
DELETED = 4
DISTURBING_SIZES = (1_000, 100_000)


class Run:
    """The samples of a run."""

    def __init__(self, quick: bool) -> None:
        self.samples: list[Sample] = []
        self.part = 10 if quick else 1
        self.rounds = 5 if quick else ROUNDS

    def add(self, case: str, variant: str, seconds: list[float], size: int = 0) -> None:
        self.samples.append(Sample(case, "farrow", variant, "s", seconds, size))


def main() -> int:
    """Run, print, save.  0; with ``--child`` this is another process of a measurement."""
    options = _options()
    if options.child:
        return _child(options.child)
    end_on_signal()
    run = Run(options.quick)
    with tempfile.TemporaryDirectory(prefix="farrow-bench-", dir="/dev/shm") as folder:
        with running_node(Path(folder), 4 << 30, "--evict", "none") as socket:
            _tables(run, socket)
            _names(run, socket)
            _huge(run, socket)
        with running_node(Path(folder), 1 << 30, "--objects-max", str(OBJECTS)) as socket:
            _list(run, socket)
        with running_node(Path(folder), 256 << 20) as socket:
            _crowd(run, socket)
            _busy_cores(run, socket)
        with running_node(Path(folder), 2 << 30) as socket:
            _full(run, socket)
        # Room for the objects of the other clients too.
        flags = ("--objects-max", str(2 * OBJECTS), "--evict", "none")
        with running_node(Path(folder), 4 << 30, *flags) as socket:
            _large_state(run, socket)
    document = document_of(HERE.parent, run.samples, [], options.quick)
    leave(document, "many", _table(run.samples), Path(options.output))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="fewer calls, not for citing")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - began
    del result
    return seconds


def _built(chunks: int, pool: pa.MemoryPool | None = None) -> pa.Table:
    """A table whose buffers are all allocated in the pool."""
    values = pa.array(np.arange(ROWS, dtype=np.int64))
    columns = [
        pa.chunked_array([pc.add(values, column, memory_pool=pool) for _ in range(chunks)])
        for column in range(COLUMNS)
    ]
    return pa.table(columns, names=[f"c{column}" for column in range(COLUMNS)])


def _tables(run: Run, socket: str) -> None:
    client = farrow.connect(socket)
    pool = client.memory_pool()
    private = _built(CHUNKS)
    size = private.nbytes
    seconds: dict[str, list[float]] = {"in place": [], "by copy": [], "copied in private": []}
    for _ in range(run.rounds):
        table = _built(CHUNKS, pool)
        seconds["in place"].append(_timed(functools.partial(client.put, table, "wide")))
        client.delete("wide")
        del table
        seconds["by copy"].append(_timed(lambda: client.put(private, "wide")))
        client.delete("wide")
        # What a copy costs without Farrow, into memory that is committed already.
        targets = [np.empty(ROWS, dtype=np.int64) for _ in range(CHUNKS * COLUMNS)]
        sources = [chunk.to_numpy() for column in private.columns for chunk in column.chunks]
        for target in targets:
            target.fill(0)

        def copy(
            targets: list[np.ndarray[Any, Any]] = targets,
            sources: list[np.ndarray[Any, Any]] = sources,
        ) -> None:
            for target, source in zip(targets, sources, strict=True):
                np.copyto(target, source)

        seconds["copied in private"].append(_timed(copy))
    first, *later = seconds.pop("in place")
    case = f"put, {CHUNKS} chunks, {CHUNKS * COLUMNS} buffers"
    run.add(case, "in place, first", [first], size)
    run.add(case, "in place", later, size)
    for variant, taken in seconds.items():
        run.add(case, variant, taken, size)
    client.put(_built(READ_CHUNKS), "read")
    case = f"get, {READ_CHUNKS * COLUMNS} buffers"
    with _other("get", socket=socket, calls=20 * run.rounds) as child:
        first, *later = child["seconds"]
        run.add(case, "first of a process", [first])
        run.add(case, "", later)
        run.add(case, "pyarrow alone", child["pyarrow"])
    client.delete("read")


def _names(run: Run, socket: str) -> None:
    client = farrow.connect(socket)
    calls = CALLS // run.part
    for variant, name in (("with a name", "name-{}"), ("without a name", None)):
        refs = []
        seconds = []
        for index in range(calls):
            text = name.format(index) if name else None
            began = time.perf_counter()
            refs.append(client.put(SMALL, text))
            seconds.append(time.perf_counter() - began)
        run.add("put 1 kB", variant, seconds)
        client.delete_many(refs)
    for variant in ("with names", "without names"):
        seconds = []
        for turn in range(10 * run.rounds):
            names = [f"many-{turn}-{index}" for index in range(1000)]
            began = time.perf_counter()
            if variant == "with names":
                refs = client.put_many([SMALL] * 1000, names)
            else:
                refs = client.put_many([SMALL] * 1000)
            seconds.append((time.perf_counter() - began) / 1000)
            client.delete_many(refs)
        run.add("put_many, each of 1000", variant, seconds)


def _huge(run: Run, socket: str) -> None:
    client = farrow.connect(socket)
    chunks = HUGE_CHUNKS // run.part
    schema = pa.schema({"a": pa.int64()})
    batch = pa.record_batch({"a": pa.array(range(8), pa.int64())})
    huge = client.huge_table("huge", schema)
    for _ in range(chunks):
        huge.append(batch)
    case = f"open a huge table of {chunks} chunks, each chunk"
    for _ in range(min(5, run.rounds)):
        with _other("huge", socket=socket, calls=3) as child:
            first, *later = (value / chunks for value in child["seconds"])
            run.add(case, "first of a process", [first])
            run.add(case, "", later)


def _list(run: Run, socket: str) -> None:
    client = farrow.connect(socket)
    count = OBJECTS // run.part // 2
    for at in range(0, count, 1000):
        client.put_many([b"x" * 100] * 1000, [f"list-{at + index}" for index in range(1000)])
    seconds = [_timed(client.list) / count for _ in range(min(5, run.rounds))]
    run.add(f"list of {count} objects, each", "", seconds)


def _crowd(run: Run, socket: str) -> None:
    """Latencies beside clients that put, get, delete and, as the node is small, evict."""
    client = farrow.connect(socket)
    calls = CALLS // run.part
    with contextlib.ExitStack() as stack:
        for _ in range(CLIENTS):
            stack.enter_context(_disturbing(socket))
        time.sleep(1.0)
        puts, gets = [], []
        for _ in range(calls):
            began = time.perf_counter()
            ref = client.put(SMALL)
            middle = time.perf_counter()
            value = client.get(ref)
            gets.append(time.perf_counter() - middle)
            puts.append(middle - began)
            del value
            client.delete(ref)
    run.add(f"put 1 kB beside {CLIENTS} clients", "", puts)
    run.add(f"get 1 kB beside {CLIENTS} clients", "", gets)


def _busy_cores(run: Run, socket: str) -> None:
    """Latencies of a cheap call where other processes compute on all cores."""
    with contextlib.ExitStack() as stack:
        for _ in range((os.cpu_count() or 1) + 1):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(process.wait)
            stack.callback(process.kill)
        child = stack.enter_context(_other("pin", socket=socket))
        time.sleep(BUSY_SECONDS / run.part)
        seconds = child.ask("end")["seconds"]
    run.add("pin where all cores compute", "", seconds)


def _full(run: Run, socket: str) -> None:
    """Puts in a node whose directory or memory is full: each makes another object leave."""
    client = farrow.connect(socket)
    wait_for_pages(client)
    payload = os.urandom(FULL_BYTES)
    while client.stats()["evicted_total"] == 0:
        client.put_many([payload] * 1000)
    objects = client.stats()["objects"]
    seconds = [_timed(lambda: client.put(payload)) for _ in range(FULL_CALLS // run.part)]
    run.add(f"put {FULL_BYTES} B in a full node of {objects} objects", "", seconds)


def _large_state(run: Run, socket: str) -> None:
    """Latencies of a client that pins one object again and again, beside one thing each."""
    client = farrow.connect(socket)
    wait_for_pages(client)
    objects, held = OBJECTS // run.part, HELD // run.part

    def beside(what: str, thing: Callable[[], Any]) -> None:
        with _other("pin", socket=socket) as child:
            thing()
            time.sleep(0.2)
            seconds = child.ask("end")["seconds"]
        run.add(f"pin beside {what}", "", seconds)

    refs = []
    for _ in range(objects // 1000):
        refs.extend(client.put_many([b"x" * 100] * 1000))
    beside(f"the first stats() after {objects} objects without names", client.stats)
    beside("stats() again", client.stats)
    beside(f"delete_many of {objects} objects", functools.partial(client.delete_many, refs))
    with _other("put", socket=socket, count=objects) as child:
        beside(f"the end of a client with {objects} objects", child.kill)
    names = [f"held-{index}" for index in range(held)]
    batch = pa.record_batch({"a": pa.array(range(100), pa.int64())})
    for at in range(0, held, 1000):
        client.put_many([batch] * len(names[at : at + 1000]), names[at : at + 1000])
    with _other("hold", socket=socket, count=held) as child:
        beside(f"stats() with {held} holds", client.stats)
        beside(f"delete_many of {held} held objects", lambda: client.delete_many(names))
        beside(
            f"delete of others beside {held} held deleted objects",
            functools.partial(_delete_others, client),
        )
        beside(f"the end of a client with {held} holds of deleted objects", child.kill)


def _delete_others(client: farrow.Client) -> None:
    for _ in range(100):
        client.delete(client.put(SMALL, "other"))


@contextlib.contextmanager
def _disturbing(socket: str) -> Iterator[None]:
    message = json.dumps({"do": "disturb", "socket": socket})
    process = subprocess.Popen([sys.executable, __file__, "--child", message])
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError(f"a client that disturbs ended: {process.returncode}")
    finally:
        process.terminate()
        process.wait()


class Child(dict[str, Any]):
    """The first answer of another process, and the process."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines.answer())
        self._lines = lines

    def ask(self, message: str) -> dict[str, Any]:
        """Send a line and wait for the answer."""
        self._lines.send(message)
        return self._lines.answer()

    def kill(self) -> None:
        """End the process without its knowledge."""
        self._lines.close()


@contextlib.contextmanager
def _other(do: str, **arguments: Any) -> Iterator[Child]:
    """The answer of another process."""
    lines = Lines(sys.executable, __file__, "--child", json.dumps({"do": do, **arguments}))
    try:
        yield Child(lines)
    finally:
        lines.close()


def _child(message: str) -> int:
    task = json.loads(message)
    client = farrow.connect(task["socket"])
    if task["do"] == "disturb":
        _disturb(client)
    elif task["do"] == "get":
        seconds = [_timed(lambda: client.get("read")) for _ in range(task["calls"])]
        table = client.get("read")
        # What pyarrow takes to export and import as many arrays through its C interface.
        alone = [
            _timed(lambda: pa.RecordBatchReader.from_stream(table).read_all())
            for _ in range(task["calls"])
        ]
        print(json.dumps({"seconds": seconds, "pyarrow": alone}), flush=True)
    elif task["do"] == "huge":
        seconds = [_timed(lambda: client.huge_table("huge").rows) for _ in range(task["calls"])]
        print(json.dumps({"seconds": seconds}), flush=True)
    elif task["do"] == "pin":
        _pin(client)
    elif task["do"] in ("put", "hold"):
        _fill(client, task["do"], task["count"])
    return 0


def _pin(client: farrow.Client) -> None:
    """Pin an object until a line arrives; print how long each call took."""
    ref = client.put(SMALL, f"pinned-{os.getpid()}")
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(sys.stdin.readline()))
    reader.start()
    print(json.dumps({}), flush=True)
    seconds = []
    while not lines:
        seconds.append(_timed(lambda: client.pin(ref)))
        time.sleep(0.0002)
    reader.join()
    client.delete(ref)
    print(json.dumps({"seconds": seconds}), flush=True)


def _fill(client: farrow.Client, do: str, count: int) -> None:
    """Put or hold objects until this process is ended."""
    kept: list[Any] = []
    for at in range(0, count, 1000):
        many = min(1000, count - at)
        if do == "put":
            client.put_many([b"x" * 100] * many)
        else:
            kept.extend(client.get_many([f"held-{at + index}" for index in range(many)]))
    print(json.dumps({}), flush=True)
    sys.stdin.read()


def _disturb(client: farrow.Client) -> None:
    """Put, get and delete without pause; the node evicts what was left."""
    refs: list[Any] = []
    payloads = [os.urandom(size) for size in DISTURBING_SIZES]
    turn = 0
    while True:
        turn += 1
        with contextlib.suppress(farrow.NotFound, farrow.OutOfMemory):
            refs.append(client.put(payloads[turn % len(payloads)]))
            client.get(refs[turn % len(refs)])
            if turn % DELETED == 0:
                client.delete(refs.pop())
        del refs[:-100]


def _table(samples: list[Sample]) -> str:
    """Markdown: median, 99th and 99.9th percentile, and the longest, in microseconds."""
    lines = ["| case | median us | p99 | p99.9 | longest | samples |", "| --- " * 6 + "|"]
    merged: dict[tuple[str, str], list[float]] = {}
    for one in samples:
        merged.setdefault((one.case, one.variant), []).extend(one.samples)
    for (case, variant), seconds in merged.items():
        ordered = sorted(1e6 * value for value in seconds)

        def at(share: float, ordered: list[float] = ordered) -> str:
            return f"{ordered[min(len(ordered) - 1, int(share * len(ordered)))]:.4g}"

        title = f"{case}: {variant}" if variant else case
        cells = [title, f"{statistics.median(ordered):.4g}", at(0.99), at(0.999), at(1.0)]
        lines.append(f"| {' | '.join(cells)} | {len(ordered)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
