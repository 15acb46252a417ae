"""The command ``farrow``: run a node, put and get files, inspect a node.

``farrow node`` runs the daemon in this process; all other commands are clients of a running node,
found by ``--socket``, ``$FARROW_SOCKET`` or the user's own node.  An error of the store or the
system is printed as one line, with exit code 1; an invalid command line exits with 2, Ctrl-C with
130.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from farrow.cli import _parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["main"]

# Actions of ``farrow node`` that are commands of a client: ``farrow node`` has no subcommands.
_NODE_ACTIONS = ("set", "drain")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program's name; None takes ``sys.argv``.

    Returns:
        The exit code: 0; 1 after an error, which is printed as one line; 2 without a command; 130
        after Ctrl-C.

    Raises:
        SystemExit: the command line is invalid (2), or it asked for help (0).

    Examples:
        >>> from farrow.cli import main
        >>> main(["rm", "no such object"])
        1
    """
    _open_closed_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["node"]:
        if given[1:2] not in ([action] for action in _NODE_ACTIONS):
            return _node(given[1:])
        given = [" ".join(given[:2]), *given[2:]]
    parser = _parser.build()
    options = parser.parse_args(given)
    if options.version:
        from importlib.metadata import version

        print(f"farrow {version('farrow')}")
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    return _run(options)


def _open_closed_streams() -> None:
    """Replace a standard output or error that was closed at the start: Python has None for it.

    The descriptors are opened too, and a program that replaces this one inherits them.  Otherwise a
    socket of a node would become its standard error.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Open until the process ends.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _node(arguments: list[str]) -> int:
    """Become the daemon, which parses its own flags (``farrow._native.node_main``).

    An interpreter that loads only the extension replaces this process: pyarrow would take some
    40 MiB that a node never uses.
    """
    from farrow._nodes._connect import _node_arguments

    command = [sys.executable, *_node_arguments(), *arguments]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _run(options: argparse.Namespace) -> int:
    """Run a parsed command; an expected failure prints one line."""
    import pyarrow as pa

    import farrow
    from farrow.cli import _commands
    from farrow.cli._output import CommandError

    try:
        code = _commands.COMMANDS[options.command](options)
        # Not at the end of the interpreter, where a failure is no error of the command.
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the output ended (| head): end quietly.
        return 1
    except farrow.FarrowError as error:
        return _fail(str(error) or type(error).__name__)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}")
    except UnicodeEncodeError as error:
        return _fail(f"{error.object}: not UTF-8")
    except (CommandError, ValueError, TypeError, MemoryError, pa.ArrowException) as error:
        return _fail(str(error) or type(error).__name__)
    except KeyboardInterrupt:
        return 130
    finally:
        _drop_unwritable_output()


def _drop_unwritable_output() -> None:
    """Flush standard output; discard what cannot be written, which the interpreter would report."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    from farrow.cli._output import visible

    print(f"farrow: {visible(' '.join(message.split()))}", file=sys.stderr)
    return 1
