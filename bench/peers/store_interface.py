"""The interface of a peer measured as an object store.  Runs under every peer's Python."""

from __future__ import annotations

from typing import Any, Protocol


class StoreProtocol(Protocol):
    """Objects of bytes, shared between processes of a machine.

    A *token* is the result of ``put`` and the argument of ``get``, in the peer's own type.
    """

    # Whether the user may name an object.
    can_name: bool
    can_unnamed: bool
    # An object can be received once only: a queue, not a store.
    is_queue: bool

    def server(self, directory: str, capacity: int) -> list[str] | None:
        """The command of the process that holds the data; None if the peer needs none.

        ``capacity`` is in bytes of user data.  The command may expect to be ended by SIGTERM.
        """

    def connect(self, directory: str) -> None:
        """Connect to the server, waiting for it to serve; at most 60 s."""

    def put(self, data: bytes, name: str | None) -> Any:
        """Create, write and seal one object by the fastest method for its size; returns a token."""

    def get(self, token: Any) -> Any:
        """A sealed object, in place if the peer supports that."""

    def delete(self, tokens: list[Any]) -> None:
        """Delete objects, so that their space can be reused."""

    def export(self, token: Any) -> str:
        """The token in a form that another process can ``adopt``."""

    def adopt(self, text: str) -> Any:
        """A token of this process, from ``export`` in another one."""

    # Optional, missing if the peer does not support it:
    #
    # prepare(count, size, scope, role)    before objects without a name; scope identifies a group
    #                                of users, role is "write", "read" or "both"
    # prepare_names(names, size, scope, role)    before objects with these names
    # put_many(items, names) -> tokens;  get_many(tokens) -> values       in one call
    # view(value) -> Any             the bytes of a value, if it has no buffer protocol
    # used() -> int                  bytes in use, by the peer's own accounting
    # accounting: str                what ``used`` counts
    # put_table(table) -> token;  get_table(token) -> table
    # remarks: str                   a note for readers of the report
