"""The command line of commands about nodes and machines; no slow module is imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farrow.cli._options import add_command, add_socket, of_node

if TYPE_CHECKING:
    import argparse
    from typing import Any

__all__ = ["add_machine", "add_node", "add_nodes", "add_state"]

_SET = """\
A change applies to the next request. No object is removed for a limit below the present use:
requests beyond it are rejected until the use is below. Only a smaller --memory removes objects, by
the policy of eviction. Changes last until the node ends; they survive an upgrade and a kill of its
daemon. Limits of a namespace last as long as the namespace."""

_DRAIN = """\
All objects with a name move, and nothing is lost when the node ends. The node accepts no new
objects from now on; its objects are read as before, and each retains its name. The exit code is 0
if nothing is left that would end with the node, else 1, and the rest is listed. Repeat the command
to continue. The node drains until it ends, or until --cancel."""

_FORGET = """\
The memory that they hold is released. Names that the lost node had, and that this node could not
read, become free. Use this with care: memory that such a process still reads is reused, and it then
reads wrong data. Call it only if these processes have ended, or their machine is off, and once on
each remaining node."""

_DOCTOR = """\
Each problem has its consequence and a command that solves it. If the node at the socket is being
drained, the state of the drain is printed first. The exit code is 1 if a node cannot work here."""

_CLEAN = """\
These are memory with a name, spilled objects of removed memory, and sockets without a node. Files
that a process still serves, opens or maps stay. The exit code is 1 if a removal failed."""


def add_node(commands: Any) -> None:
    """Add ``node``, whose options the daemon parses, and its actions."""
    commands.add_parser(
        "node",
        help="run a node: lend memory and serve this machine (farrow node --help)",
        add_help=False,
    )
    _add_node_set(commands)
    _add_node_drain(commands)


def _add_node_set(commands: Any) -> None:
    parser = add_command(
        commands,
        "node set",
        "print the settings of a node, or change them while it serves",
        _SET,
        parents=[of_node()],
    )
    parser.add_argument("--json", action="store_true", help="print the settings as JSON")
    node = parser.add_argument_group("the node")
    node.add_argument(
        "--client-bytes", metavar="SIZE|none", help="limit on the memory of one client"
    )
    node.add_argument(
        "--client-objects", metavar="N|none", help="limit on the objects of one client"
    )
    node.add_argument(
        "--cache", metavar="SIZE|none", help="limit on replicas of objects of other nodes"
    )
    node.add_argument(
        "--memory",
        metavar="SIZE",
        help="memory that the node lends, at most its --memory-max; to lend less, it evicts or "
        "spills objects that no client holds",
    )
    node.add_argument("--evict", choices=("lru", "none"), help="reaction to a shortage of memory")
    node.add_argument("--log", metavar="LEVELS", help="levels of the log, as in FARROW_LOG")
    space = parser.add_argument_group("a namespace")
    space.add_argument("--limit", metavar="NAMESPACE", help="set the limits of this namespace")
    space.add_argument("--bytes", metavar="SIZE|none", help="limit on its memory")
    space.add_argument("--objects", metavar="N|none", help="limit on the number of its objects")
    parser.set_defaults(usage_error=parser.error)


def _add_node_drain(commands: Any) -> None:
    parser = add_command(
        commands, "node drain", "move the objects of a node to other nodes before it ends", _DRAIN
    )
    parser.add_argument(
        "node",
        nargs="?",
        metavar="NODE",
        help="name of the node, checked against that of the socket",
    )
    add_socket(parser)
    parser.add_argument(
        "--to",
        action="append",
        default=[],
        metavar="NODE",
        help="node to move objects to, may be repeated (default: all, the most free one first)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds until all objects have moved and their readers have released them (600)",
    )
    parser.add_argument(
        "--drop-unnamed",
        action="store_true",
        help="accept that objects without a name, which cannot move, end with the node",
    )
    parser.add_argument(
        "--cancel", action="store_true", help="end the drain; moved objects stay where they are"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_nodes(commands: Any, node: argparse.ArgumentParser) -> None:
    """Add ``nodes`` and its action."""
    nodes = add_command(
        commands,
        "nodes",
        "list the nodes of the cluster",
        "With the state of each, its free memory, and the latency and bandwidth of its memory.",
        parents=[node],
    )
    nodes.add_argument("--json", action="store_true", help="print the list as JSON")
    actions = nodes.add_subparsers(dest="action", metavar="ACTION")
    forget = add_command(
        actions, "forget", "declare that all processes of a lost node have ended", _FORGET
    )
    forget.add_argument("name", metavar="NAME", help="name of the lost node")


def add_state(
    commands: Any, node: argparse.ArgumentParser, objects: argparse.ArgumentParser
) -> None:
    """Add the commands that show or end a running node."""
    stat = add_command(
        commands,
        "stat",
        "print the use of the node's memory",
        "The figures are those of the whole node, with the objects of all namespaces.",
        parents=[node],
    )
    depth = stat.add_mutually_exclusive_group()
    depth.add_argument("--all", action="store_true", help="print all statistics")
    depth.add_argument("--json", action="store_true", help="print all statistics as JSON")
    add_command(
        commands,
        "stop",
        "shut the node down",
        "The command returns when the node has ended, at most after --timeout.",
        parents=[node],
    )
    top = add_command(commands, "top", "watch the node; q quits", parents=[node])
    top.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between frames (1)"
    )
    top.add_argument("--once", action="store_true", help="print one frame and end")
    page = add_command(
        commands,
        "dashboard",
        "serve a page about the node",
        "The list of objects is that of one namespace; all other figures are those of the node.",
        parents=[objects],
    )
    page.add_argument(
        "--port",
        type=int,
        default=9465,
        metavar="N",
        help="port on 127.0.0.1 (9465; 0: a free one)",
    )
    page.add_argument(
        "--metrics",
        metavar="ADDRESS",
        help="where the node serves metrics, as in farrow node (default: next to its socket)",
    )


def add_machine(commands: Any) -> None:
    """Add the commands about this machine, which need no node."""
    clean = add_command(commands, "clean", "remove the files of killed nodes", _CLEAN)
    clean.add_argument("--json", action="store_true", help="print the list as JSON")
    clean.add_argument("--dry-run", action="store_true", help="list only; exit code 3 if any")
    clean.add_argument(
        "--memory-dir",
        metavar="DIR",
        action="append",
        default=[],
        help="another folder of memory of nodes; may be repeated "
        "(besides /dev/shm, $FARROW_MEMORY_DIR and your folder of sockets)",
    )
    clean.add_argument(
        "--spill",
        metavar="DIR",
        action="append",
        default=[],
        help="another folder of spilled objects; may be repeated",
    )
    doctor = add_command(
        commands, "doctor", "check this machine, and the drain of the running node", _DOCTOR
    )
    add_socket(doctor)
    doctor.add_argument("--json", action="store_true", help="print the result as JSON")
