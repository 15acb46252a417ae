"""Workers as Ray actors: a task receives the graph's name, not its data."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from farrow.graph.cluster._objects import add_share, drop_shares
from farrow.graph.cluster._workers import GraphWorkerLost

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from farrow._native import Client
    from farrow.graph.cluster._config import ClusterGraph
    from farrow.graph.cluster._objects import LogEntry


class Share:
    """An actor: a reader of the graph, on a machine that Ray chooses."""

    def __init__(
        self, graph: str, address: str | None, share: tuple[int, int], without_lost: bool
    ) -> None:
        import farrow
        from farrow.graph.cluster._reader import GraphReader

        self._reader = GraphReader(graph, address, without_lost=without_lost)
        self._client = farrow.connect(address)
        self._part = share

    def ready(self) -> str | None:
        """The name of its node."""
        return self._client.node

    def compute(self, entry: str, is_whole: bool) -> str:
        """Compute a share of the features of a log entry, or all; returns the name of the
        result."""
        from farrow.graph.cluster._objects import LogEntry, share

        requested = LogEntry.of(entry)
        _, features = self._reader.compute(requested, (0, 1) if is_whole else self._part)
        return share(self._client, self._reader.name, requested, self._part[0], features)

    def refresh(self) -> None:
        """Add all rows of the graph."""
        self._reader.refresh()

    def learn(self, entry: str) -> None:
        """Add the rows of a log entry; an error is that of the next ``compute``, which lacks
        them."""
        from farrow.graph.cluster._objects import LogEntry

        self._reader.learn(LogEntry.of(entry))

    def attach(self, manifest: str) -> None:
        """Attach the new segments of a manifest."""
        self._reader.attach_of(manifest)


class RayWorkers:
    """:class:`farrow.graph.cluster._workers.Workers` on a Ray cluster."""

    def __init__(self, config: ClusterGraph) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise ImportError("workers on Ray need it: pip install 'farrow[ray]'") from error

        self._ray = ray
        self._timeout = config.timeout
        if not ray.is_initialized():
            ray.init(address="auto")
        addresses = config.addresses()
        self.count = len(addresses)
        # One on each machine, if there are enough machines.
        actor = ray.remote(Share).options(num_cpus=1, scheduling_strategy="SPREAD")
        # Ray adds the methods of a handle at run time.
        self._actors: list[Any] = [
            actor.remote(config.name, address, (number + 1, self.count + 1), config.without_lost)
            for number, address in enumerate(addresses)
        ]
        self._requested: list[Any] = []
        # The tasks of each actor for whole entries.
        self._wholes: list[deque[Any]] = [deque() for _ in addresses]
        self._done: list[str] = []
        try:
            self._all([one.ready.remote() for one in self._actors])
        except BaseException:
            self.close()
            raise

    def _all(self, requested: list[Any]) -> list[Any]:
        try:
            answers: list[Any] = self._ray.get(requested, timeout=self._timeout)
        except self._ray.exceptions.RayError as error:
            # A timeout is raised here, too.
            raise GraphWorkerLost(f"a worker on Ray: {error}") from error
        return answers

    def ask(self, entry: LogEntry) -> None:
        """Make every worker compute its share of a log entry."""
        self._requested = [one.compute.remote(entry.name, False) for one in self._actors]

    def ask_one(self, owner: int, entry: LogEntry) -> None:
        """Make one worker compute all features of a log entry, and the others add its rows.  None
        computes it if ``owner`` is negative."""
        for number, one in enumerate(self._actors):
            # Calls of an actor are done in order.
            if number == owner:
                self._wholes[number].append(one.compute.remote(entry.name, True))
            else:
                one.learn.remote(entry.name)

    def attach(self, manifest: str) -> None:
        """Make every worker attach the new segments of a manifest, an object with this name."""
        for one in self._actors:
            one.attach.remote(manifest)

    def refresh(self) -> None:
        """Wait until every worker has all rows of the graph."""
        self._all([one.refresh.remote() for one in self._actors])

    def take(self, client: Client, owner: int, features: npt.NDArray[np.float64]) -> None:
        """Add the result of the earliest ``ask_one`` of a worker that is not taken yet."""
        drop_shares(client, self._done)
        self._done = self._all([self._wholes[owner].popleft()])
        add_share(client, self._done[0], features)

    def gather(self, client: Client, own: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Add the workers' results to this process's share."""
        drop_shares(client, self._done)
        self._done = []
        for found in self._all(self._requested):
            add_share(client, found, own)
            self._done.append(found)
        return own

    def close(self) -> None:
        """End the workers; the Ray cluster keeps running."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
