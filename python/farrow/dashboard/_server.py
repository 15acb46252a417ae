"""Answers the browser: fixed files, and three kinds of JSON for the owner of the token alone.

Names in the store are input of any client: they leave this server as JSON, and the page shows them
as text.  The ``Host`` must be this address, so that no name of another site leads here.  The method
must be GET or HEAD.  The fixed files have nothing of the node.  JSON needs the token, since every
user of the machine can connect to a loopback port.  The page sends it as a header: a browser would
send a cookie to the servers of other users at other ports too.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrow._nodes._ports import LOOPBACK_HOSTS
from farrow.dashboard._samples import Samples
from farrow.exceptions import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Dashboard"]

_FOLDER = Path(__file__).with_name("page")
# Path of a request: the file, and its type.
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
}
_JSON = "application/json"
# Connections served at a time; a browser opens six.
_CONNECTIONS_MAX = 32
_IDLE_SECONDS = 15.0
# A connection that is ended gives its place back in this time.
_PLACE_SECONDS = 0.5
# The longest wait for the thread that reads the holds.
_END_SECONDS = 1.0
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Dashboard:
    """A server of the page of one node.

    Args:
        connect: makes a client of the node, of an explicit address: ``farrow.connect`` without one
            may start a private node when a page is open.  From ``serve`` on, two clients stay
            connected, so a private node does not end.
        host: a loopback address.
        port: the port; 0: a free one.
        metrics: address of the node's metrics, ``unix:PATH`` or ``HOST:PORT``; None: the socket
            next to the node's.
        token: the secret in the URL; None: a random one.

    Raises:
        InvalidArgument: ``host`` is no loopback address.
        OSError: the port is taken.

    Examples:
        >>> from farrow.dashboard import Dashboard
        >>> with Dashboard(lambda: farrow.connect(client.address), port=0) as dashboard:
        ...     dashboard.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        metrics: str | None = None,
        token: str | None = None,
    ) -> None:
        if host not in LOOPBACK_HOSTS:
            raise InvalidArgument(
                f"{host!r} can be reached by other machines: use 127.0.0.1 or ::1, and a tunnel "
                "such as ssh -L"
            )
        self.token = token or secrets.token_urlsafe(24)
        self._server = _HttpServer(host, port, self.token, Samples(connect, metrics))
        self._thread: threading.Thread | None = None
        self._watcher: threading.Thread | None = None
        # The thread in ``serve``.
        self._serving: threading.Thread | None = None
        self._has_ended = threading.Event()

    @property
    def port(self) -> int:
        """The port of the server.

        Examples:
            >>> from farrow.dashboard import Dashboard
            >>> with Dashboard(lambda: farrow.connect(client.address)) as dashboard:
            ...     dashboard.port > 0
            True
        """
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The address of the page, with the token.

        Examples:
            >>> from farrow.dashboard import Dashboard
            >>> with Dashboard(lambda: farrow.connect(client.address), token="t") as dashboard:
            ...     dashboard.url == f"http://127.0.0.1:{dashboard.port}/?token=t"
            True
        """
        return f"http://{self._server.authority}/?token={urllib.parse.quote(self.token)}"

    def serve(self) -> None:
        """Serve the page until ``close`` in another thread, or KeyboardInterrupt.

        A ``with`` block serves in a thread of its own instead.

        Raises:
            ValueError: the server was closed.

        Examples:
            >>> import functools
            >>> import threading
            >>> from farrow.dashboard import Dashboard
            >>> dashboard = Dashboard(functools.partial(farrow.connect, client.address))
            >>> threading.Thread(target=dashboard.serve, daemon=True).start()
        """
        watcher = threading.Thread(
            target=self._server.samples.watch,
            args=(self._has_ended,),
            name="farrow-dashboard-holds",
            daemon=True,
        )
        watcher.start()
        self._watcher = watcher
        self._serving = threading.current_thread()
        try:
            self._server.serve_forever(poll_interval=0.2)
        finally:
            self._serving = None

    def close(self) -> None:
        """End the server.

        Examples:
            >>> from farrow.dashboard import Dashboard
            >>> dashboard = Dashboard(lambda: farrow.connect(client.address))
            >>> dashboard.close()
        """
        self._has_ended.set()
        # A signal may have ended `serve` in this thread.
        is_served = self._serving not in (None, threading.current_thread())
        if self._thread is not None or is_served:
            self._server.shutdown()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._watcher is not None:
            self._watcher.join(_END_SECONDS)
        self._server.server_close()

    def __enter__(self) -> Dashboard:
        self._thread = threading.Thread(target=self.serve, name="farrow-dashboard", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _CONNECTIONS_MAX

    def __init__(self, host: str, port: int, token: str, samples: Samples) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.token, self.samples = token, samples
        self._open: set[socket.socket] = set()
        # Connections that have not shown the token, oldest first.
        self._strangers: dict[socket.socket, None] = {}
        self._places = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        super().__init__((host, port), _Handler)
        bound = self.server_address[1]
        self.authority = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        self.hosts = {f"{name}:{bound}" for name in ("127.0.0.1", "localhost", "[::1]")}
        self.files = {
            path: ((_FOLDER / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()
        }

    def server_bind(self) -> None:
        # The base class asks for the name of the host, which may wait for a name server.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "localhost", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            # Another user of the machine may have taken all places, and asks nothing.
            for stranger in list(self._strangers)[:1]:
                with contextlib.suppress(OSError):
                    stranger.shutdown(socket.SHUT_RDWR)
            if not self._places.acquire(timeout=_PLACE_SECONDS):
                # The browser tries again.
                self.shutdown_request(request)
                return
        self._strangers[request] = None
        super().process_request(request, client_address)

    def admit(self, connection: socket.socket) -> None:
        """Note that a connection has shown the token."""
        self._strangers.pop(connection, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)
            self._strangers.pop(request, None)
            self._places.release()

    def server_close(self) -> None:
        super().server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that ends a connection is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: _HttpServer
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    server_version = "farrow"
    sys_version = ""

    def do_GET(self) -> None:
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"not the address of this page\n")
            return
        target = urllib.parse.urlsplit(self.path)
        try:
            pairs = urllib.parse.parse_qsl(target.query, max_num_fields=16)
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, b"too many parameters\n")
            return
        query = dict(pairs)
        if target.path in self.server.files:
            data, kind = self.server.files[target.path]
            self._send(HTTPStatus.OK, data, kind)
        elif not self._is_known():
            self._send(HTTPStatus.FORBIDDEN, b"open the URL that farrow dashboard printed\n")
        elif target.path == "/changes.json":
            since = query.get("since", "0")
            number = int(since) if since.isascii() and since.isdigit() and len(since) < 16 else 0
            self._send(HTTPStatus.OK, self.server.samples.changes(number), _JSON)
        elif target.path == "/objects.json":
            self._send(HTTPStatus.OK, self.server.samples.objects(query), _JSON)
        elif target.path == "/holds.json":
            self._send(HTTPStatus.OK, self.server.samples.holds(query), _JSON)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"no such page\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _is_known(self) -> bool:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        is_known = scheme.lower() == "bearer" and _same(token, self.server.token)
        if is_known:
            self.server.admit(self.connection)
        return is_known

    def _send(
        self,
        status: HTTPStatus,
        body: bytes,
        kind: str = "text/plain; charset=utf-8",
        more: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in {**_HEADERS, **(more or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Errors of the base class, such as another method, as plain text."""
        self.close_connection = True
        self._send(HTTPStatus(code), f"{code}\n".encode(), more={"Connection": "close"})

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged: their first line could have the token."""


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
