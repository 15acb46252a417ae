"""How much memory the table of a file takes, told before it is read.

Parquet and Arrow IPC say it in their metadata, text is judged by a sample.  A load that cannot fit
is refused before anything makes room for it; one that fits is given a pool that costs nobody an
object unless the table comes of it, or, where this machine has no memory to build it beside the
region, room for all of it at once.
"""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import farrow
from farrow.cli._sniff import FileKind, compression_of, kind_of, text_shape

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Estimate", "check_room", "estimate", "pool_for"]

# Headers of pages and levels of nesting are in a Parquet file's count of bytes, not in the table.
_PARQUET_SHARE = 7 / 8
# Text packs to a quarter, columns of numbers to less.
_PACKED_SHARE = 4
# The rows behind a sample of text may be shorter, or empty.
_TEXT_SHARE = 1 / 2
_SAMPLE_BYTES = 256 << 10
# Private memory is left to others by half.
_PRIVATE_SHARE = 1 / 2
_UNLIMITED = 1 << 62


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Bytes of a table's buffers: it has ``least`` at least, and ``likely`` in all."""

    least: int
    likely: int


def estimate(
    path: Path, *, delimiter: str | None = None, has_header: bool | None = None
) -> Estimate:
    """Look how much memory the table of a file takes.

    Raises:
        OSError: the file cannot be read.
        ValueError, pyarrow.ArrowInvalid: it is no table, or a damaged one.
    """
    kind = kind_of(path)
    if kind is FileKind.PARQUET:
        return _of_parquet(path)
    if kind is FileKind.TEXT:
        return _of_text(path, delimiter, has_header)
    return _of_ipc(path, kind)


def pool_for(client: Any, expected: Estimate, *, besides: int = 0) -> pa.MemoryPool:
    """The pool in which to build a table.

    Raises:
        OutOfMemory: the table cannot fit, even if all left that may, and ``besides`` these bytes.
    """
    free = check_room(client, expected.least, besides=besides)
    missing = expected.likely - free
    if missing <= _private_bytes() * _PRIVATE_SHARE:
        # What finds no room waits outside: `put` makes room for it when it is all there.
        return client.memory_pool()
    try:
        return client.memory_pool(expect=expected.likely)
    except farrow.OutOfMemory:
        return client.memory_pool()


def check_room(client: Any, least: int, *, besides: int = 0) -> int:
    """Refuse what cannot fit, before anything makes room for it.

    Args:
        client: of the node.
        least: bytes that are needed at least.
        besides: bytes that will be free by then.

    Returns:
        Bytes that are free now.

    Raises:
        OutOfMemory: they would not fit even if all left that may.
    """
    stats = client.stats()
    free, largest = int(stats["free"]), int(stats["largest_free"])
    room = free + besides + (0 if stats["eviction"] == "none" else int(stats["evictable"]))
    if least <= room:
        return free
    error = farrow.OutOfMemory(
        f"out of memory: {least} B or more are needed, {free} B are free and {room} B would be if"
        f" all left that may, of {stats['capacity']} B"
    )
    error.asked, error.free, error.largest = least, free, largest
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
            # Values that repeat are in the file once: there may be more of them, never less.
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
    """Bits of each value, where all have the same."""
    if isinstance(kind, (pa.BaseExtensionType, pa.DictionaryType)) or pa.types.is_nested(kind):
        return None
    try:
        return int(kind.bit_width)
    except ValueError:
        return None


def _of_ipc(path: Path, kind: FileKind) -> Estimate:
    size = path.stat().st_size
    with pa.memory_map(str(path)) as mapped:
        whole = mapped.read_buffer()
        total = 0
        for batch in _batches(whole, kind):
            if not _lies_in(batch, whole):
                # Packed: what it takes is known when it is unpacked.
                return Estimate(int(size * _PARQUET_SHARE), _PACKED_SHARE * size)
            total += batch.nbytes
    return Estimate(total, total)


def _batches(whole: pa.Buffer, kind: FileKind) -> Iterable[pa.RecordBatch]:
    if kind is FileKind.IPC_STREAM:
        yield from pa.ipc.open_stream(whole)
        return
    reader = pa.ipc.open_file(whole)
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def _lies_in(batch: pa.RecordBatch, whole: pa.Buffer) -> bool:
    start, end = whole.address, whole.address + whole.size
    return all(
        start <= buffer.address <= end
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None and buffer.size
    )


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
            parse_options=pacsv.ParseOptions(delimiter=shape.delimiter),
        )
    except pa.ArrowInvalid:
        # The load says what is wrong with it.
        return Estimate(0, 0)
    likely = int(size * table.nbytes / max(len(whole), 1))
    return Estimate(0 if compression else int(likely * _TEXT_SHARE), likely)


def _private_bytes() -> int:
    """Memory that this process may still have beside the region, as far as the system says."""
    return max(0, min(_available(), *_control_group()))


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) << 10 if found else 0


def _control_group() -> list[int]:
    """What the limits of this process's control group leave, and of those around it."""
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
