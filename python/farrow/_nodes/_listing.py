"""Lists of all nodes that say which nodes are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from farrow.exceptions import FarrowError

if TYPE_CHECKING:
    from farrow import Client

__all__ = ["list_nodes"]

# Nodes that are no members, so they have no objects.
_NO_MEMBERS = ("left", "not joined")


def list_nodes(client: Client, prefix: str = "") -> tuple[pa.Table, dict[str, FarrowError]]:
    """The objects of each node, and the nodes whose objects are missing.

    Unlike ``list(all_nodes=True)``, which is an error if a live node cannot be reached, no node but
    the client's own keeps the objects of the rest from being listed.

    Args:
        client: a client.
        prefix: first characters of the names.

    Returns:
        A table as of ``list(all_nodes=True)``, in no order; and the error of each node that could
        not be listed.

    Raises:
        FarrowError: the client's own node cannot be listed.
    """
    nodes = [node for node in client.nodes() if node.reach not in _NO_MEMBERS]
    if not nodes:
        return client.list(prefix, all_nodes=True), {}
    tables: list[pa.Table] = []
    missing: dict[str, FarrowError] = {}
    for node in nodes:
        try:
            table = client.list(prefix, node=node.name)
        except FarrowError as error:
            if node.is_own:
                raise
            missing[node.name] = error
            continue
        names = pa.array([node.name] * len(table), pa.string())
        tables.append(table.append_column("node", names))
    return pa.concat_tables(tables), missing
