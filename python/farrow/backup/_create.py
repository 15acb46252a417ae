"""Write a backup: data first, each file checked and on the disk, then the manifest."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from farrow._native import __version__
from farrow._nodes._listing import list_nodes
from farrow._reserved import HUGE_TABLE
from farrow._values._listed import listed_rows
from farrow.backup import _manifest, _values
from farrow.backup._place import Place
from farrow.exceptions import (
    DamagedFile,
    FarrowError,
    InvalidArgument,
    NodeLost,
    NotFound,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from farrow import HugeTable
    from farrow._native import Client
    from farrow.backup._place import File

__all__ = ["Created", "Progress", "create"]

# Called with (done, total) in bytes.
Progress = Callable[[int, int], None]

# The name of a part of a huge table: its table, the id of the table's root object, and a number.
_PART_NAME = re.compile(r"(?P<table>.+)/(?P<root>[0-9a-f]{32})/(?:node/)?[0-9]{10}", re.DOTALL)
# Objects that are replaced more often than this while they are looked for are left out.
_ATTEMPTS_MAX = 10
# Data without a manifest in a bucket is of a killed backup if it is older.
_LEFTOVER_AGE = timedelta(days=7)
_COLUMNS = ("name", "id", "bytes", "sealed_at", "metadata", "pinned", "node")


class Created(NamedTuple):
    """A backup that was written.

    Attributes:
        id: its id.
        objects: number of its objects.
        nbytes: bytes of its files.
        left_out: names that were deleted while it was written, or are of lost nodes.
        lost_nodes: nodes whose objects are not in it: they are lost or refuse the client.
    """

    id: str
    objects: int
    nbytes: int
    left_out: list[str]
    lost_nodes: list[str]


def create(
    client: Client,
    target: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    *,
    partial: bool = False,
    progress: Progress | None = None,
) -> Created:
    """Save the named objects of the client's namespace, on all nodes.

    Values are written from where they are: a backup takes some megabytes of memory.  Spilled
    objects are restored to memory one by one.  A failed or killed backup leaves the earlier one as
    it was.

    Args:
        client: a client in the namespace.
        target: a folder, which is made if it does not exist, or a URL of pyarrow or fsspec, such as
            ``s3://bucket/folder``.
        names: names of the objects; None: all.
        partial: whether to go on if objects of nodes cannot be listed, without these objects.
            The earlier backup is replaced nevertheless.
        progress: called at times with (done, total) in bytes.

    Returns:
        What was written.

    Raises:
        NotFound: an object of ``names`` does not exist.
        NodeLost: the objects of a node cannot be listed, since it is lost, cannot be reached or
            refuses the client; and ``partial`` is False.
        NotRestored: the spill file of an object is missing or damaged.
        DamagedFile: the target has a manifest that is damaged, or no backup's.
        InvalidArgument: another process writes or restores a backup there, or the URL is unknown.
        OSError: a file cannot be written.

    Examples:
        >>> from farrow import backup
        >>> reference = client.put(b"hello", "backup.create")
        >>> created = backup.create(client, "saved", ["backup.create"])
        >>> created.objects, created.left_out
        (1, [])
    """
    place = Place(target)
    place.make_folder()
    with place.locked(shared=False):
        _former(place)
        begun = _now()
        rows, lost = _listed(client, partial=partial)
        chosen = _chosen(rows, names)
        ident = f"{begun:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        folder = f"{_manifest.DATA}/{ident}"
        place.make_folder(folder)
        try:
            writer = _Writer(client, place, folder, progress, sum(row["bytes"] for row in chosen))
            entries = [entry for row in chosen if (entry := writer.save(row, partial=partial))]
            place.sync(folder)
            place.sync(_manifest.DATA)
            place.sync(".")
            former = _former(place)
            lost = sorted({*lost, *writer.lost_nodes})
            manifest = _manifest.Manifest(
                ident,
                __version__,
                client.namespace,
                begun.isoformat(),
                _now().isoformat(),
                tuple(lost),
                tuple(entries),
            )
            _manifest.write(place, manifest)
        except BaseException:
            with contextlib.suppress(OSError, DamagedFile):
                # The manifest may be in place already: then the backup counts, and is whole.
                if _former(place) != ident:
                    place.remove_folder(folder)
            raise
        # The backup is complete: what cannot be removed now is removed by the next one.
        with contextlib.suppress(OSError):
            _remove_replaced(place, ident, former)
    return Created(ident, len(entries), writer.nbytes, writer.left_out, lost)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _former(place: Place) -> str | None:
    """The id of the backup that counts now.

    Raises:
        DamagedFile: the manifest is damaged, or is another program's file.
    """
    try:
        return _manifest.read(place).id
    except NotFound:
        return None


def _remove_replaced(place: Place, ident: str, former: str | None) -> None:
    for other in place.folders(_manifest.DATA):
        if other == ident or not _manifest.is_id(other):
            continue
        begun = datetime.strptime(other[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
        is_leftover = place.is_local or _now() - begun > _LEFTOVER_AGE
        if other == former or is_leftover:
            place.remove_folder(f"{_manifest.DATA}/{other}")


def _listed(client: Client, *, partial: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """The named objects of all nodes without the parts of huge tables, and the missing nodes."""
    tables, lost, passes = [], set[str](), 0
    # An object is at its new node before it leaves the old one: it can miss one list for each
    # drain, and no later one.
    while passes <= sum(node.reach == "draining" for node in client.nodes()):
        table, missing = _list_nodes(client, partial=partial)
        tables.append(table)
        lost.update(missing)
        passes += 1
    rows = [row for table in tables for row in _rows(table)]
    roots = {(row["name"], row["id"].hex()) for row in rows if HUGE_TABLE in row["metadata"]}

    def is_part(name: str) -> bool:
        found = _PART_NAME.fullmatch(name)
        return found is not None and (found["table"], found["root"]) in roots

    wanted = {row["name"]: row for row in rows if not is_part(row["name"])}
    return [wanted[name] for name in sorted(wanted)], sorted(lost)


def _list_nodes(
    client: Client, prefix: str = "", *, partial: bool
) -> tuple[pa.Table, dict[str, FarrowError]]:
    """The objects of all nodes, and the nodes whose objects are missing.

    Raises:
        NodeLost: there are such nodes, and ``partial`` is False.
    """
    listed, missing = list_nodes(client, prefix)
    if missing and not partial:
        first = min(missing)
        names = ", ".join(sorted(missing))
        error = NodeLost(f"objects of {names} would be left out: {missing[first]}")
        error.node = first
        raise error from missing[first]
    return listed, missing


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The named objects of a list."""
    for row in listed_rows(table.select(_COLUMNS), times=pa.string()):
        if row["name"] is not None:
            yield {**row, "metadata": dict(row["metadata"] or ()), "node": row["node"] or ""}


