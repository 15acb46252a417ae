"""Ray's object store: one node, one CPU, no dashboard, no workers."""

from __future__ import annotations

import base64
import os
import secrets
import socket
import time
from typing import Any

_CONNECT_SECONDS_MAX = 60.0
# A get copies bytes objects and returns arrays in place.  Below this size the copy is faster.
_COPIED_BYTES_MAX = 20_000


class Store:
    """See ``store_interface.StoreProtocol``."""

    can_name = False
    can_unnamed = True
    is_queue = False
    remarks = (
        "a reader gets references pickled by the writer (Ray has no other way without tasks);"
        " objects of 10 kB or less are bytes, larger ones NumPy arrays, each as is quicker"
    )

    def __init__(self) -> None:
        self._exported: set[Any] = set()

    def server(self, directory: str, capacity: int) -> list[str]:
        """A head node in the foreground, with a token for this run only."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with open(os.path.join(directory, "port"), "w") as file:
            file.write(str(port))
        token = os.path.join(directory, "token")
        descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        import ray

        program = os.path.join(os.path.dirname(os.path.dirname(ray.__file__)), *_TO_PROGRAM)
        flags = ["--head", "--block", "--num-cpus=1", f"--object-store-memory={capacity}"]
        flags += ["--include-dashboard=false", "--disable-usage-stats"]
        flags += ["--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={directory}/ray"]
        settings = [f"{key}={value}" for key, value in _settings(directory).items()]
        return ["env", "-u", "RAY_AUTH_TOKEN", *settings, program, "start", *flags]

    def connect(self, directory: str) -> None:
        """Join as a driver, waiting for the node."""
        os.environ.pop("RAY_AUTH_TOKEN", None)
        os.environ.update(_settings(directory))
        import ray

        with open(os.path.join(directory, "port")) as file:
            address = f"127.0.0.1:{file.read()}"
        limit = time.monotonic() + _CONNECT_SECONDS_MAX
        while not _is_ready(directory) and time.monotonic() < limit:
            time.sleep(0.1)
        ray.init(address=address, log_to_driver=False, configure_logging=False)

    def put(self, data: bytes, name: str | None) -> Any:
        """Serialise, create, copy, seal."""
        import numpy as np
        import ray

        if len(data) <= _COPIED_BYTES_MAX:
            return ray.put(data)
        return ray.put(np.frombuffer(data, dtype=np.uint8))

    def get(self, token: Any) -> Any:
        """In place if it is an array."""
        import ray

        return ray.get(token)

    def get_many(self, tokens: list[Any]) -> Any:
        """One call."""
        import ray

        return ray.get(tokens)

    def delete(self, tokens: list[Any]) -> None:
        """Drop the references that pickling pinned; the caller drops its own."""
        import ray

        worker = ray._private.worker.global_worker.core_worker
        for token in tokens:
            if token in self._exported:
                worker.remove_object_ref_reference(token)
                self._exported.remove(token)

    def export(self, token: Any) -> str:
        """The pickled reference."""
        import ray

        self._exported.add(token)
        return base64.b64encode(ray.cloudpickle.dumps(token)).decode()

    def adopt(self, text: str) -> Any:
        """The reference."""
        import ray

        return ray.cloudpickle.loads(base64.b64decode(text))

    def put_table(self, table: Any) -> Any:
        """Pickled with its buffers out of band."""
        import ray

        return ray.put(table)

    def get_table(self, token: Any) -> Any:
        """Buffers in place."""
        import ray

        return ray.get(token)


_TO_PROGRAM = ("..", "..", "..", "bin", "ray")


def _settings(directory: str) -> dict[str, str]:
    """Authentication by the run's token, independent of the user's settings."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": os.path.join(directory, "token")}


def _is_ready(directory: str) -> bool:
    """Whether the raylet has created its socket."""
    latest = os.path.join(directory, "ray", "session_latest", "sockets", "raylet")
    return os.path.exists(latest)
