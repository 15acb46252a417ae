"""Ray's serialization: the driver sends references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray

from farrow.sharing import _reducers, _references

__all__ = ["register", "setup_worker"]

# What was registered before, by class.
_before: dict[type, Callable[[Any], Any] | None] = {}

# The protocol of Ray's pickler, which takes buffers out of band.
_PROTOCOL = 5


def setup_worker() -> None:
    """Make a worker of Ray send references too: a ``worker_process_setup_hook``.

    Without it only the driver sends references, in arguments and in ``ray.put``.  With it results
    of tasks are references as well.  Ray may store a result for longer than its worker lives: such
    a reference is valid while the worker process lives, and for the lease after that.
    """
    import farrow.sharing

    farrow.sharing.install()
    _register(True)


def register(wanted: bool) -> None:
    """Register with Ray's serialization if this process is a driver, or restore it.

    What Ray serializes it stores, for as long as the program has an ``ObjectRef``: the reference
    lasts until the process ends, not only while its value lives.  The objects of a driver end with
    it.  The results of tasks may outlive their worker, so workers pass values as before.
    """
    if wanted and ray.is_initialized() and ray.get_runtime_context().worker.mode != ray.SCRIPT_MODE:
        return
    _register(wanted)


def _register(wanted: bool) -> None:
    from ray.cloudpickle import CloudPickler

    table = CloudPickler.dispatch
    for cls in list(_reducers.classes()):
        if wanted and table.get(cls) is not _reduce:
            _before[cls] = table.get(cls)
            table[cls] = _reduce
        elif not wanted and table.get(cls) is _reduce:
            before = _before.pop(cls, None)
            if before is None:
                del table[cls]
            else:
                table[cls] = before


def _reduce(value: Any) -> Any:
    # It is retained for as long as Ray may store it, so no reader has to say that it read it.
    reduced = _references.reduce(value, is_tracked=False)
    if reduced is None:
        before = _before.get(type(value))
        return value.__reduce_ex__(_PROTOCOL) if before is None else before(value)
    _references.retain(value)
    return reduced
