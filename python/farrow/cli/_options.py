"""Options that several commands share, and how a command is added to the parser."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_command", "add_socket", "of_node", "of_objects"]


def add_command(
    commands: Any, name: str, help: str, more: str = "", **settings: Any
) -> argparse.ArgumentParser:
    """Add a command or an action, which its list and its own help describe alike.

    Args:
        commands: the subcommands that it belongs to.
        name: its name.
        help: one phrase without a period.
        more: whole sentences for its own help.
        settings: arguments of ``add_parser``.

    Returns:
        The parser of the command.
    """
    description = f"{help[0].upper()}{help[1:]}. {more}".rstrip()
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help, description=description, **settings
    )
    return parser


def add_socket(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects a node; its client is in the default namespace."""
    parser.add_argument(
        "--socket", metavar="PATH", help="socket of the node (else $FARROW_SOCKET, else yours)"
    )
    parser.set_defaults(namespace="")


def of_node() -> argparse.ArgumentParser:
    """The parent of commands about a whole node."""
    parser = argparse.ArgumentParser(add_help=False)
    add_socket(parser)
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="S", help="seconds to wait for the node (10)"
    )
    return parser


def of_objects() -> argparse.ArgumentParser:
    """The parent of commands about the objects of one namespace."""
    parser = argparse.ArgumentParser(add_help=False, parents=[of_node()])
    parser.add_argument(
        "--namespace",
        default="",
        metavar="NAME",
        help="namespace of the objects (default: the default namespace)",
    )
    return parser
