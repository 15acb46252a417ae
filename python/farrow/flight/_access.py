"""Who may connect: addresses, certificates and the token."""

from __future__ import annotations

import base64
import hmac
import os
import secrets
from pathlib import Path
from typing import Any

import pyarrow.flight as flight

from farrow._nodes._ports import LOOPBACK_HOSTS
from farrow.exceptions import InvalidArgument
from farrow.flight._queries import Call

__all__ = ["Admission", "NoHandshake", "check_address", "checked_token", "token_of"]

_TOKEN_BYTES = 24
_TOKEN_LENGTH_MIN = 16
_TOKEN_LENGTH_MAX = 4096


def check_address(host: str, has_tls: bool) -> None:
    """Refuse an address that other machines reach, unless the connection is encrypted.

    Raises:
        InvalidArgument: it can be reached, and there is no certificate.
    """
    if host not in LOOPBACK_HOSTS and not has_tls:
        raise InvalidArgument(
            f"{host!r} can be reached by other machines, which would send the token and the rows "
            "in plain text: give a certificate and a key, or use 127.0.0.1"
        )


def token_of(path: Path) -> str:
    """The token in a file; a file that does not exist is created with a random one.

    Raises:
        InvalidArgument: other users can read the file, or it has no token of 16 to 4,096
            characters of ASCII.
        OSError: the file cannot be read.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(file, "w", encoding="ascii") as new:
            new.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
    with path.open("rb") as old:
        mode = os.fstat(old.fileno()).st_mode & 0o777
        data = old.read(_TOKEN_LENGTH_MAX + 2).strip()
    if mode & 0o077:
        raise InvalidArgument(f"{path} has the mode {mode:o}: other users can read the token")
    # A byte that is no ASCII is no character of a token either.
    return checked_token(data.decode("latin-1"), str(path))


def checked_token(token: str, where: str) -> str:
    """A token, if it is one.

    Args:
        token: the text.
        where: what has it, for the error.

    Raises:
        InvalidArgument: it has not 16 to 4,096 characters of ASCII, or has spaces.
    """
    is_long_enough = _TOKEN_LENGTH_MIN <= len(token) <= _TOKEN_LENGTH_MAX
    if not is_long_enough or not all("!" <= char <= "~" for char in token):
        raise InvalidArgument(
            f"{where} has no token: {_TOKEN_LENGTH_MIN} to {_TOKEN_LENGTH_MAX} characters of "
            "ASCII without spaces"
        )
    return token


def new_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


class NoHandshake(flight.ServerAuthHandler):  # type: ignore[misc]
    """Accepts the call in which a driver sends a password; :class:`Admission` has checked it."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Nothing is left to check."""

    def is_valid(self, token: bytes) -> bytes:
        """Each call is checked by its headers."""
        return b""


class Admission(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Checks the token of each call before anything of it is read.

    A driver sends it as ``authorization: Bearer TOKEN``, or as the password of any user, for which
    it receives the header that it sends from then on.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> Call:
        """Called by Flight at the start of each call.

        Raises:
            FlightUnauthenticatedError: the token is missing or wrong.
        """
        scheme, _, value = (headers.get("authorization") or [""])[0].partition(" ")
        answer: dict[str, str] = {}
        if scheme.lower() == "basic":
            value = _password(value)
            answer = {"authorization": f"Bearer {self._token}"}
        elif scheme.lower() != "bearer":
            value = ""
        if not hmac.compare_digest(value.encode(), self._token.encode()):
            what = "wrong" if value else "missing"
            raise flight.FlightUnauthenticatedError(
                f"the token is {what}: send it as a bearer token, or as a password"
            )
        return Call(answer)


def _password(value: str) -> str:
    # Drivers in Go leave the padding out.
    padded = value + "=" * (-len(value) % 4)
    try:
        return base64.b64decode(padded, validate=True).decode().partition(":")[2]
    except ValueError:
        # No base64, or no UTF-8 in it.
        return ""
