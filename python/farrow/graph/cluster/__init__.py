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

The log is in the memory of the writer's node, or of the ``keeper``.  That node needs room for the
rows of a segment's span, and for the rows that arrive while the next segment is built.  Nothing is
stored twice: data on a lost machine is lost.  With a ``keeper`` and segments on other nodes, the
failure of the writer's node loses no data: a writer on another node resumes.  One process writes at
a time: after another process resumes the graph, calls of the former writer raise
``farrow.AlreadyExists`` and add nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farrow.exceptions import FarrowError

if TYPE_CHECKING:
    from farrow.graph.cluster._reader import GraphReader

__all__ = ["ClusterGraph", "DaysLost", "attach"]


@dataclass(frozen=True)
class ClusterGraph:
    """Storage of a graph in the cluster, for ``GraphFeatures(cluster=...)``.

    Attributes:
        name: name of the graph in the cluster.
        address: address of this process's node, as for ``farrow.connect``.
        segment: the span of time of a segment: a text like "1d", or an integer in the unit of the
            timestamps. An account's edges are looked up segment by segment, so a tenth of the
            window is a good length for long windows; the newest span, up to this length, stays in
            the memory of the writing process.
        keeper: name of the node that stores the manifest, the accounts and the log: a call returns
            when that node has its rows. None: this client's node.
        placement: the nodes of segments: "local" (this client's node), "round-robin", "most-free",
            or the name of a node.
        workers: processes that share the work of each batch with this one: their number, for
            clients of the node at ``address``, or the address of the node of each.
        timeout: seconds that a worker may take for its share of a batch.
        without_lost: continue without spans of the graph that cannot be reached, instead of
            raising :class:`DaysLost`; applies to workers too.
        ray: workers are actors of a Ray cluster (``pip install 'farrow[ray]'``): that of this
            process, else the one that ``ray.init(address="auto")`` finds.

    Examples:
        >>> from farrow.graph import GraphFeatures
        >>> from farrow.graph.cluster import ClusterGraph, attach
        >>> rows = np.array([[0, 1, 2, 10], [1, 2, 3, 20], [2, 3, 1, 30]], dtype=float)
        >>> graph = ClusterGraph("payments", address=client.address, segment=60)
        >>> features = GraphFeatures(patterns=["fan"], window=60, bins=[2], cluster=graph)
        >>> features.transform(rows).shape
        (3, 6)
        >>> features.close()
    """

    name: str
    address: str | None = None
    segment: Any = "1d"
    placement: str = "local"
    keeper: str | None = None
    workers: int | tuple[str | None, ...] = 0
    timeout: float = 60.0
    without_lost: bool = False
    ray: bool = False

    def addresses(self) -> tuple[str | None, ...]:
        """The address of each worker's node.

        Returns:
            An address for each worker; None is the node that ``farrow.connect()`` finds.

        Examples:
            >>> from farrow.graph.cluster import ClusterGraph
            >>> ClusterGraph("payments", workers=2).addresses()
            (None, None)
        """
        if isinstance(self.workers, int):
            return (self.address,) * self.workers
        return tuple(self.workers)


class DaysLost(FarrowError, LookupError):
    """Spans of a graph's time that cannot be reached.

    Attributes:
        spans: for each the times of its first and last edge, and its node.
    """

    def __init__(self, graph: str, spans: list[tuple[int, int, str]], reason: str) -> None:
        self.spans = spans
        text = "; ".join(
            f"{first} to {last} on {node or 'its node'}" for first, last, node in spans
        )
        super().__init__(f"graph {graph!r} lacks the edges of times {text}: {reason}")


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
        farrow.NodeLost: the node of the manifest (the ``keeper``, or the writer's) cannot be
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
