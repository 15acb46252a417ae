"""Send values that lie in Farrow between processes as references.

``multiprocessing``, ``concurrent.futures``, joblib, torch's ``DataLoader``, Dask and Ray serialize
what they send from process to process.  After ``install()`` they send a reference of less than 1 KB
for a ``pyarrow.Table``, ``RecordBatch``, ``ChunkedArray``, ``Array`` or ``Buffer``, or a read-only
NumPy array, whose memory belongs to a node, and for any slice or selection of one::

    import multiprocessing
    import farrow, farrow.sharing

    farrow.sharing.install()
    trades = farrow.connect().get("trades")
    with multiprocessing.Pool() as pool:
        pool.map(work, [trades.slice(start, 1000) for start in range(0, len(trades), 1000)])

The receiver gets the same memory, read-only, and holds it for as long as its value lives.  Other
values pass as before; of a value with an extension type of the program's own, the buffers pass by
reference.  A process that receives a reference sends references too.

**Lifetime.**  A reference is valid while the sender has the value, and after that until its
messages were read.  Then it is valid for ``lease`` seconds more, so that an engine may read a
message again.  If the sender ends or is killed, its references are valid for ``lease`` seconds.
Later reads raise ``NotFound``.  Memory returns when the reference has ended and no receiver has the
value.
"""

from __future__ import annotations

import importlib
import sys

from farrow.exceptions import InvalidArgument
from farrow.sharing import _reducers, _references
from farrow.sharing._references import LEASE_SECONDS, LEASE_SECONDS_MAX, MIN_BYTES, SharingSettings

__all__ = ["install", "uninstall"]


def install(
    *,
    multiprocessing: bool = True,
    dask: bool = True,
    ray: bool = True,
    min_bytes: int = MIN_BYTES,
    lease: float = LEASE_SECONDS,
    unread: float | None = None,
) -> None:
    """Pass values that lie in Farrow by reference, from this process and the processes it sends to.

    A further call changes the settings.  A value passes as before if it has fewer than
    ``min_bytes`` bytes in Farrow or more bytes outside, or if no reference can be made, for example
    because the memory of its node is full.

    Args:
        multiprocessing: register with ``multiprocessing``, and so with ``concurrent.futures`` and
            torch, and with joblib and loky if they are imported.
        dask: register with ``distributed`` if it is imported; see ``farrow.dask`` for its workers.
        ray: register with Ray if it is imported; see ``farrow.ray`` for its workers.
        min_bytes: fewest bytes in Farrow of a value that passes by reference.
        lease: seconds for which a reference stays valid after its last message was read, or its
            sender ended; 3600 at most.  A value that the program drops occupies its memory for that
            long.
        unread: seconds for which a reference waits for the first reader of a message after the
            sender dropped the value.  None: as long as the sender lives.  A message that is lost,
            such as one in the pipe of a process that was killed, is never read: a limit returns
            its memory while the sender lives.

    Raises:
        InvalidArgument: ``min_bytes``, ``lease`` or ``unread`` is out of range.

    Examples:
        >>> import pickle
        >>> from multiprocessing.reduction import ForkingPickler
        >>> farrow.sharing.install()
        >>> values = pa.array(range(100_000), memory_pool=client.memory_pool())
        >>> message = bytes(ForkingPickler.dumps(values))
        >>> len(message) < 1024, pickle.loads(message).equals(values)
        (True, True)
        >>> farrow.sharing.uninstall()
    """
    if min_bytes < 1:
        raise InvalidArgument(f"min_bytes is {min_bytes}; the least is 1")
    if not 0 < lease <= LEASE_SECONDS_MAX:
        raise InvalidArgument(
            f"a lease of {lease} s; above 0 and up to {LEASE_SECONDS_MAX} s are taken"
        )
    if unread is not None and not unread > 0:
        raise InvalidArgument(f"a limit of {unread} s for unread messages; above 0 s are taken")
    limit = None if unread is None else float(unread)
    settings = SharingSettings(multiprocessing, dask, ray, int(min_bytes), float(lease), limit)
    _references.use(settings, _register)


def uninstall() -> None:
    """Pass all values as before.  References that were sent stay valid as long as before.

    Examples:
        >>> farrow.sharing.uninstall()
    """
    _references.use(None, _register)


def _register(settings: SharingSettings | None) -> None:
    """Register with the engines that the settings name, and with no others."""
    _reducers.register(settings is not None and settings.multiprocessing)
    engines = {
        "distributed": ("farrow.dask", settings is not None and settings.dask),
        "ray": ("farrow.sharing._ray", settings is not None and settings.ray),
    }
    for engine, (module, wanted) in engines.items():
        # An engine that the program has not imported sends nothing, and takes seconds to import.
        if engine in sys.modules and (wanted or module in sys.modules):
            importlib.import_module(module).register(wanted)
