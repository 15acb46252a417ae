"""What a graph consists of in the store: names, the manifest, and the log.

Of a graph NAME, ``graph/NAME/manifest/K`` says what belongs to it; the one with the highest K
counts.  ``.../segment/N`` holds edges from number of arrival N on, ``.../accounts/N`` the accounts
whose small numbers begin with N, and ``.../log/N-COUNT-EPOCH`` rows that no segment has yet; for a
moment ``.../share/N.WORKER`` holds what a worker found for the rows from N on.

Each take-over begins an epoch.  ``.../writer/EPOCH`` is its fence: names are unique in the cluster,
so an epoch is one writer's, and the fences stay.  A writer looks for the fence behind its own once
the rows of a call are in the log; if that is there, the call was not acknowledged and the writer
ends.  Its entry stays where it is.  Whoever took over has either read it, or has not: the manifest
says which rows each epoch wrote, and other entries do not count.
"""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import farrow
from farrow._native import GraphEngine

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from farrow._native import Client

VERSION = 2
_KEY = b"farrow.graph.manifest"
_ROW = ("id", "source", "target", "time")
_LATE = ("numbers", "fronts", "ids", "sources", "targets", "times")
Ends = list["npt.NDArray[np.int64]"]
Measured = list["npt.NDArray[np.float64]"]


def keep(client: Client, value: Any, name: str, node: str | None = None) -> None:
    """Put an object that no full node evicts.

    Raises:
        farrow.AlreadyExists: the name is taken; of a graph's names, by another writer.
    """
    client.pin(client.put(value, name, node=node))


def elsewhere(client: Client, node: str | None) -> str | None:
    """A node as calls of the client name it: None is its own."""
    return None if node == client.node else node


def drop(client: Client, names: Iterable[str]) -> None:
    """Delete objects, those on lost nodes apart: whoever opens the graph next deletes them."""
    for name in names:
        with contextlib.suppress(farrow.FarrowError):
            client.delete(name)


def root(graph: str) -> str:
    """What all names of a graph begin with."""
    if not graph or "/" in graph or "\0" in graph or len(graph.encode()) > 150:
        raise ValueError(f"a graph named {graph!r}: 1 to 150 bytes without a slash are possible")
    return f"graph/{graph}/"


def no_late() -> dict[str, Any]:
    """No edges that came late."""
    none = np.zeros(0, np.int64)
    return {**dict.fromkeys(_LATE, none), "columns": []}


@dataclass
class Manifest:
    """What belongs to a graph: its objects, how its rows look, and how they are computed on."""

    number: int = 0
    stream: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    segment: int = 1
    # The node that keeps it, the accounts and the log; None without a cluster.
    home: str | None = None
    # Segments that were ever made.
    made: int = 0
    # Each with its name, node and numbers ("about"), oldest first.
    segments: list[dict[str, Any]] = field(default_factory=list)
    # Names of the objects that hold the accounts, in order, and how many there are.
    accounts: list[str] = field(default_factory=list)
    known: int = 0
    # Epochs, oldest first, each with the number of arrival of its first row: it wrote the rows
    # before the first one of the next epoch.
    writers: list[list[int]] = field(default_factory=lambda: [[0, 0]])
    late: dict[str, Any] = field(default_factory=no_late)

    def end(self) -> int:
        """The first number of arrival that no segment covers."""
        if not self.segments:
            return 0
        about = self.segments[-1]["about"]
        return int(about["first"] + about["numbers"])

    def name(self, graph: str) -> str:
        """Of its object."""
        return f"{root(graph)}manifest/{self.number:012d}"

    def counts(self, entry: Entry) -> bool:
        """Whether the rows of an entry are the graph's."""
        ends = [first for _, first in self.writers[1:]]
        for (epoch, first), end in zip(self.writers, [*ends, None], strict=True):
            if epoch == entry.epoch:
                return entry.first >= first and (end is None or entry.end <= end)
        return False

    def begin_epoch(self, epoch: int, first: int) -> None:
        """Rows from ``first`` on are written in this epoch.  Epochs whose rows are all in segments
        are forgotten."""
        self.writers.append([epoch, first])
        while len(self.writers) > 1 and self.writers[1][1] <= self.end():
            self.writers.pop(0)

    def put(self, client: Client, graph: str) -> None:
        """Make it the one that counts.

        Raises:
            farrow.AlreadyExists: another process writes this graph.
        """
        kept = {name: value for name, value in vars(self).items() if name != "late"}
        columns = {name: self.late[name] for name in _LATE}
        columns |= {f"column {n}": one for n, one in enumerate(self.late["columns"])}
        text = json.dumps({"version": VERSION, **kept})
        table = pa.table(columns).replace_schema_metadata({_KEY: text})
        keep(client, table, self.name(graph), elsewhere(client, self.home))

    @classmethod
    def of(cls, table: pa.Table) -> Manifest:
        """The manifest that a table holds."""
        try:
            kept = json.loads((table.schema.metadata or {})[_KEY])
            version = kept.pop("version")
        except (KeyError, ValueError) as error:
            raise ValueError(f"the table is no manifest of a graph: {error!r}") from None
        # Version 1 had no epochs.
        if version not in (1, VERSION):
            raise ValueError(f"a manifest of version {version}, not {VERSION}")
        late: dict[str, Any] = {name: table.column(name).to_numpy() for name in _LATE}
        count = sum(name.startswith("column ") for name in table.column_names)
        late["columns"] = [table.column(f"column {n}").to_numpy() for n in range(count)]
        return cls(**kept, late=late)


