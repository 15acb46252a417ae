"""References: made by a sender, and opened by a receiver."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from farrow import _native
from farrow._nodes import _connect
from farrow.exceptions import Disconnected, FarrowError, InvalidDescriptor, NotFound
from farrow.sharing._unread import Acknowledgements, SentReference, UnreadReferences

if TYPE_CHECKING:
    from farrow._scan import _chunks

__all__ = [
    "LEASE_SECONDS",
    "LEASE_SECONDS_MAX",
    "MIN_BYTES",
    "ReferencePlan",
    "SharingSettings",
    "plan",
    "reduce",
    "use",
]

# A message and its envelope take some microseconds either way; below this a copy is as quick.
MIN_BYTES = 65536
# It runs from the first read of a message, or from the end of its sender: engines retry within
# seconds.
LEASE_SECONDS = 60.0
# That of the node.
LEASE_SECONDS_MAX = 3600.0

_log = logging.getLogger("farrow.sharing")


class SharingSettings(NamedTuple):
    """The arguments of ``farrow.sharing.install``."""

    multiprocessing: bool
    dask: bool
    ray: bool
    min_bytes: int
    lease: float
    unread: float | None


Register = Callable[[SharingSettings | None], None]
# A function and its arguments, as ``__reduce__`` returns them.
Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


class _ProcessState:
    """What one process knows.  A forked child begins empty: nothing of its parent is its own."""

    def __init__(
        self, settings: SharingSettings | None = None, *, is_decided: bool = False
    ) -> None:
        self.settings = settings
        # Whether this process, or the parent that forked it, has called install or uninstall.
        self.is_decided = is_decided
        # A weakref callback may run inside of any allocation, also under the lock: it does not
        # take the lock.
        self.lock = threading.RLock()
        # By the id of the value and the lease: a weak reference to the value, and the reference
        # that was sent.
        self.sent: dict[tuple[int, float], tuple[weakref.ref[Any], SentReference]] = {}
        self.retained: dict[bytes, SentReference] = {}
        self.clients: dict[str, _native.Client] = {}
        self.unread = UnreadReferences()
        self.acknowledgements = Acknowledgements()


_state = _ProcessState()
# The state of the parent: its references and clients are not to be ended by a child.
_inherited: list[_ProcessState] = []


def _after_fork() -> None:
    global _state
    _inherited.append(_state)
    _state = _ProcessState(_state.settings, is_decided=_state.is_decided)


os.register_at_fork(after_in_child=_after_fork)


def use(settings: SharingSettings | None, register: Register) -> None:
    """Apply other settings to this process; None: pass no references."""
    with _state.lock:
        _state.settings = settings
        _state.is_decided = True
        register(settings)


def reduce(value: Any, *, is_tracked: bool = True) -> Reduced | None:
    """How to rebuild a value from a reference; None: it passes as before.

    Args:
        value: the value.
        is_tracked: whether the reference waits for a reader after the sender dropped the value.
    """
    settings = _state.settings
    if settings is None:
        return None
    try:
        return _reduce(value, settings, is_tracked)
    except FarrowError as error:
        # The bytes of the value are still there: they travel instead.
        _log.info("%s is sent as a copy: %s", type(value).__name__, error)
        return None


class ReferencePlan(NamedTuple):
    """How a value passes by reference."""

    # A value that the node takes, over the same memory.
    arrow: Any
    # The function that rebuilds the value, and its arguments after the first four.
    open: Callable[..., Any]
    more: tuple[Any, ...] = ()

    def reduced(
        self, reference: _native.SharedReference, settings: SharingSettings | None, marker: bytes
    ) -> Reduced:
        """The function and all arguments, for a reference to ``arrow``.

        Args:
            reference: the reference.
            settings: those with which receivers send references too; None: they do as before.
            marker: as in ``open_value``.
        """
        first = (reference.message, reference.address, settings, marker)
        return self.open, (*first, *self.more)


def _reduce(value: Any, settings: SharingSettings, is_tracked: bool) -> Reduced | None:
    planned = plan(value, settings.min_bytes)
    if planned is None:
        return None
    state = _state
    with state.lock:
        sent = _share(value, planned.arrow, settings)
        if sent is None:
            return None
        marker = b""
        if is_tracked:
            marker = state.unread.mark(sent)
    return planned.reduced(sent.reference, settings, marker)


def plan(value: Any, min_bytes: int) -> ReferencePlan | None:
    """How a value of at least this many bytes passes by reference; None: it does not."""
    if isinstance(value, (pa.Table, pa.RecordBatch, pa.ChunkedArray, pa.Array)):
        if any(_needs_registration(kind) for kind in _types_of(value)):
            return None
        return ReferencePlan(value, open_value)
    if isinstance(value, pa.Buffer):
        # The owner of a mutable buffer may still write to it.
        if value.is_mutable or value.size < min_bytes:
            return None
        return ReferencePlan(_bytes_of(value), open_buffer)
    return _plan_numpy(value, min_bytes)


def _types_of(value: Any) -> list[pa.DataType]:
    if isinstance(value, (pa.Table, pa.RecordBatch)):
        types: list[pa.DataType] = value.schema.types
        return types
    return [value.type]


def _needs_registration(kind: pa.DataType) -> bool:
    """Whether there is an extension type in a type that pyarrow itself does not know: a receiver
    that has not registered it would get its storage.  A pickle has it, and references to the
    buffers."""
    if isinstance(kind, pa.BaseExtensionType):
        is_own = not isinstance(kind, pa.ExtensionType) and kind.extension_name.startswith("arrow.")
        return not is_own or _needs_registration(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _needs_registration(kind.value_type)
    return any(_needs_registration(kind.field(n).type) for n in range(kind.num_fields))


def _plan_numpy(array: Any, min_bytes: int) -> ReferencePlan | None:
    """As ``plan``, for an array that is read-only, contiguous or not."""
    if array.flags.writeable or array.dtype.hasobject or array.nbytes < min_bytes:
        return None
    low, high = _byte_bounds(array)
    around = _bytes_of(pa.foreign_buffer(low, high - low, base=array))
    offset = array.__array_interface__["data"][0] - low
    layout = (array.dtype, array.shape, array.strides, offset)
    return ReferencePlan(around, open_numpy, (layout,))


def _bytes_of(buffer: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(pa.uint8(), buffer.size, [None, buffer])


def _byte_bounds(array: Any) -> tuple[int, int]:
    """The first address of an array's items, and the one after the last."""
    low = high = array.__array_interface__["data"][0]
    for length, stride in zip(array.shape, array.strides, strict=True):
        span = (length - 1) * stride
        low, high = low + min(span, 0), high + max(span, 0)
    return low, high + array.itemsize


