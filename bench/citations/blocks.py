"""The texts of the documentation that have measured figures, each made from its run.

A block is a function of the page on which it stands.  What a run does not have is an empty cell;
what no table can be without is an error.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable

from citations import engines, parts
from citations.raw import Run, digits, run_of, shown, spread, table

__all__ = ["BLOCKS", "KINDS", "text_of"]

_STORES = ("farrow", "plasma", "ray", "vineyard", "redis", "lmdb")
_TITLES = {
    "farrow": "Farrow",
    "plasma": "Plasma",
    "ray": "Ray",
    "vineyard": "Vineyard",
    "redis": "Redis",
    "lmdb": "LMDB",
}
# Peers with named objects only are compared with objects without a name.
_SAME_AS = {"put 1 kB": "put named 1 kB", "get 1 kB": "get named 1 kB"}
_PUT_1, _GET_1 = ("put 1 kB", "put 1 kB", "us"), ("get 1 kB", "get 1 kB", "us")
_PUT_1000 = ("put 1000 x 1 kB", "write 1000 x 1 kB", "ms")
_PUT_LARGE = ("put 10 x 100 MB", "write 10 x 100 MB", "ms")
_GET_LARGE = ("get and read them in a new process", "scan first 10 x 100 MB", "ms")
_README_ROWS = (_PUT_1, _GET_1, _PUT_1000, _PUT_LARGE, _GET_LARGE)
_STORE_ROWS = (
    _PUT_1,
    _GET_1,
    _PUT_1000,
    ("get them one by one", "get 1000 x 1 kB", "ms"),
    ("get them in a batch", "get batch 1000 x 1 kB", "ms"),
    ("put 100 x 1 MB", "write 100 x 1 MB", "ms"),
    _PUT_LARGE,
    _GET_LARGE,
)
_SMALL_PAGES, _HUGE_PAGES = "ordinary pages", "huge pages"


def _stored(run: Run, case: str, peer: str) -> list[float]:
    return run.samples(case, peer) or run.samples(_SAME_AS.get(case, ""), peer)


def readme(page: str) -> str:
    """Object stores, with the middle half of the samples."""
    run = run_of("store")
    rows = []
    for title, case, unit in _README_ROWS:
        cells = [title]
        for peer in _STORES:
            found = _stored(run, case, peer)
            half = f" ({spread(found, unit)})" if len(found) > 1 else ""
            cells.append(f"{shown(statistics.median(found), unit)}{half}" if found else "")
        rows.append(cells)
    lead = (
        "Medians, and the middle half of the samples in parentheses, on"
        f" {run.document['machine']['cores']} shared virtual cores; compare ratios.\n"
        "`make bench-store` runs Farrow and its peers one after another"
        f" ({run.link(page)}):\n\n"
    )
    once = "The last row has one sample of each.\n" if _is_single(run, _GET_LARGE[1]) else ""
    return lead + table(["", *_TITLES.values()], rows) + f"\n\n{once}{_best_copy(run)}"


def _is_single(run: Run, case: str) -> bool:
    return all(len(_stored(run, case, peer)) <= 1 for peer in _STORES)


def _best_copy(run: Run) -> str:
    case = _PUT_LARGE[1]
    found = run.ratios(case, "farrow", case.replace("write", "copy in turn"), "farrow")
    return (
        f"A put of 10 x 100 MB ran at {statistics.median(found):.2f} of the machine's best copy"
        f" between private buffers in {run.copy_pages} pages"
        f" ({min(found):.2f} to {max(found):.2f}, {len(found)} pairs)."
    )


def stores(page: str) -> str:
    """Object stores: medians, and the spread of Farrow's."""
    run = run_of("store")
    rows = []
    for title, case, unit in _STORE_ROWS:
        found = [_stored(run, case, peer) for peer in _STORES]
        medians = [shown(statistics.median(one), unit) if one else "" for one in found]
        rows.append([title, *medians, spread(found[0], unit) if len(found[0]) > 1 else ""])
    pair = ("rate 1 client", "rate 2 clients")
    scaling = ["two clients over one"]
    memory = ["memory for an object of 1000 B, beyond its bytes"]
    for peer in _STORES:
        has_both = run.samples(pair[0], peer) and run.samples(pair[1], peer)
        factors = run.ratios(pair[0], peer, pair[1], peer) if has_both else []
        scaling.append(f"{statistics.median(factors):.2f}" if factors else "")
        taken = run.samples("memory per object", peer)
        memory.append(f"{taken[0]:,.0f} B" if taken else "")
    ours = run.ratios(pair[0], "farrow", pair[1], "farrow")
    low, high = (f"{value:.2f}" for value in (min(ours), max(ours)))
    rows += [[*scaling, f"{low} to {high} (all)"], [*memory, ""]]
    heads = ["", *_TITLES.values(), "Farrow, middle half"]
    lead = f"`make bench-store`, {run.link(page)}. Medians.\n\n"
    return lead + table(heads, rows) + "\n\n" + _best_copy(run)


def tables(page: str) -> str:
    """A table of 1.6 GiB."""
    run = run_of("tables")
    columns = (
        ("farrow", _SMALL_PAGES), ("farrow", _HUGE_PAGES), ("plasma", _SMALL_PAGES),
        ("ipc_shm", _SMALL_PAGES), ("flight", _SMALL_PAGES),
    )  # fmt: skip
    rows = []
    for title, case, unit in (
        ("put the table, by copy", "put large", "ms"),
        ("put the table, built in the pool", "put built large", "ms"),
        ("get the table", "get large", "us"),
        ("get the table, first call of a process", "get large first", "us"),
        ("first read of every byte in a new process", "pass bytes first", "ms"),
        ("get a small object", "get small", "us"),
        ("put a small object", "put small", "us"),
    ):
        named = {"get small": "get small, by name", "put small": "put small, named"}.get(case, "")
        found = [run.samples(case, *one) or run.samples(named, *one) for one in columns]
        cells = [shown(statistics.median(one), unit) if one else "" for one in found]
        rows.append([title, *cells, spread(found[0], unit) if len(found[0]) > 1 else ""])
    case = "memory of readers beyond one copy"
    sizes = [run.samples(case, *one) for one in columns]
    title = "three readers, memory beyond the one copy"
    rows.append([title, *(_bytes(one[0]) if one else "" for one in sizes), ""])
    heads = ["", "Farrow, 4 KiB pages", "Farrow, huge pages", "Plasma", "Arrow IPC in /dev/shm",
             "Flight", "Farrow, 4 KiB, middle half"]  # fmt: skip
    best, reached = {}, {}
    for pages in (_SMALL_PAGES, _HUGE_PAGES):
        best[pages] = run.median("copy", "limit", pages)
        reached[pages] = 100 * best[pages] / run.median("put large", "farrow", pages)
    lead = (
        f"`make bench`, {run.link(page)}: a table of 1.6 GiB (157,286,400 rows of int64, int8,"
        " uint16) and objects of 1 kB. Medians.\n\n"
    )
    tail = (
        "The best copy of the table that this machine can do, with all cores, between private"
        f" buffers in {run.copy_pages} pages, took"
        f" {shown(best[_HUGE_PAGES], 'ms')} in the same run.\nA copying put reaches"
        f" {reached[_HUGE_PAGES]:.0f} % of that speed on huge pages and {reached[_SMALL_PAGES]:.0f}"
        " % on 4 KiB pages, where mapping a page costs more than filling it."
    )
    return lead + table(heads, rows) + "\n\n" + tail


def _bytes(value: float) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return f"{float(f'{value / scale:.2g}'):g} {unit}"
    return f"{value:.0f} B" if value else "0"


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
