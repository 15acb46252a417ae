"""Kinds of values that are not built into the extension: tensors, and objects with a buffer.

``get`` returns the same kind that was put, or ``put`` rejects the value and suggests another.  An
object that exports a flat buffer of single bytes is bytes.  The extension imports this module for
the first such object.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pyarrow as pa

from farrow.exceptions import InvalidArgument, InvalidDescriptor, UnsupportedType

__all__ = [
    "build_tensor",
    "check_bytes",
    "check_names",
    "check_stream",
    "explain_export",
    "is_tensor",
    "take_apart_tensor",
]

# Prefix of the type text of a tensor. JSON follows: numpy's text, the names of the dimensions.
TENSOR = "pyarrow.Tensor "

# Formats of single bytes: unsigned, signed, and characters.
_BYTE_FORMATS = {"B", "b", "c", "<B", "<b", "<c"}

# What pandas and pyarrow raise for a frame that has no form in Arrow.
_EXPORT_ERRORS = (ArithmeticError, TypeError, ValueError, NotImplementedError, pa.ArrowException)

_SPARSE = tuple(
    getattr(pa, name)
    for name in ("SparseCOOTensor", "SparseCSRMatrix", "SparseCSCMatrix", "SparseCSFTensor")
    if hasattr(pa, name)
)


def _name(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def is_tensor(value: Any) -> bool:
    return isinstance(value, pa.Tensor)


def take_apart_tensor(tensor: pa.Tensor) -> Any:
    """The result of ``_numpy.take_apart`` for its values, with a type text for tensors."""
    from farrow._values._numpy import take_apart

    text, *rest = take_apart(tensor.to_numpy())
    return (TENSOR + json.dumps([text, list(tensor.dim_names)]), *rest)


def build_tensor(text: str, array: Any) -> pa.Tensor:
    """The tensor over an array."""
    _, names = read_text(text)
    return pa.Tensor.from_numpy(array, dim_names=names or None)


def read_text(text: str) -> tuple[str, list[str]]:
    """Parse numpy's text and the names of the dimensions, which are untrusted input."""
    try:
        dtype, names = json.loads(text[len(TENSOR) :])
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidDescriptor(f"{text!r} is no type of a tensor: {error}") from None
    if not isinstance(dtype, str) or not isinstance(names, list):
        raise InvalidDescriptor(f"{text!r} is no type of a tensor")
    return dtype, [str(name) for name in names]


def check_bytes(value: Any) -> None:
    """Check that a value is bytes: ``get`` returns bytes for it.

    Raises:
        UnsupportedType: ``get`` would return another kind; the message suggests a conversion.
    """
    name = _name(value)
    if isinstance(value, pa.Scalar):
        raise UnsupportedType(f"cannot put {name}: put pyarrow.array([it]), or its as_py()")
    if isinstance(value, _SPARSE):
        raise UnsupportedType(f"cannot put {name}: put its to_tensor(), or its parts by themselves")
    if hasattr(value, "__arrow_c_schema__"):
        raise UnsupportedType(f"cannot put {name}, which has no values: put its empty_table()")
    try:
        view = memoryview(value)
    except TypeError:
        return _refuse_without_buffer(value, name)
    except (BufferError, ValueError) as error:
        raise InvalidArgument(f"the buffer of {name} cannot be copied: {error}") from None
    with view:
        if view.ndim == 1 and view.itemsize == 1 and view.format in _BYTE_FORMATS:
            return None
        what = f"{view.ndim} dimension(s) of format {view.format!r}"
    raise UnsupportedType(
        f"cannot put {name}: its buffer, {what}, would be plain bytes at a get. "
        "Put numpy.asarray(it), which is a numpy array at a get, "
        "or memoryview(it).cast('B') for the bytes"
    )


def check_names(value: Any) -> None:
    """Check the names of the columns and fields of a pyarrow value.

    Raises:
        InvalidArgument: a name has a NUL, where the Arrow C data interface ends it.
    """
    schema = getattr(value, "schema", None)
    return _check_type(value.type) if schema is None else _check_fields(schema)


def check_schema(schema: Any) -> None:
    """As :func:`check_names`, for a schema; one that is not pyarrow's has names without NUL."""
    import pyarrow as pa

    if isinstance(schema, pa.Schema):
        _check_fields(schema)


def _check_fields(schema: Any) -> None:
    for name, type_ in zip(schema.names, schema.types, strict=True):
        _check_name(name)
        _check_type(type_)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and "\0" in name:
        begin = name[: name.index("\0")]
        raise InvalidArgument(
            f'the name of column "{begin}" continues after a NUL, where the Arrow C data interface '
            "ends it: rename the column"
        )


def _check_type(type_: pa.DataType) -> None:
    if isinstance(type_, pa.BaseExtensionType):
        _check_type(type_.storage_type)
    elif pa.types.is_dictionary(type_):
        _check_type(type_.value_type)
    elif pa.types.is_map(type_):
        _check_type(type_.key_type)
        _check_type(type_.item_type)
    elif pa.types.is_struct(type_) or pa.types.is_union(type_):
        for at in range(type_.num_fields):
            _check_name(type_.field(at).name)
            _check_type(type_.field(at).type)
    elif pa.types.is_nested(type_):
        _check_type(type_.value_type)


