"""The command line of ``farrow``: all commands and actions, but for the options of ``farrow node``,
which the daemon parses.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from farrow.cli import _flight, _graph, _lab, _sql
from farrow.cli._node import _parser as _node_parser
from farrow.cli._options import add_command, of_node, of_objects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["all_parsers", "build"]


def build() -> argparse.ArgumentParser:
    """The parser of a command line; that of ``farrow node set`` begins with ``"node set"``."""
    parser = argparse.ArgumentParser(
        prog="farrow", description="Share Arrow tables in place between processes."
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    node, objects = of_node(), of_objects()
    _node_parser.add_node(commands)
    _add_put(commands, objects)
    _add_get(commands, objects)
    _add_ls(commands, objects)
    rm = add_command(commands, "rm", "delete objects", parents=[objects])
    rm.add_argument("names", nargs="+", metavar="NAME", help="name or id")
    _add_namespaces(commands, node)
    _node_parser.add_nodes(commands, node)
    _add_certs(commands)
    _add_backup(commands, objects)
    _node_parser.add_state(commands, node, objects)
    _flight.add_parser(commands, objects)
    _sql.add_parsers(commands, objects)
    _add_demo(commands)
    _graph.add_parsers(commands)
    _lab.add_parsers(commands)
    _node_parser.add_machine(commands)
    return parser


def all_parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands and their actions, each with its parser, in the order of the help.

    That of ``node`` is empty: the daemon parses its options.
    """
    yield from _below("farrow", build())


def _below(
    words: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _below(f"{words} {name}", inner)


def _add_put(commands: Any, objects: argparse.ArgumentParser) -> None:
    put = add_command(
        commands,
        "put",
        "load files into shared memory",
        "Each file becomes an object: a table, or bytes with --bytes.",
        parents=[objects],
    )
    put.add_argument(
        "files",
        nargs="+",
        metavar="FILE|URL",
        help="Parquet, CSV or JSON lines (also .gz), Arrow IPC file or stream; a pattern such as "
        "'data/*.csv', with ** for all folders below; a URL such as https://host/a.csv or "
        "s3://bucket/a.parquet; - is standard input",
    )
    put.add_argument(
        "--name", help="name of the object (default: name of the file without its endings)"
    )
    put.add_argument("--delimiter", help="delimiter of a text file (default: guessed)")
    header = put.add_mutually_exclusive_group()
    header.add_argument(
        "--header",
        dest="header",
        action="store_true",
        default=None,
        help="the first line has the names of the columns (default: guessed)",
    )
    header.add_argument(
        "--no-header", dest="header", action="store_false", help="the first line is a row"
    )
    put.add_argument("--bytes", action="store_true", help="store the bytes of the file unchanged")
    put.add_argument(
        "--replace", action="store_true", help="replace an existing object of that name"
    )
    put.add_argument(
        "--statistics",
        action="store_true",
        help="count bounds of the columns for parts of the rows: scans skip the parts that cannot "
        "match a filter (they take 3000 bytes at most: a table of many columns has few parts, and "
        "the last of more than about a hundred columns have none, without an error)",
    )
    put.add_argument("--json", action="store_true", help="print the result as JSON")
    put.add_argument("-q", "--quiet", action="store_true", help="no progress bar")


def _add_get(commands: Any, objects: argparse.ArgumentParser) -> None:
    get = add_command(
        commands,
        "get",
        "print an object, or write it to a file",
        "Without --output and --format it prints a preview.",
        parents=[objects],
    )
    get.add_argument("name", help="name or id")
    get.add_argument("-o", "--output", metavar="FILE", help="file to write, - for standard output")
    get.add_argument(
        "--format",
        choices=("parquet", "csv", "ipc", "ipc-stream", "npy", "raw"),
        help="format of the file (default: by its ending)",
    )
    get.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds to wait until the object exists (0)",
    )
    get.add_argument("--json", action="store_true", help="print a description or result as JSON")


def _add_ls(commands: Any, objects: argparse.ArgumentParser) -> None:
    ls = add_command(
        commands,
        "ls",
        "list the objects",
        "Without --node and --all these are the objects in the memory of the node at the socket."
        " Times are in UTC.",
        parents=[objects],
    )
    ls.add_argument("prefix", nargs="?", default="", help="only names that begin with this text")
    ls.add_argument("--json", action="store_true", help="print the list as JSON")
    where = ls.add_mutually_exclusive_group()
    where.add_argument("--node", metavar="NAME", help="in the memory of this node of the cluster")
    where.add_argument("--all", action="store_true", help="on all nodes of the cluster")


