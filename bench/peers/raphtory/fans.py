"""Fans of a stream by Raphtory, under its own Python: ``fans.py ROWS WINDOW FIRST SECONDS LEAST``.

All rows are added first.  For each row from ``FIRST`` on, until the time is over, the sources of
the target and the targets of the source within the window are counted; of ``LEAST`` rows at least.
Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np


def main() -> None:
    """Add, count, print."""
    path, window, first = sys.argv[1], *map(int, sys.argv[2:4])
    seconds, least = float(sys.argv[4]), int(sys.argv[5])
    # A bar of progress would be written to the answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import pyarrow as pa
    from raphtory import Graph

    rows = np.load(path).astype(np.int64)
    source, target, times = rows[:, 1], rows[:, 2], rows[:, 3]
    table = pa.table({"time": times, "source": source, "target": target})
    graph = Graph()
    began = time.perf_counter()
    graph.load_edges(table, time="time", src="source", dst="target")
    added = len(rows) / (time.perf_counter() - began)
    if graph.count_temporal_edges() != len(rows):
        raise SystemExit(f"{graph.count_temporal_edges()} of {len(rows)} rows were added")
    taken, sizes = [], []
    until = time.perf_counter() + seconds
    for row in range(first, len(rows)):
        began = time.perf_counter()
        # From the first one to before the last one.
        part = graph.window(int(times[row]) - window + 1, int(times[row]) + 1)
        into = part.node(int(target[row])).in_degree()
        out = part.node(int(source[row])).out_degree()
        ended = time.perf_counter()
        taken.append(ended - began)
        sizes.append((into, out))
        if ended > until and len(taken) >= least:
            break
    answers.write(json.dumps({"added": added, "seconds": taken, "sizes": sizes}) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
