"""The commands of a client: put, get, ls, rm, stat; and the dispatch of all others."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import farrow
from farrow import _native
from farrow.cli import _graph, _lab
from farrow.cli import _nodes as _about_nodes
from farrow.cli._estimate import check_room, estimate, pool_for
from farrow.cli._output import (
    CommandError,
    console,
    grid,
    human_bytes,
    human_seconds,
    parse_bytes,
    plain,
    print_json,
    progress_bar,
    visible,
)
from farrow.cli._read import read_table
from farrow.cli._write import as_table, format_for, write_object

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

__all__ = ["COMMANDS"]

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
_PREVIEW_ROWS = 10
_PREVIEW_COLUMNS = 8
_PIECE_BYTES = 16 << 20
_ID = re.compile("[0-9a-fA-F]{32}")


def _connect(options: argparse.Namespace) -> Any:
    """A client of a running node.

    ``farrow.connect`` could start a private node.  A command must not: that node, and its objects,
    would end with this process.
    """
    if options.socket is not None:
        return farrow.connect(options.socket, timeout=options.timeout, namespace=options.namespace)
    try:
        return _native.connect(None, options.timeout, namespace=options.namespace)
    except farrow.FarrowError as error:
        if "FARROW_SOCKET" in os.environ:
            raise
        raise CommandError(
            f"{error}: start a node with `farrow node`,"
            " or say where it is with --socket or $FARROW_SOCKET"
        ) from error


def _target(client: Any, text: str) -> str | bytes:
    """Parse a target: a name, or an id of 32 hexadecimal digits that is no name."""
    if _ID.fullmatch(text) and not client.contains(text):
        return bytes.fromhex(text)
    return text


def object_name(path: Path) -> str:
    """The name of a file's object: the file's, without endings such as ``.csv.gz``."""
    name = path.name
    while name.lower().endswith(_PACKED + _TABLES) and Path(name).stem:
        name = Path(name).stem
    return name


def _put(options: argparse.Namespace) -> int:
    """Put each file as an object of its own."""
    if len(options.files) > 1 and options.name is not None:
        raise CommandError(f"--name {options.name}: one name for {len(options.files)} files")
    for file in options.files:
        with _path_of(file, options.name) as path:
            _put_file(path, options)
    return 0


@contextlib.contextmanager
def _path_of(file: str, name: str | None) -> Iterator[Path]:
    """The path of a file to put; of a temporary file if it is standard input."""
    if "://" in file:
        raise CommandError(f"{file}: download it first (curl -o FILE URL), then put the file")
    if file != "-":
        path = Path(file)
        if not path.is_file():
            raise CommandError(f"{file}: {'not a file' if path.exists() else 'no such file'}")
        yield path
        return
    if name is None:
        raise CommandError("standard input has no name: say --name NAME")
    # The kind is detected from the first bytes, and Parquet is read from its end.
    with tempfile.NamedTemporaryFile(prefix="farrow-stdin-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, _PIECE_BYTES)
        copy.flush()
        yield Path(copy.name)


def _put_file(path: Path, options: argparse.Namespace) -> None:
    name = object_name(path) if options.name is None else options.name
    client = _connect(options)
    if client.contains(name) and not options.replace:
        raise CommandError(f"{name!r} exists already (--replace puts this one in its place)")
    if options.bytes:
        _put_bytes(client, path, name, options)
        return
    began = time.perf_counter()
    besides = _bytes_of(client, name) if options.replace else 0
    expected = estimate(path, delimiter=options.delimiter, has_header=options.header)
    with progress_bar(path.name, quiet=options.quiet) as report:
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
        ref = client.put(table, name, replace=options.replace)
    except farrow.OutOfMemory:
        # Buffers in the region may fragment it: copy the table out and ask for all room at once.
        table = _outside(table)
        in_place = 0
        ref = _put_outside(client, table, name, replace=options.replace)
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


def _put_outside(client: Any, table: pa.Table, name: str, *, replace: bool) -> Any:
    """Put a table of private memory. Where there is no room for both, the old object goes first."""
    try:
        return client.put(table, name, replace=replace)
    except farrow.OutOfMemory:
        if not replace:
            raise
    _check_room_to_replace(client, table.nbytes, name)
    _delete_if_there(client, name)
    return client.put(table, name)


def _create(client: Any, size: int, name: str, *, replace: bool) -> Any:
    """Allocate an object. Where there is no room for both, the old object goes first."""
    if replace and _is_elsewhere(client, name):
        _delete_if_there(client, name)
    try:
        return client.create(size, name, replace=replace)
    except farrow.OutOfMemory:
        if not replace:
            raise
    check_room(client, size, besides=_bytes_of(client, name))
    _delete_if_there(client, name)
    return client.create(size, name)


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
        writer = stack.enter_context(_create(client, size, name, replace=options.replace))
        view = memoryview(writer.buffer).cast("B")
        done = 0
        while done < size:
            got = file.readinto(view[done : done + _PIECE_BYTES])
            if not got:
                raise CommandError(f"{path.name} shrank to {done} of {size} bytes while read")
            done += got
            report(done, size)
        if file.read(1):
            raise CommandError(f"{path.name} grew beyond {size} bytes while read")
        view.release()
        ref = writer.seal()
    seconds = time.perf_counter() - began
    if options.json:
        print_json({"name": ref.name, "id": ref.hex(), "bytes": size, "load_seconds": seconds})
    else:
        console().print(
            f"{visible(name)}  {human_bytes(size)}, loaded in {human_seconds(seconds)}",
            markup=False,
        )


def _get(options: argparse.Namespace) -> int:
    client = _connect(options)
    value = client.get(_target(client, options.name), timeout=options.wait)
    if options.output is None and options.format is None:
        if options.json:
            print_json(_summary(options.name, value))
        else:
            _preview(options.name, value)
        return 0
    target = options.output or "-"
    word = options.format or (format_for(Path(target)) if target != "-" else None)
    if word is None:
        word = "ipc-stream" if _is_table(value) else "raw"
        if target != "-":
            raise CommandError(
                f"{target}: the name asks for no known format: use --format,"
                " or .parquet, .csv, .arrow, .arrows, .npy, .bin"
            )
    if target == "-":
        write_object(value, sys.stdout.buffer, word)
        sys.stdout.buffer.flush()
    else:
        _write_file(value, Path(target), word)
        if options.json:
            written = Path(target).stat().st_size
            print_json({"name": options.name, "file": target, "format": word, "bytes": written})
    return 0


def _is_table(value: Any) -> bool:
    try:
        as_table(value)
    except TypeError:
        return False
    return True


def _write_file(value: Any, target: Path, word: str) -> None:
    """Write a temporary file and rename it, so that no incomplete file is visible.

    A file behind a symbolic link is written in place.
    """
    import gzip

    if not target.parent.is_dir():
        raise CommandError(f"{target}: there is no directory {target.parent}")
    is_file = target.is_file() and not target.is_symlink()
    # A link, a device or a pipe stays what it is; write into it.
    direct = not is_file and (target.is_symlink() or target.exists())
    place = target if direct else target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with place.open("wb") as file:
            if is_file:
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
            if target.name.lower().endswith(".gz"):
                with gzip.GzipFile(fileobj=file, mode="wb", filename="") as packed:
                    write_object(value, packed, word)  # type: ignore[arg-type]
            else:
                write_object(value, file, word)
        if not direct:
            place.replace(target)
    except BaseException:
        if not direct:
            place.unlink(missing_ok=True)
        raise


def _summary(name: str, value: Any) -> dict[str, Any]:
    """What ``farrow get --json`` prints of an object: its kind, size and shape."""
    if _is_table(value):
        table = as_table(value)
        columns = [
            {"name": field.name, "type": str(field.type), "nulls": column.null_count}
            for field, column in zip(table.schema, table.columns, strict=True)
        ]
        kind = {"rows": table.num_rows, "columns": columns, "bytes": table.nbytes}
        return {"name": name, "kind": type(value).__name__, **kind}
    kind_of_items, shape, size = _shape(value)
    return {
        "name": name,
        "kind": type(value).__name__,
        "type": kind_of_items,
        "shape": shape,
        "bytes": size,
    }


def _shape(value: Any) -> tuple[str, list[int], int]:
    """Type of the items, shape and bytes of an object that is no table."""
    if isinstance(value, pa.Tensor):
        return str(value.type), list(value.shape), value.to_numpy().nbytes
    if hasattr(value, "shape"):
        return str(value.dtype), list(value.shape), value.nbytes
    return "bytes", [value.size], value.size


def _preview(name: str, value: Any) -> None:
    """Print the first rows of a table, or a summary of another object."""
    out = console()
    if not _is_table(value):
        kind, shape, size = _shape(value)
        if isinstance(value, pa.Tensor):
            kind = f"{kind} tensor of shape {tuple(shape)}"
        elif hasattr(value, "shape"):
            kind = f"{kind} array of shape {tuple(shape)}"
        out.print(f"{visible(name)}  {kind}, {human_bytes(size)}", markup=False)
        return
    table = as_table(value)
    out.print(
        f"{visible(name)}  {table.num_rows:,} rows x {table.num_columns} columns", markup=False
    )
    shown = table.slice(0, _PREVIEW_ROWS)
    columns = [f"{visible(field.name)}\n{field.type}" for field in table.schema][:_PREVIEW_COLUMNS]
    cells = [_texts(column) for column in shown.columns[:_PREVIEW_COLUMNS]]
    rows = [[column[i] for column in cells] for i in range(shown.num_rows)]
    out.print(grid(columns, rows))
    hidden = table.num_columns - _PREVIEW_COLUMNS
    if hidden > 0 or table.num_rows > _PREVIEW_ROWS:
        more = f"{max(table.num_rows - _PREVIEW_ROWS, 0):,} more rows"
        more += f", {hidden} more columns" if hidden > 0 else ""
        out.print(f"{more}; -o FILE writes all", style="dim")


def _ls(options: argparse.Namespace) -> int:
    client = _connect(options)
    if options.all:
        listed = _list_all(client, options.prefix)
        _tell_missing(client)
    else:
        listed = client.list(options.prefix, node=options.node)
    rows = _printable(_printable(listed, "sealed_at"), "last_use").to_pylist()
    rows.sort(key=lambda row: (row["name"] or "", bytes(row["id"])))
    if options.json:
        print_json(rows)
        return 0
    cells = [
        (
            row["name"] or "-",
            str(row["kind"]),
            human_bytes(row["bytes"]),
            str(row["sealed_at"])[:19],
            str(row["last_use"])[:19],
            "pinned" if row["pinned"] else "spilled" if row["spilled"] else "",
            str(row["creator_pid"]),
            plain(row["id"]),
            *([row["node"] or "-"] if options.all else []),
        )
        for row in rows
    ]
    titles = ["name", "kind", ">bytes", "sealed at", "last use", "", ">creator", "id"]
    titles += ["node"] if options.all else []
    console().print(grid(titles, cells))
    return 0


def _list_all(client: Any, prefix: str) -> pa.Table:
    """The objects of all reachable nodes, with a column for the node."""
    try:
        return client.list(prefix, all_nodes=True)
    except farrow.NodeUnreachable:
        parts = []
        for node in (row.name for row in client.nodes() if row.fabric):
            try:
                part = client.list(prefix, node=node)
            except (farrow.NodeLost, farrow.NotGranted):
                continue
            parts.append(part.append_column("node", pa.array([node] * len(part), pa.string())))
        return pa.concat_tables(parts)


def _tell_missing(client: Any) -> None:
    """Print the nodes whose objects are not listed, on standard error."""
    gone = ("left", "not joined")
    away = [row for row in client.nodes() if row.reach not in gone]
    lost = [row.name for row in away if row.reach == "lost" or not row.fabric]
    if lost:
        names = visible(", ".join(lost))
        print(f"farrow: not listed, since they cannot be reached: {names}", file=sys.stderr)


def _nodes(options: argparse.Namespace) -> int:
    return _about_nodes.nodes(_connect(options), options)


def _printable(table: pa.Table, name: str) -> pa.Table:
    """The table with one column of times as text (nanoseconds do not fit Python's datetime)."""
    index = table.schema.get_field_index(name)
    if index < 0:
        return table
    return table.set_column(index, name, table.column(index).cast(pa.string()))


def _texts(column: pa.ChunkedArray) -> list[str]:
    """Each value of a column as text; works for every type."""
    if pa.types.is_temporal(column.type):
        with contextlib.suppress(pa.ArrowException):
            column = column.cast(pa.string())
    try:
        return ["" if item is None else str(item) for item in column.to_pylist()]
    except (ValueError, pa.ArrowException):
        return [str(item) for item in column]


def _rm(options: argparse.Namespace) -> int:
    missing = []
    client = _connect(options)
    for name in options.names:
        try:
            client.delete(_target(client, name))
        except farrow.NotFound as error:
            missing.append(str(error))
    if missing:
        raise CommandError("; ".join(missing))
    return 0


def _namespaces(options: argparse.Namespace) -> int:
    client = _connect(options)
    if options.action == "create":
        nbytes = None if options.bytes is None else parse_bytes(options.bytes)
        client.create_namespace(
            options.name, nbytes=nbytes, objects=options.objects, writers=options.writer
        )
        return 0
    if options.action == "drop":
        client.drop_namespace(options.name)
        return 0
    if options.action == "grant":
        _grant(client, options.rules)
        return 0
    if options.action == "grants":
        return _grants(client, as_json=options.json)
    rows = client.namespaces()
    if options.json:
        print_json(rows)
        return 0
    cells = [
        (
            visible(row["name"]) or "(default)",
            human_bytes(row["used_bytes"]),
            "-" if row["nbytes"] is None else human_bytes(row["nbytes"]),
            f"{row['used_objects']:,}",
            "-" if row["objects"] is None else f"{row['objects']:,}",
            str(row["clients"]),
            "all" if row["writers"] is None else ", ".join(map(str, row["writers"])),
        )
        for row in rows
    ]
    titles = ("name", ">bytes", ">of", ">objects", ">of", ">clients", "writers")
    console().print(grid(titles, cells))
    return 0


def _grant(client: farrow.Client, rules: list[str]) -> None:
    for rule in rules:
        # The name of a namespace may have colons in it.
        parts = rule.rsplit(":", 2)
        if len(parts) != 3:
            raise CommandError(f"{rule!r} is not NAMESPACE:NODE:RIGHTS")
        namespace, node, rights = parts
        if rights == "default":
            client.drop_grant(node, namespace=namespace)
        else:
            client.grant(node, rights, namespace=namespace)


def _grants(client: farrow.Client, *, as_json: bool) -> int:
    rows = client.grants()
    if as_json:
        print_json(rows)
        return 0
    cells = [
        (visible(row["namespace"]) or "(default)", row["node"], ", ".join(row["rights"]) or "none")
        for row in rows
    ]
    console().print(grid(("namespace", "node", "rights"), cells))
    return 0


def _stat(options: argparse.Namespace) -> int:
    from farrow.cli._stat import run

    return run(_connect(options), with_all=options.all, as_json=options.json)


def _stop(options: argparse.Namespace) -> int:
    """End the node, and wait until it no longer answers."""
    with _connect(options) as client:
        address = client.address
        client._shut_down_node()
    end = time.monotonic() + options.timeout
    while Path(address).exists():
        if time.monotonic() > end:
            raise CommandError(f"{address}: the node still ends after {options.timeout:g} s")
        time.sleep(0.01)
    return 0


def _demo(options: argparse.Namespace) -> int:
    try:
        from farrow import demo
        from farrow.demo import cluster
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the demo needs {error.name}: pip install 'farrow[demo]' brings it"
        ) from error
    memory = parse_bytes(options.memory) if options.memory else None
    data = Path(options.data) if options.data else None
    if options.show == "cluster":
        return cluster.run(data, rows=options.rows, seed=options.seed, memory_bytes=memory)
    return demo.run(data, rows=options.rows, seed=options.seed, memory_bytes=memory)


