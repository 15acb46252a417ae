"""A graph's days behind a network, and behind links of other speeds (``bench/network``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graph
import network
from harness.tasks import Sample

from reproduction.experiment import (
    BATCH,
    CYCLES,
    SCATTER,
    SIMPLE,
    TITLES,
    Cells,
    Experiment,
    Room,
    View,
    factor,
    number,
    rate,
    throughput,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["Caches", "Network", "WhatIf"]

PRIVATE, MAPPED, GRPC = "private memory", "segments in memory", "gRPC"
_WINDOWS = ((SCATTER, 6), (SIMPLE, 24), (CYCLES, 24))
# Edges that one search for simple cycles may read: without a cache each row of edges is a call.
_WORK_MAX = 1_000_000
_DESIGNS = {"thesis": "the thesis' design", "ours": "our design"}
# The last full day, and a Sunday in the middle of the stream, which begins on a Thursday.
_DAYS = {"busy": "a working day", "quiet": "a Sunday"}
_QUIET_DAY = 3
# Over hours nearly all visited rows are in the cache, for any link.
_TASKS = {
    f"{TITLES[one]} {hours} h": (one, hours)
    for one, hours in ((SCATTER, 6), (CYCLES, 24), (SCATTER, 72))
}


def _stream(room: Room) -> Path:
    """A stream in the program's format, made once in a run."""
    rows = 400_000 if room.is_quick else 1_500_000
    path = room.folder / f"stream-{rows}.bin"
    if not path.exists():
        unnamed = path.with_suffix(".part")
        graph.stream(rows, unnamed)
        unnamed.rename(path)
    room.note(f"{rows:,} rows of 10 days; both processes on one machine, over loopback")
    return path


