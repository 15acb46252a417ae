"""``farrow.connect``: find the node, or give the command that starts a private one."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from pathlib import Path

from farrow import _native

__all__ = ["connect", "living"]

# Clients that the program still has, for values that arrive by reference (``farrow.sharing``).
_clients: weakref.WeakSet[_native.Client] = weakref.WeakSet()
# A set that another thread adds to while it is searched raises RuntimeError.
_lock = threading.Lock()

_LOADER = Path(__file__).with_name("_node.py")


def connect(
    address: str | os.PathLike[str] | None = None, *, timeout: float = 10.0, namespace: str = ""
) -> _native.Client:
    """Connect to a node of this machine.

    Args:
        address: path of the node's socket.  None: ``$FARROW_SOCKET``; else the node that already
            serves this user; else a private node is started.  It ends with its last client or,
            while it has named objects, ``$FARROW_LINGER`` seconds later (600 by default), so that
            the next program finds them.  ``$FARROW_MEMORY`` (such as ``4GiB``) sets its size; by
            default it takes a share of memory.
        timeout: seconds to connect, including the start of a private node.
        namespace: a namespace created with ``Client.create_namespace``: it has its own names,
            quotas and writers.  "" is the default one, which always exists.

    Returns:
        A client, which may be used from many threads.

    Raises:
        Disconnected: no node answers at the address that was given.
        NotFound: the namespace does not exist; the message lists the namespaces.
        Timeout: the node did not answer in time.
        PermissionDenied: the node belongs to another user.
        OutOfMemory: there is no room for a private node.

    Examples:
        >>> import farrow
        >>> client = farrow.connect()
        >>> client.get(client.put(b"hello")).to_pybytes()
        b'hello'
    """
    if address is not None:
        client = _native.connect(os.fspath(address), timeout, namespace=namespace)
    else:
        program = sys.executable or "python3"
        client = _native.connect(None, timeout, program, _node_arguments(), namespace)
    with _lock:
        _clients.add(client)
    return client


def living(address: str) -> _native.Client | None:
    """A client of the node at an address that this process has already, if any.  It is in the
    default namespace, as one that is made there would be."""
    with _lock:
        found = (one for one in _clients if one.address == address and not one.namespace)
        return next(found, None)


def _after_fork() -> None:
    """The clients of the parent belong to the parent."""
    global _clients, _lock
    _clients, _lock = weakref.WeakSet(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _node_arguments() -> list[str]:
    """Interpreter arguments that run a node: only the extension, no site packages."""
    return ["-I", "-S", str(_LOADER), _native.__file__]
