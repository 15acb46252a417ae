"""The objects of a graph in the store: names, the manifest, and the log.

The manifest ``graph/NAME/manifest/K`` with the highest K lists the objects of graph NAME.
``.../segment/N-EPOCH`` holds edges from sequence number N on, and ``.../log/N-COUNT-EPOCH`` rows in
no segment yet.  Where internal numbers of accounts are permanent, ``.../accounts/N-EPOCH`` holds
the accounts with numbers from N on; elsewhere each segment names its own accounts.  The names of
both end with ``.ATTEMPT`` after a failed attempt, and are those in the manifest: earlier versions
had no epoch in them.  For a short time
``.../share/N-EPOCH.WORKER`` holds a worker's features of the rows from N on.

Each take-over begins an epoch.  ``.../writer/EPOCH`` is its fence: names are unique in the cluster,
so an epoch has one writer, and the fences stay.  After a writer has logged the rows of a call, it
looks for the fence of the next epoch.  If that exists, the call is not acknowledged and the writer
ends.  Its entry stays, because the next writer may have read it: the manifest has the rows of each
epoch, and other entries do not count.  The writer logs nothing more: a second entry with the same
first row could count in place of the one that was read.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
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

VERSION = 3
_KEY = b"farrow.graph.manifest"
_ROW = ("id", "source", "target", "time")
_LATE = ("numbers", "fronts", "ids", "sources", "targets", "times")
# The cells of a share whose places fit into 32 bits. Larger ones have places of 64 bits.
_NARROW_MAX = 1 << 32
# After these errors of a put there is no object.
NOT_PUT = (farrow.OutOfMemory, farrow.LimitReached, farrow.PermissionDenied)
Ends = list["npt.NDArray[np.int64]"]
Measured = list["npt.NDArray[np.float64]"]


def keep(client: Client, value: Any, name: str, node: str | None = None) -> None:
    """Put an object and pin it, so that a full node does not evict it.

    Raises:
        farrow.AlreadyExists: the name is taken; a graph's names by another writer.
    """
    client.pin(client.put(value, name, node=node))


def elsewhere(client: Client, node: str | None) -> str | None:
    """A node as an argument of the client's methods: None is its own."""
    return None if node == client.node else node


def drop(client: Client, names: Iterable[str]) -> None:
    """Delete objects, except those on lost nodes: the next writer deletes these."""
    for name in names:
        with contextlib.suppress(farrow.FarrowError):
            client.delete(name)


def root(graph: str) -> str:
    """The common prefix of a graph's names."""
    if not graph or "/" in graph or "\0" in graph or len(graph.encode()) > 150:
        raise ValueError(f"a graph named {graph!r}: 1 to 150 bytes without a slash are possible")
    return f"graph/{graph}/"


def no_late() -> dict[str, Any]:
    """Columns of no late edges."""
    none = np.zeros(0, np.int64)
    return {**dict.fromkeys(_LATE, none), "columns": []}