def engine_of(manifest: Manifest) -> GraphEngine:
    """An empty engine for a graph."""
    parameters = dict(manifest.parameters)
    parameters["patterns"] = [tuple(one) for one in parameters["patterns"]]
    if parameters["statistics"] is not None:
        parameters["statistics"] = tuple(parameters["statistics"])
    return GraphEngine(**parameters, segment=manifest.segment)


# That each of so many lists missed a manifest would take a replacement within each of them.
_EMPTY_LISTS = 5


def newest(client: Client, graph: str) -> Manifest | None:
    """The manifest that counts; None: there is no such graph.

    Raises:
        farrow.NodeLost: it may lie on a node that cannot be reached.
    """
    prefix = f"{root(graph)}manifest/"
    # It may be replaced while it is looked for: a list may have neither of two objects of which one
    # comes and the other goes meanwhile.
    empty = 0
    for _ in range(100):
        names = names_of(client, prefix)
        if not names:
            empty += 1
            if empty < _EMPTY_LISTS:
                continue
            lost = [node.name for node in client.nodes() if node.reach != "live"]
            if lost:
                # To begin it anew would make two of it.
                raise farrow.NodeLost(
                    f"graph {graph!r} is on no node that can be reached; it may be on "
                    f"{', '.join(lost)}, until `farrow nodes forget` says that it is gone"
                )
            return None
        empty = 0
        try:
            return Manifest.of(client.get(names[-1]))
        except farrow.NotFound:
            continue
    raise farrow.NotFound(f"the manifest of graph {graph!r}: it is replaced again and again")


def names_of(client: Client, prefix: str) -> list[str]:
    """Names of the objects that begin so, sorted, on all nodes that can be reached."""
    return sorted(client.list(prefix, all_nodes=True)["name"].to_pylist())


def fence(graph: str, epoch: int) -> str:
    """The name that only the writer of an epoch can have put."""
    return f"{root(graph)}writer/{epoch:012d}"


def begin_epoch(client: Client, graph: str, home: str | None) -> int:
    """Put the fence of the next epoch; gives its number.

    Raises:
        farrow.AlreadyExists: another process does so, too.
    """
    there = names_of(client, f"{root(graph)}writer/")
    epoch = int(there[-1].rsplit("/", 1)[1]) + 1 if there else 1
    keep(client, b"", fence(graph, epoch), elsewhere(client, home))
    return epoch


@dataclass(frozen=True)
class Entry:
    """Rows of one call in the log."""

    name: str
    first: int
    count: int
    epoch: int

    @classmethod
    def of(cls, name: str) -> Entry:
        """By its name."""
        first, count, *epoch = name.rsplit("/", 1)[1].split("-")
        return cls(name, int(first), int(count), int(epoch[0]) if epoch else 0)

    @property
    def end(self) -> int:
        """Number of arrival of the next row."""
        return self.first + self.count


