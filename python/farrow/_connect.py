"""``farrow.connect``: find the node, or say how a private one is started."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from farrow import _native

__all__ = ["connect"]

_LOADER = Path(__file__).with_name("_node.py")


def connect(
    address: str | os.PathLike[str] | None = None, *, timeout: float = 10.0, namespace: str = ""
) -> _native.Client:
    """Connect to a node of this machine.

    Args:
        address: path of the node's socket.  None: ``$FARROW_SOCKET``; else the node that already
            serves this user; else a private node is started, which ends with its last client.
            ``$FARROW_MEMORY`` (such as ``4GiB``) sizes it, else it takes a share of memory.
        timeout: seconds to connect, the start of a private node included.
        namespace: its names, quotas and writers are its own.  It was created with
            ``Client.create_namespace``; "" is the default one, which is always there.

    Returns:
        A client, which may be used from many threads.

    Raises:
        Disconnected: no node answers at the address that was given.
        NotFound: there is no such namespace; the message lists the namespaces.
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
        return _native.connect(os.fspath(address), timeout, namespace=namespace)
    program = sys.executable or "python3"
    return _native.connect(None, timeout, program, _node_arguments(), namespace)


def _node_arguments() -> list[str]:
    """Arguments of the interpreter that run a node: no site packages, nothing but the extension."""
    extension = _native.__file__
    return ["-I", "-S", str(_LOADER), extension, _libarrow_beside(extension)]


def _libarrow_beside(extension: str) -> str:
    """Path of the libarrow to load first; empty where the extension finds it by itself."""
    library = f"libarrow.so.{_native.ARROW_SO_VERSION}"
    site = Path(extension).resolve().parent.parent
    if (site / "pyarrow" / library).exists():  # its rpath leads there
        return ""
    # An editable install: the extension lies in a source tree, away from pyarrow.
    spec = PathFinder.find_spec("pyarrow")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / library).exists():
            return str(Path(folder) / library)
    return ""
