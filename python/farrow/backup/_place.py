"""The folder or bucket of a backup: files with checksums, and a manifest replaced at once."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.fs as fs

from farrow._nodes._filesystems import filesystem_of
from farrow.exceptions import DamagedFile, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PIECE_BYTES", "CountingFile", "File", "Place"]

# Bytes read or written at once: the memory that a copy takes.
PIECE_BYTES = 8 << 20
_LOCK = ".lock"


class File(NamedTuple):
    """One file of a backup.

    Attributes:
        path: its path, relative to the backup.
        bytes: its size.
        sha256: its checksum, in hexadecimal digits.
    """

    path: str
    bytes: int
    sha256: str


class CountingFile:
    """A binary file that counts and sums what is written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._sum = hashlib.sha256()
        self.nbytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, view.nbytes, PIECE_BYTES):
            piece = view[start : start + PIECE_BYTES]
            self._sum.update(piece)
            self._stream.write(piece)
        self.nbytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Pieces are passed on at once."""

    def close(self) -> None:
        self.closed = True

    def tell(self) -> int:
        return self.nbytes

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def file(self, path: str) -> File:
        return File(path, self.nbytes, self._sum.hexdigest())


def _private(path: str, flags: int) -> int:
    """Open a file; one that is created is its owner's alone, as the memory of a node is."""
    return os.open(path, flags, 0o600)


class Place:
    """A folder of this machine, or a prefix of a bucket."""

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self._text = os.fspath(target).rstrip("/") or "/"
        self._filesystem, self._root = filesystem_of(self._text)
        # Whether it is a folder of this machine.
        self.is_local = isinstance(self._filesystem, fs.LocalFileSystem)

    def name(self, path: str) -> str:
        """The path of a file, for messages."""
        return f"{self._text}/{path}"

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    @contextlib.contextmanager
    def locked(self, *, shared: bool) -> Iterator[None]:
        """Exclude other backups of this machine to the same folder.

        A bucket has no locks: of two backups at once the last one to end counts.

        Raises:
            InvalidArgument: another process writes a backup there, or reads one that would change.
        """
        if not self.is_local or (shared and not Path(self._full(_LOCK)).exists()):
            yield
            return
        try:
            descriptor = os.open(self._full(_LOCK), os.O_RDONLY if shared else _TO_WRITE, 0o644)
        except PermissionError:
            if not shared:
                raise
            yield
            return
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                other = "writes" if shared else "writes or restores"
                raise InvalidArgument(
                    f"{self._text}: another process {other} a backup there"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def make_folder(self, path: str = "") -> None:
        self._filesystem.create_dir(self._full(path).rstrip("/"), recursive=True)

    @contextlib.contextmanager
    def write(self, path: str) -> Iterator[CountingFile]:
        """A new file; on the disk at the end of the block, if it is in a folder."""
        if not self.is_local:
            with self._filesystem.open_output_stream(self._full(path)) as stream:
                yield CountingFile(stream)
            return
        with open(self._full(path), "xb", buffering=0, opener=_private) as file:
            yield CountingFile(_Whole(file))
            os.fsync(file.fileno())

    def replace(self, path: str, data: bytes) -> None:
        """Write a file that is there as a whole or not at all, after all files before it."""
        if not self.is_local:
            # Not in its place: a stream that an error or Ctrl-C ends can leave part of the data.
            beside = f".{path}.new"
            with self._filesystem.open_output_stream(self._full(beside)) as stream:
                stream.write(data)
            if (size := self.size(beside)) != len(data):
                raise OSError(f"{self.name(beside)}: {size} bytes, {len(data)} were written")
            self._filesystem.move(self._full(beside), self._full(path))
            return
        # The lock of the folder is held: what has this name is a killed backup's.
        beside = self._full(f".{path}.new")
        with open(beside, "wb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self._full(path))
        self.sync(".")

    def sync(self, folder: str) -> None:
        """Bring the names in a folder to the disk."""
        if self.is_local:
            descriptor = os.open(self._full(folder), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def size(self, path: str) -> int | None:
        """The size of a file; None if there is none."""
        info = self._filesystem.get_file_info(self._full(path))
        return int(info.size) if info.type == fs.FileType.File else None

    def read(self, path: str, bytes_max: int) -> bytes | None:
        """A whole file; None if there is none.

        Raises:
            DamagedFile: it is larger.
        """
        size = self.size(path)
        if size is None:
            return None
        if size > bytes_max:
            where = self.name(path)
            raise DamagedFile(f"{where}: {size} bytes, at most {bytes_max} expected", where)
        with self._filesystem.open_input_stream(self._full(path)) as stream:
            data: bytes = stream.read(bytes_max)
        return data

    def pieces(self, file: File) -> Iterator[bytes]:
        """The contents of a file in pieces; the checksum is known after the last one.

        Raises:
            DamagedFile: the file is missing, or has another size or checksum.
        """
        where = self.name(file.path)
        size = self.size(file.path)
        if size is None:
            text = f"{where}: no such file, {file.bytes} bytes expected"
            raise DamagedFile(text, where)
        if size != file.bytes:
            raise DamagedFile(f"{where}: {size} bytes, expected {file.bytes}", where)
        found, left = hashlib.sha256(), file.bytes
        with self._filesystem.open_input_stream(self._full(file.path)) as stream:
            while left:
                piece = stream.read(min(PIECE_BYTES, left))
                if not piece:
                    read = file.bytes - left
                    raise DamagedFile(f"{where}: {read} bytes, expected {file.bytes}", where)
                left -= len(piece)
                found.update(piece)
                yield piece
        if found.hexdigest() != file.sha256:
            raise DamagedFile(
                f"{where}: SHA-256 {found.hexdigest()}, expected {file.sha256}", where
            )

    def folders(self, path: str) -> list[str]:
        """Names of the folders in a folder."""
        selector = fs.FileSelector(self._full(path), allow_not_found=True)
        found = self._filesystem.get_file_info(selector)
        return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)

    def remove_folder(self, path: str) -> None:
        """Remove a folder with its files, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_dir(self._full(path))


_TO_WRITE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


class _Whole:
    """An unbuffered file whose writes are never short."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, view: memoryview) -> None:
        done = 0
        while done < view.nbytes:
            done += self._file.write(view[done:])
