"""Compare two versions of Farrow: ``python bench/versions.py OLD NEW [--quick]``.

OLD and NEW are interpreters of environments with the two versions.  Both run the same benchmarks,
those of this folder, in turns: tables and objects in whole runs one after the other, graph features
batch by batch.  Prints the ratio of the times of each case, and writes the raw samples and the
table to bench/results/.  With ``--priority`` all of it runs at a real-time priority, for machines
that have other work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import graph  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.process import end_on_signal, run_program  # noqa: E402
from harness.tasks import Sample  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

# The programs that run whole, and their arguments.
PROGRAMS = {
    "tables": ("run.py", "--peers", "farrow", "--no-huge", "--no-micro"),
    "store": ("store.py", "--peers", "farrow"),
}
KINDS = (*PROGRAMS, "graph")
VERSIONS = ("old", "new")
_RUN_SECONDS_MAX = 900.0
# Units where more is better; all others are times or sizes.
_RATES = ("1/s", "x")
# One sample a case and run: the median. Its key is case, variant and unit.
_Medians = dict[tuple[str, str, str], float]


def main() -> int:
    """Run, print, save.  0."""
    options = _options()
    end_on_signal()
    if options.priority:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(options.priority))
    pythons = dict(zip(VERSIONS, (options.old, options.new), strict=True))
    samples: list[Sample] = []
    for kind in options.only.split(","):
        if kind not in KINDS:
            raise SystemExit(f"no benchmark {kind}; there are {', '.join(KINDS)}")
        found = (
            graphs(pythons, options.quick)
            if kind == "graph"
            else programs(kind, pythons, options.rounds, options.quick)
        )
        samples += found
    notes = [f"old: {options.old_name}", f"new: {options.new_name}"]
    document = document_of(HERE.parent, samples, notes, options.quick)
    leave(document, "versions", table(samples), Path(options.output))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("old", help="an interpreter whose environment has the old version")
    parser.add_argument("new", help="the same for the new version")
    parser.add_argument("--old-name", required=True, help="its commit, for the report")
    parser.add_argument("--new-name", required=True, help="its commit, for the report")
    parser.add_argument("--only", default=",".join(KINDS), help="comma-separated (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each version")
    parser.add_argument("--quick", action="store_true", help="a part of the data; not for citing")
    parser.add_argument("--priority", type=int, default=0, help="1 to 99; needs the right to it")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    return parser.parse_args()


def programs(kind: str, pythons: dict[str, str], rounds: int, quick: bool) -> list[Sample]:
    """Whole runs in turns; each case has one sample a run, its median there."""
    merged: dict[tuple[str, str, str, str], Sample] = {}
    for turn in range(rounds):
        for version in VERSIONS if turn % 2 == 0 else VERSIONS[::-1]:
            for (case, variant, unit), value in _run(kind, pythons[version], quick).items():
                key = (case, version, f"{kind}, {variant}", unit)
                merged.setdefault(key, Sample(*key, [])).samples.append(value)
        print(f"{kind}: round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
    return list(merged.values())


def _run(kind: str, python: str, quick: bool) -> _Medians:
    program, *arguments = PROGRAMS[kind]
    with tempfile.TemporaryDirectory(prefix="farrow-bench-") as folder:
        command = [python, str(HERE / program), *arguments, "--output", folder]
        command += ["--quick"] if quick else []
        null = subprocess.DEVNULL
        code = run_program(command, _RUN_SECONDS_MAX, stdout=null, stderr=null)
        if code != 0:
            raise SystemExit(f"{' '.join(command)} ended with {code}")
        (path,) = Path(folder).glob("*.json")
        document = json.loads(path.read_text())
    return {
        (one["case"], one["variant"], one["unit"]): statistics.median(one["samples"])
        for one in document["samples"]
        if one["peer"] == "farrow" and one["samples"]
    }


def graphs(pythons: dict[str, str], quick: bool) -> list[Sample]:
    """Every task of the graph benchmark in batch mode, in turns; a sample is a batch."""
    found = []
    with tempfile.TemporaryDirectory(prefix="farrow-bench-") as folder:
        path = Path(folder) / "stream"
        graph.stream(1_000_000 if quick else 5_000_000, path)
        for task in graph.tasks():
            if "batch" in task.peers:
                found += list(_both(task, path, pythons, quick))
                print(task.name, file=sys.stderr, flush=True)
    return found


def _both(task: graph.Task, path: Path, pythons: dict[str, str], quick: bool) -> Iterator[Sample]:
    rows = 2_000 if task.batch == 1 else (4 if quick else 20) * task.batch
    with contextlib.ExitStack() as stack:
        drivers = {
            version: stack.enter_context(graph.Driver("batch", path, task, python))
            for version, python in pythons.items()
        }
        for turn in range(graph.TURNS):
            for version in VERSIONS if turn % 2 == 0 else VERSIONS[::-1]:
                drivers[version].turn(rows, 60.0)
    if drivers["old"].digests != drivers["new"].digests:
        raise SystemExit(f"{task.name}: the two versions find other patterns")
    for version, driver in drivers.items():
        yield Sample(task.name, version, "graph", "s", driver.times)


def table(samples: list[Sample]) -> str:
    """Markdown: medians of both, the ratio of the medians, and the middle half of the ratios."""
    lines = [
        "| case | unit | old | new | old / new | middle half | pairs |",
        "| --- " * 7 + "|",
    ]
    by_key = {(one.variant, one.case, one.unit, one.peer): one.samples for one in samples}
    for variant, case, unit, peer in by_key:
        new = by_key.get((variant, case, unit, "new"))
        if peer != "old" or new is None:
            continue
        old = by_key[variant, case, unit, "old"]
        ratios = [
            (theirs / ours if unit in _RATES else ours / theirs)
            for ours, theirs in zip(old, new, strict=False)
            if ours and theirs
        ]
        if not ratios:
            continue
        half = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
        cells = [
            f"{variant}: {case}", unit, f"{statistics.median(old):.4g}",
            f"{statistics.median(new):.4g}", f"{statistics.median(ratios):.3f}",
            f"{half[0]:.3f} to {half[2]:.3f}", str(len(ratios)),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
