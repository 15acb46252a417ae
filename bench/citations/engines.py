"""Blocks of figures about query engines, references between processes, and loads of files."""

from __future__ import annotations

import statistics

from citations.raw import Run, digits, of_medians, run_of, shown, spread, table

__all__ = ["SAME_PLAN", "dataframes", "engines", "loads", "sharing", "sql", "tpch"]

_PEER = "farrow"
_QUERIES = range(1, 23)
SAME_PLAN = "its own table, with the plan of the rest"


def _pair(
    ours: list[float], theirs: list[float], *, is_gain: bool = False, in_seconds: bool = False
) -> list[str]:
    """Both medians with the middle half of the samples, and the ratio of the medians: how many
    times as long ours takes, or how many times faster it is."""
    unit = "s" if in_seconds else "ms"
    cells = [
        f"{shown(statistics.median(one), unit)} ({spread(one, unit)})" for one in (ours, theirs)
    ]
    gain, _, _ = of_medians(ours, theirs)
    return [*cells, digits(gain if is_gain else 1 / gain)]


def engines(page: str) -> str:
    """Queries of three engines over a huge table."""
    run = run_of("engines")
    rows = []
    for title, case in (("group-by of all rows", "group-by"), ("0.3 % of the rows", "range")):
        for engine, theirs in (
            ("DuckDB", "its own table"), ("DuckDB", SAME_PLAN), ("DuckDB", "a plain table"),
            ("DuckDB", "Parquet"), ("polars", "its own memory"), ("polars", "Parquet"),
            ("DataFusion", "its own memory"), ("DataFusion", "Parquet"),
        ):  # fmt: skip
            # A range has one plan.
            if (case, theirs) == ("range", SAME_PLAN):
                continue
            found = [run.need(case, _PEER, f"{engine} over {one}") for one in ("Farrow", theirs)]
            pair = _pair(*found)
            rows.append([f"{title}, {engine}", pair[0], theirs, pair[1], pair[2]])
    lead = (
        f"`make bench-engines`, {run.link(page)}: a huge table of 32 chunks of a million rows each"
        " (int64, int32, float64). Medians, the middle half of the samples, and the ratio of the"
        " medians; a plain table is one of pyarrow. DuckDB groups its own table by a faster hash"
        " table, since it knows the least and the greatest key.\n"
        "Without it (`perfect_ht_threshold = 0`) the plan is that of the rest.\n\n"
    )
    plain = run.median("append", _PEER, "without statistics")
    counted = run.median("append", _PEER, "with statistics")
    tail = (
        f"\n\nAn append of 160 MB by copy takes {shown(counted, 'ms')} with statistics and"
        f" {shown(plain, 'ms')} without: {100 * (counted / plain - 1):.0f} % more."
    )
    heads = ["", "over Farrow", "over", "", "ratio"]
    return lead + table(heads, rows) + tail


_MEANS = ["", "geometric mean", "of single rounds", "least query", "greatest query"]


def _mean(run: Run, ours: str, theirs: str) -> tuple[str, str, str, str]:
    """The geometric mean of the ratios of all queries, by medians and round by round, and the least
    and the greatest query."""
    pairs = [
        [run.need(f"query {number}", _PEER, one) for one in (ours, theirs)] for number in _QUERIES
    ]
    found = [statistics.median(one) / statistics.median(two) for one, two in pairs]
    rounds = [
        statistics.geometric_mean(one[turn] / two[turn] for one, two in pairs)
        for turn in range(min(len(one) for pair in pairs for one in pair))
    ]
    low, high = digits(min(rounds)), digits(max(rounds))
    return (
        digits(statistics.geometric_mean(found)),
        low if low == high else f"{low} to {high}",
        digits(min(found)),
        digits(max(found)),
    )


def _rounds(run: Run, variant: str) -> int:
    return min(len(run.need(f"query {number}", _PEER, variant)) for number in _QUERIES)


def tpch(page: str) -> str:
    """The queries of TPC-H in DuckDB."""
    run = run_of("tpch")
    own, parquet = "DuckDB's own tables", "Parquet"
    rows = [[one, *_mean(run, one, own)] for one in ("Farrow", parquet)]
    lead = (
        f"`make bench-tpch`, {run.link(page)}: the 22 queries of TPC-H at scale factor 1 in DuckDB,"
        f" all answers compared, {_rounds(run, own)} rounds. Time over that with DuckDB's own"
        " tables:\n\n"
    )
    return lead + table(_MEANS, rows)