def check_polars(value: Any) -> None:
    """Check what polars cannot export of a frame or a series: Python objects, and names with NUL.

    It exports objects as ``fixed_size_binary[8]``, their addresses in this process. A name with NUL
    ends the process.

    Raises:
        UnsupportedType: a column has objects; the message names it.
        InvalidArgument: a name has a NUL.
    """
    import polars as pl

    if isinstance(value, pl.Series):
        _check_name(value.name)
        dtypes = {"": value.dtype}
    else:
        dtypes = dict(getattr(value, "schema", {}))
    for column, dtype in dtypes.items():
        _check_name(column)
        _check_polars_type(dtype)
        if dtype == pl.Object:
            where = f"column {column!r} of a polars DataFrame" if column else "a polars Series"
            raise UnsupportedType(
                f"{where} holds Python objects, which other processes cannot read: "
                "cast it, or drop it"
            )


def _check_polars_type(dtype: Any) -> None:
    for field in getattr(dtype, "fields", None) or ():
        _check_name(field.name)
        _check_polars_type(field.dtype)
    inner = getattr(dtype, "inner", None)
    if inner is not None:
        _check_polars_type(inner)


def check_pandas(value: Any) -> None:
    """Check the names of the columns of a frame of pandas and of its index, which gets columns, and
    the keys of dicts, which become names of fields.

    Raises:
        InvalidArgument: a name has a NUL, where the Arrow C data interface ends it.
        UnsupportedType: it is a Series with labels, for which Arrow has no place.
    """
    import pandas as pd

    index = value.index
    names = [] if isinstance(index, pd.RangeIndex) else list(index.names)
    if isinstance(value, pd.DataFrame):
        names.extend(value.columns)
        dtypes = list(value.dtypes)
    else:
        if not isinstance(index, pd.RangeIndex):
            raise UnsupportedType(
                f"a Series would lose its index, a {type(index).__name__}: put its .to_frame(), or"
                " its .reset_index(drop=True)"
            )
        names.append(value.name)
        dtypes = [value.dtype]
    for name in names:
        _check_name(name)
    for at, dtype in enumerate(dtypes):
        if isinstance(dtype, pd.ArrowDtype):
            _check_type(dtype.pyarrow_dtype)
        elif dtype == "object":
            _check_objects(value.iloc[:, at] if isinstance(value, pd.DataFrame) else value)


def _check_objects(column: Any) -> None:
    """Check the names of fields that pyarrow would make of a column of Python objects."""
    # Where pandas is, NumPy is. Farrow itself does without.
    import numpy as np

    is_there = column.notna().to_numpy()
    first = column.iloc[is_there.argmax()] if is_there.any() else None
    # One of these kinds among plain values is an error in pyarrow.
    if isinstance(first, (dict, list, tuple, set, np.ndarray, pa.Scalar)):
        with contextlib.suppress(pa.ArrowException):
            _check_type(pa.infer_type(column.to_numpy(), from_pandas=True))


def explain_export(value: Any, error: BaseException) -> None:
    """Raise an error that suggests a conversion, if pandas could not export ``value``.

    Raises:
        UnsupportedType: a column has values without a type of Arrow, or two have one name.
    """
    if isinstance(error, MemoryError) or not isinstance(error, _EXPORT_ERRORS):
        return
    if all(base.__module__.partition(".")[0] != "pandas" for base in type(value).__mro__):
        return
    # In a series this may be an element.
    is_unique = getattr(getattr(value, "columns", None), "is_unique", True) is not False
    ways = "convert that column, such as by .astype(str)" if is_unique else "rename one of them"
    reason = "; ".join(str(one) for one in error.args)
    raise UnsupportedType(
        f"pandas cannot export this {type(value).__name__} to Arrow: {reason}: {ways}, or store it "
        "by pickle: farrow.put_object"
    ) from error


def check_stream(value: Any) -> None:
    """Check an object that exports a stream, by the library that its class derives from.

    Raises:
        UnsupportedType, InvalidArgument: the library cannot export it.
    """
    for base in type(value).__mro__:
        library = base.__module__.partition(".")[0]
        if library == "narwhals":
            return check_stream(value.to_native())
        if library in _CHECKS:
            return _CHECKS[library](value)
    return None


_CHECKS = {"pandas": check_pandas, "polars": check_polars, "pyarrow": check_names}


def _refuse_without_buffer(value: Any, name: str) -> None:
    """Raise an error that suggests a conversion, if there is one."""
    for method in ("collect", "to_table"):  # lazy frames; datasets and scanners
        if callable(getattr(type(value), method, None)):
            raise UnsupportedType(
                f"cannot put {name}, which has no values yet: put its .{method}()"
            )
    if callable(getattr(type(value), "compute", None)):  # Dask
        raise UnsupportedType(f"cannot put {name}, which has no values yet: put its .compute()")
    if callable(getattr(type(value), "to_frame", None)):  # an index of pandas
        raise UnsupportedType(f"cannot put {name}: put its .to_frame()")
    if hasattr(value, "__dlpack__"):
        raise UnsupportedType(f"cannot put {name}: put numpy.from_dlpack(it)")
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        raise UnsupportedType(f"cannot put {name}: put pyarrow.array(it), or numpy.asarray(it)")
