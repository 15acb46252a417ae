"""``farrow put``: load files into objects, built in place where the file's kind allows it."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import farrow
from farrow._nodes._filesystems import is_url
from farrow.cli._client import connect
from farrow.cli._files._download import downloaded, file_name, shown
from farrow.cli._files._estimate import check_room, estimate, pool_for
from farrow.cli._files._read import read_table
from farrow.cli._output import (
    CommandError,
    console,
    human_bytes,
    human_seconds,
    print_json,
    progress_bar,
    visible,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from io import FileIO

__all__ = ["object_name", "put"]

# Endings removed from a file's name to name its object.
_PACKED = (".gz", ".bz2", ".zst")
_TABLES = (
    ".csv",
    ".txt",
    ".tsv",
    ".json",
    ".jsonl",
    ".ndjson",
    ".parquet",
    ".pq",
    ".arrow",
    ".arrows",
    ".feather",
    ".ipc",
)
_PIECE_BYTES = 16 << 20


def put(options: argparse.Namespace) -> int:
    """Put each file as an object of its own."""
    files = [path for file in options.files for path in _expanded(file)]
    if len(files) > 1 and options.name is not None:
        raise CommandError(f"--name {options.name}: one name for {len(files)} files")
    if options.bytes and options.statistics:
        raise CommandError("--statistics: bytes have no columns (leave out --bytes)")
    _check_names(files, options.name)
    for file in files:
        with _path_of(file, options) as path:
            _put_file(path, options)
    return 0


def _expanded(file: str) -> list[str]:
    """The files that a pattern such as ``'data/*.csv'`` matches, sorted; else the file itself.

    A shell expands patterns, but not in quotes, and other callers expand none.
    """
    if is_url(file):
        if "*" in file:
            raise CommandError(f"{shown(file)}: a URL names one file, not a pattern")
        return [file]
    if not glob.has_magic(file) or os.path.lexists(file):
        return [file]
    found = sorted(path for path in glob.glob(file, recursive=True) if os.path.isfile(path))
    if not found:
        raise CommandError(f"{file}: no file matches")
    return found


def _check_names(files: list[str], given: str | None) -> None:
    """Refuse files that would be objects of the same name or of none, before any is put."""
    taken: dict[str, str] = {}
    for file in files:
        path = file_name(file) if is_url(file) else file
        if not path and given is None:
            raise CommandError(f"{shown(file)} names no file: use --name NAME")
        name = object_name(Path(path))
        if taken.setdefault(name, file) != file:
            first, second = (shown(one) if is_url(one) else one for one in (taken[name], file))
            raise CommandError(f"{first} and {second}: both would be named {name!r}")


def object_name(path: Path) -> str:
    """The name of a file's object: the file's, without endings such as ``.csv.gz``."""
    name = path.name
    while name.lower().endswith(_PACKED + _TABLES) and Path(name).stem:
        name = Path(name).stem
    return name


@contextlib.contextmanager
def _path_of(file: str, options: argparse.Namespace) -> Iterator[Path]:
    """The path of a file to put; of a temporary file if it is a URL or standard input."""
    if is_url(file):
        with downloaded(file, quiet=options.quiet) as path:
            yield path
        return
    if file != "-":
        path = Path(file)
        if not path.is_file():
            raise CommandError(f"{file}: {'not a file' if path.exists() else 'no such file'}")
        with _in_utf8(path, options.name) as readable:
            yield readable
        return
    if options.name is None:
        raise CommandError("standard input has no name: use --name NAME")
    if sys.stdin is None:
        raise CommandError("standard input is closed")
    # The kind is detected from the first bytes, and Parquet is read from its end.
    with tempfile.NamedTemporaryFile(prefix="farrow-stdin-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, _PIECE_BYTES)
        copy.flush()
        yield Path(copy.name)


@contextlib.contextmanager
def _in_utf8(path: Path, name: str | None) -> Iterator[Path]:
    """A path of a file that pyarrow takes: a link to the file, if its own path is not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        if name is None:
            raise CommandError(f"{path}: the name is not UTF-8: use --name NAME") from None
        with tempfile.TemporaryDirectory(prefix="farrow-link-") as folder:
            ending = path.suffix.encode(errors="ignore").decode()
            link = Path(folder) / f"file{ending}"
            link.symlink_to(path.absolute())
            yield link
    else:
        yield path


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of a block begin with the name of the file, which few of pyarrow's have."""
    try:
        yield
    except pa.ArrowInvalid as error:
        if path.name in str(error):
            raise
        raise CommandError(f"{path.name}: {error}") from error
    except OSError as error:
        if error.filename is not None or path.name in str(error):
            raise
        raise CommandError(f"{path.name}: {error.strerror or error}") from error


