"""Run the tables and figures of the thesis and the papers again: ``python bench/reproduce.py``.

Each experiment (``reproduction/``) runs in a separate process, with a time limit.  The page and the
exit code report a failed experiment; the others still run.  Writes one HTML page with our figures
and theirs, the table, and raw samples to bench/results/.
Needs ``cargo build --release -p farrow-bench-network``; ``make reproduce`` does that.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from harness import machine  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.process import end_on_signal  # noqa: E402
from harness.tasks import Sample  # noqa: E402
from reproduction.batches import Copies, Infinite  # noqa: E402
from reproduction.count import ManyObjects  # noqa: E402
from reproduction.experiment import Room  # noqa: E402
from reproduction.far import Caches, Network, WhatIf  # noqa: E402
from reproduction.filling import Filling  # noqa: E402
from reproduction.maintenance import Flush, Maintenance  # noqa: E402
from reproduction.memory import Descriptor, Initialisation, Strided  # noqa: E402
from reproduction.objects import Objects, Slower  # noqa: E402
from reproduction.page import Outcome, markdown, page, run_line  # noqa: E402
from reproduction.steps import ExecutionGraph  # noqa: E402
from reproduction.together import Contention  # noqa: E402
from reproduction.whole import SendWhole, WriteThrough  # noqa: E402
from reproduction.windows import Enlarged, Modes, Placement, Windows  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reproduction.experiment import Experiment

__all__ = ["EXPERIMENTS", "inside", "main", "measured", "read", "report"]

EXPERIMENTS: tuple[Experiment, ...] = (
    Windows(), Filling(), Placement(), Modes(), Enlarged(), Network(), Caches(), WhatIf(),
    Initialisation(),
    Flush(), Strided(), Descriptor(), Objects(), Slower(), Maintenance(),
    Infinite(), Copies(), Contention(), SendWhole(), WriteThrough(), ExecutionGraph(),
    ManyObjects(),
)  # fmt: skip
# Time for an experiment to end its nodes, after its time limit.
_END_SECONDS_MAX = 40.0
# Characters of a failed process's last output.
_WORDS_MAX = 300


def inside(experiment: Experiment, folder: Path, is_quick: bool, out: IO[str]) -> None:
    """Run one experiment; samples and notes are lines of JSON, each complete when it is written."""

    def tell(**what: Any) -> None:
        print(json.dumps(what), file=out, flush=True)

    room = Room(is_quick, folder, lambda text: tell(note=text))
    for sample in experiment.run(room):
        print(f"  {sample.variant}: {sample.case}, {sample.peer}", file=sys.stderr, flush=True)
        tell(sample=dataclasses.asdict(sample))


def measured(experiment: Experiment, folder: Path, is_quick: bool, seconds_max: float) -> Outcome:
    """Run one experiment in a separate process, for at most ``seconds_max`` seconds."""
    target, log = (folder / f"{experiment.name}.{end}" for end in ("jsonl", "log"))
    command = [sys.executable, str(Path(__file__).resolve()), "--inside", experiment.name]
    command += ["--folder", str(folder), *(["--quick"] if is_quick else [])]
    began = time.monotonic()
    failure = None
    with target.open("wb") as out, log.open("wb") as errors:
        # Files of a killed process are removed with the folder.
        process = subprocess.Popen(
            command, stdout=out, stderr=errors, start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )  # fmt: skip
        try:
            code = process.wait(seconds_max)
            if code != 0:
                failure = _last_words(log) or f"it ended with {code}"
        except subprocess.TimeoutExpired:
            failure = f"it was not done after {seconds_max:g} s"
        finally:
            _end(process)
    samples, notes = read(target)
    return Outcome(experiment, samples, notes, time.monotonic() - began, failure)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, which ends its children; then kill the rest of its session."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.terminate()
        process.wait(_END_SECONDS_MAX)
    # No process of the session may be left.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(1.0)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:_WORDS_MAX] if lines else ""


def read(path: Path) -> tuple[list[Sample], list[str]]:
    """Read complete lines: the last line of a killed process may be cut."""
    samples: list[Sample] = []
    notes: list[str] = []
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            continue
        found = json.loads(line)
        if "sample" in found:
            samples.append(Sample(**found["sample"]))
        else:
            notes.append(found["note"])
    return samples, list(dict.fromkeys(notes))


def report(
    outcomes: Sequence[Outcome], notes: Sequence[str], is_quick: bool, load: Sequence[float],
    folder: Path, commit: dict[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Write all results; ``commit`` is the one at the start.  Returns the page's path."""
    samples = [sample for one in outcomes for sample in one.samples]
    document = document_of(HERE.parent, samples, notes, is_quick)
    document["load"] = list(load)
    document["experiments"] = [
        {
            "name": one.experiment.name,
            "samples": len(one.samples),
            "notes": one.notes,
            "seconds": round(one.seconds, 1),
            "failure": one.failure,
        }
        for one in outcomes
    ]
    if commit is not None:
        document["commit"] = commit
    text = f"{run_line(document)}\n\n{markdown(outcomes, is_quick)}"
    path = leave(document, "reproduce", text, folder).with_suffix(".html")
    path.write_text(page(document, outcomes))
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, save; 1 if an experiment failed."""
    options = _options(arguments)
    by_name = {one.name: one for one in EXPERIMENTS}
    if options.inside:
        inside(by_name[options.inside], Path(options.folder), options.quick, sys.stdout)
        return 0
    names = options.only or list(by_name)
    notes = [f"{name}: left out by --only" for name in by_name if name not in names]
    load = os.getloadavg()
    # Another commit may be made while the run lasts.
    began, commit = time.time(), machine.commit(HERE.parent)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="farrow-bench-", ignore_cleanup_errors=True) as folder:
        for name in names:
            experiment = by_name[name]
            print(f"{experiment.title} ...", file=sys.stderr, flush=True)
            seconds_max = experiment.seconds_max[0 if options.quick else 1]
            one = measured(experiment, Path(folder), options.quick, seconds_max)
            words = f"  {len(one.samples)} series in {one.seconds:.0f} s"
            print(words + (f"; {one.failure}" if one.failure else ""), file=sys.stderr)
            outcomes.append(one)
    if commit["id"] is not None and machine.changed_since(HERE.parent, commit["id"], began):
        commit["changed"] = True
    path = report(outcomes, notes, options.quick, load, Path(options.output), commit)
    print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return 1 if any(one.failure is not None for one in outcomes) else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = [one.name for one in EXPERIMENTS]
    parser.add_argument("--quick", action="store_true", help="less data, fewer repeats: minutes")
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME",
        help=f"this experiment; may be given again: {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    parser.add_argument("--inside", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    os.environ.setdefault("FARROW_LOG", "error")
    end_on_signal()
    sys.exit(main())
