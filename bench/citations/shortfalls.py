"""Goals of the project that a committed run misses, and the page of the works."""

from __future__ import annotations

import dataclasses
import re
import statistics
from typing import TYPE_CHECKING

from citations.engines import SAME_PLAN
from citations.raw import digits, run_of, runs_of, shown, table

if TYPE_CHECKING:
    from citations.raw import Run

__all__ = ["reproduce", "shortfalls"]

_PEER = "farrow"
_PATTERNS = ("scatter-gather 72 h", "temp-cycle 72 h", "fan 168 h")
_BATCH = 2048
_READERS = re.compile(r"readers of one graph, .*, two [\d,]+ \((?P<ratio>[\d.]+)\)")
_CUT_SHORT = re.compile(
    r"everything, 96 h, causal: searches that ended at work_max: \{(?P<all>.*)\}"
)
_COUNT = re.compile(r": (\d+)")


@dataclasses.dataclass(frozen=True)
class _Row:
    """One goal: ``tried`` has what was done for it, or what the time is spent on."""

    what: str
    today: str
    goal: str
    tried: str


def shortfalls(page: str) -> str:
    """Goals that were set before the work, beside what the last full run has."""
    many, cluster, graph = (run_of(kind) for kind in ("many", "graph-cluster", "graph"))
    store, net, queries = (run_of(kind) for kind in ("store", "by-net", "engines"))
    rows = [
        *_objects(many), _copy(store), *_crowd(many), *_network(net), *_queries(queries),
        *_cluster(cluster), *_graph(graph),
    ]  # fmt: skip
    lead = (
        "Goals that the project has set itself, and what the last full runs have. Medians unless a"
        f" row says otherwise: objects of `make bench-many` ({many.link(page)}), copies of `make"
        f" bench-store` ({store.link(page)}), the network of `make bench-by-net`"
        f" ({net.link(page)}), queries of `make bench-engines` ({queries.link(page)}),"
        f" graphs of the cluster of `make bench-graph-cluster` ({cluster.link(page)}), features"
        f" of one process of\n`make bench-graph` ({graph.link(page)}).\n\n"
    )
    heads = ["", "measured", "goal", "what was done, and where the time is spent"]
    return lead + table(heads, [dataclasses.astuple(row) for row in rows])


def _objects(run: Run) -> list[_Row]:
    def median(case: str, variant: str = "") -> float:
        return run.median(case, _PEER, variant)

    wide, read = "put, 184 chunks, 736 buffers", "get, 272 buffers"
    huge, all_objects = (
        "open a huge table of 10000 chunks, each chunk",
        "list of 500000 objects, each",
    )
    return [
        _Row(
            "put 1 kB with a name", shown(median("put 1 kB", "with a name"), "us"), "5 us",
            "one message to the node and its answer; without a name no message is needed:"
            f" {shown(median('put 1 kB', 'without a name'), 'us')}",
        ),
        _Row(
            "`put_many` of 1000 objects of 1 kB with names, each",
            shown(median("put_many, each of 1000", "with names"), "us"), "1 us",
            "one message for all; all become visible together. Without names:"
            f" {shown(median('put_many, each of 1000', 'without names'), 'us')}",
        ),
        _Row(
            "put a table of 736 buffers in place, first and later",
            f"{shown(median(wide, 'in place, first'), 'ms')},"
            f" {shown(median(wide, 'in place'), 'ms')}",
            "2 ms, 1 ms",
            "the node checks every range against its table of grants; a put by copy took"
            f" {shown(median(wide, 'by copy'), 'ms')}",
        ),
        _Row(
            "get a table of 272 buffers in another process", shown(median(read), "ms"), "0.1 ms",
            "pyarrow alone needs"
            f" {shown(median(read, 'pyarrow alone'), 'ms')} to make a table of so many buffers",
        ),
        _Row(
            "open a huge table of 10,000 chunks in another process, each chunk, first and later",
            f"{shown(median(huge, 'first of a process'), 'us')}, {shown(median(huge), 'us')}",
            "1 us", "each chunk is an object with a name of its own",
        ),
        _Row(
            "list of 500,000 objects, each", shown(median(all_objects), "us"), "0.2 us",
            "all objects are rows of one table; it is not streamed",
        ),
    ]  # fmt: skip


def _copy(run: Run) -> _Row:
    """A copying put on small pages."""
    case, pages = "write 10 x 100 MB", "ordinary pages"
    copy = case.replace("write", "copy in turn")
    share = statistics.median(run.ratios(case, _PEER, copy, _PEER, pages))
    return _Row(
        "put 10 x 100 MB by copy on 4 KiB pages: share of the speed of the best copy",
        f"{share:.2f}", "0.9",
        "the best copy is between private buffers in huge pages. A copy to 4 KiB pages waits for"
        " the kernel to map each of them; a node that may mount a tmpfs takes huge pages by itself",
    )  # fmt: skip


