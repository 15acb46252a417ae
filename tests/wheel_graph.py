"""The features of a stream of payments, to compare machines: run by tests/wheel_aarch64.py.

python wheel_graph.py ROWS RESULT    both are Arrow IPC files

RESULT has a column for each feature and mode.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from farrow.graph.data import from_table
from farrow.graph.features import PATTERNS, STATISTICS, GraphFeatures

MODES = ("causal", "batch")


def main(source: str, result: str) -> None:
    with pa.ipc.open_file(source) as reader:
        rows = from_table(reader.read_all())
    columns = {}
    for mode in MODES:
        every = GraphFeatures(
            patterns=(*PATTERNS, "vertex-stats"), statistics=STATISTICS, window="48h", mode=mode
        )
        found = every.fit_transform(rows)
        columns |= {f"{mode} {name}": found[name] for name in found.column_names}
    table = pa.table(columns)
    with pa.ipc.new_file(result, table.schema) as writer:
        writer.write_table(table)
    print(f"wheel: graph: {table.num_rows} rows, {table.num_columns} columns")


if __name__ == "__main__":
    main(*sys.argv[1:])