def _chosen(rows: list[dict[str, Any]], names: Iterable[str] | None) -> list[dict[str, Any]]:
    if names is None:
        return rows
    wanted = set(names)
    missing = wanted - {row["name"] for row in rows}
    if missing:
        raise NotFound(f"no object named {', '.join(map(repr, sorted(missing)))}")
    return [row for row in rows if row["name"] in wanted]


class _Writer:
    """Writes objects to files with rising numbers."""

    def __init__(
        self, client: Client, place: Place, folder: str, progress: Progress | None, total: int
    ) -> None:
        self._client = client
        self._place = place
        self._folder = folder
        self._report = progress or (lambda done, total: None)
        self._total = total
        self._done = 0
        self._files = 0
        self.nbytes = 0
        self.left_out: list[str] = []
        self.lost_nodes: set[str] = set()

    def save(self, row: dict[str, Any], *, partial: bool) -> _manifest.Entry | None:
        """The entry of an object whose files are written; None if it is left out."""
        name: str = row["name"]
        listed: dict[str, Any] | None = row
        for _ in range(_ATTEMPTS_MAX):
            if listed is None:
                break
            try:
                entry = self._entry(listed)
            except NotFound:
                # Replaced or deleted since it was listed.
                listed = self._again(name, partial=partial)
                continue
            except NodeLost as error:
                if not partial:
                    raise
                self.lost_nodes.add(error.node)
                break
            self._done += row["bytes"]
            self._report(min(self._done, self._total), self._total)
            return entry
        self.left_out.append(name)
        return None

    def _again(self, name: str, *, partial: bool) -> dict[str, Any] | None:
        listed, missing = _list_nodes(self._client, name, partial=partial)
        self.lost_nodes.update(missing)
        return next((row for row in _rows(listed) if row["name"] == name), None)

    def _entry(self, row: dict[str, Any]) -> _manifest.Entry:
        if HUGE_TABLE in row["metadata"]:
            try:
                table = self._client.huge_table(row["name"])
            except InvalidArgument:
                pass  # Any program can put an object with this label: it is saved like all others.
            else:
                return self._huge_entry(row, table)
        value = self._client.get(row["id"])
        kind = _values.kind_of(value)
        # The list has no labels of spilled objects.
        metadata = self._client.metadata(row["id"])
        file = self._write(value)
        dimensions = tuple(value.dim_names) if kind == "tensor" else ()
        return _manifest.Entry(
            row["name"], kind, row["bytes"], row["sealed_at"], metadata, row["pinned"],
            row["node"], file, dimensions=dimensions,
        )  # fmt: skip

    def _huge_entry(self, row: dict[str, Any], table: HugeTable) -> _manifest.Entry:
        partitions = sorted(table.partitions(table.version), key=lambda part: part.version)
        file = self._write(table.schema.empty_table())
        parts = [
            _manifest.ChunkEntry(
                part.position, part.rows, part.node, self._write(self._client.get(part.id))
            )
            for part in partitions
        ]
        order: dict[str, str] = {}
        if table.sort_by is not None:
            order["sort_by"] = table.sort_by
        if table.partition_by:
            order["partition_by"] = json.dumps(table.partition_by)
        return _manifest.Entry(
            row["name"], _values.HUGE, sum(part.nbytes for part in partitions), row["sealed_at"],
            order, True, row["node"], file, tuple(parts),
        )  # fmt: skip

    def _write(self, value: Any) -> File:
        ending = _values.ENDINGS[_values.kind_of(value)]
        path = f"{self._folder}/{self._files:06}.{ending}"
        self._files += 1
        with self._place.write(path) as sink:
            _values.write_value(value, sink)
            file = sink.file(path)
        self.nbytes += file.bytes
        return file
