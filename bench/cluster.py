"""Measure several nodes as one store: ``python bench/cluster.py [--quick]``.

Each figure for another node's memory is compared with that of the client's own node, in the same
run: the ratio is the result.  The nodes are processes of this machine, joined over loopback.
Writes the raw samples, a table and a plot over the number of nodes to bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
from harness import cluster_report, machine  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.tasks import Sample  # noqa: E402

import farrow  # noqa: E402
from farrow._nodes._ports import free_addresses  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# One second, the default of nodes.
LEASE_SECONDS = 1.0
START_SECONDS_MAX = 60.0
# Control memory of a region on a device, and a reserve.
CONTROL_BYTES = 256 << 20
SMALL_OBJECTS = 1000
SMALL_BYTES = 1000
ALLOCATION_BYTES = 64 << 10
# A longer memmove stores past the caches: ordinary stores need shorter ones.
STORED_BLOCK_BYTES = 1 << 20
# Interval over which the traffic of idle nodes is measured.
IDLE_SECONDS = 5.0


class Nodes:
    """Nodes a, b and so on, each of which joins the first."""

    def __init__(self, folder: Path, count: int, memory_bytes: int, device: Path | None) -> None:
        self.names = [f"n{number:02}" for number in range(count)]
        self.sockets = [str(folder / f"{name}.sock") for name in self.names]
        addresses = free_addresses(count)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.commands: list[list[str]] = []
        for name, place, address in zip(self.names, self.sockets, addresses, strict=True):
            joins = [] if address == addresses[0] else ["--join", addresses[0]]
            if device is None:
                memory = ["--memory", str(memory_bytes)]
            else:
                room = memory_bytes + CONTROL_BYTES
                offset = len(self.commands) * room
                memory = [
                    "--region", f"device:{device},{memory_bytes},{offset}", "--node-local",
                    "--allow-device", str(device),
                ]  # fmt: skip
            command = [
                sys.executable, "-m", "farrow.cli", "node", "--unsupervised",
                "--socket", place, "--name", name,
                "--listen", address, "--plaintext", *memory, *joins,
            ]  # fmt: skip
            self.commands.append(command)
            self.processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        self.clients = [self._connect(place, count) for place in self.sockets]

    @staticmethod
    def _connect(place: str, count: int) -> Any:
        until = time.monotonic() + START_SECONDS_MAX
        client = None
        while time.monotonic() < until:
            with contextlib.suppress(farrow.FarrowError):
                client = client or farrow.connect(place)
                live = [node for node in client.nodes() if node.reach == "live" and node.fabric]
                if len(live) >= count:
                    return client
            time.sleep(0.05)
        raise SystemExit(f"{count} nodes did not become one within {START_SECONDS_MAX:.0f} s")

    def stop(self) -> None:
        """End all nodes; a killed one is restarted, to remove its memory."""
        del self.clients
        for number, process in enumerate(self.processes):
            if process.poll() is not None:
                again = subprocess.Popen(self.commands[number], stderr=subprocess.DEVNULL)
                self.processes[number] = again
                self._connect(self.sockets[number], 1)
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def running(count: int, memory_bytes: int, is_node_local: bool = False) -> Iterator[Nodes]:
    """Run ``count`` nodes; with ``is_node_local`` on one file that they treat as memory that is
    coherent only inside each node."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="farrow-bench-"))
        device = None
        if is_node_local:
            shared = stack.enter_context(
                tempfile.NamedTemporaryFile(prefix="farrow-bench-", dir="/dev/shm")
            )
            os.truncate(shared.name, count * (memory_bytes + CONTROL_BYTES))
            device = Path(shared.name)
        nodes = Nodes(Path(folder), count, memory_bytes, device)
        try:
            yield nodes
        finally:
            nodes.stop()


