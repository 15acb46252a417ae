"""The messages of Flight SQL that clients send, decoded and checked.

The names, numbers and types of fields are those of ``FlightSql.proto`` of Apache Arrow.  A command
travels as a ``google.protobuf.Any``: the name of its type, and its bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from farrow.flight._protobuf import Malformed, Message, encode

__all__ = ["Command", "GetTables", "SqlText", "command", "in_any"]

_PREFIX = "type.googleapis.com/"
_PACKAGE = "arrow.flight.protocol.sql."
# Longer queries are made by programs, and should use parameters.
QUERY_BYTES_MAX = 1 << 20
# A query, its type, and the id in a ticket.
COMMAND_BYTES_MAX = QUERY_BYTES_MAX + 4096


class Command(NamedTuple):
    """A message in an ``Any``.

    Attributes:
        name: its type, without the package, such as ``CommandStatementQuery``.
        message: its fields.
    """

    name: str
    message: Message


class SqlText(NamedTuple):
    """A query: ``CommandStatementQuery``, ``ActionCreatePreparedStatementRequest``."""

    query: str

    @classmethod
    def of(cls, message: Message) -> SqlText:
        """Decode it; a transaction is refused."""
        if message.binary(2):
            raise pa.ArrowNotImplementedError("there are no transactions: the tables are read-only")
        query = message.text(1)
        if not query.strip():
            raise pa.ArrowInvalid("the query is empty")
        size = len(message.binary(1))
        if size > QUERY_BYTES_MAX:
            raise pa.ArrowInvalid(f"a query of {size} B; {QUERY_BYTES_MAX} B are allowed")
        return cls(query)


class GetTables(NamedTuple):
    """``CommandGetTables``: patterns of LIKE; None selects all."""

    catalog: str | None
    schema_pattern: str | None
    table_pattern: str | None
    types: list[str]
    has_schema: bool

    @classmethod
    def of(cls, message: Message) -> GetTables:
        """Decode it."""
        return cls(
            message.optional_text(1),
            message.optional_text(2),
            message.optional_text(3),
            message.texts(4),
            message.boolean(5),
        )


def command(data: bytes) -> Command:
    """Decode a command, an action or a ticket.

    Raises:
        ArrowInvalid: the bytes are no message of Flight SQL, or longer than 1 MiB.
    """
    if len(data) > COMMAND_BYTES_MAX:
        raise pa.ArrowInvalid(f"a command of {len(data)} B; {COMMAND_BYTES_MAX} B are allowed")
    try:
        outer = Message(data)
        url = outer.text(1)
        _, _, name = url.rpartition("/")
        if not name.startswith(_PACKAGE):
            raise Malformed(f"its type is {url[:200]!r}")
        return Command(name[len(_PACKAGE) :], Message(outer.binary(2)))
    except Malformed as error:
        raise pa.ArrowInvalid(f"no command of Flight SQL: {error}") from None


def in_any(name: str, *fields: tuple[int, int | bytes | str]) -> bytes:
    """A message of Flight SQL in an ``Any``."""
    return encode((1, f"{_PREFIX}{_PACKAGE}{name}"), (2, encode(*fields)))
