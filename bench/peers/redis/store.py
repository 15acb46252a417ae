"""Redis over a Unix socket: values are copied through the socket, both ways."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

_CONNECT_SECONDS_MAX = 30.0
_HERE = os.path.dirname(os.path.abspath(__file__))
_DEBIAN = os.path.join(_HERE, "..", ".envs", "redis", "debian", "usr")


class Store:
    """See ``store_interface.StoreProtocol``."""

    can_name = True
    can_unnamed = False
    is_queue = False
    accounting = "INFO memory: used_memory"
    remarks = "a value of 1.6 GB is beyond its limit of 512 MB: no table"

    def __init__(self) -> None:
        self._client: Any = None

    def server(self, directory: str, capacity: int) -> list[str]:
        """The server on the path, or the one unpacked by ``setup``, without disk writes."""
        program, prefix = shutil.which("redis-server"), []
        if program is None:
            program = os.path.join(_DEBIAN, "bin", "redis-server")
            libraries = os.path.join(_DEBIAN, "lib", f"{os.uname().machine}-linux-gnu")
            prefix = ["env", f"LD_LIBRARY_PATH={libraries}"]
        flags = ["--port", "0", "--save", "", "--appendonly", "no", "--dir", directory]
        return [*prefix, program, "--unixsocket", f"{directory}/redis.sock", *flags]

    def connect(self, directory: str) -> None:
        """Connect, waiting for the first answer."""
        import redis

        self._client = redis.Redis(unix_socket_path=f"{directory}/redis.sock")
        limit = time.monotonic() + _CONNECT_SECONDS_MAX
        while True:
            try:
                self._client.ping()
                return
            except redis.exceptions.ConnectionError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.01)

    def put(self, data: bytes, name: str | None) -> Any:
        """SET."""
        self._client.set(name, data)
        return name

    def get(self, token: Any) -> Any:
        """GET; a copy."""
        return self._client.get(token)

    def put_many(self, items: list[bytes], names: list[str] | None) -> Any:
        """MSET."""
        assert names is not None
        self._client.mset(dict(zip(names, items, strict=True)))
        return names

    def get_many(self, tokens: list[Any]) -> Any:
        """MGET."""
        return self._client.mget(tokens)

    def delete(self, tokens: list[Any]) -> None:
        """DEL, a thousand a message."""
        for start in range(0, len(tokens), 1000):
            self._client.delete(*tokens[start : start + 1000])

    def export(self, token: Any) -> str:
        """The key."""
        return str(token)

    def adopt(self, text: str) -> Any:
        """The key."""
        return text

    def used(self) -> int:
        """All that the server has allocated."""
        return int(self._client.info("memory")["used_memory"])
