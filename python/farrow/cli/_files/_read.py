"""Read a table file straight into a memory pool, reporting progress in bytes.

Each format is read by the public pyarrow call that accepts a pool:  CSV by ``read_csv``,
JSON lines by ``read_json``, Parquet row group by row group through its dataset fragment
(``parquet.read_table`` accepts no pool), uncompressed Arrow IPC through an ``OSFile`` with the
pool.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as pads
import pyarrow.json as pajson

from farrow.cli._files._leading_zeros import columns_with_zeros
from farrow.cli._files._sniff import FileKind, TextShape, compression_of, kind_of, text_shape

__all__ = ["Progress", "read_table"]

# Called with (done, total), both in bytes of the file or, for Parquet, in rows.
Progress = Callable[[int, int], None]

# Blocks become chunks: large, so that a table has few; small enough for several per core.
_BLOCK_BYTES_MIN = 8 << 20
_BLOCK_BYTES_MAX = 64 << 20
_BLOCKS_WANTED = 16
# A row must fit in a block; longer rows are rejected.
_ROW_BYTES_MAX = 1 << 30
# Interval at which the position in the file is read.
_POLL_SECONDS = 0.05
_TIME_FORMATS = (pacsv.ISO8601, "%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S", "%Y/%m/%d")
_INTEGER = re.compile(r"invalid value '([+-]?\d{1,40})'")
_MISFIT = re.compile(r"In CSV column #(\d+): .*conversion error to ([a-z0-9]+)")


def read_table(
    path: Path,
    *,
    pool: pa.MemoryPool | None = None,
    progress: Progress | None = None,
    delimiter: str | None = None,
    has_header: bool | None = None,
) -> pa.Table:
    """Read a Parquet, Arrow IPC (file or stream), delimited text or JSON lines file into a table.

    Args:
        path: the file; text may be compressed (gzip, bzip2, zstd).
        pool: pool of the buffers; None is pyarrow's default pool.
        progress: called at intervals, from this or another thread.
        delimiter: delimiter of text; None: detect.
        has_header: whether text begins with column names; None: detect.

    Returns:
        A table of the file's rows.  Column names of text files are made unique.

    Raises:
        OSError: the file cannot be read.
        ValueError, pyarrow.ArrowInvalid: the file is of another kind, or damaged.
        MemoryError: the pool is strict and full.
    """
    report = progress or (lambda done, total: None)
    kind = kind_of(path)
    if kind is FileKind.PARQUET:
        return _read_parquet(path, pool, report)
    if kind is FileKind.IPC_FILE:
        return _read_ipc_file(path, pool, report)
    if kind is FileKind.IPC_STREAM:
        return _read_ipc_stream(path, pool, report)
    if kind is FileKind.JSON:
        return _read_json(path, pool, report)
    shape = text_shape(path, delimiter=delimiter, has_header=has_header)
    return _read_text(path, shape, pool, report)


def _read_parquet(path: Path, pool: pa.MemoryPool | None, report: Progress) -> pa.Table:
    """Read one chunk per row group, which gives few, large buffers."""
    dataset = pads.dataset(str(path), format="parquet")
    groups = [
        group for fragment in dataset.get_fragments() for group in fragment.split_by_row_group()
    ]
    total = sum(group.row_groups[0].num_rows for group in groups)
    tables: list[pa.Table] = []
    done = 0
    for group in groups:
        rows = group.row_groups[0].num_rows
        tables.append(
            group.to_table(schema=dataset.schema, batch_size=max(rows, 1), memory_pool=pool)
        )
        done += rows
        report(done, total)
    return pa.concat_tables(tables) if tables else dataset.schema.empty_table()


def _read_ipc_file(path: Path, pool: pa.MemoryPool | None, report: Progress) -> pa.Table:
    with pa.OSFile(str(path), memory_pool=pool) as file:
        options = pa.ipc.IpcReadOptions()
        reader = pa.ipc.open_file(file, options=options, memory_pool=pool)
        batches = []
        for index in range(reader.num_record_batches):
            batches.append(reader.get_batch(index))
            report(index + 1, reader.num_record_batches)
        return _checked(pa.Table.from_batches(batches, schema=reader.schema))


def _checked(table: pa.Table) -> pa.Table:
    """The table, if no offset and no index leads outside of its buffers, which ends a reader.

    Other formats have offsets and indices that pyarrow makes; those of Arrow IPC are the file's.
    """
    table.validate(full=True)
    return table


def _read_ipc_stream(path: Path, pool: pa.MemoryPool | None, report: Progress) -> pa.Table:
    total = path.stat().st_size
    with pa.OSFile(str(path), memory_pool=pool) as file:
        reader = pa.ipc.open_stream(file, memory_pool=pool)
        batches = []
        for batch in reader:
            batches.append(batch)
            report(file.tell(), total)
        return _checked(pa.Table.from_batches(batches, schema=reader.schema))


def _read_text(
    path: Path, shape: TextShape, pool: pa.MemoryPool | None, report: Progress
) -> pa.Table:
    """Read text; if a type detected by pyarrow proves wrong later, widen it and read again.

    pyarrow detects each column's type in the first block.  The read fails for a column that has
    numbers there and other text later (account names in hexadecimal).  A column of integers is then
    read as uint64 if the next one does not fit into int64, else as float64; other columns as text.
    """
    types: dict[str, pa.DataType] = {name: pa.string() for name in shape.text_columns}
    block_bytes = _block_bytes(path)
    while True:
        try:
            table = _read_text_once(path, shape, types, block_bytes, pool, report)
            read = {field.name: field.type for field in table.schema if field.name not in types}
            # pyarrow takes integers beyond int64 in the first block for float64, which rounds them.
            rounded = [one for one in shape.integer_columns if read.get(one) == pa.float64()]
            integers = [name for name, kind in read.items() if pa.types.is_integer(kind)]
            padded = columns_with_zeros(path, shape, integers) if integers else []
            if not rounded and not padded:
                return table
            types |= dict.fromkeys(rounded, pa.int64()) | dict.fromkeys(padded, pa.string())
        except pa.ArrowInvalid as error:
            message = str(error)
            misfit = _MISFIT.search(message)
            if misfit and int(misfit[1]) < len(shape.columns):
                name = shape.columns[int(misfit[1])]
                if types.get(name) == pa.string():
                    raise
                types[name] = _wider(misfit[2], message)
            elif "straddling object" in message and block_bytes < _ROW_BYTES_MAX:
                block_bytes *= 4
            else:
                raise pa.ArrowInvalid(f"{path.name}: {_with_row(path, shape, error)}") from error


def _wider(data_type: str, message: str) -> pa.DataType:
    """The type of a column in which the value of this message is not of this type."""
    if data_type != "int64":
        return pa.string()
    value = _INTEGER.search(message)
    if value is None:
        return pa.float64()
    return pa.uint64() if 0 <= int(value[1]) < 1 << 64 else pa.string()


def _block_bytes(path: Path) -> int:
    wanted = path.stat().st_size // _BLOCKS_WANTED
    return min(max(wanted, _BLOCK_BYTES_MIN), _BLOCK_BYTES_MAX)


def _with_row(path: Path, shape: TextShape, error: pa.ArrowInvalid) -> str:
    """The message of a parser, with the number of the row, which only a serial read knows."""
    if "parse error" not in str(error):
        return str(error)
    read = pacsv.ReadOptions(
        use_threads=False, column_names=list(shape.columns), skip_rows=shape.skip_lines
    )
    parse = shape.parse_options()
    # Nothing is converted: another error could come first.
    convert = pacsv.ConvertOptions(include_columns=[])
    try:
        with pa.input_stream(path, compression=compression_of(path)) as stream:
            for _ in pacsv.open_csv(stream, read, parse, convert):
                pass
    except pa.ArrowInvalid as again:
        return str(again)
    return str(error)


def _read_text_once(
    path: Path,
    shape: TextShape,
    types: dict[str, pa.DataType],
    block_bytes: int,
    pool: pa.MemoryPool | None,
    report: Progress,
) -> pa.Table:
    read = pacsv.ReadOptions(
        block_size=block_bytes, column_names=list(shape.columns), skip_rows=shape.skip_lines
    )
    parse = shape.parse_options()
    convert = pacsv.ConvertOptions(column_types=types, timestamp_parsers=list(_TIME_FORMATS))
    compression = compression_of(path)
    with pa.OSFile(str(path)) as file, _PositionWatch(file.fileno(), path.stat().st_size, report):
        stream = pa.CompressedInputStream(file, compression) if compression else file
        try:
            return pacsv.read_csv(
                stream,
                read_options=read,
                parse_options=parse,
                convert_options=convert,
                memory_pool=pool,
            )
        except pa.ArrowInvalid as error:
            if "Could not skip initial" not in str(error) or not _is_short(path, block_bytes):
                raise
    # The header is the whole file, and no line break ends it.
    return pa.table({name: pa.array([], types.get(name, pa.null())) for name in shape.columns})


def _is_short(path: Path, block_bytes: int) -> bool:
    """Whether the text fits into one block."""
    with pa.input_stream(path, compression=compression_of(path)) as stream:
        return len(stream.read(block_bytes + 1)) <= block_bytes


def _read_json(path: Path, pool: pa.MemoryPool | None, report: Progress) -> pa.Table:
    compression = compression_of(path)
    block_bytes = _block_bytes(path)
    while True:
        try:
            with (
                pa.OSFile(str(path)) as file,
                _PositionWatch(file.fileno(), path.stat().st_size, report),
            ):
                stream = pa.CompressedInputStream(file, compression) if compression else file
                options = pajson.ReadOptions(block_size=block_bytes)
                return pajson.read_json(stream, read_options=options, memory_pool=pool)
        except pa.ArrowInvalid as error:
            if "straddling object" not in str(error) or block_bytes >= _ROW_BYTES_MAX:
                raise pa.ArrowInvalid(f"{path.name}: {error}") from error
            block_bytes *= 4


class _PositionWatch:
    """A thread that reports the position of a file descriptor, at no cost to the reader."""

    def __init__(self, descriptor: int, total: int, report: Progress) -> None:
        self._path = Path(f"/proc/self/fdinfo/{descriptor}")
        self._total = total
        self._report = report
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="farrow-progress", daemon=True)

    def __enter__(self) -> _PositionWatch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        if exception[0] is None:
            self._report(self._total, self._total)

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            try:
                position = int(self._path.read_text().split("\n", 1)[0].split()[1])
            except (OSError, ValueError, IndexError):
                return  # no procfs: no progress is shown, the read continues
            self._report(min(position, self._total), self._total)