def _top(options: argparse.Namespace) -> int:
    from farrow.cli._top import run

    if not 0.05 <= options.interval <= 3600:
        raise CommandError(f"--interval {options.interval}: 0.05 to 3600 seconds")
    return run(_connect(options), interval=options.interval, once=options.once)


def _backup(options: argparse.Namespace) -> int:
    from farrow.cli import _backup

    return _backup.create(_connect(options), options)


def _restore(options: argparse.Namespace) -> int:
    from farrow.cli import _backup

    return _backup.check(options) if options.check else _backup.restore(_connect(options), options)


def _dashboard(options: argparse.Namespace) -> int:
    from farrow.cli._dashboard import run

    if not 0 <= options.port <= 65535:
        raise CommandError(f"--port {options.port}: 0 to 65535")
    return run(lambda: _connect(options), port=options.port, metrics=options.metrics)


def _clean(options: argparse.Namespace) -> int:
    from farrow.cli._clean import run

    return run(options.memory_dir, dry_run=options.dry_run, as_json=options.json)


def _doctor(options: argparse.Namespace) -> int:
    from farrow.cli._doctor import run

    return run(as_json=options.json)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "put": _put,
    "get": _get,
    "ls": _ls,
    "rm": _rm,
    "namespaces": _namespaces,
    "nodes": _nodes,
    "certs": _about_nodes.certs,
    "stat": _stat,
    "stop": _stop,
    "top": _top,
    "dashboard": _dashboard,
    "demo": _demo,
    "graph": _graph.graph,
    "lab": _lab.lab,
    "backup": _backup,
    "restore": _restore,
    "clean": _clean,
    "doctor": _doctor,
}
