"""Builds all tests in Rust and runs their programs, two at a time.

python tests/rust.py [NAME...]     only the programs of these names, such as history

`cargo test` runs one program after another. The output of each appears when it has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
# These mostly wait, for leases above all. One of them runs beside one of the others: two programs
# that compute would make each other late on two cores.
WAITING = frozenset(
    {
        "chaos", "cluster", "doubtful", "drain", "drain_tables", "etcd", "evict", "far_memory",
        "grants", "joining", "late_replies", "life", "netns",
    }
)  # fmt: skip
# For one program. It is several times what the slowest one takes.
LIMIT_SECONDS = 1_200.0


@dataclass(frozen=True)
class Program:
    """A compiled program of tests, and the folder of its package, in which cargo would run it."""

    name: str
    path: str
    folder: Path


@dataclass(frozen=True)
class Run:
    program: Program
    failure: str
    output: str
    seconds: float


def build() -> list[Program]:
    """All programs of tests of the default members, compiled."""
    command = ["cargo", "test", "--quiet", "--no-run", "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    programs = []
    for line in done.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            programs.append(Program(message["target"]["name"], message["executable"], folder))
    return programs


class Runner:
    """Runs programs side by side; what it started ends with it."""

    def __init__(self) -> None:
        self._running: set[int] = set()

    def run(self, programs: list[Program]) -> Iterator[Run]:
        """Each program, when it has ended."""
        with ThreadPoolExecutor(1) as waiting, ThreadPoolExecutor(1) as computing:
            runs = [
                (waiting if program.name in WAITING else computing).submit(self._run, program)
                for program in programs
            ]
            try:
                for done in as_completed(runs):
                    yield done.result()
            except BaseException:
                for run in runs:
                    run.cancel()
                for process in list(self._running):
                    _end(process)
                raise

    def _run(self, program: Program) -> Run:
        start = time.monotonic()
        environment = {**os.environ, "CARGO_MANIFEST_DIR": str(program.folder)}
        failure = ""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                [program.path, "--quiet"], cwd=program.folder, env=environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            self._running.add(process.pid)
            try:
                code = process.wait(LIMIT_SECONDS)
                failure = f"exit {code}" if code else ""
            except subprocess.TimeoutExpired:
                failure = f"not ended after {LIMIT_SECONDS:.0f} s"
                _end(process.pid)
                process.wait()
            self._running.discard(process.pid)
            output.seek(0)
            return Run(program, failure, output.read(), time.monotonic() - start)


def _end(leader: int) -> None:
    """Kill a program and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    chosen = parser.parse_args()
    programs = build()
    if unknown := set(chosen.names) - {program.name for program in programs}:
        parser.error(f"no program of tests has the name {', '.join(sorted(unknown))}")
    if chosen.names:
        programs = [program for program in programs if program.name in chosen.names]
    failed = []
    # SIGTERM ends the programs, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for done in Runner().run(programs):
        print(f"{done.program.name}: {done.failure or 'passed'}, {done.seconds:.0f} s")
        if done.failure:
            failed.append(done.program.name)
            print(done.output)
        sys.stdout.flush()
    if not chosen.names:
        command = ["cargo", "test", "--quiet", "--doc"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            failed.append("documentation")
    print(f"{len(programs)} programs of tests, failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
