"""Compare objects by network with Arrow Flight: ``python bench/by_net.py [--quick]``.

Two nodes that do not map each other's memory, and a Flight server of the same table in a separate
process, all on this machine over loopback, without TLS.  Each round measures every case once with
each peer.  CPU seconds include both sides: two daemons and the client, or server and client.
This process gets the whole table, and then a second one does, which has connected before.  Both
read all columns: get and read together are cases of their own, because a get of Farrow maps the
bytes, while a get of Flight copies them.  Pages on demand (``lazy=True``) are measured beside a
raw round trip of 64 KiB and beside ``farrow.fetch``.  Writes the raw samples and a table to
bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402
import pyarrow.flight as flight  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.tasks import Sample  # noqa: E402

import farrow  # noqa: E402
from farrow._nodes._ports import free_addresses  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COLUMNS = 100
SMALL_BYTES = 1000
START_SECONDS_MAX = 60.0
WARM = "warm"
FEW = ["c3", "c71"]
_TICKS = os.sysconf("SC_CLK_TCK")

# (case, its title)
CASES = (
    ("whole", "get the whole table, first in its node"),
    ("whole read", "get it and read all columns"),
    ("columns", "2 of 100 columns, first in the node"),
    ("rows", "100 rows of 2 columns, first in the node"),
    ("again", "get it in a second process of the machine"),
    ("again read", "get it and read all columns there"),
    ("small", "1 kB of bytes, first in the node"),
)

# (case, its title, the other peer)
LAZY_CASES = (
    ("fault", "a page on demand, 64 KiB: first read of a page", "raw"),
    ("scan", "read a column in order, page by page", "fetch"),
)
CHUNK_BYTES = 64 << 10
SCAN_BYTES = 64 << 20


def table_of(rows: int) -> pa.Table:
    """100 columns of float64 in chunks of 250,000 rows."""
    chunk = 250_000
    columns = {f"c{number}": np.arange(rows, dtype=np.float64) for number in range(COLUMNS)}
    whole = pa.table(columns)
    return pa.Table.from_batches(whole.to_batches(max_chunksize=chunk))


class Server(flight.FlightServerBase):  # type: ignore[misc]
    """A server of the table, of some columns and rows, or of bytes, selected by the ticket."""

    def __init__(self, rows: int) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._table = table_of(rows)
        self._small = pa.table({"bytes": pa.array([bytes(SMALL_BYTES)])})

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        """A table by JSON: ``columns``, ``rows`` or ``small``."""
        want = json.loads(ticket.ticket)
        if want.get("small"):
            return flight.RecordBatchStream(self._small)
        table = self._table
        if want.get("columns"):
            table = table.select(want["columns"])
        if want.get("rows"):
            table = table.slice(*want["rows"])
        return flight.RecordBatchStream(table)


def serve(rows: int) -> None:
    """The Flight server, until it is terminated."""
    server = Server(rows)
    signal.signal(signal.SIGTERM, lambda *_: server.shutdown())
    print(server.port, flush=True)
    server.serve()


def read_all(table: pa.Table) -> None:
    """Sum each column.

    Raises:
        SystemExit: a sum is wrong.
    """
    wanted = table.num_rows * (table.num_rows - 1) / 2
    for name in table.column_names:
        if pc.sum(table.column(name)).as_py() != wanted:
            raise SystemExit(f"column {name} has other values")


def flight_answer(client: flight.FlightClient, **want: Any) -> pa.Table:
    """The answer of the Flight server."""
    return client.do_get(flight.Ticket(json.dumps(want).encode())).read_all()


def second(peer: str, place: str) -> None:
    """The second process of the machine: connect, wait for a name, get that table, read it."""
    if peer == "farrow":
        client = farrow.connect(place)
        get = client.get
        get(WARM)
    else:
        remote = flight.connect(place)
        flight_answer(remote, small=True)

        def get(name: str) -> pa.Table:
            return flight_answer(remote)

    # The function itself is loaded before the clock starts.
    pc.sum(pa.array([0.0]))
    print("ready", flush=True)
    name = sys.stdin.readline().strip()
    cpu = sum(os.times()[:2])
    began = time.perf_counter()
    table = get(name)
    got = time.perf_counter()
    spent = sum(os.times()[:2])
    read_all(table)
    ended = time.perf_counter()
    cpus = [spent - cpu, sum(os.times()[:2]) - cpu]
    print(json.dumps({"seconds": [got - began, ended - began], "cpu": cpus}), flush=True)


def serve_raw() -> None:
    """64 KiB over TCP for each byte of one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        chunk = bytes(CHUNK_BYTES)
        while connection.recv(1):
            connection.sendall(chunk)


