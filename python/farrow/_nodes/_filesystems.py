"""File systems by path or URL: those of pyarrow, and those of fsspec where it is installed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from farrow.exceptions import InvalidArgument

__all__ = ["filesystem_of", "is_url"]


def is_url(text: str) -> bool:
    """Whether a text is a URL, not a path."""
    return "://" in text


def filesystem_of(text: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URL, and the path there.

    Raises:
        InvalidArgument: neither library knows such a URL.
    """
    if not is_url(text):
        return fs.LocalFileSystem(), str(Path(text).absolute())
    try:
        filesystem, root = fs.FileSystem.from_uri(text)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        filesystem, root = _by_fsspec(text, error)
    return filesystem, root.rstrip("/")


def _by_fsspec(text: str, error: Exception) -> tuple[fs.FileSystem, str]:
    scheme = text.partition("://")[0]
    try:
        import fsspec

        filesystem, root = fsspec.core.url_to_fs(text)
    except (ImportError, ValueError) as other:
        raise InvalidArgument(
            f"{scheme}:// is a URL of neither pyarrow ({error}) nor fsspec ({other})"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), str(root)
