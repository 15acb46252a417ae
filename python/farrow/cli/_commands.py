"""The commands of a client by name; those of a few lines are here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import farrow
from farrow.cli import _graph, _lab, _sql
from farrow.cli._client import connect, parse_target
from farrow.cli._flight import flight
from farrow.cli._node import _nodes as _about_nodes
from farrow.cli._objects._get import get
from farrow.cli._objects._list import ls
from farrow.cli._objects._namespaces import namespaces
from farrow.cli._objects._put import put
from farrow.cli._output import CommandError, parse_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = ["COMMANDS"]


def _nodes(options: argparse.Namespace) -> int:
    return _about_nodes.nodes(connect(options), options)


def _rm(options: argparse.Namespace) -> int:
    missing = []
    client = connect(options)
    for name in options.names:
        try:
            client.delete(parse_target(client, name))
        except farrow.NotFound as error:
            missing.append(str(error))
    if missing:
        raise CommandError("; ".join(missing))
    return 0


def _stat(options: argparse.Namespace) -> int:
    from farrow.cli._node._stat import run

    return run(connect(options), with_all=options.all, as_json=options.json)


def _node_set(options: argparse.Namespace) -> int:
    from farrow.cli._node._set import run

    return run(options)


def _node_drain(options: argparse.Namespace) -> int:
    from farrow.cli._node._drain import run

    return run(options)


def _stop(options: argparse.Namespace) -> int:
    """End the node, and wait until it no longer answers."""
    with connect(options) as client:
        address = client.address
        client._shut_down_node()
    end = time.monotonic() + options.timeout
    while Path(address).exists():
        if time.monotonic() > end:
            raise CommandError(f"{address}: the node still ends after {options.timeout:g} s")
        time.sleep(0.01)
    return 0


def _demo(options: argparse.Namespace) -> int:
    try:
        from farrow import demo
        from farrow.demo import cluster
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the demo needs {error.name}: pip install 'farrow[demo]' brings it"
        ) from error
    memory = parse_bytes(options.memory) if options.memory else None
    data = Path(options.data) if options.data else None
    given = demo.Options(data, rows=options.rows, seed=options.seed, memory_bytes=memory)
    return cluster.run(given) if options.show == "cluster" else demo.run(given)


def _top(options: argparse.Namespace) -> int:
    from farrow.cli._node._top import run

    if not 0.05 <= options.interval <= 3600:
        raise CommandError(f"--interval {options.interval}: 0.05 to 3600 seconds")
    return run(connect(options), interval=options.interval, once=options.once)


def _backup(options: argparse.Namespace) -> int:
    from farrow.cli._objects import _backup

    return _backup.create(connect(options), options)


def _restore(options: argparse.Namespace) -> int:
    from farrow.cli._objects import _backup

    return _backup.check(options) if options.check else _backup.restore(connect(options), options)


def _dashboard(options: argparse.Namespace) -> int:
    from farrow.cli._dashboard import run

    if not 0 <= options.port <= 65535:
        raise CommandError(f"--port {options.port}: 0 to 65535")
    return run(lambda: connect(options), port=options.port, metrics=options.metrics)


def _clean(options: argparse.Namespace) -> int:
    from farrow.cli._node._clean import run

    return run(options.memory_dir + options.spill, dry_run=options.dry_run, as_json=options.json)


def _doctor(options: argparse.Namespace) -> int:
    from farrow.cli._node._doctor import run

    return run(options)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "put": put,
    "get": get,
    "ls": ls,
    "rm": _rm,
    "namespaces": namespaces,
    "nodes": _nodes,
    "certs": _about_nodes.certs,
    "stat": _stat,
    "node set": _node_set,
    "node drain": _node_drain,
    "stop": _stop,
    "top": _top,
    "dashboard": _dashboard,
    "flight": flight,
    "sql": _sql.sql,
    "sql-worker": _sql.worker,
    "demo": _demo,
    "graph": _graph.graph,
    "lab": _lab.lab,
    "backup": _backup,
    "restore": _restore,
    "clean": _clean,
    "doctor": _doctor,
}
