"""Mooncake's store on one machine: a client that holds the memory, and processes that share memory
with it (its "dummy" clients).  Values are copied in and out."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time
from typing import Any

_CONNECT_SECONDS_MAX = 60.0
# Memory that a process shares with the store: values on their way in, and those that were got.
_PUT_BYTES = 256 << 20
_GOTTEN_BYTES = 1280 << 20
_BATCH = 1000
# In the order of their dependences.
_LIBRARIES = ("libnl-3.so.200", "libnl-route-3.so.200", "libibverbs.so.1")


class Store:
    """See ``store_interface.StoreProtocol``."""

    can_name = True
    can_unnamed = False
    is_queue = False
    remarks = (
        "a process shares memory with the client that holds the objects, and values are copied"
        " through it; no table: a got value has to fit into that memory"
    )

    def __init__(self) -> None:
        self._store: Any = None

    def server(self, directory: str, capacity: int) -> list[str]:
        """Both processes of the store, by a third one that ends them."""
        ports = {}
        probes = [socket.socket() for _ in range(3)]
        for name, probe in zip(("master", "metrics", "client"), probes, strict=True):
            probe.bind(("127.0.0.1", 0))
            ports[name] = probe.getsockname()[1]
        for probe in probes:
            probe.close()
        with open(os.path.join(directory, "ports"), "w") as file:
            json.dump(ports, file)
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "server.py")
        return [sys.executable, program, directory, str(capacity)]

    def connect(self, directory: str) -> None:
        """Share memory with the store, waiting for it to serve.

        Raises:
            ConnectionError: it does not serve.
        """
        _load_libraries()
        from mooncake.store import MooncakeDistributedStore

        with open(os.path.join(directory, "ports")) as file:
            port = json.load(file)["client"]
        limit = time.monotonic() + _CONNECT_SECONDS_MAX
        while not _listens(port):
            if time.monotonic() > limit:
                raise ConnectionError(f"no store within {_CONNECT_SECONDS_MAX:.0f} s")
            time.sleep(0.05)
        self._store = MooncakeDistributedStore()
        code = self._store.setup_dummy(_PUT_BYTES, _GOTTEN_BYTES, f"127.0.0.1:{port}")
        if code != 0:
            raise ConnectionError(f"setup_dummy returned {code}")

    def put(self, data: bytes, name: str | None) -> Any:
        """One object; a copy."""
        _check("put", self._store.put(name, data))
        return name

    def get(self, token: Any) -> Any:
        """A copy in the memory that this process shares with the store."""
        found = self._store.get_buffer(token)
        if found is None:
            raise KeyError(token)
        return found

    def put_many(self, items: list[bytes], names: list[str] | None) -> Any:
        """One call."""
        assert names is not None
        _check("put_batch", self._store.put_batch(names, items))
        return names

    def get_many(self, tokens: list[Any]) -> Any:
        """One call."""
        found = self._store.batch_get_buffer(tokens)
        if None in found:
            raise KeyError(tokens[found.index(None)])
        return found

    def delete(self, tokens: list[Any]) -> None:
        """A thousand a call, without regard to leases."""
        for start in range(0, len(tokens), _BATCH):
            for code in self._store.batch_remove(tokens[start : start + _BATCH], True):
                _check("batch_remove", code)

    def view(self, value: Any) -> Any:
        """The bytes of a handle."""
        return memoryview(value)

    def export(self, token: Any) -> str:
        """The key."""
        return str(token)

    def adopt(self, text: str) -> Any:
        """The key."""
        return text


def _check(call: str, code: int) -> None:
    if code < 0:
        raise RuntimeError(f"{call} returned {code}")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _load_libraries() -> None:
    """Load what ``setup`` unpacked: the store's own library then finds it by name."""
    debian = os.path.join(os.path.dirname(os.path.dirname(sys.executable)), "debian")
    machine = f"{os.uname().machine}-linux-gnu"
    for name in _LIBRARIES:
        for part in ("", "usr"):
            path = os.path.join(debian, part, "lib", machine, name)
            if os.path.exists(path):
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