def node(folder: Path, name: str, listen: str, join: str | None, memory: int) -> Any:
    """A process that runs a node."""
    flags = ["--name", name, "--listen", listen, "--plaintext", "--net", "only"]
    flags += ["--memory", str(memory), "--evict", "none"]
    flags += ["--join", join] if join else []
    command = [sys.executable, "-m", "farrow.cli", "node", "--unsupervised"]
    command += ["--socket", str(folder / f"{name}.sock"), *flags]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def processes(rows: int, memory: int) -> Iterator[tuple[Path, list[Any], int]]:
    """Two nodes and a Flight server: folder of the sockets, processes, port of the server."""
    with tempfile.TemporaryDirectory(prefix="farrow-bench-") as name:
        folder = Path(name)
        first, second = free_addresses(2)
        started = [node(folder, "home", first, None, memory)]
        try:
            started.append(node(folder, "reader", second, first, memory))
            command = [sys.executable, __file__, "--serve", str(rows)]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            started.append(server)
            assert server.stdout is not None
            yield folder, started, int(server.stdout.readline())
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
            for process in started:
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def connected(socket: Path) -> farrow.Client:
    """A client of a node that reaches the other one."""
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until:
        with contextlib.suppress(farrow.FarrowError):
            client = farrow.connect(str(socket))
            if sum(row.reach == "live" and row.fabric != "" for row in client.nodes()) == 2:
                return client
        time.sleep(0.05)
    raise SystemExit(f"the nodes did not find each other within {START_SECONDS_MAX:.0f} s")


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of these processes and of this one."""
    total = sum(os.times()[:2])
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


class Run:
    """The samples of all rounds: seconds and CPU seconds, by case and peer."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = {}
        self.cpu: dict[tuple[str, str], list[float]] = {}

    def measure(self, case: str, peer: str, pids: list[int], get: Callable[[], Any]) -> Any:
        gc.collect()
        cpu = cpu_seconds(pids)
        began = time.perf_counter()
        value = get()
        self.seconds.setdefault((case, peer), []).append(time.perf_counter() - began)
        self.cpu.setdefault((case, peer), []).append(cpu_seconds(pids) - cpu)
        return value

    def measure_read(self, case: str, peer: str, pids: list[int], get: Callable[[], Any]) -> Any:
        """Get a table, and then read it: two cases."""
        table = self.measure(case, peer, pids, get)
        self.measure(f"{case} read", peer, pids, lambda: read_all(table))
        for of in (self.seconds, self.cpu):
            of[f"{case} read", peer][-1] += of[case, peer][-1]
        return table

    def measure_second(self, peer: str, pids: list[int], place: str, name: str) -> None:
        """Get and read in a new process, which measures itself."""
        command = [sys.executable, __file__, "--second", peer, place]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            before = cpu_seconds(pids) - sum(os.times()[:2])
            child.stdin.write(f"{name}\n")
            child.stdin.flush()
            found = json.loads(child.stdout.readline())
            # All but this process; the get's own share of the servers' cannot be told apart.
            servers = cpu_seconds(pids) - sum(os.times()[:2]) - before
        for case, seconds, cpu in zip(
            ("again", "again read"), found["seconds"], found["cpu"], strict=True
        ):
            self.seconds.setdefault((case, peer), []).append(seconds)
            self.cpu.setdefault((case, peer), []).append(cpu + servers)

    def samples(self, size: dict[str, int]) -> list[Sample]:
        found = []
        for (case, peer), seconds in self.seconds.items():
            found.append(Sample(case, peer, "", "s", seconds, size[case]))
            found.append(
                Sample(case, peer, "CPU of both sides", "s", self.cpu[case, peer], size[case])
            )
        return found


