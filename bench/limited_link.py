"""Objects over a link of a given rate: ``python bench/limited_link.py [--quick]``.  As root.

Each node is in a network namespace of its own, joined to the others by a bridge, with TLS.  Token
buckets of the kernel (``tbf``) limit what the home sends.

- Compression: two readers of one home, one with ``--net-compress auto`` and one with ``off``, get
  the same table alternately, at 100 Mb/s and at 1 Gb/s: a table of orders, and one of noise.
- Broadcast: an object of the home for one reader, and for seven at a time.

Writes the raw samples and tables to bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
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
from harness.document import document_of, leave  # noqa: E402
from harness.tasks import Sample  # noqa: E402

import farrow  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MB = 1 << 20
START_SECONDS_MAX = 60.0
READERS = 7
# Size of a token bucket: at 1 Gb/s twice what passes between two ticks of a kernel with 250 Hz.
BURST = "1mb"
RATES = {"100 Mb/s": ("100mbit", 24 * MB), "1 Gb/s": ("1gbit", 96 * MB)}
_TICKS = os.sysconf("SC_CLK_TCK")


def why_not() -> str | None:
    """The reason why this machine cannot do it; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"there is no {missing[0]} (iproute2)" if missing else None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=START_SECONDS_MAX)


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """Namespaces that a bridge joins, with the addresses 10.79.0.1 and so on."""
    with contextlib.ExitStack() as stack:
        own = f"farrow-{os.getpid()}"
        switch = f"{own}-switch"
        _run("ip", "netns", "add", switch)
        stack.callback(_run, "ip", "netns", "del", switch)
        _run("ip", "-n", switch, "link", "add", "bridge0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge0", "up")
        names = []
        for number in range(count):
            name = f"{own}-{number}"
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
            port = f"port{number}"
            _run("ip", "-n", name, "link", "add", "eth0", "type", "veth",
                 "peer", "name", port, "netns", switch)  # fmt: skip
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge0", "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "addr", "add", f"{address(number)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            names.append(name)
        yield names


def address(number: int) -> str:
    """The address of a node."""
    return f"10.79.0.{number + 1}"


def limit(namespace: str, rate: str) -> None:
    """Limit what a node sends."""
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", "eth0", "root",
         "tbf", "rate", rate, "burst", BURST, "latency", "50ms")  # fmt: skip


