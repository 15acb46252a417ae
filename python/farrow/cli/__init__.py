"""The command ``farrow``: run a node, put and get files, inspect a node.

``farrow node`` runs the daemon in this process; all other commands are clients of a running node,
found by ``--socket``, ``$FARROW_SOCKET`` or the user's own node.  An error of the store or the
system is printed as one line, with exit code 1; an invalid command line exits with 2, Ctrl-C with
130.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from farrow.cli import _flight, _graph, _lab, _sql

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["main"]

_NODE_HELP = "run the daemon: lend memory and serve this machine (farrow node --help)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program's name; None takes ``sys.argv``.

    Returns:
        The exit code.
    """
    _open_closed_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:2] == ["node", "set"]:
        from farrow.cli._node_set import parse

        return _run(parse(given[2:]))
    if given[:2] == ["node", "drain"]:
        from farrow.cli._node_drain import parse

        return _run(parse(given[2:]))
    if given and given[0] == "node":
        return _node(given[1:])
    parser = _parser()
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
    from farrow._connect import _node_arguments

    command = [sys.executable, *_node_arguments(), *arguments]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="farrow", description="Share Arrow tables in place between processes."
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("node", help=_NODE_HELP, add_help=False)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--socket", metavar="PATH", help="socket of the node (else $FARROW_SOCKET, else yours)"
    )
    common.add_argument(
        "--timeout", type=float, default=10.0, metavar="S", help="seconds to wait for the node"
    )

    common.add_argument(
        "--namespace", default="", metavar="NAME", help="namespace to be in (default: the node's)"
    )

    put = commands.add_parser("put", parents=[common], help="load files into shared memory")
    put.add_argument(
        "files",
        nargs="+",
        metavar="FILE|URL",
        help="Parquet, CSV or JSON lines (also .gz), Arrow IPC file or stream; a pattern such as "
        "'data/*.csv', with ** for all folders below; a URL such as https://host/a.csv or "
        "s3://bucket/a.parquet; - is standard input",
    )
    put.add_argument("--name", help="name of the object (default: the file's, without endings)")
    put.add_argument("--delimiter", help="of a text file (default: guessed)")
    header = put.add_mutually_exclusive_group()
    header.add_argument("--header", dest="header", action="store_true", default=None)
    header.add_argument("--no-header", dest="header", action="store_false")
    put.add_argument("--bytes", action="store_true", help="store the file's bytes as they are")
    put.add_argument(
        "--replace", action="store_true", help="take the place of an object of that name"
    )
    put.add_argument("--json", action="store_true", help="say what was stored as JSON")
    put.add_argument("-q", "--quiet", action="store_true", help="no progress bar")

    get = commands.add_parser("get", parents=[common], help="print an object, or write a file")
    get.add_argument("name", help="name or id")
    get.add_argument("-o", "--output", metavar="FILE", help="file to write, - for standard output")
    get.add_argument(
        "--format",
        choices=("parquet", "csv", "ipc", "ipc-stream", "npy", "raw"),
        help="of the file (default: by its ending)",
    )
    get.add_argument("--wait", type=float, default=0.0, metavar="S", help="seconds to wait for it")
    get.add_argument("--json", action="store_true", help="say what it is, or what was written")

    ls = commands.add_parser("ls", parents=[common], help="list the objects")
    ls.add_argument("prefix", nargs="?", default="", help="only names that begin so")
    ls.add_argument("--json", action="store_true")
    where = ls.add_mutually_exclusive_group()
    where.add_argument("--node", metavar="NAME", help="in the memory of this node of the cluster")
    where.add_argument("--all", action="store_true", help="on all nodes of the cluster")

    rm = commands.add_parser("rm", parents=[common], help="delete objects")
    rm.add_argument("names", nargs="+", metavar="NAME", help="name or id")

    spaces = commands.add_parser(
        "namespaces", parents=[common], help="list, make or drop namespaces, and grant"
    )
    spaces.add_argument("--json", action="store_true")
    actions = spaces.add_subparsers(dest="action", metavar="ACTION")
    make = actions.add_parser("create", help="make one")
    make.add_argument("name", metavar="NAME")
    make.add_argument("--bytes", metavar="SIZE", help="most memory in it, such as 1GiB")
    make.add_argument("--objects", type=int, metavar="N", help="most objects in it")
    make.add_argument(
        "--writer", type=int, action="append", metavar="UID", help="only these users may write"
    )
    drop = actions.add_parser("drop", help="drop one in which nothing is")
    drop.add_argument("name", metavar="NAME")
    grant = actions.add_parser("grant", help="say what clients of other nodes may do")
    grant.add_argument(
        "rules",
        nargs="+",
        metavar="NAMESPACE:NODE:RIGHTS",
        help="RIGHTS: read,write,delete, all, none, or default to take the rule out; "
        "* for all namespaces or nodes, nothing for the default namespace",
    )
    grants = actions.add_parser("grants", help="list what clients of other nodes may do")
    grants.add_argument("--json", action="store_true")

    nodes = commands.add_parser("nodes", parents=[common], help="list the nodes of the cluster")
    nodes.add_argument("--json", action="store_true")
    actions = nodes.add_subparsers(dest="action", metavar="ACTION")
    forget = actions.add_parser("forget", help="take back what processes of a lost node held")
    forget.add_argument("name", metavar="NAME")

    _add_certs(commands)

    _add_backup(commands, common)

    stat = commands.add_parser("stat", parents=[common], help="how full the node is")
    depth = stat.add_mutually_exclusive_group()
    depth.add_argument("--all", action="store_true", help="all statistics")
    depth.add_argument("--json", action="store_true", help="all statistics as JSON")

    commands.add_parser("stop", parents=[common], help="end the node in good order")

    top = commands.add_parser("top", parents=[common], help="watch the node; q quits")
    top.add_argument("--interval", type=float, default=1.0, metavar="S", help="between frames")
    top.add_argument("--once", action="store_true", help="print one frame and end")

    page = commands.add_parser("dashboard", parents=[common], help="serve a page about the node")
    page.add_argument(
        "--port", type=int, default=9465, metavar="N", help="on 127.0.0.1 (9465; 0: a free one)"
    )
    page.add_argument(
        "--metrics",
        metavar="ADDRESS",
        help="where the node serves metrics, as in farrow node (default: next to its socket)",
    )

    _flight.add_parser(commands, common)
    _sql.add_parsers(commands, common)

    demo = commands.add_parser("demo", help="show what sharing in place saves, on real data")
    demo.add_argument(
        "show",
        nargs="?",
        choices=("table", "cluster"),
        default="table",
        help="one table in three processes (default), or one spread over three nodes",
    )
    demo.add_argument("--data", metavar="FILE", help="a table file (default: generated rows)")
    demo.add_argument("--rows", type=int, default=3_000_000, help="rows to generate")
    demo.add_argument("--seed", type=int, default=7, help="of the generator")
    demo.add_argument("--memory", metavar="SIZE", help="of a node (default: by the data)")

    _graph.add_parsers(commands)
    _lab.add_parsers(commands)

    clean = commands.add_parser("clean", help="remove what nodes left behind that were killed")
    clean.add_argument("--json", action="store_true")
    clean.add_argument("--dry-run", action="store_true", help="list only; exit code 3 if any")
    clean.add_argument(
        "--memory-dir",
        "--spill",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder of nodes' memory or spilled objects to look into as well "
        "(besides /dev/shm, $FARROW_MEMORY_DIR and your folder of sockets)",
    )

    doctor = commands.add_parser(
        "doctor", help="what this machine offers, what to mend, and how far a drain is"
    )
    doctor.add_argument(
        "--socket", metavar="PATH", help="socket of the node (else $FARROW_SOCKET, else yours)"
    )
    doctor.add_argument("--json", action="store_true")
    return parser


