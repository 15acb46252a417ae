"""Estimate the memory of a file's table before the file is read.

The metadata of Parquet and Arrow IPC has the sizes; for text, a sample is read.  A load that cannot
fit is rejected before any eviction.  A load that fits gets a pool that evicts nothing until the
table is complete.  If this machine has too little private memory for that, the room for the whole
table is reserved at once.
"""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import farrow
from farrow.cli._files._ipc import Damaged, buffer_sizes
from farrow.cli._files._sniff import FileKind, compression_of, kind_of, text_shape

__all__ = ["Estimate", "check_room", "estimate", "pool_for"]

# A Parquet file's byte count includes page headers and nesting levels, which the table lacks.
_PARQUET_SHARE = 7 / 8
# Text compresses to a quarter, columns of numbers to less.
_PACKED_SHARE = 4
# The rows after a sample of text may be shorter, or empty.
_TEXT_SHARE = 1 / 2
_SAMPLE_BYTES = 256 << 10
# Half of the private memory is left to other processes.
_PRIVATE_SHARE = 1 / 2
_UNLIMITED = 1 << 62


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Bytes of a table's buffers: a lower bound ``least``, and the estimate ``likely``."""

    least: int
    likely: int


def estimate(
    path: Path, *, delimiter: str | None = None, has_header: bool | None = None
) -> Estimate:
    """Estimate the memory of a file's table.

    Raises:
        OSError: the file cannot be read.
        ValueError, pyarrow.ArrowInvalid: the file is no table, or is damaged.
    """
    kind = kind_of(path)
    if kind is FileKind.PARQUET:
        return _of_parquet(path)
    if kind is FileKind.TEXT:
        return _of_text(path, delimiter, has_header)
    if kind is FileKind.JSON:
        return _of_json(path)
    return _of_ipc(path, kind)


def pool_for(client: Any, expected: Estimate, *, besides: int = 0) -> pa.MemoryPool:
    """The pool in which to build a table.

    Raises:
        OutOfMemory: the table cannot fit, even after eviction and with ``besides`` more free bytes.
    """
    free = check_room(client, expected.least, besides=besides)
    missing = expected.likely - free
    if missing <= _private_bytes() * _PRIVATE_SHARE:
        # Buffers without room stay in private memory; `put` makes room for the complete table.
        return client.memory_pool()
    try:
        return client.memory_pool(expect=expected.likely)
    except farrow.OutOfMemory:
        return client.memory_pool()


def check_room(client: Any, least: int, *, besides: int = 0) -> int:
    """Reject a request that cannot fit, before any eviction.

    Args:
        client: a client of the node.
        least: least number of bytes needed.
        besides: bytes that will be freed in addition.

    Returns:
        Bytes that are free now.

    Raises:
        OutOfMemory: the bytes would not fit even after eviction.
    """
    stats = client.stats()
    free, largest = int(stats["free"]), int(stats["largest_free"])
    room = free + besides + int(stats["evictable"])
    if least <= room:
        return free
    error = farrow.OutOfMemory(
        f"out of memory: {least} B or more are needed, {free} B are free and {room} B would be if"
        f" all left that may, of {stats['capacity']} B"
    )
    error.requested, error.free, error.largest = least, free, largest
    raise error


def _of_parquet(path: Path) -> Estimate:
    file = pq.ParquetFile(path)
    metadata, schema = file.metadata, file.schema_arrow
    widths = {field.name: _width(field.type) for field in schema}
    least = likely = 0
    for group in range(metadata.num_row_groups):
        about = metadata.row_group(group)
        for number in range(about.num_columns):
            column = about.column(number)
            bits = widths.get(column.path_in_schema)
            if bits is not None:
                fixed = about.num_rows * bits // 8
                least += fixed
                likely += fixed + (about.num_rows // 8 if _has_nulls(column) else 0)
                continue
            # The file stores repeated values once: the table is larger, never smaller.
            known = int(column.total_uncompressed_size * _PARQUET_SHARE)
            least += known
            likely += max(2 * known, 4 * column.num_values)
    return Estimate(least, max(least, likely))


def _has_nulls(column: pq.ColumnChunkMetaData) -> bool:
    statistics = column.statistics
    if statistics is None or not statistics.has_null_count:
        return True
    return bool(statistics.null_count)


def _width(kind: pa.DataType) -> int | None:
    """Bits of each value, for types of fixed width."""
    if isinstance(kind, (pa.BaseExtensionType, pa.DictionaryType)) or pa.types.is_nested(kind):
        return None
    try:
        return int(kind.bit_width)
    except ValueError:
        return None


def _of_ipc(path: Path, kind: FileKind) -> Estimate:
    total = 0
    try:
        with path.open("rb") as file:
            for size in buffer_sizes(file, is_file=kind is not FileKind.IPC_STREAM):
                if size is None:
                    # Compressed: the size is known only after decompression.
                    packed = path.stat().st_size
                    return Estimate(int(packed * _PARQUET_SHARE), _PACKED_SHARE * packed)
                total += size
    except Damaged:
        # The load will report the error.
        return Estimate(0, 0)
    return Estimate(total, total)


def _of_text(path: Path, delimiter: str | None, has_header: bool | None) -> Estimate:
    compression = compression_of(path)
    size = path.stat().st_size * (_PACKED_SHARE if compression else 1)
    with pa.input_stream(path, compression=compression) as stream:
        sample = stream.read(_SAMPLE_BYTES)
    shape = text_shape(path, delimiter=delimiter, has_header=has_header)
    whole = sample if len(sample) < _SAMPLE_BYTES else sample[: sample.rfind(b"\n") + 1]
    try:
        table = pacsv.read_csv(
            io.BytesIO(whole),
            read_options=pacsv.ReadOptions(
                column_names=list(shape.columns), skip_rows=shape.skip_lines
            ),
            parse_options=shape.parse_options(),
        )
    except pa.ArrowInvalid:
        # The load will report the error.
        return Estimate(0, 0)
    likely = int(size * table.nbytes / max(len(whole), 1))
    return Estimate(0 if compression else int(likely * _TEXT_SHARE), likely)


def _of_json(path: Path) -> Estimate:
    """Names of columns are repeated in each line, so the table is smaller than the text."""
    size = path.stat().st_size
    return Estimate(0, size * (_PACKED_SHARE if compression_of(path) else 1))


def _private_bytes() -> int:
    """Private memory that this process may still allocate, as reported by the system."""
    return max(0, min(_available(), *_control_group()))


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) << 10 if found else 0


def _control_group() -> list[int]:
    """Remaining memory of this process's control group and of its parents."""
    left = [_UNLIMITED]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return left
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers == "":
            root, limit, used = Path("/sys/fs/cgroup"), "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup/memory")
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        inner = root / place.strip("/")
        for folder in (inner, *inner.parents):
            try:
                most = (folder / limit).read_text().strip()
                if most.isdecimal():
                    left.append(int(most) - int((folder / used).read_text()))
            except (OSError, ValueError):
                pass
            if folder == root:
                break
    return left
