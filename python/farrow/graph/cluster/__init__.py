"""A transaction graph in cluster memory: one process writes, any number read, on any node.

The newest span of time stays in the writing process.  Each full span becomes a *segment*, an
immutable object in the memory of a node (``docs/formats/segment.md``).  Rows also stay in a log
until a segment has them, so no acknowledged row is lost with the process::

    from farrow.graph import GraphFeatures
    from farrow.graph.cluster import ClusterGraph, attach

    graph = ClusterGraph("payments", segment="1d", placement="most-free")
    features = GraphFeatures(window="30d", cluster=graph)
    features.transform(batch)               # resumes an existing graph of that name

    reader = attach("payments")             # in another process, on any node
    for rows, computed in reader.follow(share=(0, 2)):
        ...                                 # every second piece of the work of each batch

The log is in the memory of the writer's node, or of the ``log_node``.  That node needs room for the
rows of a segment's span, and for the rows that arrive while the next segment is built.  Nothing is
stored twice: data on a lost machine is lost.  With a ``log_node`` and segments on other nodes, the
failure of the writer's node loses no data: a writer on another node resumes.  One process writes at
a time: after another process resumes the graph, calls of the former writer raise
``farrow.AlreadyExists`` and add nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farrow.graph.cluster._config import ClusterGraph, DaysLost

if TYPE_CHECKING:
    from farrow.graph.cluster._reader import GraphReader

__all__ = ["ClusterGraph", "DaysLost", "attach"]


def attach(name: str, address: str | None = None, *, without_lost: bool = False) -> GraphReader:
    """Open a graph for reading, without a copy of its segments.

    Args:
        name: name of the graph.
        address: address of the node to connect to, as for ``farrow.connect``.
        without_lost: continue without spans that cannot be reached, instead of raising.

    Returns:
        A reader: features, previews and rows of the graph, on any node.

    Raises:
        farrow.NotFound: the graph does not exist.
        DaysLost: segments are on nodes that cannot be reached.
        farrow.NodeLost: the node of the manifest (the ``log_node``, or the writer's) cannot be
            reached, or rows of the log are on the node of a former writer that cannot be.

    Examples:
        >>> from farrow.graph import GraphFeatures
        >>> from farrow.graph.cluster import ClusterGraph, attach
        >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
        >>> graph = ClusterGraph("transfers", address=client.address, segment=60)
        >>> features = GraphFeatures(patterns=["temp-cycle"], window=60, bins=[3], cluster=graph)
        >>> features = features.fit(rows[:2])
        >>> reader = attach("transfers", client.address)
        >>> reader.preview(rows[2:])[:, 4:].tolist()
        [[1.0]]
        >>> features.close()
    """
    from farrow.graph.cluster._reader import GraphReader

    return GraphReader(name, address, without_lost=without_lost)