@dataclass
class GraphManifest:
    """A graph's objects, the form of its rows, and its parameters."""

    number: int = 0
    stream: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    segment: int = 1
    # The node of the manifest, the accounts and the log; None without a cluster.
    home: str | None = None
    # Number of segments ever built.
    made: int = 0
    # Name, node and numbers ("about") of each segment, oldest first; "named": it names its
    # accounts.
    segments: list[dict[str, Any]] = field(default_factory=list)
    # Names of the objects with the accounts, in order, and the number of accounts. None, unless
    # numbers are permanent, or a segment of version 1 does not name its accounts.
    accounts: list[str] = field(default_factory=list)
    known: int = 0
    # Epochs, oldest first, each with the sequence number of its first row. Its rows end before the
    # first row of the next epoch.
    writers: list[list[int]] = field(default_factory=lambda: [[0, 0]])
    late: dict[str, Any] = field(default_factory=no_late)

    def end(self) -> int:
        """The first sequence number in no segment."""
        if not self.segments:
            return 0
        about = self.segments[-1]["about"]
        return int(about["first"] + about["numbers"])

    def name(self, graph: str) -> str:
        """The name of its object."""
        return f"{root(graph)}manifest/{self.number:012d}"

    def counts(self, entry: LogEntry) -> bool:
        """Whether the rows of an entry are part of the graph."""
        ends = [first for _, first in self.writers[1:]]
        for (epoch, first), end in zip(self.writers, [*ends, None], strict=True):
            if epoch == entry.epoch:
                return entry.first >= first and (end is None or entry.end <= end)
        return False

    def check_rows(self, graph: str, rows: int) -> None:
        """Check that an engine with ``rows`` rows has all rows of the former epochs.

        Raises:
            farrow.NotFound: it does not; a list omits the log's entries on lost nodes.
        """
        end = self.writers[-1][1]
        if rows < end:
            raise farrow.NotFound(f"rows {rows} to {end - 1} of graph {graph!r} are in no log")

    def begin_epoch(self, epoch: int, first: int) -> None:
        """Assign rows from ``first`` on to this epoch.  Epochs whose rows are all in segments are
        removed."""
        self.writers.append([epoch, first])
        while len(self.writers) > 1 and self.writers[1][1] <= self.end():
            self.writers.pop(0)

    def take_accounts(self) -> list[str]:
        """Remove the accounts, which an earlier version put, once no segment needs them; returns
        the names of their objects."""
        if not all_named(self.segments):
            return []
        unneeded, self.accounts, self.known = self.accounts, [], 0
        return unneeded

    def put(self, client: Client, graph: str) -> None:
        """Put it as the current manifest.

        Raises:
            farrow.AlreadyExists: another process writes this graph.
        """
        fields = {name: value for name, value in vars(self).items() if name != "late"}
        columns = {name: self.late[name] for name in _LATE}
        columns |= {f"column {n}": one for n, one in enumerate(self.late["columns"])}
        text = json.dumps({"version": VERSION, **fields})
        table = pa.table(columns).replace_schema_metadata({_KEY: text})
        keep(client, table, self.name(graph), elsewhere(client, self.home))

    @classmethod
    def of(cls, table: pa.Table) -> GraphManifest:
        """The manifest that a table holds."""
        try:
            fields = json.loads((table.schema.metadata or {})[_KEY])
            version = fields.pop("version")
        except (KeyError, ValueError) as error:
            raise ValueError(f"the table is no manifest of a graph: {error!r}") from None
        # Version 1 had no epochs; up to version 2, numbers of accounts were permanent.
        if version not in (1, 2, VERSION):
            raise ValueError(f"a manifest of version {version}, not {VERSION}")
        late: dict[str, Any] = {name: table.column(name).to_numpy() for name in _LATE}
        count = sum(name.startswith("column ") for name in table.column_names)
        late["columns"] = [table.column(f"column {n}").to_numpy() for n in range(count)]
        return cls(**fields, late=late)


def all_named(segments: Iterable[dict[str, Any]]) -> bool:
    """Whether these segments of a manifest name their accounts, as those since version 2 do."""
    return all(one.get("named", False) for one in segments)


def engine_of(manifest: GraphManifest, threads: int | None = None) -> GraphEngine:
    """An empty engine with a graph's parameters.

    Args:
        manifest: the graph's.
        threads: number of its threads; None: as many as the writer has, if this process may use as
            many processors.
    """
    parameters = dict(manifest.parameters)
    parameters["patterns"] = [tuple(one) for one in parameters["patterns"]]
    if parameters["statistics"] is not None:
        parameters["statistics"] = tuple(parameters["statistics"])
    most = len(os.sched_getaffinity(0))
    parameters["threads"] = threads or min(parameters["threads"], most)
    return GraphEngine(**parameters, segment=manifest.segment)


# Each of this many lists can miss a manifest only if it is replaced during each of them.
_EMPTY_LISTS = 5


def newest(client: Client, graph: str) -> GraphManifest | None:
    """The current manifest; None: the graph does not exist.

    Raises:
        farrow.NodeLost: it may be on a node that cannot be reached.
    """
    prefix = f"{root(graph)}manifest/"
    # The manifest may be replaced during the search: a list may then have neither the old object
    # nor the new one.
    empty = 0
    for _ in range(100):
        names = names_of(client, prefix)
        if not names:
            empty += 1
            if empty < _EMPTY_LISTS:
                continue
            lost = unreachable(client)
            if lost:
                # Creating a new graph would make two of the same name.
                raise farrow.NodeLost(
                    f"graph {graph!r} is on no node that can be reached; it may be on "
                    f"{lost}, until `farrow nodes forget` declares that node ended"
                )
            return None
        empty = 0
        try:
            return GraphManifest.of(client.get(names[-1]))
        except farrow.NotFound:
            continue
    raise farrow.NotFound(f"the manifest of graph {graph!r}: it is replaced again and again")


