"""``farrow dashboard``: the page of a node, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from farrow.dashboard import Dashboard

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run"]


def run(connect: Callable[[], Any], *, port: int, metrics: str | None) -> int:
    """Serve the page.

    Args:
        connect: makes a client of the node.
        port: port on 127.0.0.1; 0: a free one.
        metrics: address of the node's metrics, as ``farrow node --metrics`` takes it; None: the
            socket next to the node's.
    """
    # A node that does not answer is an error now, not on the page.
    connect().close()
    dashboard = Dashboard(connect, port=port, metrics=_address(metrics))
    signal.signal(signal.SIGTERM, _end)
    try:
        print(dashboard.url, flush=True)
        dashboard.serve()
    except SystemExit:
        pass
    finally:
        dashboard.close()
    return 0


def _end(number: int, frame: object) -> None:
    raise SystemExit


def _address(text: str | None) -> str | None:
    return f"127.0.0.1:{text}" if text is not None and text.isdigit() else text
