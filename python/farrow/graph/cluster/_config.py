"""How a graph is stored in the cluster, and the error for parts of it that cannot be reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farrow.exceptions import FarrowError


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
        log_node: name of the node that stores the manifest, the accounts and the log: a call
            returns when that node has its rows. None: this client's node.
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
    log_node: str | None = None
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


# The names that users import, in tracebacks and pickles too.
ClusterGraph.__module__ = DaysLost.__module__ = "farrow.graph.cluster"
