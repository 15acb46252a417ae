"""Share Arrow tables between processes in place: no copy, no serialization.

One process puts a table (or builds it in shared memory) and seals it under a name; other
processes on the machine find it and use it in place::

    import farrow, pyarrow as pa

    client = farrow.connect()                      # a node of this user, or a private one
    client.put(pa.table({"n": [1, 2, 3]}), "numbers")
    table = client.get("numbers")                  # in any process: zero-copy and read-only
"""

from __future__ import annotations

# Import this first: it loads libarrow.so.<SO>, which the loader then finds by its SONAME.
import pyarrow as _pyarrow

try:
    from farrow import _native
except ImportError as error:  # built for another series of pyarrow
    raise ImportError(
        f"farrow's extension does not load with pyarrow {_pyarrow.__version__} ({error}); "
        "install the pyarrow series farrow was built for, or build farrow again"
    ) from error

if _pyarrow.cpp_build_info.so_version != _native.ARROW_SO_VERSION:
    raise ImportError(
        f"farrow was built for libarrow.so.{_native.ARROW_SO_VERSION}, but pyarrow "
        f"{_pyarrow.__version__} brings libarrow.so.{_pyarrow.cpp_build_info.so_version}"
    )

from farrow import events, huge
from farrow._connect import connect
from farrow._native import Client, HugeTable, ObjectRef, Writer, __version__
from farrow._objects import get_object, put_object
from farrow._types import NodeInfo
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
    NodeLost,
    NodeUnreachable,
    NotFound,
    NotGranted,
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
    "NodeInfo",
    "NodeLost",
    "NodeUnreachable",
    "NotFound",
    "NotGranted",
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
    "get_object",
    "huge",
    "put_object",
]
