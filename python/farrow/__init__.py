"""Share Arrow tables between processes in place: no copy, no serialization.

One process puts a table (or builds it in shared memory) and seals it under a name; other
processes on the machine find it and use it in place::

    import farrow, pyarrow as pa

    client = farrow.connect()                      # a node of this user, or a private one
    client.put(pa.table({"n": [1, 2, 3]}), "numbers")
    table = client.get("numbers")                  # in any process: zero-copy and read-only
"""

from __future__ import annotations

import sys as _sys

from farrow import events, huge
from farrow._native import Client, HugeTable, ObjectRef, Writer, __version__
from farrow._nodes._connect import connect
from farrow._sql import sql
from farrow._values._lazy import fetch
from farrow._values._objects import get_object, put_object
from farrow._values._types import NodeInfo
from farrow.exceptions import (
    AlreadyExists,
    BarrierBroken,
    CutOff,
    DamagedFile,
    Disconnected,
    FarrowError,
    InternalError,
    InvalidArgument,
    InvalidDescriptor,
    LimitReached,
    NamespaceInUse,
    NodeDraining,
    NodeLost,
    NodeUnreachable,
    NotFound,
    NotPermitted,
    NotRestored,
    NotSpilled,
    OutOfMemory,
    PermissionDenied,
    ProtocolError,
    QuotaExceeded,
    RowsMissing,
    RowsTaken,
    Timeout,
    TooLarge,
    TooManyObjects,
    UnsupportedType,
)

__all__ = [
    "AlreadyExists",
    "BarrierBroken",
    "Client",
    "CutOff",
    "DamagedFile",
    "Disconnected",
    "FarrowError",
    "HugeTable",
    "InternalError",
    "InvalidArgument",
    "InvalidDescriptor",
    "LimitReached",
    "NamespaceInUse",
    "NodeDraining",
    "NodeInfo",
    "NodeLost",
    "NodeUnreachable",
    "NotFound",
    "NotPermitted",
    "NotRestored",
    "NotSpilled",
    "ObjectRef",
    "OutOfMemory",
    "PermissionDenied",
    "ProtocolError",
    "QuotaExceeded",
    "RowsMissing",
    "RowsTaken",
    "Timeout",
    "TooLarge",
    "TooManyObjects",
    "UnsupportedType",
    "Writer",
    "__version__",
    "connect",
    "events",
    "fetch",
    "get_object",
    "huge",
    "put_object",
    "sql",
]

# Elsewhere no notebook shows anything, and the import would cost milliseconds.
if "IPython" in _sys.modules:
    from farrow._pages._html import show_lists as _show_lists

    _show_lists()
