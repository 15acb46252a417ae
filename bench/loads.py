"""Measure loads of files into the memory pool: ``python bench/loads.py [--quick]``.

pyarrow reads a CSV file of 166 MiB, and the same rows as Parquet and as Arrow IPC, into Farrow's
pool and into pyarrow's default one. One process for each pool loads in turns with the other, first
into fresh memory, then again after the table before was released. Then each table is put. The files
are in the page cache. Writes the raw samples and a table of ratios to bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402
import pyarrow.csv as pacsv  # noqa: E402
import pyarrow.dataset as pads  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.node import running_node, wait_for_pages  # noqa: E402
from harness.process import Lines, end_on_signal  # noqa: E402
from harness.tasks import Sample  # noqa: E402

import farrow  # noqa: E402

CSV_BYTES = 166 << 20
QUICK_PART = 5
# Processes for each pool and kind of file, and loads of each process after the first.
PROCESSES, LOADS = 7, 9
QUICK_PROCESSES, QUICK_LOADS = 3, 4
ROW_GROUPS = 8
SAMPLE_ROWS = 20_000
MEMORY = 2 << 30
POOLS = ("private", "farrow")
PRIVATE, FARROW = POOLS
# Beside the time of a load.
FAULTS = "page faults of"


class Run:
    """The samples of a run by case and pool, in the order of the measurement."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, str], list[float]] = {}
        self.sizes: dict[str, int] = {}

    def add(self, case: str, pool: str, unit: str, value: float, size: int) -> None:
        self.found.setdefault((case, pool, unit), []).append(value)
        self.sizes[case] = size

    def samples(self) -> list[Sample]:
        return [
            Sample(case, "farrow", pool, unit, values, self.sizes[case])
            for (case, pool, unit), values in self.found.items()
        ]

    def median(self, case: str, pool: str, unit: str = "s") -> float:
        return statistics.median(self.found[case, pool, unit])

    def cases(self) -> list[str]:
        """Cases whose unit is time."""
        return list(dict.fromkeys(case for case, _, unit in self.found if unit == "s"))


