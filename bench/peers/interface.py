"""The interface of a measured peer.  Runs under every environment's Python and pyarrow."""

from __future__ import annotations

from typing import Any, Protocol


class PeerProtocol(Protocol):
    """One way to share tables between processes of a machine.

    ``directory`` is a scratch directory of the run; peers put their sockets there.
    """

    def server(self, directory: str, capacity: int) -> list[str] | None:
        """The command of the process that holds the data; None if the peer needs none.

        ``capacity`` is in bytes of user data.  The command may expect to be ended by SIGTERM.
        """

    def connect(self, directory: str) -> None:
        """Connect to the server, waiting for it to serve; at most 30 s."""

    def put(self, name: str, table: Any) -> None:
        """Store a pyarrow table so that other processes can get it."""

    def get(self, name: str) -> Any:
        """A usable pyarrow table, zero-copy if the peer supports that."""

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store a small object."""

    def get_bytes(self, name: str) -> Any:
        """A small object, as something with the buffer protocol."""

    def delete(self, name: str) -> None:
        """Delete an object, so that its space can be reused."""
