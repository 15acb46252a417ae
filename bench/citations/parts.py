"""Figures of the design notes: cache maintenance, a software cache, the network fabric."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING, Any

from citations.raw import Run, digits, of_medians, run_of, shown, spread, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["by_net", "coherence", "fabric", "hits", "off_base", "slower"]

_GIB = 1 << 30
# Ways of one pattern differ in the network alone: their segments here should be as far from private
# memory in all.
_OFF_MAX = 0.2


def coherence(page: str) -> str:
    """Farrow's measuring loops beside a C program."""
    run = run_of("coherence")
    rows = []
    for title, case in (
        ("`clflushopt`, clean, uncached, 1 GiB, ns a line", "clflushopt clean uncached 1 GiB"),
        ("`clflushopt`, dirty, 16 MiB", "clflushopt dirty 16 MiB"),
        ("`clflushopt`, dirty, 1 MiB, which the second-level cache holds",
         "clflushopt dirty 1 MiB"),
        ("`clflush`, dirty, 1 MiB", "clflush dirty 1 MiB"),
        ("store, then `clwb`, 64 MiB, GiB/s", "store, clwb 64 MiB"),
        ("copy past the cache, 64 MiB", "copy past the cache 64 MiB"),
        ("fill past the cache, 64 MiB", "fill past the cache 64 MiB"),
        ("one object of 1 KiB stored and published, of 1024 in a row, ns", "one object of 1 KiB"),
    ):  # fmt: skip
        both = [run.median(case, peer) for peer in ("c", "farrow")]
        # Speeds are compared as times.
        pair = ("farrow", "c") if "past the cache" in case or "store" in case else ("c", "farrow")
        ratio = statistics.median(run.ratios(case, pair[0], case, pair[1]))
        rows.append([title, *(f"{value:.3g}" for value in both), f"{ratio:.2f}"])
    return table(["", "C", "Farrow", "Farrow's time / C's"], rows) + f"\n\n{_picked(run)}"


_PICKED = re.compile(r"(?:picked over best|not looked at): \d+ of (\d+) above 1.1, worst ([\d.]+)")


def _picked(run: Run) -> str:
    """What the profile chose, from the notes of the run."""
    notes = [match for note in run.document["notes"] if (match := _PICKED.fullmatch(note))]
    if len(notes) != 2:
        raise ValueError(f"{run.name} has {len(notes)} notes of choices, 2 are needed")
    (many, worst), (few, worst_of_few) = (match.groups() for match in notes)
    return (
        f"Of the {many} choices in that run (sizes and purposes, with small and with huge pages)"
        f" the picked way was the\nbest one or within {100 * (float(worst) - 1):.0f} % of it in"
        f" all, and within {100 * (float(worst_of_few) - 1):.0f} % in the {few} that the profile"
        " does not look at."
    )


def hits(page: str) -> str:
    """A hit alone in both designs of the cache, by the length of the row."""
    run = run_of("network")
    answers = run.document["answers"]
    rows = [
        [
            f"{one['entries_per_row']:,.0f}", f"{one['thesis_ns']:,.0f}", f"{one['ours_ns']:,.0f}",
            _ratio(one["thesis_over_ours"]), f"{one['thesis_read_ns']:,.0f}",
            f"{one['ours_read_ns']:,.0f}", _ratio(one["thesis_over_ours_read"]),
        ]
        for one in answers
        if one["kind"] == "hits"
    ]  # fmt: skip
    heads = ["entries a row", "thesis, ns", "ours", "ratio", "thesis, and every entry read",
             "ours, and read", "ratio"]  # fmt: skip
    hot: dict[str, list[str]] = {}
    replayed: list[str] = []
    compared = [one for one in answers if one["kind"] == "compare"]
    for one in compared:
        if one["way"].endswith("all hits"):
            design = one["way"].partition(",")[0]
            text = slower(one)
            off = off_base(one, [each for each in compared if each["name"] == one["name"]])
            if off is not None:
                text += f", not comparable: its segments here took {off:.1f} times the usual time"
            hot.setdefault(design, []).append(text)
            if design == "thesis":
                replayed.append(f"{one['replay']['thesis_over_ours']:.1f} ({one['name']})")
    tail = (
        "\n\nThe ratio for the reference alone grows with the row; where every entry is read,"
        " reading takes the most time in\nboth designs. Over the rows that searches asked for it is"
        f" {' and '.join(replayed)}.\nA whole search with all hits does far more than ask for rows:"
        " it takes so many times as long as with\nsegments here, in parentheses the least and the"
        f" most of a batch. The thesis' design: {'; '.join(hot['thesis'])}.\nOurs:"
        f" {'; '.join(hot['ours'])} ({run.link(page)})."
    )
    return table(heads, rows) + tail


def slower(answer: dict[str, Any]) -> str:
    """How many times as long as segments here, and the least and the most of its batches."""
    times = zip(answer["mapped"]["times"], answer["network"]["times"], strict=False)
    found = [there / here for here, there in times]
    ratio = _ratio(answer["network_over_mapped"])
    return f"{ratio} ({_ratio(min(found))} to {_ratio(max(found))})"


