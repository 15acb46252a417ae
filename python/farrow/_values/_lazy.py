"""Values of ``Client.get(lazy=True)``."""

from __future__ import annotations

from typing import Any

from farrow._native import fetch_pages
from farrow._values._locate import buffers_of

__all__ = ["fetch"]


def fetch(value: Any) -> int:
    """Bring the pages of a value that ``Client.get(lazy=True)`` returned, or of a part of one.

    From then on no read of these pages waits for another node, or fails because one is lost. Fetch
    the columns that you need: ``farrow.fetch(table["price"])``. A slice brings the buffers of its
    columns whole. A value that is in memory already costs nothing.

    Args:
        value: a pyarrow value, a numpy array, or a bytes-like object.

    Returns:
        The bytes of its buffers that are brought page by page, whether they were there or not; 0
        for other values.

    Raises:
        NodeLost: the node of the object is lost, so some of its pages cannot be brought.
        NotFound: the object was deleted, and its node has restarted since.
        Disconnected: this client's own node has ended.
        UnsupportedType: the value has no buffers.

    Examples:
        >>> reference = client.put(pa.table({"n": [1, 2, 3]}), "fetch/numbers")
        >>> table = client.get("fetch/numbers", lazy=True)
        >>> farrow.fetch(table["n"])  # in memory already
        0
    """
    return fetch_pages([(address, size) for _, _, _, address, size in buffers_of(value)])
