"""Files behind URLs, copied to this machine for the time of a command."""

from __future__ import annotations

import base64
import contextlib
import http.client
import posixpath
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pyarrow import fs

from farrow._nodes._filesystems import filesystem_of
from farrow.cli._output import CommandError, progress_bar
from farrow.exceptions import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["downloaded", "file_name", "shown"]

_PIECE_BYTES = 4 << 20
# A server that sends nothing for this time is given up.
_SILENCE_SECONDS = 30.0


def file_name(url: str) -> str:
    """The last part of a URL's path, which is the name of a file; empty if it ends with a slash."""
    return posixpath.basename(urllib.parse.unquote(urllib.parse.urlsplit(url).path))


def shown(url: str) -> str:
    """A URL without what may be secret: a password, and the signature in a query."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")
    )


@contextlib.contextmanager
def downloaded(url: str, *, quiet: bool) -> Iterator[Path]:
    """A copy of what a URL names, in a folder of its own; a local file itself.

    Args:
        url: of HTTP, or of a file system of pyarrow or fsspec, such as ``s3://bucket/file.parquet``.
        quiet: no progress bar.

    Raises:
        CommandError: nothing is there, or not all of it arrives.
    """
    name = file_name(url)
    with tempfile.TemporaryDirectory(prefix="farrow-download-") as folder:
        copy = Path(folder) / (name or "download")
        try:
            with _opened(url) as (source, total):
                path = source if isinstance(source, Path) else copy
                if not isinstance(source, Path):
                    _copy(source, total, copy, url, quiet=quiet)
        except urllib.error.HTTPError as error:
            raise CommandError(f"{shown(url)}: {error.code} {error.reason}") from error
        except urllib.error.URLError as error:
            raise CommandError(f"{shown(url)}: {error.reason}") from error
        except (OSError, ValueError, InvalidArgument, http.client.HTTPException) as error:
            raise CommandError(f"{shown(url)}: {error}") from error
        yield path


@contextlib.contextmanager
def _opened(url: str) -> Iterator[tuple[IO[bytes] | Path, int | None]]:
    """The bytes of a URL and how many they are, if that is known; a local file's path."""
    if url.partition("://")[0].lower() in ("http", "https"):
        request = _request(url)
        with urllib.request.urlopen(request, timeout=_SILENCE_SECONDS) as answer:
            length = answer.headers.get("Content-Length")
            yield answer, int(length) if length is not None else None
        return
    filesystem, path = filesystem_of(url)
    found = filesystem.get_file_info(path)
    if found.type != fs.FileType.File:
        is_nothing = found.type == fs.FileType.NotFound
        raise FileNotFoundError("no such file" if is_nothing else "not a file")
    if isinstance(filesystem, fs.LocalFileSystem):
        yield Path(path), None
        return
    with filesystem.open_input_stream(path) as source:
        yield source, found.size


def _request(url: str) -> urllib.request.Request:
    parts = urllib.parse.urlsplit(url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    request = urllib.request.Request(bare.geturl(), headers={"User-Agent": "farrow"})
    if parts.username is not None:
        user, password = (urllib.parse.unquote(it or "") for it in (parts.username, parts.password))
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        # Not for another host, to which the server may refer.
        request.add_unredirected_header("Authorization", f"Basic {basic}")
    return request


def _copy(source: IO[bytes], total: int | None, to: Path, url: str, *, quiet: bool) -> None:
    done = 0
    with to.open("wb") as copy, progress_bar(to.name, quiet=quiet) as report:
        while piece := source.read(_PIECE_BYTES):
            copy.write(piece)
            done += len(piece)
            report(done, total if total is not None else done)
    if total is not None and done != total:
        raise CommandError(f"{shown(url)}: {done} of {total} bytes arrived")
