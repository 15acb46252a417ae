"""Restore a backup: every file is checked before the first object is put."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa

from farrow._reserved import HUGE_TABLE, STATISTICS
from farrow.backup import _manifest, _values
from farrow.backup._place import Place
from farrow.exceptions import (
    AlreadyExists,
    DamagedFile,
    FarrowError,
    InvalidArgument,
    LimitReached,
    NotFound,
    OutOfMemory,
    RowsTaken,
)

if TYPE_CHECKING:
    import os

    from farrow._native import Client
    from farrow.backup._create import Progress
    from farrow.backup._manifest import Entry, Manifest
    from farrow.backup._place import File

__all__ = ["IncompleteRestore", "RestoreReport", "restore", "verify"]

# Names in a message.
_NAMES_MAX = 5
# Smaller values are copied into shared pages, which takes less memory than pages of their own.
_IN_PLACE_BYTES = 1 << 20


class IncompleteRestore(FarrowError):
    """Some objects of a backup were restored, and then one could not be.

    The cause is the error of that object.

    Attributes:
        restored: names of the objects that were restored and are in the node.
        missing: names of the objects that were not.
    """

    def __init__(self, text: str, restored: list[str], missing: list[str]) -> None:
        super().__init__(text, restored, missing)
        self.restored = restored
        self.missing = missing

    def __str__(self) -> str:
        return str(self.args[0])


class RestoreReport(NamedTuple):
    """What was restored.

    Attributes:
        names: names of the objects that were restored.
        skipped: names that existed, with ``existing="skip"``.
        nbytes: bytes of their values.
    """

    names: list[str]
    skipped: list[str]
    nbytes: int


def verify(
    target: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
) -> Manifest:
    """Check the size and the checksum of each file of a backup; needs no node.

    Args:
        target: the folder or URL, as for ``create``.
        names: names of the objects; None: all.
        progress: called at times with (done, total) in bytes.

    Returns:
        What the backup has.

    Raises:
        NotFound: there is no complete backup, or an object of ``names`` is not in it.
        DamagedFile: a file is missing or differs; the message has what was expected and found.
        OSError: a file cannot be read.

    Examples:
        >>> from farrow import backup
        >>> reference = client.put(b"hello", "backup.verify")
        >>> _ = backup.create(client, "saved", ["backup.verify"])
        >>> [(entry.name, entry.kind) for entry in backup.verify("saved").objects]
        [('backup.verify', 'bytes')]
    """
    place = Place(target)
    with place.locked(shared=True):
        manifest = _manifest.read(place)
        _check(place, _chosen(place, manifest, names), progress)
    return manifest


def restore(
    client: Client,
    target: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    *,
    existing: Literal["error", "skip", "replace"] = "error",
    progress: Progress | None = None,
) -> RestoreReport:
    """Put the objects of a backup into the client's namespace, with their metadata and pins.

    First the checksums of all files are checked, and the memory that they need: a damaged file or a
    full node is an error before anything changes.  Objects are put on the node that they were on,
    if the client's node maps its memory, else on the client's node.

    Args:
        client: a client in the namespace.
        target: the folder or URL, as for ``create``.
        names: names of the objects; None: all.
        existing: reaction to names that exist: an error before anything is restored, skip them, or
            replace their objects.
        progress: called at times with (done, total) in bytes; each file is read twice.

    Returns:
        What was restored.

    Raises:
        NotFound: there is no complete backup, or an object of ``names`` is not in it.
        AlreadyExists: names exist, and ``existing`` is "error"; or a huge table to skip has fewer
            rows than in the backup.
        DamagedFile: a file is missing or differs; the message has what was expected and found.
        OutOfMemory: the node has less room than the objects need; nothing was restored.
        LimitReached: a node has fewer places than there are objects; nothing was restored.
        IncompleteRestore: an error after some objects were restored, or some are not in the node
            any more; it has their names.
        InvalidArgument: ``existing`` is unknown, or another process writes a backup there.
        OSError: a file cannot be read.

    Examples:
        >>> from farrow import backup
        >>> reference = client.put(b"hello", "backup.restore")
        >>> _ = backup.create(client, "saved", ["backup.restore"])
        >>> client.delete(reference)
        >>> backup.restore(client, "saved").names
        ['backup.restore']
        >>> client.get("backup.restore").to_pybytes()
        b'hello'
    """
    if existing not in ("error", "skip", "replace"):
        raise InvalidArgument(f"existing={existing!r} is not 'error', 'skip' or 'replace'")
    place = Place(target)
    with place.locked(shared=True):
        manifest = _manifest.read(place)
        entries = _chosen(place, manifest, names)
        taken = {entry.name for entry in entries if client.contains(entry.name)}
        if taken and existing == "error":
            raise AlreadyExists(f"{_some(taken)} exist: replace or skip them")
        if existing == "skip":
            _check_whole(client, [entry for entry in entries if entry.name in taken])
            entries = [entry for entry in entries if entry.name not in taken]
        _check(place, entries, progress)
        reader = _ObjectReader(client, place)
        reader.check_room(entries, taken)
        done = reader.restore_all(entries, taken)
        _check_there(client, entries)
    skipped = sorted(taken) if existing == "skip" else []
    return RestoreReport(done, skipped, sum(entry.bytes for entry in entries))


def _chosen(place: Place, manifest: Manifest, names: Iterable[str] | None) -> list[Entry]:
    if names is None:
        return list(manifest.objects)
    wanted = set(names)
    missing = wanted - {entry.name for entry in manifest.objects}
    if missing:
        where = place.name(_manifest.MANIFEST)
        raise NotFound(f"{where}: no object named {', '.join(map(repr, sorted(missing)))}")
    return [entry for entry in manifest.objects if entry.name in wanted]


def _rows(client: Client, name: str) -> int:
    """The rows of a huge table that are there; 0 if it is no such table."""
    with contextlib.suppress(FarrowError):
        return sum(part.rows for part in client.huge_table(name).partitions())
    return 0


def _is_whole(client: Client, entry: Entry) -> bool:
    """Whether a huge table has at least the rows of the backup; other objects are always whole."""
    return not entry.parts or _rows(client, entry.name) >= sum(part.rows for part in entry.parts)


def _check_whole(client: Client, skipped: list[Entry]) -> None:
    """Check that no huge table is there in part, as a restore leaves it that was killed.

    Raises:
        AlreadyExists: one is.
    """
    for entry in skipped:
        if not _is_whole(client, entry):
            raise AlreadyExists(
                f"{entry.name!r} exists with {_rows(client, entry.name)} rows of"
                f" {sum(part.rows for part in entry.parts)}: replace it, or drop it first"
            )


def _check_there(client: Client, entries: list[Entry]) -> None:
    """Check that what was restored first was not evicted for what was restored last.

    Raises:
        IncompleteRestore: some objects are not in the node.
    """
    missing: list[str] = []
    there: list[str] = []
    for entry in entries:
        is_there = client.contains(entry.name) and _is_whole(client, entry)
        (there if is_there else missing).append(entry.name)
    if missing:
        text = (
            f"{len(missing)} of {len(entries)} objects are not in the node any more: evicted for"
            f" later ones, or deleted by another process: {_some(missing)}"
        )
        raise IncompleteRestore(text, there, missing)


def _check(place: Place, entries: list[Entry], progress: Progress | None) -> None:
    """Read all files of some objects.

    Raises:
        DamagedFile: one differs; the message names the first, and how many others.
    """
    files = [file for entry in entries for file in entry.files()]
    total, done = sum(file.bytes for file in files), 0
    damaged: list[DamagedFile] = []
    for file in files:
        try:
            for piece in place.pieces(file):
                done += len(piece)
                if progress is not None:
                    progress(done, total)
        except DamagedFile as error:
            damaged.append(error)
    if damaged:
        more = f", and {len(damaged) - 1} other damaged files" if len(damaged) > 1 else ""
        raise DamagedFile(f"{damaged[0]}{more}", damaged[0].path)


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMES_MAX} more" if len(ordered) > _NAMES_MAX else ""
    return ", ".join(map(repr, ordered[:_NAMES_MAX])) + more


def _whose(node: str | None) -> str:
    return f"node {node!r}" if node else "the node"


class _ObjectReader:
    """Puts objects of a backup on the nodes that they were on."""

    def __init__(self, client: Client, place: Place) -> None:
        self._client = client
        self._place = place
        nodes = client.nodes()
        self._mapped = {node.name for node in nodes if node.reach == "live" and node.fabric}
        self._mapped -= {node.name for node in nodes if node.is_own}

    def _node(self, name: str) -> str | None:
        """The node for what was on the node of this name; None: the client's."""
        return name if name in self._mapped else None

    def check_room(self, entries: list[Entry], taken: set[str]) -> None:
        """Compare the objects and their bytes with what each node has.

        Raises:
            LimitReached, OutOfMemory: a node has less.
        """
        need: Counter[str | None] = Counter()
        count: Counter[str | None] = Counter()
        for entry in entries:
            count[self._node(entry.node)] += 1
            if not entry.parts:
                need[self._node(entry.node)] += entry.bytes
            for part in entry.parts:
                need[self._node(part.node)] += part.file.bytes
                count[self._node(part.node)] += 1
        for node, requested in need.items():
            stats = self._client.stats(node=node)
            if count[node] > stats["objects_max"]:
                raise LimitReached(
                    f"nothing was restored: there are {count[node]} objects with their parts, and"
                    f" {_whose(node)} has places for {stats['objects_max']} (--objects-max)"
                )
            if stats["eviction"] == "spill":
                continue
            may_evict = stats["eviction"] != "none"
            free = stats["free"] + stats["evictable"]
            given_up = self._given_up(node, taken, only_pinned=may_evict) if taken else 0
            if requested > free + given_up:
                error = OutOfMemory(
                    f"nothing was restored: the objects take {requested} B, and {_whose(node)} has"
                    f" {free} B of {stats['capacity']} B"
                )
                error.requested, error.free, error.largest = requested, free, stats["largest_free"]
                raise error

    def _given_up(self, node: str | None, names: set[str], *, only_pinned: bool) -> int:
        """Bytes of the objects of a node that will be replaced.  What may be evicted is counted as
        evictable already."""
        listed = self._client.list(node=node).select(["name", "bytes", "pinned"]).to_pylist()
        return sum(
            one["bytes"]
            for one in listed
            if one["name"] in names and (one["pinned"] or not only_pinned)
        )

    def restore_all(self, entries: list[Entry], taken: set[str]) -> list[str]:
        """Names of the objects restored: all of them.

        Raises:
            IncompleteRestore: not all.
        """
        done: list[str] = []
        for entry in entries:
            try:
                self._restore(entry, is_taken=entry.name in taken)
            except (FarrowError, OSError, MemoryError, pa.ArrowException) as error:
                is_deleted = entry.name in taken and not self._client.contains(entry.name)
                if not done and not is_deleted:
                    raise
                missing = [one.name for one in entries[len(done) :]]
                restored = _some(done) or "none"
                text = (
                    f"{entry.name!r} was not restored: {error}; {len(done)} of {len(entries)} "
                    f"objects were restored: {restored}; not restored: {_some(missing)}"
                )
                if is_deleted:
                    text += f"; the former {entry.name!r} was deleted"
                raise IncompleteRestore(text, done, missing) from error
            done.append(entry.name)
        return done

    def _restore(self, entry: Entry, *, is_taken: bool) -> None:
        if is_taken:
            is_taken = self._make_way(entry)
        if entry.kind == _values.HUGE:
            self._restore_huge(entry)
            return
        options: dict[str, Any] = {
            "metadata": entry.metadata or None,
            "node": self._node(entry.node),
            "replace": is_taken,
        }
        if entry.kind == "bytes":
            with self._client.create(entry.file.bytes, entry.name, **options) as writer:
                # A damaged piece ends the block with an error, and the object is not sealed.
                for piece in self._place.pieces(entry.file):
                    writer.write(piece)
        else:
            value = self._load(entry.kind, entry.file, options["node"], entry.dimensions)
            # A put takes no statistics from metadata: they are counted again.
            counted = STATISTICS in entry.metadata
            self._client.put(value, entry.name, statistics=counted, **options)
        if entry.pinned:
            self._client.pin(entry.name)

    def _make_way(self, entry: Entry) -> bool:
        """Whether an object is left that the put replaces in one step.

        Huge tables, and objects of another node than the new one, are deleted first.
        """
        try:
            if HUGE_TABLE in self._client.metadata(entry.name):
                self._client.huge_table(entry.name).drop()
                return False
            listed = self._client.list(entry.name, node=self._node(entry.node))
            if entry.kind != _values.HUGE and entry.name in listed["name"].to_pylist():
                return True
            self._client.delete(entry.name)
        except NotFound:
            # Deleted since the names were compared.
            pass
        return False

    def _restore_huge(self, entry: Entry) -> None:
        schema = self._load(entry.kind, entry.file, None).schema
        partition_by = json.loads(entry.metadata.get("partition_by", "[]"))
        sort_by = entry.metadata.get("sort_by")
        table = self._client.huge_table(
            entry.name, schema, sort_by=sort_by, partition_by=partition_by
        )
        if table.version:
            raise AlreadyExists(f"{entry.name!r} exists since the restore began")
        try:
            for part in entry.parts:
                node = self._node(part.node)
                rows = self._load("table", part.file, node)
                table.append(rows, part.position, node=node)
        except RowsTaken:
            # Another process appends to it: it is no more the restored one.
            raise
        except BaseException:
            # Readers would take it for the whole table.
            with contextlib.suppress(FarrowError):
                table.drop()
            raise

    def _load(
        self, kind: str, file: File, node: str | None, dimensions: tuple[str, ...] = ()
    ) -> Any:
        """The value of a file, read into the memory of the node if that is possible."""
        buffer = self._room(file.bytes, node)
        view, end = memoryview(buffer).cast("B"), 0
        for piece in self._place.pieces(file):
            view[end : end + len(piece)] = piece
            end += len(piece)
        return _values.read_value(kind, buffer, list(dimensions))

    def _room(self, nbytes: int, node: str | None) -> pa.Buffer:
        if nbytes >= _IN_PLACE_BYTES:
            # Without the library of this pyarrow there is no pool, and the put copies once.
            with contextlib.suppress(ImportError):
                pool = self._client.memory_pool(strict=True, node=node, expect=nbytes)
                return pa.allocate_buffer(nbytes, memory_pool=pool)
        return pa.allocate_buffer(nbytes)