def _share(value: Any, arrow: Any, settings: SharingSettings) -> SentReference | None:
    """A reference to a value.  It lasts while the value lives, and is the same one each time.
    Called under the lock."""
    lease, state = settings.lease, _state
    key, sent = (id(value), lease), state.sent
    known = sent.get(key)
    if known is not None and known[0]() is value:
        # Receivers would not find it in the memory of a node that took the place of its node.
        known[1].reference.check()
        return known[1]
    reference = _native.share(arrow, settings.min_bytes, lease)
    if reference is None:
        return None
    made = SentReference(reference, settings.unread)
    unread = state.unread

    def drop(_: Any) -> None:
        # Never replaced by another value's: an id is free when this callback has run.
        if sent.pop(key, None) is not None:
            unread.drop(made)

    sent[key] = weakref.ref(value, drop), made
    return made


def retain(value: Any) -> None:
    """Keep the reference that ``reduce`` has just made to a value until this process ends."""
    lease = LEASE_SECONDS if _state.settings is None else _state.settings.lease
    known = _state.sent.get((id(value), lease))
    if known is not None:
        _state.retained[known[1].reference.message] = known[1]


def open_value(
    message: bytes, address: str, settings: SharingSettings | None, marker: bytes = b""
) -> Any:
    """The value of a reference.

    Args:
        message: the reference.
        address: the path of the socket of the sender's node.
        settings: those of the sender.
        marker: id of the object that this first read of a message deletes, if there is one.
    """
    follow(settings)
    value = with_client(address, lambda client: _native.open_shared(client, message))
    if marker:
        state = _state
        state.acknowledgements.send(_client(address), address, marker)
    return value


