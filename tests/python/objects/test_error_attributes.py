"""Every error that a node can send becomes an exception with its text and its numbers.

A node that rejects each hello sends the bytes of `crates/wire/tests/errors.json`, whose Rust test
checks them against the types of the protocol.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import farrow

if TYPE_CHECKING:
    from collections.abc import Iterator

_KNOWN = json.loads(
    (Path(__file__).resolve().parents[3] / "crates/wire/tests/errors.json").read_text()
)

# The class, its own text if it has one, and the attributes, for each of the errors in their order.
_EXPECTED: list[tuple[type[farrow.FarrowError], str | None, dict[str, Any]]] = [
    (
        farrow.OutOfMemory,
        None,
        {"requested": 300, "free": 200, "largest": 100, "waiting": 0, "waited_seconds": 0.0},
    ),
    (
        farrow.OutOfMemory,
        None,
        {"requested": 4096, "free": 1024, "largest": 512, "waiting": 1, "waited_seconds": 1.5},
    ),
    (farrow.LimitReached, None, {"limit": 128}),
    (farrow.TooManyObjects, None, {"limit": 65536}),
    (farrow.AlreadyExists, None, {}),
    (farrow.NotFound, None, {}),
    (farrow.InvalidArgument, None, {}),
    (farrow.PermissionDenied, "permission denied: user 7 may not write", {}),
    (
        farrow.ProtocolError,
        "protocol: protocol version 9 asked, this daemon speaks 10",
        {},
    ),
    # A client tries to connect again for as long as it may, then says that there is no node.
    (farrow.Disconnected, "the node was replaced: its memory 0x00000000000000ff no longer", {}),
    (farrow.Disconnected, "it is shutting down", {}),
    (farrow.ProtocolError, "protocol: the region is damaged: entry 5", {}),
    (farrow.TooLarge, None, {"requested": 3000, "capacity": 2000}),
    (
        farrow.QuotaExceeded,
        None,
        {
            "whose": 'namespace "team"',
            "what": "bytes",
            "requested": 500,
            "used": 600,
            "limit": 1000,
            "waiting": 0,
            "waited_seconds": 0.0,
        },
    ),
    (
        farrow.QuotaExceeded,
        None,
        {
            "whose": "this client",
            "what": "objects",
            "requested": 4,
            "used": 2,
            "limit": 3,
            "waiting": 5,
            "waited_seconds": 0.25,
        },
    ),
    (farrow.NotFound, None, {}),
    (farrow.NamespaceInUse, None, {"objects": 130, "nbytes": 70000, "clients": 2}),
    (farrow.NodeLost, None, {"node": "b"}),
    (farrow.Disconnected, "broken pipe", {}),
    (farrow.InvalidArgument, None, {}),
    (farrow.BarrierBroken, None, {"who": "process 9 of node a"}),
    (farrow.CutOff, None, {"node": "a"}),
    (farrow.NotPermitted, None, {"node": "b", "namespace": "team", "right": "write"}),
    (farrow.NotRestored, None, {"file": "/spill/f"}),
    (
        farrow.NodeUnreachable,
        None,
        {"node": "b", "address": "10.0.0.2:7", "reason": "no fabric"},
    ),
    (
        farrow.OutOfMemory,
        None,
        {
            "what": "names",
            "requested": 100,
            "free": 40,
            "largest": 30,
            "used": 512,
            "waiting": 2,
            "waited_seconds": 0.099,
        },
    ),
    (
        farrow.NotSpilled,
        None,
        {
            "requested": 300,
            "free": 200,
            "largest": 100,
            "waited_seconds": 0.007,
            "folder": "/spill",
            "nbytes": 4097,
            "reason": "disk full",
        },
    ),
    (farrow.FarrowError, "the call was interrupted while it waited", {}),
    (farrow.NodeDraining, None, {"node": "b"}),
    (farrow.FarrowError, None, {}),
]


class Rejecting:
    """A socket that answers the first message of each connection with an error."""

    def __init__(self, path: Path) -> None:
        self.error = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                # Number 0, and a result that is an error.
                body = b"\0\1" + self.error
                connection.sendall(struct.pack("<I", len(body)) + body)

    def close(self) -> None:
        # Closing alone does not wake a thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


@pytest.fixture
def rejecting(tmp_path: Path) -> Iterator[tuple[Path, Rejecting]]:
    path = tmp_path / "node.sock"
    node = Rejecting(path)
    try:
        yield path, node
    finally:
        node.close()


@pytest.mark.parametrize(
    ("known", "expected"),
    list(zip(_KNOWN, _EXPECTED, strict=True)),
    ids=[f"{number}-{known['kind']}" for number, known in enumerate(_KNOWN)],
)
def test_an_error_has_its_class_its_text_and_its_numbers(
    rejecting: tuple[Path, Rejecting],
    known: dict[str, str],
    expected: tuple[type[farrow.FarrowError], str | None, dict[str, Any]],
) -> None:
    path, node = rejecting
    node.error = bytes.fromhex(known["bytes"])
    family, text, attributes = expected
    with pytest.raises(farrow.FarrowError) as caught:
        farrow.connect(path, timeout=0.2)
    error = caught.value
    assert type(error) is family
    assert vars(error) == attributes
    if text is None:
        assert str(error) == known["text"]
    else:
        assert text in str(error)