def _add_backup(commands: Any, common: argparse.ArgumentParser) -> None:
    save = commands.add_parser(
        "backup", parents=[common], help="save named objects in a folder or bucket"
    )
    load = commands.add_parser(
        "restore", parents=[common], help="put objects of a backup into the node"
    )
    for parser in (save, load):
        parser.add_argument("target", metavar="FOLDER|URL", help="such as s3://bucket/folder")
        parser.add_argument("names", nargs="*", metavar="NAME", help="only these objects")
        parser.add_argument("--json", action="store_true", help="say what was done as JSON")
        parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")
    save.add_argument(
        "--partial", action="store_true", help="go on without the objects of lost nodes"
    )
    taken = load.add_mutually_exclusive_group()
    taken.add_argument("--replace", action="store_true", help="replace objects of these names")
    taken.add_argument("--skip", action="store_true", help="leave names that exist as they are")
    taken.add_argument("--check", action="store_true", help="only check the files; needs no node")


def _add_certs(commands: Any) -> None:
    certs = commands.add_parser("certs", help="make the certificates of a cluster")
    actions = certs.add_subparsers(dest="action", metavar="ACTION", required=True)
    init = actions.add_parser("init", help="make an authority: ca.pem, and ca.key, to be kept")
    issue = actions.add_parser("issue", help="certify a node: NAME.pem and NAME.key")
    for action, days in ((init, 3650), (issue, 365)):
        action.add_argument("folder", metavar="DIR", help="of the authority")
        action.add_argument(
            "--days", type=int, default=days, metavar="N", help=f"for which it is good ({days})"
        )
    revoke = actions.add_parser("revoke", help="revoke NAME.pem: ca.crl, for all nodes")
    revoke.add_argument("folder", metavar="DIR", help="of the authority")
    for action in (issue, revoke):
        action.add_argument("name", metavar="NAME", help="of the node: 1 to 63 of a-z, 0-9 and -")
    issue.add_argument("hosts", nargs="*", metavar="HOST", help="addresses and DNS names of it")


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