def entries(client: Client, graph: str) -> list[Entry]:
    """The log, in order."""
    return [Entry.of(name) for name in names_of(client, f"{root(graph)}log/")]


@dataclass(frozen=True)
class Batch:
    """Rows of one call."""

    ends: Ends
    measured: Measured
    # The rows are those of a ``transform`` in batch mode: not all of them may become edges, nor in
    # this order.
    is_raw: bool = False

    def arrivals(self) -> tuple[Ends, Measured]:
        """The rows that become edges, in the order in which they do."""
        if not self.is_raw:
            return self.ends, self.measured
        order = np.sort(np.unique(self.ends[0], return_index=True)[1])
        order = order[np.argsort(self.ends[3][order], kind="stable")]
        return [one[order] for one in self.ends], [one[order] for one in self.measured]

    @functools.cached_property
    def count(self) -> int:
        """How many rows become edges."""
        return len(np.unique(self.ends[0])) if self.is_raw else len(self.ends[0])


def narrowed(column: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], int]:
    """A column as 32-bit numbers from its least one on, and that one; where they do not fit, as it
    is. So a batch of some thousand rows goes where small objects go, with fewer system calls."""
    if len(column):
        least, most = int(column.min()), int(column.max())
        if most - least <= np.iinfo(np.uint32).max:
            return (column - least).astype(np.uint32), least
    return column, 0


def log(
    client: Client, graph: str, first: int, batch: Batch, home: str | None, epoch: int
) -> Entry:
    """Keep the rows of a call on the node that is the graph's home.

    Raises:
        farrow.AlreadyExists: another process writes this graph.
        farrow.NodeLost: that node cannot be reached.
    """
    entry = Entry.of(f"{root(graph)}log/{first:020d}-{batch.count}-{epoch}")
    narrow, bases = zip(*map(narrowed, batch.ends), strict=True)
    columns: dict[str, Any] = dict(zip(_ROW, narrow, strict=True))
    columns |= {f"column {n}": one for n, one in enumerate(batch.measured)}
    about = {"is_raw": str(int(batch.is_raw)), "bases": json.dumps(bases)}
    table = pa.table(columns).replace_schema_metadata(about)
    keep(client, table, entry.name, elsewhere(client, home))
    return entry


def logged(client: Client, entry: Entry) -> Batch:
    """The rows of a call."""
    table = client.get(entry.name)
    about = table.schema.metadata or {}
    bases = json.loads(about.get(b"bases", "[0, 0, 0, 0]"))
    columns = [one.to_numpy() for one in table.columns]
    ends = [one.astype(np.int64) + base for one, base in zip(columns[:4], bases, strict=True)]
    return Batch(ends, columns[4:], about.get(b"is_raw") == b"1")


def share(
    client: Client, graph: str, entry: Entry, worker: int, features: npt.NDArray[np.float64]
) -> str:
    """Put a worker's share of the features of an entry; its name."""
    name = f"{root(graph)}share/{entry.first:020d}.{worker}"
    cells = features.reshape(-1)
    # Most are 0: others do those rows, and a row completes few patterns.
    places = np.flatnonzero(cells).astype(np.uint32)
    client.put(pa.table({"place": places, "value": cells[places]}), name)
    return name


def add_share(client: Client, name: str, features: npt.NDArray[np.float64]) -> None:
    """Add a share that was put to features."""
    table = client.get(name)
    features.reshape(-1)[table["place"].to_numpy()] += table["value"].to_numpy()


def joined(client: Client, graph: str, short: list[Entry], home: str | None) -> Entry:
    """Keep neighbouring entries of the log, all of one epoch, once more, as one."""
    parts = [logged(client, one).arrivals() for one in short]
    columns = [[*ends, *measured] for ends, measured in parts]
    whole = [np.concatenate(column) for column in zip(*columns, strict=True)]
    return log(client, graph, short[0].first, Batch(whole[:4], whole[4:]), home, short[0].epoch)
