"""The measurements of each peer, with their repetitions and order."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness.process import Driver, PeerError, PeerRun, memory_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ROW_BYTES", "Plan", "Sample", "measure_limits", "measure_micro", "measure_peer"]

# 157,286,400 rows of int64, int8 and uint16: 1.61 GiB; and a hundredth of it, 16.5 MiB.
LARGE_ROWS = 157_286_400
MEDIUM_ROWS = 1_572_864
ROW_BYTES = 11
READERS = 3
# Pages of a fresh region are committed in the background; users rarely put 1.6 GB at once.
_READY_SECONDS_MAX = 20.0
_CARGO_RUN = (
    "cargo",
    "run",
    "--release",
    "--quiet",
    "-p",
    "farrow-bench-micro",
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The scope of a run."""

    large_rows: int = LARGE_ROWS
    medium_rows: int = MEDIUM_ROWS
    puts_large: int = 6
    puts_medium: int = 40
    puts_built: int = 4
    gets: int = 300
    gets_moving: int = 4
    processes: int = 4
    small: int = 2_000
    small_gets: int = 5_000
    seconds_max: float = 480.0

    @classmethod
    def quick(cls) -> Plan:
        """A minute: a tenth of the rows and few repetitions; for trials, not for citing."""
        return cls(
            large_rows=LARGE_ROWS // 10,
            puts_large=3,
            puts_medium=10,
            puts_built=2,
            gets=50,
            gets_moving=2,
            processes=2,
            small=500,
            small_gets=2_000,
            seconds_max=120.0,
        )

    @property
    def capacity(self) -> int:
        """Capacity of the server: two large tables and room for metadata."""
        return int(2.2 * self.large_rows * ROW_BYTES) + (256 << 20)


@dataclasses.dataclass
class Sample:
    """All samples of one measurement; ``bytes`` is the size of the transferred value."""

    case: str
    peer: str
    variant: str
    unit: str
    samples: list[float]
    bytes: int = 0