def off_base(answer: dict[str, Any], others: Iterable[dict[str, Any]]) -> float | None:
    """How many times as long its segments here take over private memory as those of the median way
    of the pattern; None within a fifth."""
    middle = statistics.median(one["mapped_over_private"] for one in others)
    ratio: float = answer["mapped_over_private"] / middle
    return None if abs(ratio - 1) <= _OFF_MAX else ratio


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def by_net(page: str) -> str:
    """Objects of a node whose memory cannot be mapped, beside Flight and raw TCP."""
    run = run_of("by-net")
    rows = []
    for title, case, peer, peer_title, unit in (
        ("get a table of 1.5 GiB, first in its node", "whole", "flight", "Flight", "ms"),
        ("get it and read all columns", "whole read", "flight", "Flight", "ms"),
        ("2 of its 100 columns", "columns", "flight", "Flight", "ms"),
        ("100 rows of 2 columns", "rows", "flight", "Flight", "us"),
        ("get the table in a second process of the machine", "again", "flight", "Flight", "ms"),
        ("get it and read all columns there", "again read", "flight", "Flight", "ms"),
        ("1 kB of bytes", "small", "flight", "Flight", "us"),
        ("64 KiB on demand: first read of a page", "fault", "raw", "raw TCP", "us"),
        ("a column in order, on demand", "scan", "fetch", "`farrow.fetch` first", "ms"),
    ):
        ours, theirs = run.need(case, "farrow", ""), run.need(case, peer, "")
        ratio, low, high = of_medians(ours, theirs)
        rows.append([
            title, f"{shown(statistics.median(ours), unit)} ({spread(ours, unit)})",
            f"{shown(statistics.median(theirs), unit)} ({peer_title})",
            f"{digits(ratio)} ({digits(low)} to {digits(high)})",
        ])  # fmt: skip
    lead = (
        f"`make bench-by-net`, {run.link(page)}: two nodes of one machine that do not map each"
        " other's memory, by loopback and without TLS.\nMedians, and the middle half of the"
        " samples; the ratio of the medians, and the least and the greatest ratio of a round."
        " Both sides share two cores.\n\n"
    )
    tail = (
        "\n\nThe second process has connected before it gets. Farrow maps the bytes for it, and"
        " moves none; Flight sends and copies all of them again. So the row with the read is the"
        " one to compare."
    )
    return lead + table(["", "Farrow", "other", "times faster"], rows) + tail


def fabric(page: str) -> str:
    """The network fabric beside raw TCP: the least and the most of the medians of the runs."""
    runs = run_of("fabric").document["runs"]

    def bulk(way: str, of: Callable[[Any], float]) -> str:
        return _span(
            statistics.median(of(one) for one in run["bulk"][way])
            for run in runs
            if way in run["bulk"]
        )

    def share(way: str, raw: str) -> str:
        if way == raw:
            return "1"
        return _span(
            statistics.median(
                theirs["seconds"] / ours["seconds"]
                for ours, theirs in zip(run["bulk"][way], run["bulk"][raw], strict=True)
            )
            for run in runs
            if way in run["bulk"]
        )

    rows = []
    for title, way, goal in (
        ("raw, committed", "raw, committed", ""),
        ("plain, committed", "net, committed", "0.85 of raw, 0.25 s"),
        ("raw, fresh", "raw, fresh", ""),
        ("plain, fresh", "net, fresh", "0.65 s"),
        ("plain, fresh huge pages", "net, fresh huge pages", "0.40 s"),
        ("TLS, committed", "net+TLS, committed", "half of plain, 0.6 s"),
        ("plain, 2 of 100 columns", "net, 2 of 100 columns", "10 ms for 20 MiB"),
    ):
        raw = "raw, " + way.partition(", ")[2].removesuffix(" huge pages")
        speed = bulk(way, lambda one: one["bytes"] / one["seconds"] / _GIB)
        cpu = bulk(
            way,
            lambda one: (
                (one["reader_cpu_seconds"] + one["home_cpu_seconds"]) / (one["bytes"] / _GIB)
            ),
        )
        rows.append([title, speed, share(way, raw), cpu, goal])
    heads = ["way", "GiB/s", "of raw TCP", "CPU s/GiB, both ends", "goal"]
    small = []
    for title, case, goal in (
        ("1 kB, first in the node, by open", "1 kB", "raw + 20"),
        ("64 KiB read", "64 KiB", "raw + 30"),
    ):
        cells = [
            _span(
                statistics.median(one["p50_us"] for one in run["small"][f"{way}, {case}"])
                for run in runs
            )
            for way in ("raw", "net", "net+TLS")
        ]
        small.append([title, *cells, goal])
    latency = table(["latency, p50 us", "raw", "plain", "TLS", "goal"], small)
    return table(heads, rows) + "\n\n" + latency


def _span(values: Iterable[float]) -> str:
    found = list(values)
    low, high = digits(min(found)), digits(max(found))
    return low if low == high else f"{low} to {high}"
