"""Sizes as people write them: ``4GiB``, ``512M``, ``1_000_000``."""

from __future__ import annotations

import re

from farrow.exceptions import InvalidArgument

__all__ = ["parse_size"]

_SIZE = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([kmgtp]?)(i?)(b?)\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def parse_size(text: str, *, what: str = "size") -> int:
    """Bytes that ``text`` says.

    A bare letter and ``KiB`` count by 1024, ``KB`` by 1000.

    Raises:
        InvalidArgument: it is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise InvalidArgument(f"{what} is {text!r}; a size looks like 4GiB, 512M or 1000000")
    number, letter, binary, byte = match[1].replace("_", ""), match[2].lower(), match[3], match[4]
    base = 1000 if letter and byte and not binary else 1024
    return (
        int(float(number) * base ** _POWERS[letter])
        if "." in number
        else (int(number) * base ** _POWERS[letter])
    )