def measure_limits(plan: Plan, variant: str) -> Iterator[Sample]:
    """The limit of the machine: copy the large table between private buffers."""
    import numpy as np

    size = plan.large_rows * ROW_BYTES
    try:
        from farrow import _native

        buffers = _native.CopyBuffers(size)
        yield Sample("copy", "limit", variant, "s", [buffers.copy() for _ in range(11)], size)
        del buffers
    except (ImportError, AttributeError):
        pass
    source = np.ones(size // 8, dtype=np.uint64)
    target = np.zeros_like(source)
    plain = []
    for _ in range(5):
        began = time.perf_counter()
        np.copyto(target, source)
        plain.append(time.perf_counter() - began)
    yield Sample("copy", "numpy", variant, "s", plain, size)


def measure_peer(
    peer: str, plan: Plan, variant: str, deadline: float, say: Callable[[str, bool], None]
) -> Iterator[Sample]:
    """All measurements of one peer, until ``deadline``.

    ``say`` gets each line of progress, and whether the report must repeat it.
    """
    moves = peer == "flight"
    tasks = (_puts, _gets, _smalls, _readers, _passes)
    with PeerRun(peer, plan.capacity) as run:
        writer = run.driver()
        size = writer.call("build", rows=plan.large_rows)["bytes"]
        _settle(writer)
        for task in tasks:
            began = time.monotonic()
            for case, samples, count in task(run, writer, plan, moves):
                unit = "bytes" if case.startswith("memory") else "s"
                known = {"large": size, "medium": plan.medium_rows * ROW_BYTES, "small": 1000}
                yield Sample(case, peer, variant, unit, samples, known.get(count, 0))
                if time.monotonic() > deadline:
                    say(f"{peer}: out of time after {case!r}", True)
                    return
            say(f"  {task.__name__.strip('_')} {time.monotonic() - began:.0f} s", False)


_Found = Iterator[tuple[str, list[float], str]]


def _settle(writer: Driver) -> None:
    """Wait until the server has committed its pages, if its counters show that."""
    limit = time.monotonic() + _READY_SECONDS_MAX
    while time.monotonic() < limit:
        stats = writer.call("stats")
        if "prepared" not in stats or stats["prepared"] >= stats["capacity"]:
            break
        time.sleep(0.1)


def _puts(run: PeerRun, writer: Driver, plan: Plan, moves: bool) -> _Found:
    """Put by copy, large and medium; the first put into fresh pages is a separate case."""
    times = writer.call("put", name="large", times=plan.puts_large, keep=True)
    yield "put large first", times[:1], "large"
    yield "put large", times[1:], "large"
    helper = run.driver()
    helper.call("build", rows=plan.medium_rows)
    times = helper.call("put", name="medium", times=plan.puts_medium, keep=True)
    yield "put medium", times[1:], "medium"
    helper.end()
    if run.peer == "farrow":
        builder = run.driver()
        for word, rows in (("medium", plan.medium_rows), ("large", plan.large_rows)):
            times = builder.call("put_built", rows=rows, times=plan.puts_built)
            yield f"put built {word}", times, word
        builder.end()


def _gets(run: PeerRun, writer: Driver, plan: Plan, moves: bool) -> _Found:
    """Get in another process: the first in each new process, then many."""
    for word in ("medium", "large"):
        cold: list[float] = []
        warm: list[float] = []
        for _ in range(plan.processes):
            reader = run.driver()
            times = plan.gets_moving if moves and word == "large" else plan.gets
            samples = reader.call("get", name=word, times=times)
            cold.append(samples[0])
            warm.extend(samples[1:])
            reader.end()
            if moves:
                break
        yield f"get {word} first", cold, word
        yield f"get {word}", warm, word


def _passes(run: PeerRun, writer: Driver, plan: Plan, moves: bool) -> _Found:
    """First pass in a new process, compared with passes over private memory in that process."""
    if moves:
        return
    for how in ("bytes", "sum"):
        found: dict[str, list[float]] = {"first": [], "later": [], "private": []}
        for _ in range(plan.processes):
            reader = run.driver()
            answer = reader.call("first_pass", name="large", how=how)
            found["first"].append(answer["first"])
            found["later"].extend(answer["later"])
            found["private"].extend(answer["private"])
            reader.end()
        for word, samples in found.items():
            yield f"pass {how} {word}", samples, "large"


def _readers(run: PeerRun, writer: Driver, plan: Plan, moves: bool) -> _Found:
    """Memory that three readers of the large table cost beyond the one copy."""
    readers = [run.driver() for _ in range(READERS)]
    for reader in readers:
        # One-time costs of any read: lazily loaded code, thread stacks.
        reader.call("hold", name="medium")
        reader.call("release")
    before = [memory_of(reader.pid) for reader in readers]
    for reader in readers:
        reader.call("hold", name="large")
    after = [memory_of(reader.pid) for reader in readers]
    grown = sum(now.own - then.own for now, then in zip(after, before, strict=True))
    yield "memory of readers beyond one copy", [float(max(grown, 0))], "large"
    yield "memory of readers, set sizes", [float(sum(now.total for now in after))], "large"
    for reader in readers:
        reader.end()


def _smalls(run: PeerRun, writer: Driver, plan: Plan, moves: bool) -> _Found:
    """Objects of 1 kB from Python."""
    driver = run.driver()
    count = plan.small // 10 if moves else plan.small
    gets = plan.small_gets // 10 if moves else plan.small_gets
    answer = driver.call("small", count=count, gets=gets, bulk=100)
    titles = {
        "put": "put small, named",
        "get": "get small, by name",
        "put_ref": "put small",
        "get_ref": "get small",
        "put_many": "put small, 100 at once, each",
        "get_many": "get small, 100 at once, each",
    }
    for key, samples in answer.items():
        yield titles[key], samples, "small"
    driver.end()


def measure_micro(repository: Path, variant: str, program: Path | None = None) -> Iterator[Sample]:
    """The Rust micro-benchmarks: describe, rebuild, allocate, publish, refresh.

    Args:
        repository: folder in which cargo builds them, and they run.
        variant: variant of the samples.
        program: path of a built program; None: cargo builds it.

    Raises:
        PeerError: cargo or the example does not exist, or it failed.
    """
    command: list[str | Path] = [*_CARGO_RUN, "--"] if program is None else [program]
    try:
        done = subprocess.run(
            [*command, "--json"],
            cwd=repository,
            capture_output=True,
            text=True,
            timeout=900,
            check=True,
        )
        found = json.loads(done.stdout)
    except FileNotFoundError:
        raise PeerError("no cargo on the path: the Rust micro-benchmarks are left out") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        raise PeerError(f"microbench failed: {lines[-1] if lines else error}") from None
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        raise PeerError(f"microbench: {error}") from None
    for item in found:
        yield _micro_sample(item, variant)


def _micro_sample(item: dict[str, Any], variant: str) -> Sample:
    return Sample(
        f"micro {item['name']}",
        "farrow",
        variant,
        str(item["unit"]),
        [float(value) for value in item["samples"]],
    )