def _network(run: Run) -> list[_Row]:
    """A small object and a page of one."""
    raw = run.median("fault", "raw", "")
    return [
        _Row(
            "get 1 kB from a node whose memory is not mapped", shown(run.median("small", _PEER, ""),
            "us"), "a round trip and 20 us",
            "the client, its node and the object's node wait for one another in turn, on two"
            " cores; later gets of the machine need no message",
        ),
        _Row(
            "a page of 64 KiB on demand", shown(run.median("fault", _PEER, ""), "us"),
            f"{shown(raw + 30e-6, 'us')}, 30 us more than raw TCP in the same run",
            "the fault wakes the node, the node a connection, and its answer both again; in order,"
            " pages are read ahead",
        ),
    ]  # fmt: skip


def _queries(run: Run) -> list[_Row]:
    """Queries and appends of huge tables."""

    def ratio(case: str, one: str, other: str) -> float:
        return run.median(case, _PEER, one) / run.median(case, _PEER, other)

    ours, own = "DuckDB over Farrow", "DuckDB over its own table"
    same = ratio("group-by", ours, f"DuckDB over {SAME_PLAN}")
    more = ratio("append", "with statistics", "without statistics") - 1
    return [
        _Row(
            "DuckDB's group-by of all rows, over its own table's", digits(
            ratio("group-by", ours, own)), "1.05",
            "DuckDB narrows the keys of its own table by their least and greatest value, and takes"
            " no such values from Arrow's data; with the same plan the ratio is"
            f" {digits(same)}",
        ),
        _Row(
            "statistics of an append of 160 MB by copy", f"{100 * more:.0f} % more", "15 % more",
            "each piece is counted while it is in the cache, right before it is copied, with AVX2",
        ),
    ]  # fmt: skip


def _crowd(run: Run) -> list[_Row]:
    """The slow tail of small calls."""
    rows = []
    for word, goal in (("put", "30 us, 5 ms"), ("get", "15 us, 5 ms")):
        samples = sorted(run.need(f"{word} 1 kB beside 3 clients", _PEER, ""))
        tail = samples[int(0.999 * len(samples))]
        rows.append(
            _Row(
                f"{word} 1 kB beside three clients that put, get, delete and evict: p99.9, longest",
                f"{shown(tail, 'us')}, {shown(samples[-1], 'ms')}",
                goal,
                "four busy processes and the node share two cores. A process does not poll where"
                " giving its core away took long",
            )
        )
    return rows


def _cluster(run: Run) -> list[_Row]:
    def over_one(way: str) -> str:
        found = [
            run.median(case, "one process", "") / run.median(case, way, "") for case in _PATTERNS
        ]
        return ", ".join(f"{ratio:.2f}" for ratio in found)

    notes = [match for note in run.document["notes"] if (match := _READERS.match(note))]
    if not notes:
        raise ValueError(f"{run.name} has no note of two readers")
    patterns = "scatter-gather over 72 h, temporal cycles over 72 h, fans over 168 h"
    return [
        _Row(
            f"rate with days in segments over one list for each account: {patterns}",
            over_one("private segments"), "0.95",
            "one index over all segments says for 64 accounts which have rows",
        ),
        _Row(
            "rate of two processes of a graph over one: the same patterns, `transform` and"
            " `transform_each`",
            f"{over_one('two processes')}; {over_one('two processes, batch by batch')}", "1.7",
            "`transform_each` gives each process whole batches, several in flight, yet each"
            f" process adds all rows. Two readers of the same graph do {notes[0]['ratio']} times"
            " as much as one",
        ),
    ]  # fmt: skip


def _graph(run: Run) -> list[_Row]:
    notes = [match for note in run.document["notes"] if (match := _CUT_SHORT.match(note))]
    cut = sum(int(count) for match in notes for count in _COUNT.findall(match["all"]))
    rate = _BATCH / run.median("everything, 96 h", "causal", "")
    singles = sorted(run.need("row by row, 24 h, no lc-cycle", "causal", ""))
    tail = singles[int(0.99 * (len(singles) - 1))]
    return [
        _Row(
            "all features over 96 h, rows a second", f"{rate:,.0f}", "25,000",
            f"a search ends after a limited number of edges, as {cut:,} did. The goal of the"
            " benchmark itself, 10,000, is missed too",
        ),
        _Row(
            "row by row over 24 h: p99", f"{digits(tail * 1e3)} ms", "0.02 ms",
            "the clock and the call of a single row cost less than at first. The median is"
            f" {digits(statistics.median(singles) * 1e3)} ms",
        ),
    ]  # fmt: skip


def reproduce(page: str) -> str:
    """The page of the works, if a full run of it is committed."""
    what = (
        "`make reproduce` makes one page of the tables and figures of the theses and papers that"
        " Farrow grew out of. It shows theirs beside ours, each with\nits table and page, and with"
        " what differs. A table that is not run has its reason there."
    )
    found = runs_of("reproduce")
    if not found:
        return f"{what} No full run of it is committed yet."
    (run,) = found
    all_of = run.document["experiments"]
    failed = [f"{one['name']} ({one['failure']})" for one in all_of if one["failure"] is not None]
    words = f"not complete: {', '.join(failed)}" if failed else "all complete"
    return f"{what} {len(all_of)} experiments in the {run.link(page, '.html')}; {words}."
