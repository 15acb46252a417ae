"""The client of a command: the node it asks, and the object that an argument names."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import farrow
from farrow import _native
from farrow.cli._output import CommandError

if TYPE_CHECKING:
    import argparse

__all__ = ["connect", "parse_target"]

_ID = re.compile("[0-9a-fA-F]{32}")


class _NoNode(CommandError, farrow.Disconnected):
    """No node answers at the default socket: a server waits for it as for any other."""


def connect(options: argparse.Namespace) -> Any:
    """A client of a running node.

    ``farrow.connect`` could start a private node.  A command must not: that node, and its objects,
    would end with this process.
    """
    if options.socket is not None:
        return farrow.connect(options.socket, timeout=options.timeout, namespace=options.namespace)
    try:
        return _native.connect(None, options.timeout, namespace=options.namespace)
    except farrow.Disconnected as error:
        if "FARROW_SOCKET" in os.environ:
            raise
        raise _NoNode(
            f"{error}: start a node with `farrow node`,"
            " or name its socket with --socket or $FARROW_SOCKET"
        ) from error


def parse_target(client: Any, text: str) -> str | bytes:
    """Parse a target: a name, or an id of 32 hexadecimal digits that is no name."""
    if _ID.fullmatch(text) and not client.contains(text):
        return bytes.fromhex(text)
    return text
