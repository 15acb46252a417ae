"""A web page that shows a node: memory, objects, clients, requests, cluster and huge tables.

``farrow dashboard`` serves it from a process of its own, on a loopback address, with a token in the
URL.  The page only reads, and loads nothing from elsewhere.  The room has three parts: ``_samples``
asks the node, ``_server`` answers the browser, and ``page`` is what the browser runs.
"""

from __future__ import annotations

from farrow.dashboard._server import Dashboard

__all__ = ["Dashboard"]