def measure_lazy(
    run: Run,
    clients: tuple[farrow.Client, farrow.Client],
    ours: list[int],
    rounds: int,
    faults: int,
) -> None:
    """Pages on demand: single ones in random order, and a whole column."""
    home, reader = clients
    command = [sys.executable, __file__, "--serve-raw"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    peer = socket.create_connection(("127.0.0.1", int(server.stdout.readline())))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    room = bytearray(CHUNK_BYTES)
    column = np.arange(SCAN_BYTES // 8, dtype=np.float64)
    total = column.sum()
    at = [number * CHUNK_BYTES // 8 for number in range(1, SCAN_BYTES // CHUNK_BYTES, 2)]

    def ask() -> None:
        peer.sendall(b"x")
        left = memoryview(room)
        while left:
            left = left[peer.recv_into(left) :]

    for number in range(rounds):
        name = f"lazy {number}"
        home.put(column, name)
        lazy = reader.get(name, lazy=True)
        for one in random.Random(number).sample(at, faults):
            found = run.measure("fault", "farrow", ours, lambda lazy=lazy, one=one: lazy[one])
            assert found == one
            run.measure("fault", "raw", [server.pid], ask)
        del lazy
        for case in ("farrow", "fetch"):
            home.put(column, f"{name} {case}")
            lazy = reader.get(f"{name} {case}", lazy=True)
            before = farrow.fetch if case == "fetch" else len
            found = run.measure(
                "scan", case, ours, lambda lazy=lazy, before=before: (before(lazy), lazy.sum())[1]
            )
            assert found == total
            del lazy
        home.delete([name, f"{name} farrow", f"{name} fetch"])
    peer.close()
    server.wait(30)


def measure(rows: int, rounds: int, small: int) -> tuple[Run, dict[str, int]]:
    """All cases, once a round with each."""
    run = Run()
    table = table_of(rows)
    size = {
        "whole": table.nbytes,
        "columns": table.nbytes * len(FEW) // COLUMNS,
        "rows": 100 * 8 * len(FEW),
        "whole read": table.nbytes,
        "again": table.nbytes,
        "again read": table.nbytes,
        "small": SMALL_BYTES,
        "fault": CHUNK_BYTES,
        "scan": SCAN_BYTES,
    }
    memory = table.nbytes * 5 // 2 + (256 << 20)
    with processes(rows, memory) as (folder, started, port):
        home, reader = connected(folder / "home.sock"), connected(folder / "reader.sock")
        ours = [started[0].pid, started[1].pid]
        theirs = [started[2].pid]
        place = f"grpc://127.0.0.1:{port}"
        peer = flight.connect(place)

        def ask(**want: Any) -> pa.Table:
            return flight_answer(peer, **want)

        home.put(b"", WARM)
        middle = rows // 2
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            name = f"table {number}"
            home.put(table, name)
            # Parts first: the whole table would be cached.
            part = run.measure(
                "columns", "farrow", ours, lambda name=name: reader.get(name, columns=FEW)
            )
            assert part.equals(table.select(FEW))
            found = run.measure("columns", "flight", theirs, lambda: ask(columns=FEW))
            assert found.equals(part)
            part = run.measure(
                "rows", "farrow", ours,
                lambda name=name: reader.get(name, columns=FEW, rows=slice(middle, middle + 100)),
            )  # fmt: skip
            assert part.equals(table.select(FEW).slice(middle, 100))
            found = run.measure(
                "rows", "flight", theirs, lambda: ask(columns=FEW, rows=[middle, 100])
            )
            assert found.equals(part)
            del part, found
            run.measure_read("whole", "farrow", ours, lambda name=name: reader.get(name))
            run.measure_second("farrow", ours, str(folder / "reader.sock"), name)
            run.measure_read("whole", "flight", theirs, ask)
            run.measure_second("flight", theirs, place, name)
            for one in range(small):
                home.put(bytes(SMALL_BYTES), f"small {one}")
                run.measure("small", "farrow", ours, lambda one=one: reader.get(f"small {one}"))
                run.measure("small", "flight", theirs, lambda: ask(small=True))
            home.delete([name, *(f"small {one}" for one in range(small))])
        measure_lazy(run, (home, reader), ours, rounds, small)
    return run, size


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def report(run: Run, size: dict[str, int]) -> str:
    """Markdown: medians, with the spread of the ratio over the rounds."""
    lines = [
        f"A table of {size['whole'] / 2**30:.3g} GiB, {COLUMNS} columns; medians, and the least and"
        " the greatest ratio of a round.",
        "",
        "| case | farrow | Flight | times faster | CPU, farrow | CPU, Flight |",
        "| --- " * 6 + "|",
    ]
    for case, title in CASES:
        ours, theirs = run.seconds[case, "farrow"], run.seconds[case, "flight"]
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        middle = statistics.median(theirs) / statistics.median(ours)
        cpu = (sum(run.cpu[case, peer]) / len(run.cpu[case, peer]) for peer in ("farrow", "flight"))
        cells = [_seconds(statistics.median(ours)), _seconds(statistics.median(theirs))]
        cells.append(f"{middle:.3g} ({min(ratios):.3g} to {max(ratios):.3g})")
        cells += [_seconds(one) if one > 0 else "-" for one in cpu]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    lines += ["", "| case | lazy | other | more | times |", "| --- " * 5 + "|"]
    for case, title, peer in LAZY_CASES:
        lazy, other = (statistics.median(run.seconds[case, one]) for one in ("farrow", peer))
        more = f"{'-' if lazy < other else ''}{_seconds(abs(lazy - other))}"
        cells = [title, _seconds(lazy), f"{_seconds(other)} ({peer})", more]
        lines.append(f"| {' | '.join(cells)} | {lazy / other:.3g} |")
    whole = statistics.median(run.seconds["whole", "farrow"])
    lines.append(f"\nThe whole table: {size['whole'] / 2**30 / whole:.3g} GiB/s.")
    return "\n".join(lines)


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="a small table, few rounds")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    parser.add_argument("--serve", type=int, metavar="ROWS", help=argparse.SUPPRESS)
    parser.add_argument("--serve-raw", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--second", nargs=2, metavar=("PEER", "PLACE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.second:
        second(*options.second)
        return 0
    if options.serve_raw:
        serve_raw()
        return 0
    if options.serve is not None:
        serve(options.serve)
        return 0
    rows, rounds, small = (100_000, 3, 20) if options.quick else (2_000_000, 7, 200)
    run, size = measure(rows, rounds, small)
    document = document_of(HERE.parent, run.samples(size), [], options.quick)
    leave(document, "by-net", report(run, size), Path(options.output))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("FARROW_LOG", "error")
    sys.exit(main())