def open_buffer(
    message: bytes, address: str, settings: SharingSettings | None, marker: bytes = b""
) -> pa.Buffer:
    """The buffer of a reference."""
    return _buffer_of(open_value(message, address, settings, marker))


def open_numpy(
    message: bytes,
    address: str,
    settings: SharingSettings | None,
    marker: bytes,
    layout: tuple[Any, ...],
) -> Any:
    """The NumPy array of a reference: numpy checks that the layout stays in the buffer."""
    import numpy as np

    dtype, shape, strides, offset = layout
    if np.dtype(dtype).hasobject:
        raise InvalidDescriptor(f"a reference to an array of {dtype}, which has Python objects")
    buffer = open_buffer(message, address, settings, marker)
    try:
        return np.ndarray(shape, dtype, buffer=buffer, offset=offset, strides=strides)
    except (TypeError, ValueError) as error:
        raise InvalidDescriptor(f"a reference to an array of {buffer.size} B: {error}") from None


def _buffer_of(value: Any) -> pa.Buffer:
    if not isinstance(value, pa.Array) or value.type != pa.uint8():
        raise InvalidDescriptor(f"a reference to {type(value).__name__}, not to bytes")
    data = value.buffers()[1]
    return pa.py_buffer(b"") if data is None else data.slice(value.offset, len(value))


def follow(settings: SharingSettings | None) -> None:
    """Pass references as the sender does, unless this process has decided for itself."""
    if settings is None or _state.is_decided:
        return
    from farrow.sharing import install

    install(**settings._asdict())


def with_client(address: str, use: Callable[[_native.Client], Any]) -> Any:
    """The result of a function with a client of a node, which may be called twice: the program may
    have closed a client that was borrowed, and a node may have been replaced by one with new
    memory."""
    client = _client(address)
    try:
        return use(client)
    except (Disconnected, NotFound) as error:
        if isinstance(error, NotFound) and _is_served(client):
            raise
        with _state.lock:
            # Another thread may have replaced it.
            if _state.clients.get(address, client) is client:
                _state.clients[address] = _connected(address)
            client = _state.clients[address]
    return use(client)


def _is_served(client: _native.Client) -> bool:
    """Whether a client's node serves the memory that the client has mapped: a search that finds
    nothing there sends no message, also when the node was replaced."""
    try:
        client.stats()
    except Disconnected:
        return False
    except FarrowError:
        # What was not found is the better error.
        return True
    return True


def read_chunk(address: str, selection: _chunks.Selection, id: bytes) -> pa.Table:
    """What is read of one chunk of a table."""
    return with_client(address, lambda client: selection.read(client, id))


def checked_client(address: str) -> _native.Client:
    """A client of a node, which has just given an answer: for work that cannot be done twice."""

    def check(client: _native.Client) -> _native.Client:
        client.stats()
        return client

    checked: _native.Client = with_client(address, check)
    return checked


def _client(address: str) -> _native.Client:
    """A client of the sender's node; on another machine, of the node that serves this one.

    A client that the program has is borrowed: two of them would map the memory twice.
    """
    with _state.lock:
        client = _state.clients.get(address)
        if client is None:
            client = _connect.living(address) or _connected(address)
            _state.clients[address] = client
        return client


def _connected(address: str) -> _native.Client:
    if Path(address).exists():
        try:
            return _connect.connect(address)
        except Disconnected:
            _log.debug("no node answers at %s", address)
    try:
        # A private node that were started here would not have the objects.
        return _native.connect(None, 10.0)
    except Disconnected as error:
        raise NotFound(
            f"a reference to memory of the node at {address}, which does not answer here; "
            f"and no other node serves this process: {error}"
        ) from None
