"""The texts of the documentation that have measured figures, each made from its run.

A block is a function of the page on which it stands.  What a run does not have is an empty cell;
what no table can be without is an error.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable

from citations import engines, parts, shortfalls
from citations.raw import Run, digits, run_of, table
from citations.stores import readme, stores, tables

__all__ = ["BLOCKS", "KINDS", "text_of"]

_BATCH = 2048
_PER_EDGE = re.compile(r"(.*), causal: (\d+) to (\d+) bytes an edge")


def graph(page: str) -> str:
    """Graph features beside snapml, over all days and generators of the run."""
    run = run_of("graph")
    rows = []
    for title, window, case in (
        ("scatter-gather", "24 h", "scatter-gather, 24 h"),
        ("temporal cycles", "24 h", "temp-cycle, 24 h"),
        ("vertex statistics", "24 h", "vertex-stats, 24 h"),
        ("everything, scatter-gather within 6 h", "24 h", "everything, 24 h, scatter-gather 6 h"),
    ):
        days = [one for one in run.variants(case) if one]
        if not days:
            raise ValueError(f"{run.name} has {case!r} of one day and one generator only")
        speeds = [_BATCH / run.median(case, "batch", one) for one in days]
        # Of each day, the batches that both did.
        ratios = [statistics.median(run.ratios(case, "batch", case, "snapml", one)) for one in days]
        least, most = (f"{float(f'{speed:.3g}'):,.0f}" for speed in (min(speeds), max(speeds)))
        rows.append(
            [title, window, f"{least} to {most}", f"{digits(min(ratios))} to {digits(max(ratios))}"]
        )
    quick = " A quick run is for trying, not for citing." if run.document["quick"] else ""
    lead = (
        f"`make bench-graph`, {run.link(page)}, on generated streams with the statistics of IBM's"
        f" HI-Small, in batches of 2048 rows.{quick} One thread, batch mode: the least and the most"
        f" of the medians\nof {len(days)} runs, at noon of three days of two generators:\n\n"
    )
    heads = ["features", "window", "rows a second", "times snapml"]
    return lead + table(heads, rows) + f"\n\n{_two_threads(run)}{_per_edge(run)}"


def temporal(page: str) -> str:
    """Fans of rows within a day, beside Raphtory."""
    run = run_of("temporal")
    theirs = run.need("a row", "raphtory", "row by row")
    count = len(theirs)
    rows = [["Raphtory, row by row", f"{count / sum(theirs):,.0f}", "1"]]
    for title, variant in (
        ("Farrow, row by row", "row by row"),
        ("Farrow, batches of 2048", "batches of 2048"),
    ):
        # A sample of a batch is the time of each of its rows.
        seconds = statistics.mean(run.need("a row", "farrow", variant))
        rows.append([title, f"{1 / seconds:,.0f}", digits(sum(theirs) / count / seconds)])
    lead = (
        f"`make bench-temporal`, {run.link(page)}: sources of a row's target and targets of its"
        " source, within the last day. Raphtory 0.17 and Farrow computed equal"
        f" values; rates over the same {count:,} rows.\n\n"
    )
    return lead + table(["", "rows a second", "times Raphtory"], rows)


def _two_threads(run: Run) -> str:
    cases = [one["case"] for one in run.document["samples"] if one["peer"] == "two threads"]
    if not cases:
        return ""
    factors = [
        statistics.median(run.ratios(case, "two threads", case, "one thread")) for case in cases
    ]
    least, most = min(factors), max(factors)
    return (
        f"In causal mode two threads do {least:.2f} to {most:.2f} times as much"
        f" ({'; '.join(cases)}).\n"
    )


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
        f"In causal mode a live edge takes {min(long)} to {max(long)} bytes with its accounts."
        " Windows of 6 hours"
        f" hold more accounts for each edge and take {min(short)} to {max(short)}."
    )


# Each block and its runs.
KINDS: dict[str, tuple[str, ...]] = {
    "readme": ("store",), "stores": ("store",), "tables": ("tables",), "graph": ("graph",),
    "temporal": ("temporal",), "coherence": ("coherence",), "hits": ("network",),
    "fabric": ("fabric",),
    "dataframes": ("dataframes",), "by-net": ("by-net",),
    "engines": ("engines",), "tpch": ("tpch",), "sql": ("sql",),
    "sharing": ("sharing",), "loads": ("loads",), "reproduce": ("reproduce",),
    "shortfalls": ("many", "store", "by-net", "engines", "graph-cluster", "graph"),
}  # fmt: skip
BLOCKS: dict[str, Callable[[str], str]] = {
    "readme": readme, "stores": stores, "tables": tables, "graph": graph,
    "temporal": temporal,
    "coherence": parts.coherence, "hits": parts.hits, "fabric": parts.fabric,
    "dataframes": engines.dataframes, "by-net": parts.by_net,
    "engines": engines.engines, "tpch": engines.tpch, "sql": engines.sql,
    "sharing": engines.sharing, "loads": engines.loads, "reproduce": shortfalls.reproduce,
    "shortfalls": shortfalls.shortfalls,
}  # fmt: skip


def text_of(name: str, page: str) -> str:
    """The text of a block on a page.

    Raises:
        ValueError: there is no such block, or its run lacks a figure.
    """
    if name not in BLOCKS:
        raise ValueError(f"no block named {name!r}: {', '.join(BLOCKS)}")
    return BLOCKS[name](page)
