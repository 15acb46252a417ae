"""Compute graph features with one implementation and print the time of each batch, as JSON.

``graph_driver.py PEER DATA`` reads a task from standard input, a JSON object on one line, fills the
graph and answers with the number of its edges.  Each further line is a turn with limits for rows
and seconds; the answer has its batches, with a digest of the counts of each, and the statistics of
the first rows of all.  DATA holds four consecutive columns of little-endian int64: edge id, source,
target, timestamp in order of time.  Run by ``bench/graph.py`` in the peer's
environment.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import numpy as np

# Statistics: fan, degree, ratio, mean, sum, variance, skewness, kurtosis of the timestamps.
_MEASURES = [0, 1, 2, 3, 4, 8, 9, 10]
# Rows whose statistics are compared.
_STATISTICS_ROWS = 256
# Columns of the rows themselves, before their features.
_OWN = 4


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


def digest(counts: np.ndarray) -> str:
    """Of all counts in their order: rows or columns that are exchanged change it."""
    whole = np.ascontiguousarray(counts).astype("<i8")
    return hashlib.blake2b(whole.tobytes(), digest_size=8).hexdigest()


class Run:
    """A task: a graph with one window, or with all earlier rows, and the next rows."""

    def __init__(self, peer: str, data: np.ndarray, task: dict[str, Any]) -> None:
        self._one = made(peer, task)
        self._data, self._task = data, task
        self._at = int(task["start"] * data.shape[1])
        window = max(task["windows"].values())
        oldest = int(np.searchsorted(data[3], data[3, self._at] - window))
        for at in range(0 if task["has_lived"] else oldest, self._at, 1 << 16):
            self._one.partial_fit(self._rows(at, min(at + (1 << 16), self._at)))
        self.edges = self._at - oldest
        self._statistics: list[list[float]] | None = None

    def _rows(self, start: int, end: int) -> np.ndarray:
        return np.ascontiguousarray(self._data[:, start:end].T.astype(np.float64))

    def turn(self, count: int, seconds_max: float) -> dict[str, Any]:
        """Time batches up to ``count`` rows or ``seconds_max`` seconds."""
        batch, times, digests = self._task["batch"], [], []
        end = _OWN + self._task["counts"]
        rows = self._rows(self._at, self._at + count)
        until = time.perf_counter() + seconds_max
        for at in range(0, len(rows), batch):
            part = rows[at : at + batch]
            began = time.perf_counter()
            result = self._one.transform(part)
            times.append(time.perf_counter() - began)
            # Statistics differ in their last digits; counts do not.
            digests.append(digest(result[:, _OWN:end]))
            if self._statistics is None:
                self._statistics = result[:_STATISTICS_ROWS, end:].tolist()
            self._at += len(part)
            if time.perf_counter() > until:
                break
        stats = self._one.stats() if hasattr(self._one, "stats") else {}
        found = {"times": times, "digests": digests, "statistics": self._statistics}
        return {**found, "stats": stats}


def main() -> None:
    """Answer until there are no more lines."""
    peer, path = sys.argv[1:]
    data = np.fromfile(path, dtype=np.int64).reshape(4, -1)
    run = Run(peer, data, json.loads(sys.stdin.readline()))
    print(json.dumps({"edges": run.edges}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(run.turn(asked["rows"], asked["seconds_max"])), flush=True)


if __name__ == "__main__":
    main()
