"""Run the 22 queries of TPC-H in DuckDB: ``python bench/tpch.py [--scale 1] [--quick]``.

Each query runs over Farrow's huge tables, over DuckDB's own tables, and over Parquet in the page
cache, in turn, and must return the same rows. tpchgen-cli makes the data. Writes the raw samples
and a table of ratios to bench/results/. These are no results of TPC: they follow none of its rules
for publication.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import duckdb  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from harness.document import document_of, leave  # noqa: E402
from harness.node import running_node  # noqa: E402
from harness.tasks import Sample  # noqa: E402

import farrow  # noqa: E402
import farrow.duckdb  # noqa: E402

TABLES = (
    "customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier",
)  # fmt: skip
# Of a chunk of a huge table.
CHUNK_ROWS = 500_000
ROUNDS = 5
OWN, FARROW, PARQUET = "DuckDB's own tables", "Farrow", "Parquet"
# Answers are compared to so many digits: averages are sums of decimals, divided as floats.
TOLERANCE = 1e-12


def main() -> int:
    """Run, print, save."""
    options = _options()
    scale = 0.01 if options.quick else options.scale
    with tempfile.TemporaryDirectory(prefix="farrow-bench-", dir="/dev/shm") as folder:
        paths = generate(Path(folder) / "data", scale)
        size = sum(path.stat().st_size for path in paths.values())
        # Twenty times what compressed Parquet has, for its rows twice and their metadata.
        flags = ("--memory-dir", "/dev/shm", "--evict", "none")
        with running_node(Path(folder), 20 * size + (64 << 20), *flags) as socket:
            connections = sources(farrow.connect(socket), paths)
            samples = measure(connections, 1 if options.quick else ROUNDS, size)
    notes = [f"scale factor {scale:g}; {size / 1e6:.0f} MB of Parquet"]
    document = document_of(HERE.parent, samples, notes, options.quick)
    leave(document, "tpch", _table(samples), Path(options.output))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--scale", type=float, default=1.0, help="scale factor (1: about 1 GB)")
    parser.add_argument("--quick", action="store_true", help="scale 0.01, once; not for citing")
    parser.add_argument("--output", default=str(HERE / "results"), help="folder for results")
    return parser.parse_args()


def queries() -> dict[int, str]:
    """The text of each query."""
    text = (HERE / "tpch" / "queries.sql").read_text()
    _, *parts = re.split(r"^-- query (\d+)$", text, flags=re.M)
    return {int(number): sql.strip() for number, sql in zip(parts[::2], parts[1::2], strict=True)}


def generate(folder: Path, scale: float) -> dict[str, Path]:
    """The tables as files of Parquet."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    command = [str(program), "parquet", "-s", f"{scale:g}", "--output-dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return {name: folder / f"{name}.parquet" for name in TABLES}


def sources(client: farrow.Client, paths: dict[str, Path]) -> dict[str, Any]:
    """A connection of DuckDB for each source, in which the tables have their names."""
    connections = {OWN: duckdb.connect(), FARROW: duckdb.connect(), PARQUET: duckdb.connect()}
    for name, path in paths.items():
        table = plain(pq.read_table(path))
        huge = client.huge_table(name, table.schema)
        for start in range(0, table.num_rows, CHUNK_ROWS):
            huge.append(table.slice(start, CHUNK_ROWS).combine_chunks())
        connections[OWN].execute(f"create table {name} as from '{path}'")
        connections[PARQUET].execute(f"create view {name} as from '{path}'")
    farrow.duckdb.attach(connections[FARROW], client, TABLES)
    return connections


def plain(table: pa.Table) -> pa.Table:
    """Strings in the layout from which DuckDB filters while it reads."""
    fields = [
        field.with_type(pa.string()) if str(field.type) == "string_view" else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields)).replace_schema_metadata()


def measure(connections: dict[str, Any], rounds: int, size: int) -> list[Sample]:
    """Each query over each source, in turn."""
    samples = []
    for number, sql in queries().items():
        seconds: dict[str, list[float]] = {source: [] for source in connections}
        for turn in range(rounds + 1):
            answers = {}
            for source, connection in connections.items():
                began = time.perf_counter()
                answers[source] = connection.execute(sql).fetchall()
                if turn:
                    seconds[source].append(time.perf_counter() - began)
            for source, rows in answers.items():
                if not same(rows, answers[OWN]):
                    raise AssertionError(f"query {number} over {source} returns other rows")
        for source, taken in seconds.items():
            samples.append(Sample(f"query {number}", "farrow", source, "s", taken, size))
    return samples


def same(rows: list[Any], others: list[Any]) -> bool:
    """Whether two answers are equal, but for the last digits of floats."""
    if len(rows) != len(others):
        return False
    both = zip(rows, others, strict=True)
    pairs = [pair for row, other in both for pair in zip(row, other, strict=True)]
    return all(
        math.isclose(one, two, rel_tol=TOLERANCE) if isinstance(one, float) else one == two
        for one, two in pairs
    )


def _table(samples: list[Sample]) -> str:
    medians = {(one.case, one.variant): statistics.median(one.samples) for one in samples}
    cases = list(dict.fromkeys(one.case for one in samples))
    lines = [
        f"| query | {OWN} | {FARROW} | ratio | {PARQUET} | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    ratios: dict[str, list[float]] = {FARROW: [], PARQUET: []}
    for case in cases:
        own = medians[case, OWN]
        cells = []
        for source, found in ratios.items():
            found.append(medians[case, source] / own)
            cells.append(f"{medians[case, source] * 1e3:.1f} ms | {found[-1]:.2f}")
        lines.append(f"| {case} | {own * 1e3:.1f} ms | {' | '.join(cells)} |")
    means = [f"| {statistics.geometric_mean(found):.2f}" for found in ratios.values()]
    lines.append(f"| geometric mean | | {means[0]} | {means[1]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