def unreachable(client: Client) -> str:
    """The names of the nodes that cannot be reached; "": there are none."""
    return ", ".join(one.name for one in client.nodes() if one.reach not in ("live", "draining"))


def names_of(client: Client, prefix: str) -> list[str]:
    """Sorted names of the objects with a prefix, on all reachable nodes."""
    return sorted(client.list(prefix, all_nodes=True)["name"].to_pylist())


def fence(graph: str, epoch: int) -> str:
    """The name of an epoch's fence, which only the writer of the epoch puts."""
    return f"{root(graph)}writer/{epoch:012d}"


def begin_epoch(client: Client, graph: str, home: str | None, own: int | None = None) -> int:
    """Put the fence of the next epoch; returns its number.

    Args:
        client: a client of the cluster.
        graph: the graph's name.
        home: the node of the fence.
        own: the epoch of the calling writer, which does not take the graph over from another one.

    Raises:
        farrow.AlreadyExists: another process did so first.
    """
    if own is None:
        there = names_of(client, f"{root(graph)}writer/")
        own = int(there[-1].rsplit("/", 1)[1]) if there else 0
    epoch = own + 1
    keep(client, b"", fence(graph, epoch), elsewhere(client, home))
    return epoch


@dataclass(frozen=True)
class LogEntry:
    """Rows of one call in the log."""

    name: str
    first: int
    count: int
    epoch: int

    @classmethod
    def of(cls, name: str) -> LogEntry:
        """Parse an entry's name."""
        first, count, *epoch = name.rsplit("/", 1)[1].split("-")
        return cls(name, int(first), int(count), int(epoch[0]) if epoch else 0)

    @property
    def end(self) -> int:
        """Sequence number of the next row."""
        return self.first + self.count


def entries(client: Client, graph: str) -> list[LogEntry]:
    """The log, in order."""
    return [LogEntry.of(name) for name in names_of(client, f"{root(graph)}log/")]


@dataclass(frozen=True)
class Batch:
    """Rows of one call."""

    ends: Ends
    measured: Measured
    # Rows of a ``transform`` in batch mode: the graph may drop or reorder some.
    is_raw: bool = False

    def arrivals(self) -> tuple[Ends, Measured]:
        """The rows that become edges, in the order of the graph."""
        if not self.is_raw:
            return self.ends, self.measured
        order = np.sort(np.unique(self.ends[0], return_index=True)[1])
        order = order[np.argsort(self.ends[3][order], kind="stable")]
        return [one[order] for one in self.ends], [one[order] for one in self.measured]

    @functools.cached_property
    def count(self) -> int:
        """The number of rows that become edges."""
        return len(np.unique(self.ends[0])) if self.is_raw else len(self.ends[0])


def narrowed(column: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], int]:
    """A column as 32-bit differences from its minimum, and the minimum; unchanged if they do not
    fit. A batch of some thousand rows then is a small object, which needs fewer system calls."""
    if len(column):
        least, most = int(column.min()), int(column.max())
        if most - least <= np.iinfo(np.uint32).max:
            return (column - least).astype(np.uint32), least
    return column, 0


def log(
    client: Client, graph: str, first: int, batch: Batch, home: str | None, epoch: int
) -> LogEntry:
    """Write the rows of a call to the graph's home node.

    Raises:
        farrow.AlreadyExists: another process writes this graph.
        farrow.NodeLost: the home node cannot be reached.
        NOT_PUT: the log has no part of the entry; after all other errors it may have it.
    """
    entry = LogEntry.of(f"{root(graph)}log/{first:020d}-{batch.count}-{epoch}")
    narrow, bases = zip(*map(narrowed, batch.ends), strict=True)
    columns: dict[str, Any] = dict(zip(_ROW, narrow, strict=True))
    columns |= {f"column {n}": one for n, one in enumerate(batch.measured)}
    about = {"is_raw": str(int(batch.is_raw)), "bases": json.dumps(bases)}
    table = pa.table(columns).replace_schema_metadata(about)
    reference = client.put(table, entry.name, node=elsewhere(client, home))
    try:
        client.pin(reference)
    except NOT_PUT as error:
        # Readers may have the rows.
        raise RuntimeError(f"{entry.name} is in the log and not pinned: {error}") from error
    return entry


