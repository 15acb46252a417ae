"""A file with a checksum over its whole contents: see ``docs/formats/graph_features.md``.

A write replaces the file atomically; a read detects every changed, missing or added byte.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import struct
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from farrow.exceptions import DamagedFile, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = b"FARROWGF"
VERSION = 2
# First bytes of a file of version 1, which is a plain Arrow IPC file without a head.
_MAGIC_OF_1 = b"ARROW1\0\0"
# Magic, version, zero, bytes of the body, checksum, zeros: the body begins at a cache line.
_HEAD = struct.Struct("<8sIIQ16s24x")
_CHECKSUM_BYTES = 16


def _checksum(version: int, body_bytes: int) -> hashlib.blake2b:
    """The checksum over the head; the caller adds the body."""
    return hashlib.blake2b(
        _HEAD.pack(MAGIC, version, 0, body_bytes, bytes(_CHECKSUM_BYTES)),
        digest_size=_CHECKSUM_BYTES,
    )


class _Body(io.RawIOBase):
    """The part of the file after the head, as a file to write the body to."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._bytes

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        self._file.write(view)
        self._bytes += len(view)
        return len(view)


def write(path: str | os.PathLike[str], write_body: Callable[[BinaryIO], None]) -> None:
    """Write a file, replacing an existing one, whose mode it gets.

    Raises:
        OSError: it cannot be written; an existing file is unchanged.
    """
    target = Path(path)
    # Not by `tempfile`, whose files only their owner can read.
    name = target.parent / f".{target.name}.{secrets.token_hex(8)}"
    mode = target.stat().st_mode & 0o777 if target.exists() else None
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(name, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(handle, "w+b") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(bytes(_HEAD.size))
            body = _Body(file)
            write_body(body)  # type: ignore[arg-type]
            _write_head(file, body.tell())
            file.flush()
            os.fsync(file.fileno())
        name.replace(target)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def _write_head(file: BinaryIO, body_bytes: int) -> None:
    checksum = _checksum(VERSION, body_bytes)
    file.seek(_HEAD.size)
    # The checksum needs the finished body: it is read again, from the page cache.
    while piece := file.read(1 << 20):
        checksum.update(piece)
    file.seek(0)
    file.write(_HEAD.pack(MAGIC, VERSION, 0, body_bytes, checksum.digest()))


def read(path: str | os.PathLike[str]) -> tuple[int, memoryview]:
    """The version of a file, and its body.

    Raises:
        OSError: it cannot be read.
        DamagedFile: it is of another kind, or was changed.
        InvalidArgument: it is intact, but of a later version.
    """
    name = os.fspath(path)
    data = Path(path).read_bytes()
    if data.startswith(_MAGIC_OF_1):
        return 1, memoryview(data)
    if len(data) < _HEAD.size:
        raise DamagedFile(f"{name} holds no graph features: {len(data)} B", name)
    magic, version, _, body_bytes, stored = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise DamagedFile(f"{name} holds no graph features: it begins with {magic!r}", name)
    body = memoryview(data)[_HEAD.size :]
    if len(body) != body_bytes:
        raise DamagedFile(
            f"{name} is damaged: {len(body)} B follow its head, which says {body_bytes} B", name
        )
    checksum = _checksum(version, body_bytes)
    checksum.update(body)
    packed = _HEAD.pack(magic, version, 0, body_bytes, stored)
    if checksum.digest() != stored or packed != data[: _HEAD.size]:
        raise DamagedFile(
            f"{name} is damaged: its checksum is {stored.hex()}, that of its {len(data)} B "
            f"{checksum.hexdigest()}",
            name,
        )
    if version != VERSION:
        raise InvalidArgument(f"{name} is of version {version}; this farrow reads 1 to {VERSION}")
    return version, body
