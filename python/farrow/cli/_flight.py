"""``farrow flight``: Flight SQL over the tables of a node, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrow.cli._options import add_command

if TYPE_CHECKING:
    import argparse

__all__ = ["add_parser", "flight"]


def add_parser(commands: Any, objects: argparse.ArgumentParser) -> None:
    """Add ``flight`` to the subcommands of ``farrow``."""
    parser = add_command(
        commands,
        "flight",
        "serve the tables to ADBC, JDBC and other SQL drivers",
        "It prints the address and, without --token-file, the token. It serves until Ctrl-C or"
        " SIGTERM.",
        parents=[objects],
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to serve (127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=8815, metavar="N", help="port to serve (8815; 0: a free one)"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the token of all clients; created if it does not exist "
        "(default: a random token, which is printed)",
    )
    parser.add_argument(
        "--certificate",
        metavar="FILE",
        help="certificate of the server, in PEM; needed beyond 127.0.0.1",
    )
    parser.add_argument("--key", metavar="FILE", help="key of the certificate, in PEM")
    parser.add_argument(
        "--memory",
        default="1GiB",
        metavar="SIZE",
        help="maximum memory of all queries together (1GiB)",
    )
    parser.add_argument("--queries", type=int, default=8, metavar="N", help="queries at a time (8)")
    parser.add_argument(
        "--query-seconds",
        type=float,
        default=600.0,
        metavar="S",
        help="maximum seconds of one query (600)",
    )


def flight(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    from farrow.cli._client import connect
    from farrow.cli._output import CommandError

    if not 0 <= options.port <= 65535:
        raise CommandError(f"--port {options.port}: 0 to 65535")
    # A node that does not answer is an error now, not of the first query.
    connect(options).close()
    token = None
    if options.token_file is not None:
        from farrow.flight._access import token_of

        token = token_of(Path(options.token_file))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = _server(options, token)
    try:
        print(server.uri, flush=True)
        if token is None:
            print(f"token: {server.token}", flush=True)
        stop.wait()
    finally:
        is_ended = server.close()
    if not is_ended:
        # The library would wait for a client that does not read, at the end of the interpreter.
        sys.stdout.flush()
        os._exit(0)
    return 0


def _server(options: argparse.Namespace, token: str | None) -> Any:
    from farrow.cli._client import connect
    from farrow.cli._output import CommandError, parse_bytes

    try:
        from farrow.flight import FlightSqlServer
    except ImportError as error:
        raise CommandError(f"this pyarrow has no Flight: {error}") from error
    return FlightSqlServer(
        lambda: connect(options),
        host=options.host,
        port=options.port,
        token=token,
        certificate=options.certificate,
        key=options.key,
        memory=parse_bytes(options.memory),
        queries=options.queries,
        query_seconds=options.query_seconds,
    )