def logged(client: Client, entry: LogEntry) -> Batch:
    """Read the rows of a call."""
    table = client.get(entry.name)
    about = table.schema.metadata or {}
    bases = json.loads(about.get(b"bases", "[0, 0, 0, 0]"))
    columns = [one.to_numpy() for one in table.columns]
    ends = [one.astype(np.int64) + base for one, base in zip(columns[:4], bases, strict=True)]
    return Batch(ends, columns[4:], about.get(b"is_raw") == b"1")


def share(
    client: Client, graph: str, entry: LogEntry, worker: int, features: npt.NDArray[np.float64]
) -> str:
    """Put a worker's share of the features of an entry; returns its name."""
    name = f"{root(graph)}share/{entry.first:020d}-{entry.epoch}.{worker}"
    cells = features.reshape(-1)
    # Most are 0: other workers do those rows, and a row completes few patterns.
    places = np.flatnonzero(cells)
    if cells.size <= _NARROW_MAX:
        places = places.astype(np.uint32)
    client.put(pa.table({"place": places, "value": cells[places]}), name)
    return name


def add_share(client: Client, name: str, features: npt.NDArray[np.float64]) -> None:
    """Add a worker's share to features."""
    table = client.get(name)
    features.reshape(-1)[table["place"].to_numpy()] += table["value"].to_numpy()


def drop_shares(client: Client, names: list[str]) -> None:
    """Delete shares that have been added; a full node may have evicted some already.

    Raises:
        farrow.NodeLost: the node of a share cannot be reached.
    """
    # The others are deleted even if one is missing.
    with contextlib.suppress(farrow.NotFound):
        client.delete(names)


def longest_run(flags: list[bool]) -> tuple[int, int]:
    """The first and the end of the longest run of True; the last one of several."""
    first, found = 0, (0, 0)
    for at, flag in enumerate(flags):
        if not flag:
            first = at + 1
        elif at + 1 - first >= found[1] - found[0]:
            found = first, at + 1
    return found


def joined(client: Client, short: list[LogEntry]) -> Batch:
    """The rows of adjacent entries of the log, as they become edges."""
    parts = [logged(client, one).arrivals() for one in short]
    columns = [[*ends, *measured] for ends, measured in parts]
    whole = [np.concatenate(column) for column in zip(*columns, strict=True)]
    return Batch(whole[:4], whole[4:])


# Kinds of objects that are garbage unless the manifest names them.
_PARTS = ("segment", "accounts", "share")


def _named(manifest: GraphManifest) -> set[str]:
    return {one["name"] for one in manifest.segments} | set(manifest.accounts)


def tidy(client: Client, graph: str, manifest: GraphManifest) -> None:
    """Delete garbage of a killed writer, and pin objects that it did not pin."""
    name, named, mine = root(graph), _named(manifest), manifest.name(graph)
    garbage = []
    for found in names_of(client, name):
        is_part = found.startswith(tuple(f"{name}{kind}/" for kind in _PARTS))
        is_old = found.startswith(f"{name}manifest/") and found < mine
        is_void = found.startswith(f"{name}log/") and not manifest.counts(LogEntry.of(found))
        if is_old or is_void or (is_part and found not in named):
            garbage.append(found)
        else:
            with contextlib.suppress(farrow.FarrowError):
                client.pin(found)
    drop(client, garbage)


def failed_parts(client: Client, graph: str, manifest: GraphManifest, epoch: int) -> list[str]:
    """The objects of a writer's failed attempts, on the nodes that can be reached."""
    found: list[str] = []
    with contextlib.suppress(farrow.FarrowError):
        for kind in ("segment", "accounts"):
            found += names_of(client, f"{root(graph)}{kind}/")
    named, end = _named(manifest), f"-{epoch}"
    # The name of a graph may have a point.
    tails = {one: one.rsplit("/", 1)[1].partition(".")[0] for one in found}
    return [one for one, tail in tails.items() if one not in named and tail.endswith(end)]
