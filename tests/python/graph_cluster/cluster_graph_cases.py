"""Rows of a graph in cluster memory, and their features in a graph of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from farrow.graph import GraphFeatures
from farrow.graph.cluster import ClusterGraph

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from conftest import Cluster

DAY = 100
SETTINGS: dict[str, Any] = {
    "patterns": ("fan", "scatter-gather", "temp-cycle", "vertex-stats"),
    "window": 5 * DAY,
    "bins": [2, 3, 4, 6],
    "statistics": ("fan", "degree", "mean", "variance"),
}


def stream(rows: int, *, seed: int = 0, late: float = 0.0) -> npt.NDArray[np.float64]:
    """Two rows a time among 500 accounts, some of them late."""
    random = np.random.default_rng(seed)
    matrix = np.zeros((rows, 5))
    matrix[:, 0] = np.arange(rows)
    matrix[:, 1:3] = random.integers(0, 500, (rows, 2))
    times = np.arange(rows) // 2
    shift = np.where(random.random(rows) < late, random.integers(0, 3 * DAY, rows), 0)
    matrix[:, 3] = np.maximum(times - shift, 0)
    matrix[:, 4] = random.normal(size=rows)
    return matrix


def batches(matrix: npt.NDArray[np.float64], size: int = 100) -> Iterator[Any]:
    for start in range(0, len(matrix), size):
        yield matrix[start : start + size]


def plain(matrix: npt.NDArray[np.float64], **settings: Any) -> list[npt.NDArray[np.float64]]:
    """Features batch by batch of a graph that is all in this process."""
    features = GraphFeatures(**{**SETTINGS, **settings})
    return [features.transform(batch) for batch in batches(matrix)]


def on(nodes: Cluster, name: str, **more: Any) -> ClusterGraph:
    return ClusterGraph("payments", nodes.nodes[name].socket, segment=DAY, **more)
