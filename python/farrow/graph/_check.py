"""Checks of arguments, with messages that name the argument."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_INT64_MAX = (1 << 63) - 1
_FLOAT64 = np.dtype(np.float64)


def whole_of(name: str, value: Any, *, least: int | None = None, most: int | None = None) -> int:
    """An integer of any type except bool."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an integer, not {value}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    limit = _INT64_MAX if most is None else most
    if number > limit or (least is not None and number < least):
        bounds = f"at least {least}" if number <= limit else f"at most {limit}"
        raise ValueError(f"{name} must be {bounds}, not {number}")
    return number


def flag_of(name: str, value: Any) -> bool:
    """True or False, or 0 or 1."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name} must be True or False, not {value!r}")


def bins_of(name: str, value: Any) -> list[int]:
    """Upper ends of bins: increasing, from 1 on."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} must be a list of integers, not {type(value).__name__}")
    bins = [whole_of(name, one, least=1) for one in value]
    if not bins:
        raise ValueError(f"{name} is empty: one value or more are needed")
    for before, after in itertools.pairwise(bins):
        if after <= before:
            raise ValueError(f"{name} must increase, but {after} follows {before}")
    return bins


def matrix_of(rows: Any) -> npt.NDArray[np.float64]:
    """Rows as a two-dimensional array of float64, without a copy if they are one."""
    # A fast path for single rows: the native float64 dtype is one object.
    if type(rows) is np.ndarray and rows.dtype is _FLOAT64:
        array = rows
    else:
        try:
            array = np.asarray(rows, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"X must hold numbers: {error}") from None
    if array.ndim != 2:
        raise ValueError(f"X must be two-dimensional, not of {array.ndim} dimensions")
    if array.shape[1] < 4:
        raise ValueError(
            f"X has {array.shape[1]} columns, but edge id, source, target and timestamp are needed"
        )
    return array