def _work(pattern: str, hours: int, seconds: float, rows: int = 40_960) -> list[str]:
    return [
        *("--pattern", pattern, "--hours", str(hours), "--batch", str(BATCH)),
        *("--rows", str(rows // BATCH * BATCH), "--seconds", str(seconds)),
        *(("--work-max", str(_WORK_MAX)) if pattern == SIMPLE else ()),
    ]


def _note_cut(room: Room, what: str, answer: dict[str, Any]) -> None:
    """Note how many searches over the network ended at the limit."""
    network = answer["network"]
    if cut := network["cut_short"]:
        room.note(
            f"{what}: in {network['rows']:,} rows {cut:,} searches ended after {_WORK_MAX:,} edges"
        )


def _calls(answer: dict[str, Any]) -> dict[str, float]:
    """Hits in a hundred, calls and bytes, the latter for a batch."""
    counters = answer["network"]["counters"]
    hits = counters["hits"] + counters["negative_hits"]
    batches = max(1, len(answer["network"]["times"]))
    return {
        "hits, %": 100 * hits / max(1, hits + counters["misses"]),
        "calls a batch": counters["calls"] / batches,
        "kB a batch": counters["bytes"] / 1e3 / batches,
    }


class Network(Experiment):
    """Load and store against gRPC."""

    name = "network"
    title = "Load/store against gRPC"
    about = (
        "The thesis' base line fetches rows from the node that has the days by gRPC, behind a"
        " software cache. Here the same search runs over private memory, over segments in memory,"
        " and over rows fetched from a second process by gRPC on loopback: as the thesis designed"
        " it, and in the best way we know (calls for many rows, fetched ahead, no copies). All find"
        " the same. All hits: a second pass over the same rows, with a cache that has them all."
        " Segments in memory are this process's own; what another node's cost stands above."
    )
    seconds_max = (150.0, 540.0)
    views = (
        View(SCATTER, "Scatter-gather, 6 h", "rows a second", rate),
        View(SIMPLE, "Simple cycles, 24 h", "rows a second", rate),
        View(CYCLES, "Temporal cycles, 24 h", "rows a second", rate),
        View(f"{SCATTER}, calls", "Scatter-gather: the network", "", chart="", digits=1),
        View(f"{SIMPLE}, calls", "Simple cycles: the network", "", chart="", digits=1),
        View(f"{CYCLES}, calls", "Temporal cycles: the network", "", chart="", digits=1),
        View("over memory", "gRPC over segments in memory, common batches", "times", digits=1),
        View("a hit", "A hit alone", "ns", digits=0),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """Each way, compared with private memory and segments in the same run."""
        program, path = network.binary(), _stream(room)
        chosen = ("no cache", "large cache", "all hits")
        for pattern, hours in _WINDOWS:
            work = _work(pattern, hours, room.pick(1.5, 10.0))
            for end in chosen:
                for design in ("thesis", "ours"):
                    way = f"{design}, {end}"
                    answer = network.run(program, "compare", str(path), *work, *network.WAYS[way])
                    _note_cut(room, f"{TITLES[pattern]}, {way}", answer)
                    for place, key in ((PRIVATE, "private"), (MAPPED, "mapped"), (GRPC, "network")):
                        yield Sample(way, place, pattern, "s", answer[key]["times"])
                    slower = answer["network_over_mapped"]
                    yield Sample(way, TITLES[pattern], "over memory", "times", [slower])
                    for what, value in _calls(answer).items():
                        yield Sample(way, what, f"{pattern}, calls", what, [value])
                    replay = answer["replay"]
                    if design == "thesis" and replay:
                        for one in ("thesis", "ours"):
                            yield Sample(TITLES[pattern], one, "a hit", "ns", [replay[f"{one}_ns"]])

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """Time over the network by time with segments in memory, over the batches that both did."""

        def over(design: str, end: str, pattern: str) -> str | None:
            found = cells.get("over memory", f"{design}, {end}", TITLES[pattern])
            return None if found is None else f"{found:.1f} times ({_DESIGNS[design]})"

        found: dict[str, str | None] = {}
        for word, end in (("cache", "large cache"), ("none", "no cache"), ("hits", "all hits")):
            for pattern, _ in _WINDOWS:
                both = filter(None, (over(design, end, pattern) for design in _DESIGNS))
                found[f"{word} {pattern}"] = "; ".join(both) or None
        bare = cells.get(SIMPLE, "thesis, no cache", GRPC, throughput)
        shown = None if bare is None else f"{bare:,.0f} rows/s, local server (the thesis' design)"
        return {f"rate none {SIMPLE}": shown, **found}


class Caches(Experiment):
    """Sizes and policies of the cache."""

    name = "caches"
    title = "Sizes of the cache in front of the network"
    about = (
        "The windows of the thesis' base line, 6 hours of scatter-gather and 24 of simple cycles,"
        " and 24 of temporal cycles, without a cache and by its bytes: the thesis' design and ours,"
        " and what makes room. Once on the"
        " last full day, a Friday, where searches are long, and once on a Sunday, where they are"
        " short: the thesis picks slow and fast batches of its data."
    )
    seconds_max = (200.0, 900.0)
    views = (
        *(
            View(f"{pattern}, {day}", f"{TITLES[pattern].capitalize()}, {words}", "rows a second",
                 rate, "curves", "bytes of the cache")
            for pattern, _ in _WINDOWS
            for day, words in _DAYS.items()
        ),
        *(
            View(f"{pattern}, {day}, hits", f"{TITLES[pattern].capitalize()}, {words}: hits",
                 "of a hundred", chart="curves", across="bytes of the cache", digits=1)
            for pattern, _ in _WINDOWS
            for day, words in _DAYS.items()
        ),
    )  # fmt: skip
    _QUICK = ("64 KiB", "16 MiB")
    _FULL = ("64 KiB", "256 KiB", "1 MiB", "4 MiB", "16 MiB", "64 MiB", "256 MiB")
    _QUIET = ("64 KiB", "1 MiB", "16 MiB", "256 MiB")

    def run(self, room: Room) -> Iterator[Sample]:
        """From no cache to one for all rows, on both days."""
        program, path = network.binary(), _stream(room)
        for day in _DAYS:
            when = ["--day", str(_QUIET_DAY)] if day == "quiet" else []
            sizes = self._QUICK if room.is_quick else self._QUIET if when else self._FULL
            for pattern, hours in _WINDOWS:
                # Policies differ where the cache is too small: one task shows them.
                is_short = room.is_quick or bool(when) or pattern != SCATTER
                work = [*_work(pattern, hours, room.pick(0.7, 2.0), 20_480), *when]
                for size in ("0 B", *sizes):
                    for way, options in self._ways(size, is_short).items():
                        answer = network.run(program, "compare", str(path), *work, *options)
                        _note_cut(room, f"{TITLES[pattern]}, {day}, {size}, {way}", answer)
                        times = answer["network"]["times"]
                        yield Sample(size, way, f"{pattern}, {day}", "s", times)
                        hits = _calls(answer)["hits, %"]
                        yield Sample(size, way, f"{pattern}, {day}, hits", "%", [hits])
                        # Over the same batches, with segments in memory, in the same run.
                        slower = answer["network_over_mapped"]
                        yield Sample(size, way, f"{pattern}, {day}, slower", "times", [slower])

    @staticmethod
    def _ways(size: str, is_short: bool) -> dict[str, list[str]]:
        """Designs with their policies; without a cache, designs alone."""
        if not number(size):
            return {f"{one}, no cache": ["--design", one, "--no-cache"] for one in _DESIGNS}
        policies = ("lru",) if is_short else ("lru", "fifo", "random", "lfu")
        chosen = (("thesis", "lru"), *(("ours", one) for one in policies))
        return {
            f"{design}, {policy.upper() if policy != 'random' else policy}": [
                *("--design", design, "--policy", policy, "--capacity", str(int(number(size)))),
            ]
            for design, policy in chosen
        }

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """By size, in both designs; hits at both ends."""
        found: dict[str, str | None] = {}
        for pattern, _ in _WINDOWS:
            for day in _DAYS:
                texts = [self._sizes(cells, f"{pattern}, {day}", design) for design in _DESIGNS]
                found[f"{pattern}, {day}"] = "; ".join(filter(None, texts)) or None
                found[f"faster {pattern}, {day}"] = self._faster(cells, f"{pattern}, {day}")
                found[f"gain {pattern}, {day}"] = self._gain(cells, f"{pattern}, {day}")
            found[pattern] = found[f"{pattern}, busy"]
            found[f"hits {pattern}"] = self._hits(cells, f"{pattern}, busy, hits")
        return found

    @staticmethod
    def _sizes(cells: Cells, variant: str, design: str) -> str | None:
        parts = []
        for size in cells.cases(variant):
            policy = "no cache" if not number(size) else "LRU"
            speed = cells.get(variant, size, f"{design}, {policy}", throughput)
            if speed is not None:
                parts.append(f"{speed:,.0f} ({policy if not number(size) else size})")
        return f"{_DESIGNS[design]}: {', '.join(parts)} rows/s" if parts else None

    @staticmethod
    def _faster(cells: Cells, variant: str) -> str | None:
        """Memory over the network with the largest cache."""
        sizes = cells.cases(variant)
        texts = []
        for design, words in _DESIGNS.items():
            found = cells.get(f"{variant}, slower", sizes[-1], f"{design}, LRU") if sizes else None
            if found is not None:
                texts.append(f"{found:.1f} times ({words}, {sizes[-1]})")
        return "; ".join(texts) or None

    @staticmethod
    def _gain(cells: Cells, variant: str) -> str | None:
        """The throughput with the largest cache, of that without one."""
        sizes = cells.cases(variant)
        texts = []
        for design, words in _DESIGNS.items():
            bare = cells.get(variant, "0 B", f"{design}, no cache", rate)
            most = cells.get(variant, sizes[-1], f"{design}, LRU", rate) if sizes else None
            gain = factor(most, bare, 1)
            if gain is not None:
                texts.append(f"{gain} ({words}, {sizes[-1]})")
        return "; ".join(texts) or None

    @staticmethod
    def _hits(cells: Cells, variant: str) -> str | None:
        sizes = [size for size in cells.cases(variant) if number(size)]
        ends = [cells.get(variant, size, "thesis, LRU") for size in sizes[:: len(sizes) - 1 or 1]]
        shown = [f"{value:.0f} %" for value in ends if value is not None]
        return f"{' to '.join(shown)} (the thesis' design)" if shown else None


class WhatIf(Experiment):
    """Remote memory of other speeds."""

    name = "whatif"
    title = "What if: remote memory of other speeds"
    about = (
        "By the thesis' formula: the time measured here, and for each load of the older days that"
        " the last-level cache misses, what a remote line takes longer than one here. Misses are"
        " the processor's, of all loads, where it counts them; else those of a model of its last"
        " cache, empty at first, for loads of the older days, of which whole rows are touched."
        " Misses do not overlap, so real links are faster. Each sum is checked by a run that waits"
        " that long at each of the model's misses."
    )
    seconds_max = (120.0, 270.0)
    views = (
        View("speed", "Throughput predicted", "rows a second"),
        View("slower", "Time, of that in memory here", "times", digits=2),
        View("check", "Predicted, of the run with delays", "times", chart="", digits=2),
        View("latency", "Latency of a line", "ns"),
    )

    def run(self, room: Room) -> Iterator[Sample]:
        """Both base lines and a longer window, all links."""
        program, path = network.binary(), _stream(room)
        for task, (pattern, hours) in _TASKS.items():
            work = _work(pattern, hours, room.pick(0.5, 4.0))
            answer = network.run(program, "whatif", str(path), *work)
            local = answer["local_rows_per_second"]
            yield Sample("memory here", task, "speed", "rows/s", [local])
            yield Sample("memory here", task, "latency", "ns", [answer["local_ns"]])
            for link in answer["links"]:
                name = link["link"]
                check = link["check"]["predicted_over_measured"]
                yield Sample(name, task, "speed", "rows/s", [link["rows_per_second"]])
                yield Sample(name, task, "slower", "times", [link["over_local"]])
                yield Sample(name, task, "check", "times", [check])
                yield Sample(name, task, "latency", "ns", [link["latency_ns"]])
            room.note(
                f"{task}: {answer['misses_per_row']:.2f} misses a row ({answer['counters']}); a"
                f" line takes {answer['local_ns']:.0f} ns here now: faster links add nothing"
            )

    def ours(self, cells: Cells) -> Mapping[str, str | None]:
        """Injected latencies, and their effect on scatter-gather."""

        def of(link: str) -> str | None:
            texts = [
                f"{slower:.2f} ({task})"
                for task in _TASKS
                if (slower := cells.get("slower", link, task)) is not None
            ]
            return f"takes {', '.join(texts)} times as long" if texts else None

        checks = [
            found
            for link in cells.cases("check")
            for task in _TASKS
            if (found := cells.get("check", link, task)) is not None
        ]
        spread = (
            f"{min(checks):.2f} to {max(checks):.2f} of the run with delays" if checks else None
        )
        here = cells.get("latency", "memory here", next(iter(_TASKS)))
        cxl = "; ".join(
            f"{link}: {found}"
            for link in ("CXL, direct", "CXL, switched")
            if (found := of(link)) is not None
        )
        return {
            "ThymesisFlow": of("ThymesisFlow"),
            "CXL": cxl or None,
            "Power10": of("Power10"),
            "local": None if here is None else f"{here:.0f} ns",
            "predicted": spread,
        }