def _put_file(path: Path, options: argparse.Namespace) -> None:
    name = object_name(path) if options.name is None else options.name
    client = connect(options)
    if client.contains(name) and not options.replace:
        raise CommandError(f"{name!r} exists already (--replace puts this one in its place)")
    if options.bytes:
        _put_bytes(client, path, name, options)
        return
    began = time.perf_counter()
    besides = _bytes_of(client, name) if options.replace else 0
    with _named(path):
        expected = estimate(path, delimiter=options.delimiter, has_header=options.header)
    with progress_bar(path.name, quiet=options.quiet) as report, _named(path):
        table = read_table(
            path,
            pool=pool_for(client, expected, besides=besides),
            progress=report,
            delimiter=options.delimiter,
            has_header=options.header,
        )
    loaded = time.perf_counter()
    buffers = client.locate(table)
    in_place = sum(int(buffer["bytes"]) for buffer in buffers if buffer["in_region"])
    total = sum(int(buffer["bytes"]) for buffer in buffers)
    looked = time.perf_counter()
    if options.replace and _is_elsewhere(client, name):
        _check_room_to_replace(client, total - in_place, name)
        _delete_if_there(client, name)
    try:
        ref = client.put(table, name, replace=options.replace, statistics=options.statistics)
    except farrow.OutOfMemory:
        # Buffers in the region may fragment it: copy the table out and ask for all room at once.
        table = _outside(table)
        in_place = 0
        ref = _put_outside(client, table, name, options)
    sealed = time.perf_counter()
    facts = {
        "name": ref.name,
        "id": ref.hex(),
        "rows": table.num_rows,
        "columns": table.num_columns,
        "bytes": total,
        "bytes_in_place": in_place,
        "load_seconds": loaded - began,
        "put_seconds": sealed - looked,
    }
    if options.json:
        print_json(facts)
        return
    share = "all of it built in place" if in_place == total else f"{human_bytes(in_place)} in place"
    out = console()
    out.print(
        f"{visible(name)}  {table.num_rows:,} rows x {table.num_columns} columns,"
        f" {human_bytes(total)}, {share}",
        markup=False,
    )
    out.print(
        f"loaded in {human_seconds(loaded - began)}, sealed in {human_seconds(sealed - looked)}",
        style="dim",
    )


def _put_outside(client: Any, table: pa.Table, name: str, options: argparse.Namespace) -> Any:
    """Put a table of private memory.  Without room for both, the old object is deleted first."""
    statistics = options.statistics
    try:
        return client.put(table, name, replace=options.replace, statistics=statistics)
    except farrow.OutOfMemory:
        if not options.replace:
            raise
    _check_room_to_replace(client, table.nbytes, name)
    _delete_if_there(client, name)
    return client.put(table, name, statistics=statistics)


def _outside(table: pa.Table) -> pa.Table:
    """The same table in private memory."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def _bytes_of(client: Any, name: str) -> int:
    """Bytes of the object of this name, which will be replaced."""
    listed = client.list(name)
    sizes = zip(listed["name"].to_pylist(), listed["bytes"].to_pylist(), strict=True)
    return sum(int(size) for found, size in sizes if found == name)


def _check_room_to_replace(client: Any, missing: int, name: str) -> None:
    """Reject a table of which ``missing`` bytes are outside the region, if they cannot fit in it.

    Raises:
        OutOfMemory: they would not fit even after the object of this name is deleted.
    """
    stats = client.stats()
    # Unused room of grants may be this client's. If it is not, the put itself fails.
    granted = max(0, int(stats["granted"]) - int(stats["pool_allocated"]))
    check_room(client, missing, besides=_bytes_of(client, name) + granted)


def _is_elsewhere(client: Any, name: str) -> bool:
    """Whether an object of another node has the name: that node cannot pass it on."""
    return bool(client.contains(name)) and name not in client.list(name)["name"].to_pylist()


def _delete_if_there(client: Any, name: str) -> None:
    with contextlib.suppress(farrow.NotFound):
        client.delete(name)


def _put_bytes(client: Any, path: Path, name: str, options: argparse.Namespace) -> None:
    """Store a file's bytes unchanged, read directly into the region."""
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("rb", buffering=0))
        size = os.fstat(file.fileno()).st_size
        check_room(client, size, besides=_bytes_of(client, name) if options.replace else 0)
        report = stack.enter_context(progress_bar(path.name, quiet=options.quiet))
        try:
            writer = client.create(size, name, replace=options.replace)
        except farrow.OutOfMemory:
            # An object of another node gives no room here.
            if not options.replace or _is_elsewhere(client, name):
                raise
            check_room(client, size, besides=_bytes_of(client, name))
            # The old object has to go first. Until the file is read, it could be the only one.
            data = memoryview(bytearray(size))
            _read_all(file, data, path.name, report)
            _delete_if_there(client, name)
            writer = stack.enter_context(client.create(size, name))
            memoryview(writer.buffer).cast("B")[:] = data
        else:
            stack.enter_context(writer)
            with memoryview(writer.buffer).cast("B") as view:
                _read_all(file, view, path.name, report)
            if options.replace and _is_elsewhere(client, name):
                # Only now that the file is read: until here it could fail.
                _delete_if_there(client, name)
        ref = writer.seal()
    seconds = time.perf_counter() - began
    if options.json:
        print_json({"name": ref.name, "id": ref.hex(), "bytes": size, "load_seconds": seconds})
    else:
        console().print(
            f"{visible(name)}  {human_bytes(size)}, loaded in {human_seconds(seconds)}",
            markup=False,
        )


def _read_all(
    file: FileIO, view: memoryview, name: str, report: Callable[[int, int], None]
) -> None:
    """Read a whole file into memory of its size.

    Raises:
        CommandError: the file has another size now.
    """
    done, size = 0, len(view)
    while done < size:
        got = file.readinto(view[done : done + _PIECE_BYTES])
        if not got:
            raise CommandError(f"{name} shrank to {done} of {size} bytes while read")
        done += got
        report(done, size)
    if file.read(1):
        raise CommandError(f"{name} grew beyond {size} bytes while read")