@contextlib.contextmanager
def nodes(
    spaces: Sequence[str], memory: int, flags: Sequence[Sequence[str]], program: Sequence[str]
) -> Iterator[list[tuple[farrow.Client, int]]]:
    """A node in each namespace: a client and the process of each."""
    with tempfile.TemporaryDirectory(prefix="farrow-bench-") as name:
        folder = Path(name)
        certs = str(folder / "certs")
        command = [sys.executable, "-m", "farrow.cli", "certs"]
        subprocess.run([*command, "init", certs], check=True, stdout=subprocess.DEVNULL)
        started: list[subprocess.Popen[bytes]] = []
        try:
            for number, (space, own) in enumerate(zip(spaces, flags, strict=True)):
                name = f"n{number}"
                subprocess.run(
                    [*command, "issue", certs, name, address(number)],
                    check=True, stdout=subprocess.DEVNULL,
                )  # fmt: skip
                words = ["ip", "netns", "exec", space, *program, "--unsupervised"]
                words += ["--socket", str(folder / f"{name}.sock"), "--memory", str(memory)]
                words += ["--name", name, "--listen", f"{address(number)}:7000"]
                words += ["--certs", certs, "--net", "only", "--evict", "none", *own]
                words += ["--lease-ms", "5000"]
                words += ["--join", f"{address(0)}:7000"] if number else []
                started.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))
            clients = [
                connected(folder / f"n{number}.sock", len(spaces)) for number in range(len(spaces))
            ]
            yield [(client, process.pid) for client, process in zip(clients, started, strict=True)]
        finally:
            for process in reversed(started):
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def connected(socket: Path, count: int) -> farrow.Client:
    """A client of a node that reaches all others."""
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until:
        with contextlib.suppress(farrow.FarrowError):
            client = farrow.connect(str(socket), timeout=60)
            if sum(row.reach == "live" and row.fabric != "" for row in client.nodes()) == count:
                return client
        time.sleep(0.05)
    raise SystemExit(f"the nodes did not find each other within {START_SECONDS_MAX:.0f} s")


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of these processes."""
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def orders(size: int, seed: int) -> pa.Table:
    """A table as order systems have: keys, small numbers, prices, dates, flags and words."""
    rows = size // 64
    dice = np.random.default_rng(seed)
    words = np.array(["carefully", "final", "deposits", "sleep", "quickly", "ironic", "requests"])
    picks = words[dice.integers(0, len(words), (rows, 3))]
    comments = np.char.add(np.char.add(picks[:, 0], " "), np.char.add(picks[:, 1], picks[:, 2]))
    return pa.table({
        "key": np.arange(rows, dtype=np.int64) + seed,
        "quantity": dice.integers(1, 50, rows),
        "price": np.round(dice.uniform(900, 100_000, rows), 2),
        "day": pa.array(dice.integers(8_000, 11_000, rows, dtype=np.int32), pa.date32()),
        "flag": pa.array(np.array(["A", "N", "R"])[dice.integers(0, 3, rows)]),
        "comment": pa.array(comments),
    })  # fmt: skip


def noise(size: int, seed: int) -> pa.Table:
    """Bytes that no program makes smaller."""
    dice = np.random.default_rng(seed)
    values = np.frombuffer(dice.bytes(size // 8 * 8), dtype=np.int64)
    return pa.table({"noise": values})


def timed(client: farrow.Client, name: str) -> float:
    """Seconds of the first get in a node."""
    began = time.perf_counter()
    value = client.get(name)
    seconds = time.perf_counter() - began
    del value
    return seconds


def compression(options: argparse.Namespace, program: Sequence[str]) -> list[Sample]:
    """Both readers alternately, in each round for each rate and table."""
    seconds: dict[tuple[str, str, str], list[float]] = {}
    cpu: dict[tuple[str, str, str], list[float]] = {}
    size: dict[str, int] = {}
    flags = [[], ["--net-compress", "auto"], ["--net-compress", "off"]]
    with (
        namespaces(3) as spaces,
        nodes(spaces, 6 * RATES["1 Gb/s"][1], flags, program) as started,
    ):
        home, auto, off = (client for client, _ in started)
        pids = [pid for _, pid in started]
        for rate, (bits, bytes_of_table) in RATES.items():
            limit(spaces[0], bits)
            for make in (orders, noise):
                for number in range(options.rounds + 1):
                    name = f"{rate} {make.__name__} {number}"
                    table = make(bytes_of_table, number)
                    modes = [("auto", auto), ("off", off)]
                    for mode, client in modes if number % 2 else modes[::-1]:
                        case = (make.__name__, rate, mode)
                        # An object of its own: the other reader would send its replica.
                        home.put(table, f"{name} {mode}")
                        before = cpu_seconds(pids)
                        took = timed(client, f"{name} {mode}")
                        # In the first round the link is measured.
                        if number > 0:
                            seconds.setdefault(case, []).append(took)
                            cpu.setdefault(case, []).append(cpu_seconds(pids) - before)
                            size[make.__name__ + rate] = table.nbytes
                        home.delete([f"{name} {mode}"])
                    print(f"{name}: done", file=sys.stderr, flush=True)
    samples = []
    for (table_name, rate, mode), values in seconds.items():
        key = (table_name, rate, mode)
        bytes_ = size[table_name + rate]
        samples.append(Sample(f"{table_name}, {rate}", mode, "", "s", values, bytes_))
        samples.append(Sample(f"{table_name}, {rate}", mode, "CPU", "s", cpu[key], bytes_))
    return samples


def broadcast(options: argparse.Namespace, program: Sequence[str]) -> list[Sample]:
    """One reader, then seven at a time, in each round."""
    size = options.broadcast_mib * MB
    one: list[float] = []
    all_of_them: list[float] = []
    with (
        namespaces(READERS + 1) as spaces,
        nodes(spaces, 3 * size // 2 + 32 * MB, [[]] * (READERS + 1), program) as started,
    ):
        limit(spaces[0], "1gbit")
        home, *readers = (client for client, _ in started)
        for number in range(options.rounds):
            values = np.random.default_rng(number).bytes(size)
            home.put(values, f"one {number}")
            one.append(timed(readers[number % READERS], f"one {number}"))
            home.delete([f"one {number}"])
            home.put(values, f"all {number}")
            begin = threading.Barrier(READERS + 1)
            failures: list[BaseException] = []

            def get(
                client: farrow.Client, name: str, begin: Any = begin, failures: Any = failures
            ) -> None:
                begin.wait()
                try:
                    timed(client, name)
                except farrow.FarrowError as error:
                    failures.append(error)

            threads = [
                threading.Thread(target=get, args=(client, f"all {number}")) for client in readers
            ]
            for thread in threads:
                thread.start()
            begin.wait()
            began = time.perf_counter()
            for thread in threads:
                thread.join()
            all_of_them.append(time.perf_counter() - began)
            if failures:
                raise failures[0]
            home.delete([f"all {number}"])
            print(f"round {number + 1}: {one[-1]:.2f} s, {all_of_them[-1]:.2f} s", file=sys.stderr)
    return [
        Sample("broadcast, 1 Gb/s", "1 reader", "", "s", one, size),
        Sample("broadcast, 1 Gb/s", f"{READERS} readers", "", "s", all_of_them, size),
    ]


def report(samples: Sequence[Sample]) -> str:
    """Markdown: medians, and the spread of the ratio over the rounds."""
    found = {(one.case, one.peer, one.variant): one for one in samples}
    lines = []
    if any(peer == "auto" for _, peer, _ in found):
        lines = [
            "| table | link | plain, s | auto, s | plain / auto | CPU, plain | CPU, auto |",
            "| --- " * 7 + "|",
        ]
    for (case, peer, variant), one in found.items():
        if peer != "auto" or variant:
            continue
        off = found[case, "off", ""]
        ratios = [b / a for a, b in zip(one.samples, off.samples, strict=True)]
        cpu = [statistics.median(found[case, which, "CPU"].samples) for which in ("off", "auto")]
        table, rate = case.split(", ")
        cells = [f"{table}, {one.bytes / MB:.0f} MiB", rate]
        cells += [f"{statistics.median(which.samples):.3g}" for which in (off, one)]
        cells.append(f"{statistics.median(ratios):.3g} ({min(ratios):.3g} to {max(ratios):.3g})")
        cells += [f"{value:.2g} s" for value in cpu]
        lines.append("| " + " | ".join(cells) + " |")
    one = found.get(("broadcast, 1 Gb/s", "1 reader", ""))
    if one is not None:
        every = found["broadcast, 1 Gb/s", f"{READERS} readers", ""]
        ratios = [b / a for a, b in zip(one.samples, every.samples, strict=True)]
        lines += [
            "",
            f"Broadcast of {one.bytes / MB:.0f} MiB, the home's uplink at 1 Gb/s: one reader "
            f"{statistics.median(one.samples):.3g} s, {READERS} readers "
            f"{statistics.median(every.samples):.3g} s: {statistics.median(ratios):.3g} times "
            f"({min(ratios):.3g} to {max(ratios):.3g}).",
        ]
    return "\n".join(lines)


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--only", choices=("compression", "broadcast"), help="one of the two")
    parser.add_argument("--farrowd", help="the daemon to run [default: that of this farrow]")
    parser.add_argument("--broadcast-mib", type=int, default=128, help="size of that object")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    options = parser.parse_args()
    reason = why_not()
    if reason is not None:
        raise SystemExit(reason)
    options.rounds = 3 if options.quick else 5
    program = [options.farrowd] if options.farrowd else [sys.executable, "-m", "farrow.cli", "node"]
    samples: list[Sample] = []
    if options.only != "broadcast":
        samples += compression(options, program)
    if options.only != "compression":
        samples += broadcast(options, program)
    document = document_of(HERE.parent, samples, [], options.quick)
    leave(document, "limited-link", report(samples), Path(options.output))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("FARROW_LOG", "error")
    sys.exit(main())
