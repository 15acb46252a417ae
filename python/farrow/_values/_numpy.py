"""Convert numpy arrays to bytes, a type text and a shape, and back.

The text is ``dtype.str``, or for structured types the ``repr`` of numpy's own description, as in
``.npy`` files.  The extension imports this module for the first array.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import numpy as np

from farrow._values import _kinds
from farrow.exceptions import InvalidDescriptor, UnsupportedType

__all__ = ["build", "take_apart", "type_of_text", "type_text"]

# What Python and numpy raise for a text that is no type.
_MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


def take_apart(array: np.ndarray) -> tuple[str, int, tuple[int, ...], bool, Any, int, int]:
    """Type text, bytes of an item, shape, whether it is in Fortran order, the array itself (a copy
    if it was not contiguous), its address and its size in bytes."""
    if isinstance(array, np.ma.MaskedArray):
        raise UnsupportedType(
            "a masked array would lose its mask: put pyarrow.array(a.data, mask=a.mask)"
        )
    if type(array) not in (np.ndarray, np.memmap):
        kind = type(array)
        raise UnsupportedType(
            f"a {kind.__module__}.{kind.__qualname__} would come back as a plain numpy array: put "
            "numpy.asarray(it), if nothing else of it matters"
        )
    dtype = array.dtype
    text = type_text(dtype)
    flags = array.flags
    fortran = flags.f_contiguous and not flags.c_contiguous
    if not (fortran or flags.c_contiguous):
        array = np.ascontiguousarray(array)
    address = array.__array_interface__["data"][0]
    return text, dtype.itemsize, array.shape, fortran, array, address, array.nbytes


def build(buffer: Any, text: str, shape: tuple[int, ...], fortran: bool) -> Any:
    """A read-only array, or tensor, over a read-only buffer, which it references."""
    is_tensor = text.startswith(_kinds.TENSOR)
    dtype = type_of_text(_kinds.read_text(text)[0] if is_tensor else text)
    array = np.ndarray(shape, dtype, buffer, order="F" if fortran else "C")
    return _kinds.build_tensor(text, array) if is_tensor else array


@lru_cache(maxsize=1024)
def type_text(dtype: np.dtype) -> str:
    """The text of a type.

    Raises:
        UnsupportedType: its items are Python objects, or no text describes it.
    """
    if dtype.hasobject:
        raise UnsupportedType(
            f"numpy arrays of {dtype} hold Python objects, which other processes cannot read: put "
            "pyarrow.array(it), or use farrow.put_object"
        )
    try:
        text = dtype.str if dtype.names is None else repr(np.lib.format.dtype_to_descr(dtype))
    except ValueError as error:
        raise UnsupportedType(
            f"the fields of {dtype!r} overlap or are not in the order of their offsets: put "
            "numpy.lib.recfunctions.repack_fields(it), or use farrow.put_object"
        ) from error
    try:
        same = type_of_text(text) == dtype
    except InvalidDescriptor:
        same = False
    if not same:
        raise UnsupportedType(f"numpy arrays of {dtype!r} have no portable description")
    return text


def type_of_text(text: str) -> np.dtype:
    """The type of a text.

    Raises:
        InvalidDescriptor: the text is no type, or one of Python objects.
    """
    # The fields of a structured type can be renamed in place: each array has a type of its own.
    return _parse(text) if text.startswith("[") else _parse_once(text)


def _parse(text: str) -> np.dtype:
    try:
        if text.startswith("["):
            dtype = np.lib.format.descr_to_dtype(ast.literal_eval(text))
        else:
            dtype = np.dtype(text)
    except _MALFORMED as error:
        raise InvalidDescriptor(f"{text!r} is no type of numpy: {error}") from None
    if dtype.hasobject:
        raise InvalidDescriptor(f"{text!r} holds Python objects")
    return dtype


_parse_once = lru_cache(maxsize=1024)(_parse)