def _add_namespaces(commands: Any, node: argparse.ArgumentParser) -> None:
    spaces = add_command(
        commands,
        "namespaces",
        "list, create or delete namespaces, and set permissions of other nodes",
        "Without an action it lists the namespaces with their use and their limits.",
        parents=[node],
    )
    spaces.add_argument("--json", action="store_true", help="print the list as JSON")
    actions = spaces.add_subparsers(dest="action", metavar="ACTION")
    create = add_command(actions, "create", "create a namespace")
    create.add_argument("name", metavar="NAME", help="1 to 63 bytes of UTF-8")
    create.add_argument("--bytes", metavar="SIZE", help="maximum memory, such as 1GiB")
    create.add_argument("--objects", type=int, metavar="N", help="maximum number of objects")
    create.add_argument(
        "--writer",
        type=int,
        action="append",
        metavar="UID",
        help="user that may write, by number; may be repeated (default: all users)",
    )
    drop = add_command(actions, "drop", "delete an empty namespace")
    drop.add_argument("name", metavar="NAME", help="name of the namespace")
    permit = add_command(
        actions,
        "permit",
        "set permissions of clients of other nodes",
        "A rule applies to later requests for objects in the memory of this node.",
    )
    permit.add_argument(
        "rules",
        nargs="+",
        metavar="NAMESPACE:NODE:RIGHTS",
        help="RIGHTS: read,write,delete, all, none, or default to remove the rule; "
        "* for all namespaces or nodes, nothing for the default namespace",
    )
    permissions = add_command(actions, "permissions", "list permissions of clients of other nodes")
    permissions.add_argument("--json", action="store_true", help="print the list as JSON")


def _add_certs(commands: Any) -> None:
    certs = add_command(
        commands,
        "certs",
        "create the certificates of a cluster",
        "farrow node --certs reads the files of the folder. No node has to run.",
    )
    actions = certs.add_subparsers(dest="action", metavar="ACTION", required=True)
    init = add_command(
        actions,
        "init",
        "create a certificate authority: ca.pem and ca.key",
        "ca.pem belongs on all nodes. ca.key signs certificates: it stays in this folder.",
    )
    issue = add_command(actions, "issue", "issue the certificate of a node: NAME.pem and NAME.key")
    for action, days in ((init, 3650), (issue, 365)):
        action.add_argument("folder", metavar="DIR", help="folder of the certificate authority")
        action.add_argument(
            "--days", type=int, default=days, metavar="N", help=f"days of validity ({days})"
        )
    revoke = add_command(
        actions,
        "revoke",
        "revoke the certificate of a node: ca.crl",
        "Copy ca.crl beside ca.pem of every node.",
    )
    revoke.add_argument("folder", metavar="DIR", help="folder of the certificate authority")
    for action in (issue, revoke):
        action.add_argument(
            "name", metavar="NAME", help="name of the node: 1 to 63 of a-z, 0-9 and -"
        )
    issue.add_argument(
        "hosts", nargs="*", metavar="HOST", help="addresses and DNS names of the node"
    )


def _add_backup(commands: Any, objects: argparse.ArgumentParser) -> None:
    save = add_command(
        commands,
        "backup",
        "save named objects in a folder or bucket",
        "Without names it saves all of the namespace, on all nodes of the cluster.",
        parents=[objects],
    )
    load = add_command(
        commands, "restore", "restore the objects of a backup to the node", parents=[objects]
    )
    for parser in (save, load):
        parser.add_argument(
            "target", metavar="FOLDER|URL", help="folder, or URL such as s3://bucket/folder"
        )
        parser.add_argument("names", nargs="*", metavar="NAME", help="only these objects")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
        parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")
    save.add_argument(
        "--partial", action="store_true", help="continue without the objects of lost nodes"
    )
    taken = load.add_mutually_exclusive_group()
    taken.add_argument("--replace", action="store_true", help="replace objects of these names")
    taken.add_argument("--skip", action="store_true", help="leave objects of these names unchanged")
    taken.add_argument("--check", action="store_true", help="only check the files; needs no node")


def _add_demo(commands: Any) -> None:
    demo = add_command(
        commands,
        "demo",
        "show on real data what sharing in place saves",
        "It starts its own nodes, and removes everything at the end.",
    )
    demo.add_argument(
        "show",
        nargs="?",
        choices=("table", "cluster"),
        default="table",
        help="one table in three processes (default), or one spread over three nodes",
    )
    demo.add_argument("--data", metavar="FILE", help="file with a table (default: generated rows)")
    demo.add_argument(
        "--rows", type=int, default=3_000_000, metavar="N", help="rows to generate (3 M)"
    )
    demo.add_argument(
        "--seed", type=int, default=7, metavar="N", help="seed of the generated rows (7)"
    )
    demo.add_argument("--memory", metavar="SIZE", help="memory of a node (default: by the data)")
