"""Internal numbers of accounts in cluster graphs: they are used again, in every process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from cluster_graph_cases import DAY, SETTINGS, batches, on, plain, stream
from conftest import LIMIT_SECONDS
from farrow.graph import GraphFeatures
from farrow.graph.cluster import _objects, _segments, attach

if TYPE_CHECKING:
    import farrow
    from conftest import Cluster


def changing(rows: int, *, seed: int = 0, late: float = 0.0) -> npt.NDArray[np.float64]:
    """A stream whose accounts are others each day; one in ten stays, and one in ten returns."""
    matrix = stream(rows, seed=seed, late=late)
    random = np.random.default_rng(seed)
    days = np.arange(rows) // (2 * DAY)
    for column in (1, 2):
        kind = random.random(rows)
        life = np.where(kind < 0.1, 0, np.where(kind < 0.2, days % 9, days))
        matrix[:, column] += 1000 * life
    return matrix


@pytest.mark.parametrize("mode", ["causal", "batch"])
def test_accounts_that_left_are_forgotten_by_everybody(nodes: Cluster, mode: str) -> None:
    """By the writer, by a worker, and by a reader that follows."""
    matrix = changing(6000, late=0.01)
    whole = GraphFeatures(**SETTINGS, mode=mode)
    workers = (nodes.nodes["c"].socket,)
    features = GraphFeatures(**SETTINGS, mode=mode, cluster=on(nodes, "a", workers=workers))
    reader, most = None, 0
    try:
        for number, batch in enumerate(batches(matrix)):
            want = whole.transform(batch)
            assert np.array_equal(features.transform(batch), want), number
            features._stream.engine.settle(LIMIT_SECONDS)
            if reader is None:
                reader = attach("payments", nodes.nodes["b"].socket)
                seen = reader.follow(timeout=LIMIT_SECONDS)
            else:
                assert np.array_equal(next(seen)[1], want[:, 5:]), number
            most = max(most, whole.stats()["accounts"])
            for one in (features, reader):
                assert one.stats()["accounts"] <= 2 * most, number
        assert most < 16 * DAY < 20 * DAY < len(np.unique(matrix[:, 1:3]))
        again = attach("payments", nodes.nodes["a"].socket)
        assert again.stats()["accounts"] <= 2 * most
        assert nodes.client("a").list("graph/payments/accounts/").num_rows == 0
    finally:
        features.close()


def downgraded(client: farrow.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a graph as version 2 did: permanent numbers, and accounts beside the segments."""
    retained = _objects.newest(client, "payments")
    assert retained is not None
    known: npt.NDArray[np.int64] = np.zeros(1 << 16, np.int64)
    for one in retained.segments:
        table = client.get(one["name"])
        words = table["index"].chunk(0).values.to_numpy().reshape(-1, 5)
        used = np.ascontiguousarray(words[:, 0] | words[:, 1] | words[:, 2]).view(np.uint8)
        numbers = np.flatnonzero(np.unpackbits(used, bitorder="little"))
        known[numbers] = table["accounts"].chunk(0).values.to_numpy()
        about = {**json.loads(table.schema.metadata[_segments.KEY]), "version": 1}
        plain_table = pa.table(
            {
                name: pa.concat_arrays([table[name].chunk(0)])
                for name in table.column_names
                if name != "accounts"
            }
        ).replace_schema_metadata({_segments.KEY: json.dumps(about)})
        client.delete(one["name"])
        one["name"] = one["name"].replace("segment/", "segment/1-")
        del one["named"]
        client.pin(client.put(plain_table, one["name"]))
    name = "graph/payments/accounts/0"
    client.pin(client.put(known, name))
    retained.accounts, retained.known = [name], len(known)
    before, retained.number = retained.name("payments"), retained.number + 1
    with monkeypatch.context() as patch:
        patch.setattr(_objects, "VERSION", 2)
        retained.put(client, "payments")
    client.delete(before)


def test_a_graph_of_an_earlier_version_goes_on(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, client = changing(4000, seed=1), nodes.client("a")
    wanted, parts = plain(matrix), list(batches(matrix))
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    for batch in parts[:20]:
        features.transform(batch)
        features._stream.engine.settle(LIMIT_SECONDS)
    features.close()
    del features
    downgraded(client, monkeypatch)
    reader = attach("payments", nodes.nodes["b"].socket)
    assert reader.stats()["segments"] > 4
    seen, there = reader.follow(timeout=LIMIT_SECONDS), []
    features = GraphFeatures(**SETTINGS, cluster=on(nodes, "a"))
    for number, batch in enumerate(parts[20:], 20):
        assert np.array_equal(features.transform(batch), wanted[number]), number
        features._stream.engine.settle(LIMIT_SECONDS)
        assert np.array_equal(next(seen)[1], wanted[number][:, 5:]), number
        # As long as a segment is there that does not name its accounts.
        there.append(client.list("graph/payments/accounts/", all_nodes=True).num_rows)
        retained = _objects.newest(client, "payments")
        assert retained is not None
        assert there[-1] == (not _objects.all_named(retained.segments)), number
    assert (there[0], there[-1]) == (1, 0)
    features.close()


def test_where_the_order_of_accounts_matters_numbers_are_permanent(nodes: Cluster) -> None:
    settings: dict[str, Any] = {**SETTINGS, "patterns": ("lc-cycle", "fan"), "mode": "batch"}
    matrix, wanted = changing(3000, seed=2), None
    features = GraphFeatures(**settings, cluster=on(nodes, "a"))
    whole = GraphFeatures(**settings)
    for number, batch in enumerate(batches(matrix)):
        wanted = whole.transform(batch)
        assert np.array_equal(features.transform(batch), wanted), number
        features._stream.engine.settle(LIMIT_SECONDS)
        if number == 20:
            reader = attach("payments", nodes.nodes["b"].socket)
            seen = reader.follow(timeout=LIMIT_SECONDS)
        elif number > 20:
            assert np.array_equal(next(seen)[1], wanted[:, 5:]), number
    assert features.stats()["accounts"] == len(np.unique(matrix[:, 1:3]))
    features.close()
    again = GraphFeatures(**settings, cluster=on(nodes, "b"))
    more = changing(3100, seed=2)[3000:]
    assert np.array_equal(again.transform(more), whole.transform(more))
    again.close()
