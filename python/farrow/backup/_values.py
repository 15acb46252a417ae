"""Values as files of open formats, and back."""

from __future__ import annotations

import ast
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farrow.exceptions import InvalidDescriptor

if TYPE_CHECKING:
    from farrow.backup._place import CountingFile

__all__ = ["ENDINGS", "HUGE", "kind_of", "read_value", "write_value"]

HUGE = "huge table"
# Kind of a value, and the ending of its file.
ENDINGS = {
    "table": "arrows",
    "record batch": "arrows",
    "array": "arrows",
    "chunked array": "arrows",
    "ndarray": "npy",
    "tensor": "npy",
    "bytes": "bin",
    HUGE: "arrows",
}
# What readers raise for a malformed file.
_MALFORMED = (pa.ArrowException, ValueError, TypeError, LookupError, SyntaxError, OSError)
# Name of the only column of an array.
_COLUMN = "value"
# The first bytes of a .npy file of version 3.0, the length of its header, and the most of it.
_NPY = b"\x93NUMPY\x03\x00"
_NPY_LENGTH = struct.Struct("<I")
_NPY_ALIGNMENT = 64
_NPY_HEAD_MAX = 1 << 20
_KINDS: tuple[tuple[type, str], ...] = (
    (pa.Table, "table"),
    (pa.RecordBatch, "record batch"),
    (pa.ChunkedArray, "chunked array"),
    (pa.Array, "array"),
    (pa.Tensor, "tensor"),
    (pa.Buffer, "bytes"),
)


def kind_of(value: Any) -> str:
    """The kind of a value that ``Client.get`` returned."""
    for kind, word in _KINDS:
        if isinstance(value, kind):
            return word
    return "ndarray"


def write_value(value: Any, sink: CountingFile) -> None:
    """Write a value that ``Client.get`` returned, from where it is, in pieces."""
    kind = kind_of(value)
    if kind == "bytes":
        sink.write(value)
    elif kind in ("ndarray", "tensor"):
        _write_npy(value.to_numpy() if kind == "tensor" else value, sink)
    else:
        _write_arrow(value, kind, sink)


def _write_arrow(value: Any, kind: str, sink: CountingFile) -> None:
    if kind == "array":
        value = pa.RecordBatch.from_arrays([value], [_COLUMN])
    elif kind == "chunked array":
        value = pa.table({_COLUMN: value})
    options = pa.ipc.IpcWriteOptions(allow_64bit=True)
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), value.schema, options=options) as writer:
        if isinstance(value, pa.RecordBatch):
            writer.write_batch(value)
        else:
            writer.write_table(value)


def _write_npy(array: Any, sink: CountingFile) -> None:
    import numpy as np

    flags = array.flags
    is_fortran = flags.f_contiguous and not flags.c_contiguous
    described = np.lib.format.dtype_to_descr(array.dtype)
    text = repr({"descr": described, "fortran_order": is_fortran, "shape": array.shape})
    head = text.encode()
    # Spaces and a line end, so that the array begins at a multiple of this.
    end = len(_NPY) + _NPY_LENGTH.size + len(head) + 1
    head += b" " * (-end % _NPY_ALIGNMENT) + b"\n"
    sink.write(_NPY + _NPY_LENGTH.pack(len(head)) + head)
    if array.nbytes:
        sink.write((array.T if is_fortran else array).reshape(-1).view(np.uint8))


def read_value(kind: str, buffer: pa.Buffer, names: list[str] | None = None) -> Any:
    """The value in a file, over the buffer with its contents.

    Args:
        kind: the kind of the value.
        buffer: the whole file.
        names: names of the dimensions of a tensor.

    Raises:
        InvalidDescriptor: the file has no such value.
    """
    try:
        if kind == "bytes":
            return buffer
        if kind in ("ndarray", "tensor"):
            array = _read_npy(buffer)
            if kind == "ndarray":
                return array
            return pa.Tensor.from_numpy(array, dim_names=names or None)
        return _read_arrow(kind, buffer)
    except _MALFORMED as error:
        raise InvalidDescriptor(f"no {kind} in the file: {error}") from error


def _read_arrow(kind: str, buffer: pa.Buffer) -> Any:
    with pa.ipc.open_stream(pa.BufferReader(buffer)) as reader:
        if kind in ("table", HUGE):
            return reader.read_all()
        schema = reader.schema
        batches = list(reader)
    if kind == "chunked array":
        return pa.chunked_array([batch.column(0) for batch in batches], schema.field(0).type)
    [batch] = batches
    return batch if kind == "record batch" else batch.column(0)


def _read_npy(buffer: pa.Buffer) -> Any:
    import numpy as np

    before = len(_NPY) + _NPY_LENGTH.size
    view = memoryview(buffer)
    if view.nbytes < before or bytes(view[: len(_NPY)]) != _NPY:
        raise ValueError("no .npy file of version 3.0")
    (length,) = _NPY_LENGTH.unpack(view[len(_NPY) : before])
    if length > _NPY_HEAD_MAX:
        raise ValueError(f"a header of {length} bytes")
    head = ast.literal_eval(bytes(view[before : before + length]).decode().strip())
    dtype = np.lib.format.descr_to_dtype(head["descr"])
    if dtype.hasobject:
        raise ValueError(f"{dtype} holds Python objects")
    order: Any = "F" if head["fortran_order"] else "C"
    return np.ndarray(head["shape"], dtype, view, before + length, order=order)
