"""A transaction graph in cluster memory: one process ingests, any number read, on any node.

The newest span of time stays in the process that ingests; each full one becomes a *segment*, an
immutable object in the memory of some node (``docs/formats/segment.md``).  Rows are also kept in a
log until a segment has them, so that nothing acknowledged is lost with the process::

    from farrow.graph import GraphFeatures
    from farrow.graph.cluster import ClusterGraph, attach

    graph = ClusterGraph("payments", segment="1d", placement="most-free")
    features = GraphFeatures(window="30d", cluster=graph)
    features.transform(batch)               # goes on where the graph of that name stopped

    reader = attach("payments")             # in another process, on any node
    for rows, computed in reader.follow(share=(0, 2)):
        ...                                 # every second piece of the work of each batch

The log lies in the memory of the writer's node, or of the one that ``keeper`` names, which needs
room for the rows of a segment's span, and of as long as the next one takes to be made.  Nothing is
kept twice: what is on a node whose machine is lost is lost.  With a ``keeper``, and segments, on
other nodes than the writer's, the loss of that node costs nothing: a writer on another one goes on.
One process writes at a time: who takes the graph up goes on, and a call of whoever wrote before
raises ``farrow.AlreadyExists`` and adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farrow.graph.cluster._reader import GraphReader

__all__ = ["ClusterGraph", "DaysLost", "attach"]


@dataclass(frozen=True)
class ClusterGraph:
    """Where the older part of a graph lies, for ``GraphFeatures(cluster=...)``.

    Attributes:
        name: of the graph in the cluster.
        address: of the node whose client this process is, as ``farrow.connect`` takes it.
        segment: how long a span of time a segment covers: a text like "1d", or an integer in the
            unit of the timestamps. An account's edges are looked up segment by segment, so a tenth
            of the window is a good length for long windows; the newest span, up to this length,
            stays in the memory of the process that ingests.
        keeper: the name of the node whose memory keeps the manifest, the accounts and the log: a
            call returns when that node has its rows. None: this client's node.
        placement: where segments lie: "local" (this client's node), "round-robin", "most-free",
            or the name of a node.
        workers: processes that share the work of each batch with this one: a number of them,
            each a client of the node at ``address``, or for each the address of its node.
        timeout: seconds that a worker may take for its share of a batch.
        without_lost: go on without spans of the graph that cannot be reached, instead of
            :class:`DaysLost`; workers too.
        ray: workers are actors of a Ray cluster (``pip install 'farrow[ray]'``): of the one that
            this process is part of, else of the one that ``ray.init(address="auto")`` finds.
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
        """Of each worker's node."""
        if isinstance(self.workers, int):
            return (self.address,) * self.workers
        return tuple(self.workers)


class DaysLost(LookupError):
    """Spans of a graph's time that cannot be reached.

    Attributes:
        spans: for each the time of its first edge and of its last, and the node it lies on.
    """

    def __init__(self, graph: str, spans: list[tuple[int, int, str]], reason: str) -> None:
        self.spans = spans
        text = "; ".join(
            f"{first} to {last} on {node or 'its node'}" for first, last, node in spans
        )
        super().__init__(f"graph {graph!r} lacks the edges of times {text}: {reason}")


def attach(name: str, address: str | None = None, *, without_lost: bool = False) -> GraphReader:
    """Read the graph of that name, without a copy of its segments.

    Args:
        name: of the graph.
        address: of the node whose client this process is to be.
        without_lost: go on without spans that cannot be reached, instead of an error.

    Raises:
        farrow.NotFound: there is no such graph.
        DaysLost: segments lie on nodes that cannot be reached.
        farrow.NodeLost: what names them does, which is on the writer's node or its ``keeper``.
    """
    from farrow.graph.cluster._reader import GraphReader

    return GraphReader(name, address, without_lost=without_lost)