def main() -> int:
    """Run, print, save.  0; with ``--child`` this is one process that loads."""
    options = _options()
    if options.child:
        return _child(json.loads(options.child))
    end_on_signal()
    run = Run()
    with tempfile.TemporaryDirectory(prefix="farrow-bench-", dir="/dev/shm") as folder:
        files = _files(Path(folder), CSV_BYTES // (QUICK_PART if options.quick else 1))
        with running_node(Path(folder), MEMORY, "--evict", "none") as socket:
            wait_for_pages(farrow.connect(socket))
            for kind, path in files.items():
                _measure(run, kind, path, socket, options.quick)
    document = document_of(HERE.parent, run.samples(), [], options.quick)
    leave(document, "loads", _table(run), Path(options.output))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="smaller files, not for citing")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def _files(folder: Path, csv_bytes: int) -> dict[str, Path]:
    """Trades as CSV of about ``csv_bytes``, as Parquet and as IPC without compression."""
    files = {kind: folder / f"trades.{kind}" for kind in ("csv", "parquet", "arrow")}
    sample = folder / "sample.csv"
    pacsv.write_csv(_trades(SAMPLE_ROWS), sample)
    trades = _trades(SAMPLE_ROWS * csv_bytes // sample.stat().st_size)
    sample.unlink()
    pacsv.write_csv(trades, files["csv"])
    group_rows = -(-trades.num_rows // ROW_GROUPS)
    pq.write_table(trades, files["parquet"], row_group_size=group_rows)
    with pa.ipc.new_file(files["arrow"], trades.schema) as writer:
        writer.write_table(trades, max_chunksize=group_rows)
    return files


def _trades(rows: int) -> pa.Table:
    rng = np.random.default_rng(7)
    symbols = np.array([f"SYM{number:04}" for number in range(500)])
    return pa.table(
        {
            "id": np.arange(rows) + 10**9,
            "ts": pa.array(np.arange(rows) + 1_700_000_000, pa.timestamp("s")),
            "symbol": symbols[rng.integers(0, len(symbols), rows)],
            "price": np.round(rng.random(rows) * 1000, 3),
            "quantity": rng.integers(1, 10_000, rows, dtype=np.int32),
        }
    )


def _measure(run: Run, kind: str, path: Path, socket: str, quick: bool) -> None:
    processes, loads = (QUICK_PROCESSES, QUICK_LOADS) if quick else (PROCESSES, LOADS)
    for turn in range(processes):
        with contextlib.ExitStack() as stack:
            children = {}
            for pool in POOLS:
                task = json.dumps({"kind": kind, "path": str(path), "socket": socket, "pool": pool})
                lines = Lines(sys.executable, __file__, "--child", task)
                stack.callback(lines.close)
                lines.answer()
                children[pool] = lines
            for load in range(loads + 1):
                # Each is the first of its round as often as the other.
                order = POOLS if (turn + load) % 2 else POOLS[::-1]
                for pool in order:
                    children[pool].send("load")
                    _add(run, kind, pool, load == 0, children[pool].answer())


def _add(run: Run, kind: str, pool: str, is_first: bool, answer: dict[str, Any]) -> None:
    size = answer["bytes"]
    if answer["bytes_in_region"] != (size if pool == FARROW else 0):
        raise AssertionError(f"{kind}, {pool}: {answer['bytes_in_region']} of {size} B in region")
    when = "first load of a process" if is_first else "load"
    run.add(f"{when}, {kind}", pool, "s", answer["load"], size)
    run.add(f"{FAULTS} {when}, {kind}", pool, "", answer["faults"], size)
    run.add(f"put after {when}, {kind}", pool, "s", answer["put"], size)


def _readers(pool: pa.MemoryPool) -> dict[str, Callable[[str], pa.Table]]:
    def ipc(path: str) -> pa.Table:
        with pa.OSFile(path, memory_pool=pool) as file:
            return pa.ipc.open_file(file, memory_pool=pool).read_all()

    return {
        "csv": lambda path: pacsv.read_csv(path, memory_pool=pool),
        "parquet": lambda path: pads.dataset(path).to_table(memory_pool=pool),
        "arrow": ipc,
    }


def _child(task: dict[str, str]) -> int:
    """Load and put a file for each line of standard input; print what each took."""
    client = farrow.connect(task["socket"])
    pool = client.memory_pool() if task["pool"] == FARROW else pa.default_memory_pool()
    read = _readers(pool)[task["kind"]]
    name = f"{task['kind']}-{task['pool']}"
    # Threads and modules of pyarrow, and the first connection of the client, are no part of a load.
    pc.sum(pa.array(np.arange(1 << 20)))
    client.contains(name)
    print(json.dumps({}), flush=True)
    for _ in sys.stdin:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        began = time.perf_counter()
        table = read(task["path"])
        loaded = time.perf_counter()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        buffers = client.locate(table)
        answer: dict[str, Any] = {"load": loaded - began, "faults": faults}
        answer["bytes"] = sum(int(one["bytes"]) for one in buffers)
        answer["bytes_in_region"] = sum(int(one["bytes"]) for one in buffers if one["in_region"])
        began = time.perf_counter()
        client.put(table, name)
        answer["put"] = time.perf_counter() - began
        client.delete(name)
        del table, buffers
        print(json.dumps(answer), flush=True)
    return 0


def _table(run: Run) -> str:
    lines = [
        "| case | private | Farrow's pool | ratio | faults, private | faults, Farrow |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for case in run.cases():
        private, ours = (run.median(case, pool) for pool in POOLS)
        cells = [case, f"{private * 1e3:.1f} ms", f"{ours * 1e3:.1f} ms", f"{ours / private:.2f}"]
        if (f"{FAULTS} {case}", PRIVATE, "") in run.found:
            cells += [f"{run.median(f'{FAULTS} {case}', pool, ''):.0f}" for pool in POOLS]
        else:
            cells += ["", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
