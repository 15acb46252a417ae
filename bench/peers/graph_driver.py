"""Compute graph features with one implementation and print how long each batch took, as JSON.

``graph_driver.py PEER DATA`` reads tasks from standard input, one JSON object a line, and answers
each with one line.  DATA holds four columns of little-endian int64, one after the other: edge id,
source, target, timestamp in order of time.  Run by ``bench/graph.py`` in the peer's environment.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

# Statistics: fan, degree, ratio, mean, sum, variance, skewness, kurtosis of the timestamps.
_MEASURES = [0, 1, 2, 3, 4, 8, 9, 10]


def made(peer: str, task: dict[str, Any]) -> Any:
    """An empty graph with the task's patterns."""
    if peer == "causal":
        from farrow.graph import GraphFeatures

        return GraphFeatures(
            patterns=tuple(task["windows"]),
            window=task["windows"],
            statistics_columns=[3],
            threads=task["threads"],
            work_max=task["work_max"],
        )
    if peer == "snapml":
        from snapml import GraphFeaturePreprocessor
    else:
        from farrow.graph.compat import GraphFeaturePreprocessor
    windows = task["windows"]
    parameters: dict[str, Any] = {
        "num_threads": task["threads"],
        "time_window": max(windows.values()),
        "vertex_stats": "vertex-stats" in windows,
        "vertex_stats_tw": windows.get("vertex-stats", 1),
        "vertex_stats_cols": [3],
        "vertex_stats_feats": _MEASURES,
    }
    for name in ("fan", "degree", "scatter-gather", "temp-cycle", "lc-cycle"):
        parameters[name] = name in windows
        parameters[f"{name}_tw"] = windows.get(name, 1)
    one = GraphFeaturePreprocessor()
    one.set_params(parameters)
    return one


def run(peer: str, data: np.ndarray, task: dict[str, Any]) -> dict[str, Any]:
    """Fill the graph with one window, or with all that came before, then time batches until rows or
    seconds run out."""
    one = made(peer, task)
    start = int(task["start"] * data.shape[1])
    window = max(task["windows"].values())
    oldest = np.searchsorted(data[3], data[3, start] - window)
    for at in range(0 if task["has_lived"] else oldest, start, 1 << 16):
        part = data[:, at : min(at + (1 << 16), start)]
        one.partial_fit(np.ascontiguousarray(part.T.astype(np.float64)))
    rows = np.ascontiguousarray(data[:, start : start + task["rows"]].T.astype(np.float64))
    batch, times, sums = task["batch"], [], []
    until = time.perf_counter() + task["seconds_max"]
    for at in range(0, len(rows), batch):
        part = rows[at : at + batch]
        began = time.perf_counter()
        result = one.transform(part)
        times.append(time.perf_counter() - began)
        # Statistics differ in their last digits; counts do not.
        sums.append(float(result[:, 4 : 4 + task["counts"]].sum()))
        if time.perf_counter() > until:
            break
    stats = one.stats() if hasattr(one, "stats") else {}
    return {"times": times, "sums": sums, "edges": int(start - oldest), "stats": stats}


def main() -> None:
    """Answer tasks until there are none."""
    peer, path = sys.argv[1:]
    data = np.fromfile(path, dtype=np.int64).reshape(4, -1)
    for line in sys.stdin:
        print(json.dumps(run(peer, data, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
