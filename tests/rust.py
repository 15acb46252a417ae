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
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
# These mostly wait, for leases above all. One of them runs beside one of the others: two programs
# that compute would make each other late on two cores.
WAITING = frozenset(
    {
        "chaos", "cluster", "doubtful", "drain", "drain_tables", "etcd", "evict", "far_memory",
        "joining", "late_replies", "life", "links", "netns", "permissions",
    }
)  # fmt: skip
# These only compute, in one process, and no test of them looks at a clock: two of them run side by
# side, before all of the rest.
UNTIMED = frozenset(
    {"causal", "coherence_model", "farrow_membership", "farrow_store", "preview", "segments"}
)
# These judge bytes and histories under faults that they choose at random, or look at all
# interleavings: a failure of one is a finding, however rare. Any other program that fails runs once
# more, alone: most assert that something happens within a time, which a machine that does something
# else can exceed. Both outputs are printed.
JUDGES = frozenset(
    {
        "chaos", "coherence_model", "conformance", "failpoints", "faults", "forged", "fuzz",
        "fuzz_seeds", "fuzz_sessions", "history", "kills", "model", "replays", "soak", "supervised",
        "supervised_upgrade", "upgrade",
    }
)  # fmt: skip
# More failures than this have another reason.
AGAIN_MAX = 5
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


def cargo(*words: str) -> tuple[int, str]:
    """The exit code and the standard output of cargo, which ends with this program."""
    command = ["cargo", *words]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate()
        except BaseException:
            _end(process.pid)
            raise
    return process.returncode, output


def build() -> list[Program]:
    """All programs of tests of the default members, compiled."""
    code, output = cargo("test", "--quiet", "--no-run", "--message-format=json-render-diagnostics")
    if code != 0:
        sys.exit(code)
    programs = []
    for line in output.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            programs.append(Program(message["target"]["name"], message["executable"], folder))
    return programs


class Runner:
    """Runs programs side by side; they end with it."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._is_ending = False
        # A program is known before its end can be asked for.
        self._lock = threading.Lock()

    def run(self, programs: list[Program]) -> Iterator[Run]:
        """Each program, when it has ended."""
        first = [program for program in programs if program.name in UNTIMED]
        rest = [program for program in programs if program.name not in UNTIMED]
        with (
            ThreadPoolExecutor(2) as untimed,
            ThreadPoolExecutor(1) as waiting,
            ThreadPoolExecutor(1) as computing,
        ):
            try:
                runs = [untimed.submit(self._run, program) for program in first]
                for done in as_completed(runs):
                    yield done.result()
                runs = [
                    (waiting if program.name in WAITING else computing).submit(self._run, program)
                    for program in rest
                ]
                for done in as_completed(runs):
                    yield done.result()
            except BaseException:
                with self._lock:
                    self._is_ending = True
                    for process in self._running:
                        _end(process)
                raise

    def run_alone(self, program: Program) -> Run:
        """One program, with nothing beside it."""
        [done] = self.run([program])
        return done

    def _run(self, program: Program) -> Run:
        start = time.monotonic()
        failure = ""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = self._start(program, output)
            if process is None:
                return Run(program, "not started", "", 0.0)
            try:
                code = process.wait(LIMIT_SECONDS)
                failure = f"exit {code}" if code else ""
            except subprocess.TimeoutExpired:
                failure = f"not ended after {LIMIT_SECONDS:.0f} s"
            with self._lock:
                self._running.discard(process.pid)
            if failure:
                # Nor does what a failed test has started run on beside the next ones.
                _end(process.pid)
                process.wait()
            output.seek(0)
            return Run(program, failure, output.read(), time.monotonic() - start)

    def _start(self, program: Program, output: IO[str]) -> subprocess.Popen[bytes] | None:
        """Start a program, unless all are to end."""
        with self._lock:
            if self._is_ending:
                return None
            process = subprocess.Popen(
                [program.path, "--quiet"],
                cwd=program.folder,
                env={**os.environ, "CARGO_MANIFEST_DIR": str(program.folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process.pid)
            return process


def _end(leader: int) -> None:
    """Kill a program and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _is_passed(done: Run) -> bool:
    """Whether a program passed; its result is printed, and what it printed if it failed."""
    print(f"{done.program.name}: {done.failure or 'passed'}, {done.seconds:.0f} s")
    if done.failure:
        print(done.output)
    sys.stdout.flush()
    return not done.failure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    chosen = parser.parse_args()
    # They end what runs, as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    programs = build()
    if unknown := set(chosen.names) - {program.name for program in programs}:
        parser.error(f"no program of tests has the name {', '.join(sorted(unknown))}")
    if chosen.names:
        programs = [program for program in programs if program.name in chosen.names]
    runner = Runner()
    failures = [done for done in runner.run(programs) if not _is_passed(done)]
    again = [done.program for done in failures if done.program.name not in JUDGES]
    failed = [done.program.name for done in failures if done.program not in again]
    for program in [*again] if len(again) <= AGAIN_MAX else []:
        print(f"{program.name}: runs again, alone")
        if _is_passed(runner.run_alone(program)):
            again.remove(program)
    failed += [program.name for program in again]
    if not chosen.names:
        code, output = cargo("test", "--quiet", "--doc")
        if code != 0:
            failed.append("documentation")
            print(output)
    print(f"{len(programs)} programs of tests, failed: {', '.join(failed) or 'none'}")
    return 1 if failed or not programs else 0


if __name__ == "__main__":
    sys.exit(main())