def timed(run: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each run; the first also allocates pages and slots, and is not counted."""
    times = []
    for _ in range(1 + repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return times[1:]


def measure_memory(
    nodes: Nodes, large_bytes: int, repeats: int, suffix: str = ""
) -> Iterator[Sample]:
    """Own memory and another node's: make a large object, read it, allocate, get small ones."""
    client = nodes.clients[0]
    for place, node in (("own" + suffix, nodes.names[0]), ("other" + suffix, nodes.names[1])):
        source = np.full(large_bytes, 7, np.uint8)
        for way in ("stored", "copied"):
            parts: list[tuple[float, float, float]] = []
            for _ in range(1 + repeats):
                began = time.perf_counter()
                writer = client.create(large_bytes, "large", node=node)
                allocated = time.perf_counter()
                if way == "stored":
                    target = np.frombuffer(writer.buffer, np.uint8)
                    for start in range(0, large_bytes, STORED_BLOCK_BYTES):
                        block = slice(start, start + STORED_BLOCK_BYTES)
                        np.copyto(target[block], source[block])
                    del target
                else:
                    writer.write(source)
                written = time.perf_counter()
                writer.seal()
                sealed = time.perf_counter()
                client.delete("large")
                del writer
                parts.append((allocated - began, written - allocated, sealed - written))
            for case, samples in zip(
                ("allocate", "write", "publish"), zip(*parts[1:], strict=True), strict=True
            ):
                yield Sample(f"{way} {case}", "farrow", place, "s", list(samples), large_bytes)
        numbers = np.arange(large_bytes // 8, dtype=np.int64)
        private = pa.table({"n": numbers})
        puts, published = [], []
        for _ in range(1 + repeats):
            before = _publish_seconds(client, node)
            began = time.perf_counter()
            client.put(private, "table", node=node)
            puts.append(time.perf_counter() - began)
            published.append(_publish_seconds(client, node) - before)
            client.delete("table")
        yield Sample("put", "farrow", place, "s", puts[1:], large_bytes)
        yield Sample("publish of a put", "farrow", place, "s", published[1:], large_bytes)
        client.put(private, "table", node=node)
        gets, firsts, peers, sums = [], [], [], []
        for reader in nodes.clients[-1:] * (1 + repeats):
            # Fill the caches with a sum over the table first.
            began = time.perf_counter()
            private["n"][0].as_py()
            peers.append(time.perf_counter() - began)
            table = reader.get("table")
            table["n"].chunk(0).to_numpy().sum()
            del table
            began = time.perf_counter()
            table = reader.get("table")
            gotten = time.perf_counter()
            table["n"][0].as_py()
            gets.append(gotten - began)
            firsts.append(time.perf_counter() - gotten)
            column = table["n"].chunk(0).to_numpy()
            column.sum()
            began = time.perf_counter()
            column.sum()
            sums.append(time.perf_counter() - began)
            del column, table
        client.delete("table")
        del private
        yield Sample("get a table", "farrow", place, "s", gets[1:], large_bytes)
        yield Sample("first value of a table", "farrow", place, "s", firsts[1:], large_bytes)
        peer = "first value of a private table"
        yield Sample(peer, "pyarrow", place, "s", peers[1:], large_bytes)
        yield Sample("sum", "farrow", place, "s", sums[1:], large_bytes)
        pool = client.memory_pool(node=node)
        times = []
        for _ in range(200):
            began = time.perf_counter()
            buffer = pa.allocate_buffer(ALLOCATION_BYTES, memory_pool=pool)
            times.append(time.perf_counter() - began)
            del buffer
        yield Sample("allocate 64 KiB", "farrow", place, "s", times[20:], ALLOCATION_BYTES)
        refs = client.put_many([bytes(SMALL_BYTES)] * SMALL_OBJECTS, node=node)

        def get_all(refs: list[Any] = refs) -> None:
            for ref in refs:
                client.get(ref)

        yield Sample("get 1000 x 1 kB", "farrow", place, "s", timed(get_all, 3 * repeats))
        times = timed(lambda refs=refs: client.get_many(refs), 3 * repeats)
        yield Sample("get_many of 1000 x 1 kB", "farrow", place, "s", times)
        client.delete_many(refs)


def _publish_seconds(client: Any, node: str) -> float:
    """Seconds that this client has spent publishing lines."""
    (fabric,) = client.stats(node=node)["fabrics"].values()
    return float(fabric["publish_ns"]) * 1e-9


def measure_refresh(nodes: Nodes, large_bytes: int) -> Iterator[Sample]:
    """The one-time cost of reading another node's table, on memory that is not coherent."""
    writer, reader = nodes.clients[0], nodes.clients[-1]
    numbers = pa.table({"n": np.arange(large_bytes // 8, dtype=np.int64)})
    per_line, again = [], []
    for round_number in range(3):
        writer.put(numbers, f"refresh {round_number}", node=nodes.names[1])
        parts = []
        for _ in range(2):
            before = reader.stats(node=nodes.names[1])["fabrics"]["device"]
            table = reader.get(f"refresh {round_number}")
            after = reader.stats(node=nodes.names[1])["fabrics"]["device"]
            parts.append({key: after[key] - before[key] for key in after if key in _REFRESH})
            del table
        per_line.append(parts[0]["refresh_ns"] * 1e-9 / max(1, parts[0]["refreshed_lines"]))
        again.append(float(parts[1]["refreshed_lines"]))
        writer.delete(f"refresh {round_number}")
    yield Sample("refresh a line", "farrow", "other, node-local", "s", per_line, large_bytes)
    yield Sample("lines refreshed by a second get", "farrow", "other, node-local", "lines", again)


_REFRESH = ("refresh_ns", "refreshed_lines")


def measure_barrier(nodes: Nodes, rounds: int) -> Sample:
    """One client at each of three nodes, each in its own thread."""
    times: list[float] = []

    def take_part(client: Any, is_timed: bool) -> None:
        for _ in range(rounds):
            began = time.perf_counter()
            client.barrier("bench", 3, timeout=30)
            if is_timed:
                times.append(time.perf_counter() - began)

    threads = [
        threading.Thread(target=take_part, args=(client, number == 0))
        for number, client in enumerate(nodes.clients[:3])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Sample("barrier of 3", "farrow", "other", "s", times[rounds // 10 :])


def measure_kill(nodes: Nodes) -> Sample:
    """Time from the kill of a node to the error at the others; no other node may fail."""
    times = []
    refs = [nodes.clients[-1].put(b"here", "at the last")]
    killed = nodes.processes[-1]
    killed.kill()
    killed.wait()
    began = time.perf_counter()
    for client in nodes.clients[:-1]:
        while True:
            try:
                client.get("at the last")
            except farrow.NodeLost:
                break
            if time.perf_counter() - began > 20 * LEASE_SECONDS:
                raise SystemExit("a killed node is not lost for the others")
            time.sleep(0.002)
        times.append(time.perf_counter() - began)
    del refs
    return Sample("kill to error", "farrow", "other", "s", times)


def loopback_bytes() -> int:
    """Bytes sent over loopback so far."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    fields = next(line for line in lines if line.strip().startswith("lo:")).split()
    return int(fields[1])


def measure_count(count: int, repeats: int) -> Iterator[Sample]:
    """Lookup, delete with a hold on every node, and the traffic of idle nodes."""
    with running(count, 64 << 20) as nodes:
        variant = f"{count} nodes"
        client = nodes.clients[0]
        nodes.clients[-1].put(b"x", "at the last")
        finds = []
        for _ in range(repeats * 100):
            began = time.perf_counter()
            client.get("at the last")
            finds.append(time.perf_counter() - began)
        yield Sample("find a name", "farrow", variant, "s", finds[10:])
        deletes = []
        for number in range(repeats * 5):
            client.put(b"x" * 100, f"held {number}")
            held = [one.get(f"held {number}") for one in nodes.clients]
            began = time.perf_counter()
            client.delete(f"held {number}")
            deletes.append(time.perf_counter() - began)
            del held
        yield Sample("delete what all hold", "farrow", variant, "s", deletes[2:])
        before = loopback_bytes()
        time.sleep(IDLE_SECONDS)
        rate = (loopback_bytes() - before) / IDLE_SECONDS / count
        yield Sample("idle traffic of a node", "farrow", variant, "B/s", [rate])


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="smaller objects, few repeats")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    options = parser.parse_args()
    large_bytes = (64 << 20) if options.quick else (1 << 30)
    notes = []
    # Each of two nodes has two objects of this size, one of them while a table is built.
    room = machine.available_bytes() // 8
    if room < large_bytes:
        large_bytes = room // (1 << 20) * (1 << 20)
        notes.append(f"large objects of {large_bytes >> 20} MiB only")
    repeats = 3 if options.quick else 7
    samples: list[Sample] = []
    with running(3, large_bytes * 2 + (128 << 20)) as nodes:
        samples += measure_memory(nodes, large_bytes, repeats)
        samples.append(measure_barrier(nodes, 200 if options.quick else 1000))
        samples.append(measure_kill(nodes))
    with running(3, large_bytes * 2 + (128 << 20), is_node_local=True) as nodes:
        samples += measure_memory(nodes, large_bytes, repeats, ", node-local")
        samples += measure_refresh(nodes, large_bytes // 4)
    for count in (2, 4) if options.quick else (2, 4, 8, 16):
        print(f"{count} nodes", file=sys.stderr, flush=True)
        samples += measure_count(count, repeats)
    document = document_of(HERE.parent, samples, notes, options.quick)
    text = cluster_report.table(samples, large_bytes, LEASE_SECONDS)
    stem = leave(document, "cluster", text, Path(options.output))
    cluster_report.plot(samples, stem.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("FARROW_LOG", "error")
    sys.exit(main())
