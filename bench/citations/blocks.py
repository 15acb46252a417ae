"""The texts of the documentation that have measured figures, each made from its run.

A block is a function of the page on which it stands.  What a run does not have is an empty cell;
what no table can be without is an error.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable

from citations import engines, parts
from citations.raw import Run, digits, run_of, table
from citations.stores import readme, stores, tables

__all__ = ["BLOCKS", "KINDS", "text_of"]

_BATCH = 2048
_PER_EDGE = re.compile(r"(.*), causal: (\d+) to (\d+) bytes an edge")


def graph(page: str) -> str:
    """Graph features beside snapml."""
    run = run_of("graph")
    rows = []
    for title, window, case in (
        ("scatter-gather", "24 h", "scatter-gather, 24 h"),
        ("temporal cycles", "24 h", "temp-cycle, 24 h"),
        ("vertex statistics", "24 h", "vertex-stats, 24 h"),
        ("everything, scatter-gather within 6 h", "24 h", "everything, 24 h, scatter-gather 6 h"),
    ):
        speed = _BATCH / run.median(case, "batch", "")
        # Batches that both did.
        found = run.ratios(case, "batch", case, "snapml", "")
        ratio = digits(statistics.median(found))
        ends = f"{digits(min(found))} to {digits(max(found))}, {len(found)} batches"
        rows.append([title, window, f"{float(f'{speed:.3g}'):,.0f}", ratio, ends])
        over = [
            statistics.median(run.ratios(case, "batch", case, "snapml", one))
            for one in run.variants(case)
            if one
        ]
        rows[-1].append(f"{digits(min(over))} to {digits(max(over))}" if over else "")
    heads = ["features", "window", "rows a second", "times snapml", "least and most of a batch",
             "over three days of two generators"]  # fmt: skip
    if not any(row[-1] for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    quick = " A quick run is for trying, not for citing." if run.document["quick"] else ""
    lead = (
        f"`make bench-graph`, {run.link(page)}, on a generated stream with the statistics of IBM's"
        f" HI-Small, in batches of 2048 rows.{quick} One thread:\n\n"
    )
    return lead + table(heads, rows) + f"\n\n{_two_threads(run)}{_per_edge(run)}"


def _two_threads(run: Run) -> str:
    cases = [one["case"] for one in run.document["samples"] if one["peer"] == "two threads"]
    if not cases:
        return ""
    factors = [
        statistics.median(run.ratios(case, "two threads", case, "one thread")) for case in cases
    ]
    return f"Two threads do {min(factors):.1f} to {max(factors):.1f} times as much. "


def _per_edge(run: Run) -> str:
    """Bytes of an edge, from the notes of the run: windows of a day and more, and shorter ones."""
    ends: dict[bool, list[int]] = {False: [], True: []}
    for note in run.document["notes"]:
        match = _PER_EDGE.fullmatch(note)
        if match and "row by row" not in match[1]:
            ends[match[1].endswith(", 6 h")] += [int(match[2]), int(match[3])]
    if not all(ends.values()):
        return ""
    long, short = ends[False], ends[True]
    return (
        f"A live edge takes {min(long)} to {max(long)} bytes with its accounts. Windows of 6 hours"
        f" hold more accounts for each edge and take {min(short)} to {max(short)}."
    )


# Each block and its run.
KINDS = {
    "readme": "store", "stores": "store", "tables": "tables", "graph": "graph",
    "coherence": "coherence", "hits": "network", "fabric": "fabric", "by-net": "by-net",
    "engines": "engines", "tpch": "tpch", "sql": "sql", "sharing": "sharing", "loads": "loads",
}  # fmt: skip
BLOCKS: dict[str, Callable[[str], str]] = {
    "readme": readme, "stores": stores, "tables": tables, "graph": graph,
    "coherence": parts.coherence, "hits": parts.hits, "fabric": parts.fabric,
    "by-net": parts.by_net, "engines": engines.engines, "tpch": engines.tpch, "sql": engines.sql,
    "sharing": engines.sharing, "loads": engines.loads,
}  # fmt: skip


def text_of(name: str, page: str) -> str:
    """The text of a block on a page.

    Raises:
        ValueError: there is no such block, or its run lacks a figure.
    """
    if name not in BLOCKS:
        raise ValueError(f"no block named {name!r}: {', '.join(BLOCKS)}")
    return BLOCKS[name](page)
