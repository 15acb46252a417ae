"""An execution graph: steps in processes of their own, on nodes of their own, over shared tables.

Six steps turn text into a model: ``parse`` and ``accounts`` read sources, ``clean``, ``join`` and
``features`` derive tables, ``train`` fits weights. Each step is a process at one of three nodes. It
waits for its inputs by their names, uses them in place, and puts its result into the memory of its
own node. Nothing is sent between the steps: a table is written once, and the next step reads it
where it lies.

Joins and filters run in Acero, Arrow's engine. Each result carries the name of its step, its inputs
and its costs as metadata. So the whole graph can be drawn from the memory of the nodes alone: the
process, the node, the inputs and the size of each table.

    python examples/execution_graph.py
    python examples/execution_graph.py --rows 1000000 --draw graph.mmd    # a Mermaid flowchart
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

import farrow
from farrow._nodes._ports import free_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PREFIX = "graph/"
NODES = ("a", "b", "c")
ACCOUNTS = 500
ROUNDS = 200
WAIT_SECONDS_MAX = 60.0
NODE_BYTES_MIN = 32 << 20
# Of all steps on one node, with what an append reserves.
NODE_BYTES_PER_ROW = 400

RAW = pa.schema(
    {"time": pa.timestamp("s"), "account": pa.int32(), "amount": pa.float64(), "flag": pa.int8()}
)


def parse(source: Path) -> pa.Table:
    """The rows of the text, whatever they are."""
    options = pa.csv.ConvertOptions(column_types=RAW)
    return pa.csv.read_csv(source, convert_options=options)


def accounts(_: Path) -> pa.Table:
    """A limit for each account."""
    numbers = np.arange(ACCOUNTS, dtype=np.int32)
    return pa.table({"account": numbers, "limit": 100.0 + 10.0 * (numbers % 50)})


def clean(raw: pa.Table) -> pa.Table:
    """Rows with a positive amount, each once."""
    good = raw.filter(pc.field("amount") > 0)
    return good.group_by(RAW.names, use_threads=False).aggregate([])


def join(rows: pa.Table, limits: pa.Table) -> pa.Table:
    """Rows with the limits of their accounts, in order of time."""
    order = [("time", "ascending"), ("account", "ascending"), ("amount", "ascending")]
    return rows.join(limits, "account", join_type="inner").sort_by(order)


def features(rows: pa.Table) -> pa.Table:
    """Numbers for the model: the share of the limit, the size and the hour."""
    return pa.table(
        {
            "share": pc.divide(rows["amount"], rows["limit"]),
            "size": pc.log10(rows["amount"]),
            "hour": pc.divide(pc.cast(pc.hour(rows["time"]), pa.float64()), 24.0),
            "flag": pc.cast(rows["flag"], pa.float64()),
        }
    )


def train(rows: pa.Table) -> pa.Table:
    """Weights of a logistic regression, and the share of rows that it has right."""
    names = ["share", "size", "hour"]
    inputs = np.column_stack([rows[name].to_numpy() for name in names])
    inputs = np.column_stack([(inputs - inputs.mean(0)) / inputs.std(0), np.ones(len(inputs))])
    wanted = rows["flag"].to_numpy()
    weights = np.zeros(inputs.shape[1])
    for _ in range(ROUNDS):
        chance = 1 / (1 + np.exp(-inputs @ weights))
        weights += inputs.T @ (wanted - chance) / len(inputs) * 4
    right = float(np.mean((inputs @ weights > 0) == (wanted > 0.5)))
    return pa.table({"input": [*names, "1"], "weight": weights, "right": [right] * len(weights)})


@dataclasses.dataclass(frozen=True)
class Step:
    """A function of tables, at a node."""

    work: Callable[..., pa.Table]
    inputs: tuple[str, ...]
    node: str


STEPS = {
    "parse": Step(parse, (), "a"),
    "accounts": Step(accounts, (), "b"),
    "clean": Step(clean, ("parse",), "b"),
    "join": Step(join, ("clean", "accounts"), "c"),
    "features": Step(features, ("join",), "a"),
    "train": Step(train, ("features",), "b"),
}


def run_step(name: str, socket: str, source: Path) -> None:
    """Run one step in this process: wait for its inputs, use them in place, leave a result."""
    step = STEPS[name]
    client = farrow.connect(socket)
    before = pa.total_allocated_bytes()
    tables = [client.get(PREFIX + one, timeout=WAIT_SECONDS_MAX) for one in step.inputs]
    copied = pa.total_allocated_bytes() - before
    began = time.perf_counter()
    result = step.work(*(tables or [source]))
    took = {
        "step": name,
        "inputs": " ".join(step.inputs),
        "read": str(sum(table.nbytes for table in tables)),
        "copied": str(copied),
        "ms": f"{(time.perf_counter() - began) * 1e3:.1f}",
        "rows": str(result.num_rows),
    }
    client.put(result, PREFIX + name, metadata=took, wait=WAIT_SECONDS_MAX)


def run_graph(sockets: dict[str, str], source: Path) -> None:
    """Start all steps at once, and wait for the last; a step that fails ends the others."""
    context = multiprocessing.get_context("spawn")
    running = {
        name: context.Process(target=run_step, args=(name, sockets[step.node], source))
        for name, step in STEPS.items()
    }
    for process in running.values():
        process.start()
    try:
        while True:
            codes = {name: process.exitcode for name, process in running.items()}
            failed = [name for name, code in codes.items() if code]
            if failed:
                raise RuntimeError(f"step {failed[0]} failed")
            left = [running[name].sentinel for name, code in codes.items() if code is None]
            if not left:
                return
            multiprocessing.connection.wait(left)
    finally:
        for process in running.values():
            process.terminate()
            process.join()


@dataclasses.dataclass(frozen=True)
class Written:
    """A step, as the memory of the nodes records it."""

    step: str
    inputs: tuple[str, ...]
    node: str
    pid: int
    rows: int
    nbytes: int
    read: int
    copied: int
    milliseconds: float


def written(client: farrow.Client) -> list[Written]:
    """The results of all steps, in the order of their seals."""
    found = []
    listed = client.list(PREFIX, all_nodes=True).sort_by("sealed_at")
    # As Python's datetime, which has no nanoseconds, times would need pandas.
    for one in listed.drop_columns(["sealed_at", "last_use"]).to_pylist():
        took = dict(one["metadata"])
        found.append(
            Written(
                step=took["step"],
                inputs=tuple(took["inputs"].split()),
                node=one["node"],
                pid=one["creator_pid"],
                rows=int(took["rows"]),
                nbytes=one["bytes"],
                read=int(took["read"]),
                copied=int(took["copied"]),
                milliseconds=float(took["ms"]),
            )
        )
    return found


def as_text(found: Sequence[Written]) -> str:
    """A line for each step."""
    lines = [f"{'step':10}{'node':6}{'process':>9}{'rows':>10}{'wrote':>10}{'read in place':>15}"]
    lines[0] += f"{'copied':>8}{'time':>11}  from"
    for one in found:
        lines.append(
            f"{one.step:10}{one.node:6}{one.pid:>9}{one.rows:>10,}{one.nbytes / 1e6:>7.1f} MB"
            f"{(one.read - one.copied) / 1e6:>12.1f} MB{one.copied / 1e6:>5.0f} MB"
            f"{one.milliseconds:>8.1f} ms  {', '.join(one.inputs)}"
        )
    return "\n".join(lines)


def as_mermaid(found: Sequence[Written]) -> str:
    """A flowchart: steps in the boxes of their nodes, and what each hands on."""
    lines = ["flowchart LR"]
    for node in sorted({one.node for one in found}):
        lines.append(f"  subgraph node_{node} [node {node}]")
        lines += [
            f'    {one.step}["{one.step}<br>process {one.pid}<br>{one.rows:,} rows"]'
            for one in found
            if one.node == node
        ]
        lines.append("  end")
    size = {one.step: one.nbytes / 1e6 for one in found}
    lines += [
        f'  {source} -- "{size[source]:.1f} MB" --> {one.step}'
        for one in found
        for source in one.inputs
    ]
    return "\n".join(lines) + "\n"


def write_source(path: Path, rows: int, seed: int = 7) -> None:
    """Text with what real text has: rows that are negative, missing or there twice."""
    rng = np.random.default_rng(seed)
    account = rng.integers(0, ACCOUNTS, rows).astype(np.int32)
    amount = rng.exponential(300.0, rows).round(2)
    share = amount / (100.0 + 10.0 * (account % 50)) + rng.normal(0, 0.1, rows)
    amount = np.where(rng.random(rows) < 0.02, -1.0, amount)
    table = pa.table(
        {
            "time": pa.array(1_700_000_000 + rng.integers(0, 10**6, rows), pa.timestamp("s")),
            "account": account,
            "amount": pa.array(amount, mask=rng.random(rows) < 0.02),
            "flag": (share > 0.8).astype(np.int8),
        },
        RAW,
    )
    twice = pa.concat_tables([table, table.slice(0, rows // 50)])
    pa.csv.write_csv(twice, path)


@contextlib.contextmanager
def running_nodes(folder: Path, memory: int) -> Iterator[dict[str, str]]:
    """Three nodes of this machine that map each other's memory; their sockets."""
    addresses = dict(zip(NODES, free_addresses(len(NODES)), strict=True))
    sockets = {name: str(folder / f"{name}.sock") for name in NODES}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name in NODES:
            command = [sys.executable, "-m", "farrow.cli", "node", "--name", name, "--plaintext"]
            command += ["--socket", sockets[name], "--listen", addresses[name], "--unsupervised"]
            # A busy machine may not run a node for seconds.
            command += ["--memory", str(memory), "--evict", "none", "--lease-ms", "10000"]
            command += [
                f"--join={other}" for other in addresses.values() if other != addresses[name]
            ]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        for name in NODES:
            _settle(sockets[name])
        yield sockets
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(WAIT_SECONDS_MAX)


