"""Nodes that map nothing of each other, and what their clients find."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from conftest import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 1 << 20
ONLY = ("--plaintext", "--net=only", "--no-prepare")


@pytest.fixture
def two(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Nodes that map nothing of each other."""
    return make_cluster(2, *ONLY)


def table(rows: int = 100_000) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table({"x": numbers, "half": numbers / 2, "word": [f"word {n}" for n in numbers]})


def row(client: farrow.Client, name: str) -> Any:
    """What a node tells of another."""
    return next(one for one in client.nodes() if one.name == name)


def assert_same(found: Any, value: Any, name: str) -> None:
    """What ``get`` returns for a value that was put."""
    if isinstance(value, bytes):
        assert found.to_pybytes() == value, name
    elif isinstance(value, np.ndarray):
        assert np.array_equal(found, value), name
    else:
        assert found.equals(value), name
        found.validate(full=True)


def is_removed(client: farrow.Client, name: str) -> bool:
    """Neither found nor said to be there."""
    if client.contains(name):
        return False
    with pytest.raises(farrow.NotFound):
        client.get(name)
    return True


def finds_nothing(client: farrow.Client, name: str) -> bool:
    """As ``is_gone``, once all nodes can be asked."""
    try:
        return is_removed(client, name)
    except (farrow.NodeLost, farrow.NodeUnreachable):
        return False


def is_put(client: farrow.Client, name: str) -> bool:
    """Whether the name was free."""
    try:
        client.put(b"x", name)
    except farrow.AlreadyExists:
        return False
    return True
