"""The picklers of ``multiprocessing``, which ``concurrent.futures`` and torch use too, and of loky.

Only picklers that send to living processes are changed: a pickle in a file would outlive every
lease.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pyarrow as pa

from farrow.sharing import _references

__all__ = ["classes", "reduce", "register"]

# The protocol of the values that pass as before: the pickler's own is not known to a reducer, and
# buffers out of band, which later ones have, need its help.
_PROTOCOL = 4

# What was registered before, by pickler and class.
_before: dict[tuple[str, type], Callable[[Any], Any] | None] = {}


def reduce(value: Any) -> Any:
    """What a pickler needs to rebuild a value."""
    return _references.reduce(value) or value.__reduce_ex__(_PROTOCOL)


def classes() -> Iterator[type]:
    """The exact classes of values that may lie in Farrow, those of NumPy if it is imported."""
    yield from (pa.Table, pa.RecordBatch, pa.ChunkedArray, pa.Buffer)
    yield from _with_subclasses(pa.Array)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield numpy.ndarray


def _with_subclasses(cls: type) -> Iterator[type]:
    yield cls
    below: type
    for below in cls.__subclasses__():
        yield from _with_subclasses(below)


def register(wanted: bool) -> None:
    """Register with the picklers, or restore them."""
    tables = {"multiprocessing": _forking_table(), **_loky_tables()}
    for name, table in tables.items():
        if wanted:
            for cls in classes():
                if table.get(cls) is not reduce:
                    _before[name, cls] = table.get(cls)
                    table[cls] = reduce
        else:
            for cls in [cls for cls, function in table.items() if function is reduce]:
                before = _before.pop((name, cls), None)
                if before is None:
                    del table[cls]
                else:
                    table[cls] = before
    _patch_joblib(wanted)


def _forking_table() -> dict[type, Callable[[Any], Any]]:
    table: dict[type, Callable[[Any], Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return table


def _loky_tables() -> dict[str, dict[type, Callable[[Any], Any]]]:
    """The tables of loky and of the loky inside of joblib, if they are imported."""
    names = ("loky.backend.reduction", "joblib.externals.loky.backend.reduction")
    loaded = {name: sys.modules.get(name) for name in names}
    return {name: module._dispatch_table for name, module in loaded.items() if module is not None}


def reduce_result(array: Any) -> Any:
    """As joblib's reducer of arrays in results, for arrays that do not lie in Farrow."""
    from joblib import _memmapping_reducer

    # A worker that has not installed has joblib's own.
    own = _memmapping_reducer.reduce_array_memmap_backward
    before = getattr(_memmapping_reducer, "_before_farrow", own)
    return _references.reduce(array) or before(array)


def _patch_joblib(wanted: bool) -> None:
    """joblib writes large arrays to files, by reducers that take precedence over loky's table."""
    module: Any = sys.modules.get("joblib._memmapping_reducer")
    forward = getattr(module, "ArrayMemmapForwardReducer", None)
    if forward is None or not hasattr(module, "reduce_array_memmap_backward"):
        return
    is_patched = hasattr(module, "_before_farrow")
    if wanted and not is_patched:
        call = forward.__call__

        def reduce_task(self: Any, array: Any) -> Any:
            return _references.reduce(array) or call(self, array)

        module._before_farrow = module.reduce_array_memmap_backward
        module.reduce_array_memmap_backward = reduce_result
        forward._before_farrow = call
        forward.__call__ = reduce_task
    elif is_patched and not wanted:
        module.reduce_array_memmap_backward = module._before_farrow
        forward.__call__ = forward._before_farrow
        del module._before_farrow, forward._before_farrow