def _settle(socket: str) -> None:
    """Wait until a node maps the memory of all."""
    end = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            live = [node for node in farrow.connect(socket).nodes() if node.reach == "live"]
            if sum(node.fabric != "" for node in live) == len(NODES):
                return
        except farrow.Disconnected:
            pass
        if time.monotonic() >= end:
            raise TimeoutError(f"no cluster of {len(NODES)} nodes at {socket}")
        time.sleep(0.05)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the graph, print it, draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the text")
    parser.add_argument("--draw", type=Path, help="file for a Mermaid flowchart")
    options = parser.parse_args(arguments)
    if options.rows < 1000:
        parser.error(f"--rows {options.rows}: 1000 at least")
    memory = NODE_BYTES_MIN + options.rows * NODE_BYTES_PER_ROW
    with tempfile.TemporaryDirectory(prefix="farrow-graph-") as name:
        folder = Path(name)
        source = folder / "rows.csv"
        write_source(source, options.rows)
        with running_nodes(folder, memory) as sockets:
            run_graph(sockets, source)
            client = farrow.connect(sockets["a"])
            found = written(client)
            print(as_text(found))
            model: Any = client.get(PREFIX + "train")
            weights = zip(model["input"].to_pylist(), model["weight"].to_pylist(), strict=True)
            print(f"\n{model['right'][0].as_py():.1%} right:", end=" ")
            print(", ".join(f"{name} {weight:.2f}" for name, weight in weights))
    if options.draw:
        options.draw.write_text(as_mermaid(found))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("FARROW_LOG", "error")
    sys.exit(main())
