"""Every real laundering ring of IBM's HI-Small is found at its window, edge by edge.

The rings alone are the stream: they come among each other, as they did.  Bipartite rings are
pairs that share nothing but the time, stacks and random walks are paths: no pattern has these
shapes, so they are not looked for.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("sklearn")

from farrow.graph import GraphFeatures, data

SHARED = Path(os.environ.get("FARROW_SHARED", Path(__file__).resolve().parents[4] / "shared"))
# The longest real span is 96 hours but for gather-scatters, whose longest is 203.
WINDOWS = {
    "fan": "97h",
    "scatter-gather": "97h",
    "temp-cycle": "97h",
    "lc-cycle": "97h",
    "gather-scatter": "240h",
}


@pytest.fixture(scope="module")
def rings() -> data.Transactions:
    path = SHARED / "data" / "hi_small_patterns.csv.gz"
    if not path.exists():
        pytest.skip(f"no real data at {path} (set FARROW_SHARED)")
    return data.read(path, extras=["pattern_id", "family"])


@pytest.fixture(scope="module", params=["causal", "batch"])
def found(rings: data.Transactions, request: pytest.FixtureRequest) -> dict[str, list[set[int]]]:
    """Edges of the found patterns, by kind."""
    features = GraphFeatures(
        patterns=tuple(WINDOWS),
        window=WINDOWS,
        cycle_length=12,
        mode=request.param,
        evidence=True,
        evidence_max=1_000_000,
    )
    table = rings.table.select(["edge_id", "source", "target", "timestamp", *rings.amounts])
    # In batch mode a later leg in the same call hides a scatter-gather
    # (docs/reference/graph-definitions.md, D4).
    step = 64 if request.param == "batch" else table.num_rows
    kinds: dict[str, list[set[int]]] = {}
    for start in range(0, table.num_rows, step):
        _, patterns = features.patterns_of(table.slice(start, step))
        assert patterns.schema.metadata[b"dropped"] == b"0"
        for kind, edges in zip(
            patterns["kind"].to_pylist(), patterns["edges"].to_pylist(), strict=True
        ):
            kinds.setdefault(kind, []).append(set(edges))
    assert not any(features.stats()["cut_short"].values())
    return kinds


def _kind(family: str, ring: pa.Table) -> str | None:
    """The kind of pattern that a ring is, or None where it is too small to be one."""
    sources, targets = (pc.count_distinct(ring[end]).as_py() for end in ("source", "target"))
    if family == "FAN-IN":
        return "fan_in" if sources >= 2 else None
    if family == "FAN-OUT":
        return "fan_out" if targets >= 2 else None
    if family == "SCATTER-GATHER":
        # One ring scatters from and gathers to the same account: two cycles of two.
        accounts = len(set(ring["source"].to_pylist() + ring["target"].to_pylist()))
        is_one = ring.num_rows >= 4 and accounts == ring.num_rows // 2 + 2
        return "scatter-gather" if is_one else None
    if family == "GATHER-SCATTER":
        # The centre is one of each.
        return "gather-scatter" if sources >= 3 and targets >= 3 else None
    if family == "CYCLE":
        # In the file a cycle's rows follow its hops.
        hops = ring.sort_by("edge_id")
        forwards = (np.diff(hops["timestamp"].to_numpy()) > 0).all()
        return "temp-cycle" if forwards else "lc-cycle"
    return None


@pytest.mark.parametrize(
    ("family", "least"),
    [
        ("FAN-IN", 30),
        ("FAN-OUT", 35),
        ("SCATTER-GATHER", 31),
        ("GATHER-SCATTER", 35),
        ("CYCLE", 50),
    ],
)
def test_every_real_ring_is_found(
    rings: data.Transactions, found: dict[str, list[set[int]]], family: str, least: int
) -> None:
    members = rings.table.filter(pc.equal(rings.table["family"], family))
    looked_for = 0
    for number in pc.unique(members["pattern_id"]).to_pylist():
        ring = members.filter(pc.equal(members["pattern_id"], number))
        kind = _kind(family, ring)
        if kind is None:
            continue
        looked_for += 1
        # Self-loops belong to no pattern but a scatter-gather.
        edges = set(
            ring.filter(pc.not_equal(ring["source"], ring["target"]))["edge_id"].to_pylist()
        )
        assert any(edges <= one for one in found[kind]), (number, kind, ring.num_rows)
    assert looked_for >= least
