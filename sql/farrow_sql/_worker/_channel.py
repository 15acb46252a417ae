"""Connections between client and worker: TLS 1.3 always, and messages with their lengths.

A worker makes a certificate when it starts, and announces its SHA-256 in the store, together with a
key.  A client accepts that certificate only, and then sends the key.  So both sides are
authenticated by what they read from the store, which has its own rights and encryption: clients
need no files, and no answer of the network leads to plain text.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import farrow
from farrow import _native
from farrow_sql._errors import QueryFailed

__all__ = ["Channel", "Credentials", "NotTheWorker", "client_channel", "server_context"]

_LENGTH = struct.Struct("<Q")
# Silence after which a connection to a machine that vanished ends: 10 + 3 * 5 s.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
# The certificate is compared as a whole; its last day is not checked.
_DAYS = 3650
KEY_BYTES = 32
# What a worker sends once it has accepted the key.
READY = b"ready"
# A process of the worker that takes another query cuts the connections that it had accepted.
_RETRY_SECONDS = 0.05


class NotTheWorker(farrow.FarrowError):
    """The other side of a connection does not have the certificate that the worker announced."""


@dataclass(frozen=True)
class Credentials:
    """A certificate with its private key, as PEM."""

    certificate: str
    private_key: str

    @classmethod
    def create(cls) -> Credentials:
        """New ones."""
        with tempfile.TemporaryDirectory(prefix="farrow-sql-") as folder:
            _native.certs_init(folder, _DAYS)
            certificate, private_key = _native.certs_issue(folder, "worker", [], _DAYS)
            return cls(Path(certificate).read_text(), Path(private_key).read_text())

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, in hexadecimal digits."""
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(self.certificate)).hexdigest()


class Channel:
    """Messages of bytes over TLS.  One thread sends and receives; any may call :meth:`shut_down`.

    Args:
        stream: a connection after its handshake.
    """

    def __init__(self, stream: ssl.SSLSocket) -> None:
        self._stream = stream

    def fileno(self) -> int:
        """The descriptor of the connection, to wait for."""
        return self._stream.fileno()

    def send_bytes(self, data: bytes) -> None:
        """Send one message.

        Raises:
            OSError: the other side has ended.
        """
        self._stream.sendall(_LENGTH.pack(len(data)))
        self._stream.sendall(data)

    def recv_bytes(self, limit: int) -> bytes:
        """The next message, of at most ``limit`` bytes.

        Raises:
            EOFError, OSError: the other side has ended.
            QueryFailed: the message is longer.
        """
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > limit:
            raise QueryFailed(f"a message of {length} B; at most {limit} B are read")
        return self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        data = bytearray(length)
        view, at = memoryview(data), 0
        while at < length:
            count = self._stream.recv_into(view[at:])
            if count == 0:
                raise EOFError(f"the connection ended after {at} of {length} B")
            at += count
        return bytes(data)

    def shut_down(self) -> None:
        """End the connection, also under a call of another thread."""
        shut_down(self._stream)

    def close(self) -> None:
        """End the connection and forget it."""
        self._stream.close()


def shut_down(connection: socket.socket) -> None:
    """End a connection that another thread may be using: its calls return."""
    # It may be closed by now; and a socket of TLS would forget its state under that thread.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as shared:
        shared.shutdown(socket.SHUT_RDWR)


def keep_alive(connection: socket.socket) -> None:
    """Notice that the machine at the other end vanished, and send small messages at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """What a worker accepts connections with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # No session is resumed, so the worker sends nothing that a client has not asked for.
    context.num_tickets = 0
    # Python reads keys from files only; this one is in no folder.
    descriptor = os.memfd_create("farrow-sql")
    try:
        os.write(descriptor, (credentials.certificate + credentials.private_key).encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


def client_channel(
    address: tuple[str, int], fingerprint: str, key: bytes, seconds: float
) -> Channel:
    """A connection to the worker that has this certificate.

    Args:
        address: host and port.
        fingerprint: SHA-256 of the certificate, in hexadecimal digits.
        key: what the worker knows clients by.
        seconds: for all of it.

    Raises:
        NotTheWorker: another certificate, or no TLS 1.3. The key was not sent.
        TimeoutError: the worker does not answer, or all of its processes serve other queries.
        ConnectionRefusedError: nothing listens there.
        OSError: another error of the network.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return _attempt(address, fingerprint, key, end)
        except (EOFError, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError) as error:
            # This process of the worker has begun to serve another query.
            if time.monotonic() + _RETRY_SECONDS >= end:
                raise TimeoutError(f"not accepted within {seconds:g} s: {error}") from None
            time.sleep(_RETRY_SECONDS)


def _attempt(address: tuple[str, int], fingerprint: str, key: bytes, end: float) -> Channel:
    raw = socket.create_connection(address, _left(end))
    with contextlib.ExitStack() as undo:
        undo.callback(raw.close)
        keep_alive(raw)
        raw.settimeout(_left(end))
        stream = _encrypted(raw, fingerprint, f"{address[0]}:{address[1]}")
        undo.callback(stream.close)
        channel = Channel(stream)
        channel.send_bytes(key)
        if channel.recv_bytes(len(READY)) != READY:
            raise NotTheWorker(f"another answer than a worker's at {address[0]}:{address[1]}")
        # What the worker computes takes as long as it takes; TCP notices if its machine vanishes.
        stream.settimeout(None)
        undo.pop_all()
        return channel


def _encrypted(raw: socket.socket, fingerprint: str, where: str) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # One certificate is accepted, by any signer: it is compared below.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        stream = context.wrap_socket(raw)
    except ssl.SSLEOFError:
        raise
    except ssl.SSLError as error:
        raise NotTheWorker(f"no TLS 1.3 at {where}: {error}") from None
    found = hashlib.sha256(stream.getpeercert(binary_form=True) or b"").hexdigest()
    if found != fingerprint:
        stream.close()
        raise NotTheWorker(
            f"the certificate at {where} has the SHA-256 {found}, announced is {fingerprint}"
        )
    return stream


def _left(end: float) -> float:
    """Seconds until then; a timeout of zero would mean something else."""
    return max(end - time.monotonic(), 0.001)
