"""The store measurements of each peer, with their repetitions and order."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from harness.accounts import cpu_seconds, held_bytes
from harness.process import Driver, PeerError, PeerRun
from harness.tasks import ROW_BYTES, Sample

__all__ = [
    "CLASSES",
    "KINDS",
    "PROGRAM",
    "QUICK_CLASSES",
    "StorePlan",
    "class_title",
    "measure_large",
    "measure_limits",
    "measure_store",
]

PROGRAM = "store_driver.py"
# Objects and bytes of each, after the table of the Plasma paper.
CLASSES = (
    (1000, 1_000),
    (500, 10_000),
    (200, 100_000),
    (100, 1_000_000),
    (50, 10_000_000),
    (10, 100_000_000),
)
QUICK_CLASSES = (*CLASSES[:4], (10, 10_000_000))
SMALL_BYTES = 1_000
# Units of the samples, beside seconds.
KINDS = {
    "memory per object": "bytes",
    "idle": "s/s",
    "memory per named object": "bytes",
    "rate 1 client": "1/s",
    "rate 2 clients": "1/s",
    "rate named 1 client": "1/s",
    "rate named 2 clients": "1/s",
    "compute 1 process": "1/s",
    "compute 2 processes": "1/s",
}
# Pages of a fresh region are committed in the background; a store in use has them.
_READY_SECONDS_MAX = 30.0
_START_SECONDS = 0.4

_Found = Iterator[Sample]
_Say = Callable[[str, bool], None]
_Task = Callable[..., _Found]


@dataclasses.dataclass(frozen=True)
class StorePlan:
    """The scope of a run."""

    classes: tuple[tuple[int, int], ...] = CLASSES
    rounds: int = 5
    large_rounds: int = 11
    # Servers for the largest objects, because the speed of memory varies.
    servers: int = 5
    reads: int = 8
    large_rows: int = 157_286_400
    tables: int = 4
    latency: int = 5_000
    many_bulk: int = 1_000
    many_rounds: int = 10
    rate_rounds: int = 7
    rate_seconds: float = 0.35
    rate_pairs_max: int = 100_000
    fill: int = 100_000
    fill_seconds_max: float = 12.0
    idle_seconds: float = 2.0
    seconds_max: float = 900.0

    @classmethod
    def quick(cls) -> StorePlan:
        """A smaller scope, for trials, not for citing; objects of 100 MB shrink to 10 MB."""
        return cls(
            classes=QUICK_CLASSES,
            rounds=2,
            large_rounds=3,
            servers=1,
            reads=2,
            large_rows=15_728_640,
            tables=2,
            latency=500,
            many_bulk=200,
            many_rounds=3,
            rate_rounds=1,
            rate_seconds=0.3,
            rate_pairs_max=10_000,
            fill=5_000,
            fill_seconds_max=3.0,
            idle_seconds=1.0,
            seconds_max=110.0,
        )

    @property
    def capacity(self) -> int:
        """Capacity of the server: two tables, or the largest class twice, and small objects."""
        largest = max(count * size for count, size in self.classes)
        table = self.large_rows * ROW_BYTES
        return int(2.2 * max(largest, table)) + 4 * self.fill * SMALL_BYTES + (256 << 20)


def _is_both(about: dict[str, Any]) -> bool:
    """Whether objects are measured twice: by reference, and under names as most peers have."""
    return bool(about["can_name"] and about["can_unnamed"] and not about["is_queue"])


def class_title(count: int, size: int) -> str:
    """``1000 x 1 kB``."""
    text = f"{size // 1_000_000} MB" if size >= 1_000_000 else f"{size // 1_000} kB"
    return f"{count} x {text}"


def measure_limits(plan: StorePlan, variant: str) -> Iterator[Sample]:
    """The best copy with all cores, and a pass over private memory, of the largest class."""
    import numpy as np

    size = max(count * each for count, each in plan.classes)
    try:
        from farrow import _native

        buffers = _native.CopyBuffers(size)
        yield Sample("copy", "limit", variant, "s", [buffers.copy() for _ in range(11)], size)
        del buffers
    except (ImportError, AttributeError):
        pass
    words = np.ones(size // 8, dtype=np.uint64)
    passes = []
    for _ in range(5):
        began = time.perf_counter()
        np.bitwise_xor.reduce(words)
        passes.append(time.perf_counter() - began)
    yield Sample("read private", "limit", variant, "s", passes, size)


def measure_large(peer: str, plan: StorePlan, variant: str, say: _Say) -> Iterator[Sample]:
    """The largest objects and the table of one peer: where the size of pages matters."""
    plan = dataclasses.replace(plan, classes=plan.classes[-1:])
    with PeerRun(peer, plan.capacity, PROGRAM) as run:
        first = run.driver()
        _settle(first)
        about = first.call("about")
        for task in (_classes, _table):
            for sample in _tried(task, run, plan, about, say):
                yield dataclasses.replace(sample, peer=peer, variant=variant)
            run.end_drivers(keep=first)


def measure_store(
    peer: str, plan: StorePlan, variant: str, deadline: float, say: Callable[[str, bool], None]
) -> Iterator[Sample]:
    """All measurements of one peer, until ``deadline``.

    A failed measurement is reported, and the next one runs in new processes.
    ``say`` gets each line of progress, and whether the report must repeat it.
    """
    with PeerRun(peer, plan.capacity, PROGRAM) as run:
        first = run.driver()
        _settle(first)
        about = first.call("about")
        if about["remarks"]:
            say(f"{peer}: {about['remarks']}", True)
        tasks = (_classes, _latencies, _manies, _rates, _idle, _table)
        for number, task in enumerate(tasks):
            for sample in _tried(task, run, plan, about, say):
                yield dataclasses.replace(sample, peer=peer, variant=variant)
            run.end_drivers(keep=first)
            if time.monotonic() > deadline:
                left = ", ".join(_word(one) for one in (*tasks[number + 1 :], _memory))
                say(f"{peer}: out of time; not measured: {left}", True)
                return
    for _ in range(plan.servers - 1 if about["has_best_copy"] else 0):
        with PeerRun(peer, plan.capacity, PROGRAM) as run:
            for sample in _tried(_largest, run, plan, about, say):
                yield dataclasses.replace(sample, peer=peer, variant=variant)
    # A server with many earlier objects would reuse memory, and show no growth.
    for task in (_memory, _memory_named) if _is_both(about) else (_memory,):
        with PeerRun(peer, plan.capacity, PROGRAM) as run:
            for sample in _tried(task, run, plan, about, say):
                yield dataclasses.replace(sample, peer=peer, variant=variant)


def _word(task: Callable[..., Any]) -> str:
    return task.__name__.strip("_")


def _tried(
    task: _Task, run: PeerRun, plan: StorePlan, about: dict[str, Any], say: _Say
) -> Iterator[Sample]:
    """The samples of a task up to its end or its failure, which is reported."""
    began = time.monotonic()
    try:
        yield from task(run, plan, about, say)
    except PeerError as error:
        say(f"{_word(task)}: {error}", True)
    say(f"  {_word(task)} {time.monotonic() - began:.1f} s", False)


def _sample(case: str, samples: list[float], size: int = 0) -> Sample:
    return Sample(case, "", "", KINDS.get(case, "s"), samples, size)


def _settle(driver: Driver) -> None:
    """Wait until the server has committed its pages, if its counters show that."""
    limit = time.monotonic() + _READY_SECONDS_MAX
    while time.monotonic() < limit:
        stats = driver.call("stats")
        if "prepared" not in stats or stats["prepared"] >= stats["capacity"]:
            break
        time.sleep(0.1)


def _classes(run: PeerRun, plan: StorePlan, about: dict[str, Any], say: _Say) -> _Found:
    """The table: one process writes; another, which is running already, retrieves."""
    writer, reader = run.driver(), run.driver()
    for count, size in plan.classes:
        title, total = class_title(count, size), count * size
        is_last = (count, size) == plan.classes[-1]
        if is_last:
            reader.end()
            reader = run.driver()
        for driver, role in ((writer, "write"), (reader, "read")):
            driver.call("prepare", count=count, size=size, scope=f"class-{size}", role=role)
        # The largest objects are measured once: a name is under a hundredth of their time.
        tokens = yield from _written(
            writer, plan, count, size, is_last, is_last and _is_both(about)
        )
        if is_last:
            found = reader.call(
                "scan", tokens=tokens, size=size, laters=0 if _is_once(about) else 3
            )
            for word in ("first", "later", "private"):
                samples = found[word] if isinstance(found[word], list) else [found[word]]
                if samples:
                    yield _sample(f"scan {word} {title}", samples, total)
        if not (is_last and _is_once(about)):
            rounds = 1 if _is_once(about) else plan.reads
            yield from _read(reader, tokens, size, rounds, "", title)
        writer.call("drop")
        if _is_both(about) and not is_last:
            tokens = yield from _written(writer, plan, count, size, False, True, " named")
            yield from _read(reader, tokens, size, plan.reads, " named", title)
            writer.call("drop")


def _read(
    reader: Driver, tokens: list[str], size: int, rounds: int, word: str, title: str
) -> _Found:
    """Get the objects of one class, one by one and in a batch."""
    found = reader.call("read", tokens=tokens, size=size, rounds=rounds)
    total = len(tokens) * size
    yield _sample(f"get{word} {title}", found["single"], total)
    if found["batch"]:
        yield _sample(f"get batch{word} {title}", found["batch"], total)


def _written(
    writer: Driver,
    plan: StorePlan,
    count: int,
    size: int,
    is_last: bool,
    is_named: bool,
    word: str = "",
) -> Generator[Sample, None, list[str]]:
    """Write objects of one class; returns samples and the tokens of the last ones."""
    title, total = class_title(count, size), count * size
    rounds = plan.large_rounds if is_last else plan.rounds
    asked = {"count": count, "size": size, "rounds": rounds}
    written = writer.call("write", **asked, compares=is_last, is_named=is_named)
    if not word:
        yield _sample(f"write first {title}", written["seconds"][:1], total)
    yield _sample(f"write{word} {title}", written["seconds"][1:], total)
    if written["copies"]:
        yield _sample(f"copy in turn {title}", written["copies"][1:], total)
    tokens: list[str] = written["tokens"]
    return tokens


def _largest(run: PeerRun, plan: StorePlan, about: dict[str, Any], say: _Say) -> _Found:
    """The last line of the table again, on another server."""
    writer = run.driver()
    _settle(writer)
    count, size = plan.classes[-1]
    writer.call("prepare", count=count, size=size, scope=f"class-{size}", role="write")
    yield from _written(writer, plan, count, size, True, _is_both(about))


def _is_once(about: dict[str, Any]) -> bool:
    return bool(about["is_queue"])


def _latencies(run: PeerRun, plan: StorePlan, about: dict[str, Any], say: _Say) -> _Found:
    """One by one, 1 kB: one process puts, another gets; without names, and with."""
    words = ([""] if about["can_unnamed"] else []) + ([" named"] if about["can_name"] else [])
    writer, reader = run.driver(), run.driver()
    for word in words:
        names = [f"latency-{place}" for place in range(plan.latency)] if word else None
        shared = {"names": names, "count": plan.latency, "size": SMALL_BYTES, "scope": "latency"}
        if not word:
            reader.call("latency_ready", **shared)
        put = writer.call("latency_put", **shared)
        if word:
            reader.call("latency_ready", **shared)
        got = reader.call("latency_get", tokens=put["tokens"], size=SMALL_BYTES)
        yield _sample(f"put{word} 1 kB", put["put"], SMALL_BYTES)
        yield _sample(f"get{word} 1 kB", got, SMALL_BYTES)
        writer.call("drop")


def _manies(run: PeerRun, plan: StorePlan, about: dict[str, Any], say: _Say) -> _Found:
    """Many objects in one call, if the peer has such calls."""
    if not {"put_many", "get_many"} <= set(about["has"]):
        return
    driver = run.driver()
    asked = {"bulk": plan.many_bulk, "rounds": plan.many_rounds, "size": SMALL_BYTES}
    for word in ("", " named") if _is_both(about) else ("",):
        found = driver.call("many", **asked, is_named=bool(word))
        for case, samples in found.items():
            yield _sample(f"{case}{word} 1 kB each", samples, SMALL_BYTES)


def _rates(run: PeerRun, plan: StorePlan, about: dict[str, Any], say: _Say) -> _Found:
    """Pairs of put and get of 1 kB in a second, by one process and by two together.

    For Farrow these alternate with pure compute by the same processes, which gives the best
    possible gain of a second processor at that time.
    """
    drivers = [run.driver(), run.driver()]
    works = ["rate", "rate named"] if _is_both(about) else ["rate"]
    works += ["compute"] if run.peer == "farrow" else []
    cases = [(work, count) for work in works for count in (1, 2)]
    samples: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for _ in range(plan.rate_rounds):
        for work, count in cases:
            rate = _together(drivers[:count], work, plan)
            if rate is None:
                say(f"{run.peer}: a client of {count} started late; the round is left out", True)
            else:
                samples[work, count].append(rate)
    for (work, count), found in samples.items():
        if found:
            noun = "process" if work == "compute" else "client"
            word = noun if count == 1 else f"{noun}{'es' if work == 'compute' else 's'}"
            yield _sample(f"{work} {count} {word}", found, 0 if work == "compute" else SMALL_BYTES)


def _together(drivers: list[Driver], work: str, plan: StorePlan) -> float | None:
    """The total rate of all drivers from a common start; None if one of them started late."""
    start = drivers[0].call("now") + _START_SECONDS
    asked: dict[str, Any] = {"start_at": start, "seconds": plan.rate_seconds}
    if work != "compute":
        asked |= {"pairs_max": plan.rate_pairs_max, "size": SMALL_BYTES}
        asked["is_named"] = work == "rate named"
    call = work.partition(" ")[0]
    for driver in drivers:
        driver.ask(call, **asked)
    found = [driver.answer(call) for driver in drivers]
    for driver in drivers:
        driver.call("drop")
    if any(item["late"] > 0 for item in found):
        return None
    # Each rate over its own time: the sum is the rate while all were working.
    return float(sum(it["pairs"] / (it["ended"] - it["began"]) for it in found))


def _idle(run: PeerRun, plan: StorePlan, about: dict[str, Any], say: _Say) -> _Found:
    """Processor time of the server in a second without client activity."""
    family = run.server_family()
    if not family:
        return
    time.sleep(0.5)
    before, began = cpu_seconds(family), time.monotonic()
    time.sleep(plan.idle_seconds)
    used = cpu_seconds(family) - before
    yield _sample("idle", [used / (time.monotonic() - began)])


def _table(run: PeerRun, plan: StorePlan, about: dict[str, Any], say: _Say) -> _Found:
    """The large Arrow table, written by one process and got by another."""
    if "put_table" not in about["has"]:
        return
    writer, reader = run.driver(), run.driver()
    put = writer.call("put_table", rows=plan.large_rows, times=plan.tables)
    yield _sample("table put first", put["put"][:1], put["bytes"])
    yield _sample("table put", put["put"][1:], put["bytes"])
    got = reader.call("get_table", token=put["token"], rows=plan.large_rows, times=20)
    yield _sample("table get first", got[:1], put["bytes"])
    yield _sample("table get", got[1:], put["bytes"])
    writer.call("drop")


def _memory(run: PeerRun, plan: StorePlan, about: dict[str, Any], say: _Say) -> _Found:
    """Memory of 1 kB objects beyond their bytes."""
    if about["is_queue"]:
        return
    yield _filled(run, plan, about, say, "")


def _memory_named(run: PeerRun, plan: StorePlan, about: dict[str, Any], say: _Say) -> _Found:
    """The same of objects with names."""
    yield _filled(run, plan, about, say, "named ")


def _filled(run: PeerRun, plan: StorePlan, about: dict[str, Any], say: _Say, word: str) -> Sample:
    has_own = "used" in about["has"]
    driver = run.driver()
    asked = {"size": SMALL_BYTES, "seconds_max": plan.fill_seconds_max, "is_named": bool(word)}
    driver.call("fill", count=1_000, **asked)
    kept_before = driver.call("used") if has_own else held_bytes(run.server_family())
    count = driver.call("fill", count=plan.fill, **asked)
    kept = driver.call("used") if has_own else held_bytes(run.server_family())
    how = about["accounting"] if has_own else "private memory and shared files of the server"
    say(f"{run.peer}: memory per {word}object of {count:,} objects, by {how}", True)
    extra = (kept - kept_before) / count - SMALL_BYTES
    return _sample(f"memory per {word}object", [extra], SMALL_BYTES)