def sql(page: str) -> str:
    """The queries of TPC-H over two nodes."""
    run = run_of("sql")
    engines = ["farrow.sql", "DataFusion", "Spark"]
    cached = "Spark, cached"
    if run.samples("query 1", _PEER, cached):
        engines.append(cached)
        spark = " Spark reads Parquet in the page cache, or tables that it has cached"
    else:
        spark = " Spark reads Parquet in the page cache: its own cache of tables was not measured"
    rows = [[one, *_mean(run, one, "DuckDB")] for one in engines]
    moved = [
        sum(
            sum(run.samples(f"query {number}", _PEER, f"farrow.sql, {what}"))
            for what in ("exchanges", "tables", "result")
        )
        for number in _QUERIES
    ]
    lead = (
        f"`make bench-sql`, {run.link(page)}: {run.document['notes'][-1]}. DuckDB has its own"
        " tables in the memory of one process, DataFusion reads Farrow's tables in one process."
        f"{spark}. All have the same two cores, and all answers are compared."
        f" {_rounds(run, 'DuckDB')} rounds. Time over DuckDB's:\n\n"
    )
    tail = (
        f"\n\nA query moved {min(moved) / 1e6:.0f} to {max(moved) / 1e6:.0f} MB between the nodes,"
        f" {statistics.median(moved) / 1e6:.0f} MB in the median."
    )
    return lead + table(_MEANS, rows) + tail


def dataframes(page: str) -> str:
    """Group-bys of Dask and Ray Data."""
    run = run_of("dataframes")
    rows = []
    for engine in ("Dask", "Ray Data"):
        for source in ("Farrow", "farrow.ray.aggregate", "farrow.ray.aggregate, again"):
            ours = run.samples(f"group-by, {engine}", source)
            if ours:
                pair = _pair(ours, run.need(f"group-by, {engine}", "Parquet"), in_seconds=True)
                rows.append([f"{engine}, {source}", *pair])
    lead = (
        f"`make bench-dataframes`, {run.link(page)}: 100 million rows on two nodes of one machine,"
        " one column added up by the 1,000 values of another. Two workers of one core; Parquet in"
        " the page cache. Medians, and the middle half of the samples; the ratio of the times."
        "\n\n"
    )
    return lead + table(["", "over Farrow", "over Parquet", "ratio"], rows)


def sharing(page: str) -> str:
    """A table from process to process."""
    run = run_of("sharing")
    rows = []
    for title, case, own in (
        ("`multiprocessing.Pipe`: the table there, a sum back", "pipe", "pipe"),
        ("`multiprocessing.Pool`: half of a table that the worker has, and its sum", "half",
         "half"),
        ("Dask: a table from worker to worker, and its sum", "dask", "dask"),
        ("Ray: a table as the argument of an actor, which counts its rows", "ray rows", "ray rows"),
        ("Ray: a table as the argument of an actor, and its sum", "ray", "ray"),
        ("Ray: the same, put into its object store once beforehand", "ray", "ray put"),
    ):  # fmt: skip
        found = [run.samples(case, "reference"), run.samples(own, "own path")]
        if all(found):
            rows.append([title, *_pair(*found, is_gain=True)])
    alone = shown(run.median("sum", "here"), "ms")
    lead = (
        f"`make bench-sharing`, {run.link(page)}: a table of 960 MB. Medians, and the middle half"
        f" of the samples. The sum alone takes {alone}.\n\n"
    )
    heads = ["", "by reference", "the engine's own path", "times faster"]
    return lead + table(heads, rows) + f"\n\n{run.document['notes'][0]}"


def loads(page: str) -> str:
    """Files read into the pool."""
    run = run_of("loads")
    rows = []
    for title, kind in (("CSV, 166 MiB", "csv"), ("Parquet", "parquet"), ("Arrow IPC", "arrow")):
        for when, case in (("first", "first load of a process"), ("later", "load")):
            found = [run.need(f"{case}, {kind}", _PEER, pool) for pool in ("farrow", "private")]
            puts = run.median(f"put after {case}, {kind}", _PEER, "farrow")
            rows.append([f"{title}, {when}", *_pair(*found), shown(puts, "ms")])
    lead = (
        f"`make bench-loads`, {run.link(page)}: files in the page cache, read by pyarrow. Medians,"
        " and the middle half of the samples.\n\n"
    )
    heads = ["load", "into Farrow's pool", "into private memory", "ratio", "put of it"]
    return lead + table(heads, rows)
