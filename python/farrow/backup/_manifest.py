"""The manifest of a backup: what is in it.  A manifest that is read is untrusted input."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from farrow.backup._place import File
from farrow.backup._values import ENDINGS, HUGE
from farrow.exceptions import DamagedFile, NotFound

if TYPE_CHECKING:
    from farrow.backup._place import Place

__all__ = ["DATA", "MANIFEST", "ChunkEntry", "Entry", "Manifest", "is_id", "read", "write"]

MANIFEST = "manifest.json"
DATA = "data"
FORMAT = "farrow backup"
VERSION = 1
# A million objects take some 400 MB.
_MANIFEST_BYTES_MAX = 1 << 30
_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
_PATH = re.compile(rf"{DATA}/{_ID.pattern}/[0-9]{{6,12}}\.(?:{'|'.join(set(ENDINGS.values()))})")
_SUM = re.compile(r"[0-9a-f]{64}")


class ChunkEntry(NamedTuple):
    """One chunk of a huge table.

    Attributes:
        position: position of its first row.
        rows: number of rows.
        node: name of the node that stored it.
        file: the file with its rows.
    """

    position: int
    rows: int
    node: str
    file: File


class Entry(NamedTuple):
    """One object of a backup.

    Attributes:
        name: its name.
        kind: "table", "record batch", "array", "chunked array", "ndarray", "tensor", "bytes" or
            "huge table".
        bytes: bytes of its values in memory.
        sealed_at: when it was sealed, in UTC.
        metadata: its labels.
        pinned: whether it was protected from eviction.
        node: name of its node; "" without a cluster.
        file: the file with its value; of a huge table, with its schema.
        parts: the chunks of a huge table, in the order of its versions.
        dimensions: names of the dimensions of a tensor.
    """

    name: str
    kind: str
    bytes: int
    sealed_at: str
    metadata: dict[str, str]
    pinned: bool
    node: str
    file: File
    parts: tuple[ChunkEntry, ...] = ()
    dimensions: tuple[str, ...] = ()

    def files(self) -> list[File]:
        """All files of the object.

        Returns:
            The file with its value, then those of the chunks of a huge table.

        Examples:
            >>> from farrow import backup
            >>> _ = client.put(b"files", "files")
            >>> _ = backup.create(client, "files", ["files"])
            >>> [entry] = backup.verify("files").objects
            >>> len(entry.files())
            1
        """
        return [self.file, *(part.file for part in self.parts)]


class Manifest(NamedTuple):
    """What a backup has.

    Attributes:
        id: its id, which begins with the time of its begin in UTC.
        farrow: version of Farrow that wrote it.
        namespace: the namespace of the objects.
        begun_at: when it began, in UTC.
        ended_at: when it was complete, in UTC.
        lost_nodes: nodes whose objects are not in it.
        objects: its objects, by name.
    """

    id: str
    farrow: str
    namespace: str
    begun_at: str
    ended_at: str
    lost_nodes: tuple[str, ...]
    objects: tuple[Entry, ...]


def is_id(text: str) -> bool:
    """Whether a folder with this name has data of a backup."""
    return _ID.fullmatch(text) is not None


def write(place: Place, manifest: Manifest) -> None:
    """Make a backup the one that counts."""
    body = {"format": FORMAT, "version": VERSION, **manifest._asdict()}
    body["objects"] = [
        {
            **entry._asdict(),
            "file": entry.file._asdict(),
            "parts": [{**part._asdict(), "file": part.file._asdict()} for part in entry.parts],
        }
        for entry in manifest.objects
    ]
    body["sha256"] = _sum_of(body)
    place.replace(MANIFEST, json.dumps(body, indent=1).encode() + b"\n")


def read(place: Place) -> Manifest:
    """The manifest of the backup in a place.

    Raises:
        NotFound: there is no complete backup.
        DamagedFile: the manifest is damaged, or of another version.
    """
    where = place.name(MANIFEST)
    data = place.read(MANIFEST, _MANIFEST_BYTES_MAX)
    if data is None:
        raise NotFound(f"{where}: no such file, so there is no complete backup")
    try:
        body = json.loads(data)
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise DamagedFile(f"{where}: no manifest of a backup of Farrow", where)
        if body.get("version") != VERSION:
            text = f"version {body.get('version')!r}, this Farrow reads version {VERSION}"
            raise DamagedFile(f"{where}: {text}", where)
        expected = str(body.pop("sha256", None))
        if _sum_of(body) != expected:
            text = f"SHA-256 {_sum_of(body)} of its contents, expected {expected}"
            raise DamagedFile(f"{where}: {text}", where)
        return _manifest(body)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        if isinstance(error, DamagedFile):
            raise
        text = f"{where}: no manifest of a backup: {type(error).__name__}: {error}"
        raise DamagedFile(text, where) from error


def _sum_of(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _manifest(body: dict[str, Any]) -> Manifest:
    objects = tuple(_entry(one) for one in _list(body["objects"]))
    names = {entry.name for entry in objects}
    if len(names) != len(objects):
        raise ValueError(f"{len(objects)} objects with {len(names)} names")
    texts = ("id", "farrow", "namespace", "begun_at", "ended_at")
    found = {key: _typed(body[key], str) for key in texts}
    if not is_id(found["id"]):
        raise ValueError(f"the id {found['id']!r}")
    lost = tuple(_typed(name, str) for name in _list(body["lost_nodes"]))
    return Manifest(**found, lost_nodes=lost, objects=objects)


def _entry(one: Any) -> Entry:
    kind = _typed(one["kind"], str)
    if kind not in ENDINGS:
        raise ValueError(f"the kind {kind!r}")
    metadata = _typed(one["metadata"], dict)
    parts = tuple(
        ChunkEntry(_count(part["position"]), _count(part["rows"]), _typed(part["node"], str),
             _file(part["file"]))
        for part in _list(one["parts"])
    )  # fmt: skip
    if parts and kind != HUGE:
        raise ValueError(f"a {kind} of {len(parts)} parts")
    return Entry(
        _typed(one["name"], str),
        kind,
        _count(one["bytes"]),
        _typed(one["sealed_at"], str),
        {_typed(key, str): _typed(value, str) for key, value in metadata.items()},
        _typed(one["pinned"], bool),
        _typed(one["node"], str),
        _file(one["file"]),
        parts,
        tuple(_typed(name, str) for name in _list(one["dimensions"])),
    )


def _file(one: Any) -> File:
    path, found = _typed(one["path"], str), _typed(one["sha256"], str)
    if not _PATH.fullmatch(path) or not _SUM.fullmatch(found):
        raise ValueError(f"the file {path!r} with SHA-256 {found!r}")
    return File(path, _count(one["bytes"]), found)


def _list(value: Any) -> list[Any]:
    found: list[Any] = _typed(value, list)
    return found


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(f"the number {value!r}")
    return value


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
