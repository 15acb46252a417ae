"""Rows and settings that several tests of GraphFeatures share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("sklearn")


from farrow.graph import GraphFeatures

if TYPE_CHECKING:
    pass

ALL = ("fan", "degree", "scatter-gather", "temp-cycle", "lc-cycle", "gather-scatter")


def rows_of(count: int, seed: int = 7, accounts: int = 40) -> np.ndarray:
    random = np.random.default_rng(seed)
    ends = random.integers(0, accounts, (count, 2))
    times = np.sort(random.integers(0, count * 20, count))
    return np.c_[np.arange(count), ends, times, np.round(random.lognormal(5, 2, count), 2)]


def table_of(rows: np.ndarray) -> pa.Table:
    return pa.table(
        {
            "edge_id": rows[:, 0].astype(np.int64),
            "source": [f"bank:{int(one)}" for one in rows[:, 1]],
            "target": [f"bank:{int(one)}" for one in rows[:, 2]],
            "timestamp": pa.array(rows[:, 3].astype(np.int64)).cast(pa.timestamp("s")),
            "amount": rows[:, 4],
        }
    )


def features(**changes: object) -> GraphFeatures:
    return GraphFeatures(**{"patterns": (*ALL, "vertex-stats"), "window": 600, **changes})
