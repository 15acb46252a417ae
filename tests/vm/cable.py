"""A network cable between two virtual machines that can change bytes on their way.

Each machine connects to a socket of its own, over which QEMU sends Ethernet frames behind their
lengths. Only the standard library is used.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path

# A frame with all headers but no data takes less.
SPOILED_BYTES_MIN = 1000
# Segments with data between two that are changed: about half a table, so that a transfer that was
# ended by one gets through before the next.
SEGMENTS_BETWEEN = 150
TCP = 6


def checksum(words: bytes) -> int:
    """The Internet checksum."""
    words += b"\0" * (len(words) % 2)
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def spoil(frame: bytes, port: int) -> bytes | None:
    """A frame with one byte of data changed, for which its TCP checksum is right.

    ``None`` unless it has a large segment from that port.
    """
    if frame[12:14] != b"\x08\0" or frame[23] != TCP:
        return None
    internet = 14
    segment = internet + (frame[internet] & 15) * 4
    end = internet + int.from_bytes(frame[internet + 2 : internet + 4], "big")
    data = segment + (frame[segment + 12] >> 4) * 4
    is_from_port = int.from_bytes(frame[segment : segment + 2], "big") == port
    if not is_from_port or end - data < SPOILED_BYTES_MIN:
        return None
    changed = bytearray(frame)
    changed[(data + end) // 2] ^= 1
    changed[segment + 16 : segment + 18] = b"\0\0"
    addresses = bytes(changed[internet + 12 : internet + 20])
    pseudo = addresses + struct.pack("!BBH", 0, TCP, end - segment)
    right = checksum(pseudo + bytes(changed[segment:end]))
    changed[segment + 16 : segment + 18] = right.to_bytes(2, "big")
    return bytes(changed)


class Cable:
    """Forwards frames until it is closed."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self.spoiled = 0
        self._wanted = 0
        self._passed = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.places = {role: folder / f"cable-{role}" for role in "ab"}
        self._listeners = [self._listen(place) for place in self.places.values()]
        threading.Thread(target=self._connect, daemon=True).start()

    def _listen(self, place: Path) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(place))
        listener.listen(1)
        return listener

    def _connect(self) -> None:
        try:
            ends = [listener.accept()[0] for listener in self._listeners]
        except OSError:
            return
        self._sockets += ends
        for one, other in (ends, ends[::-1]):
            threading.Thread(target=self._forward, args=(one, other), daemon=True).start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with one.makefile("rb") as frames:
            try:
                while len(head := frames.read(4)) == 4:
                    frame = frames.read(int.from_bytes(head, "big"))
                    other.sendall(head + self._pass(frame))
            except OSError:
                # A machine is off.
                return

    def _pass(self, frame: bytes) -> bytes:
        with self._lock:
            if self._wanted == 0 or (changed := spoil(frame, self.port)) is None:
                return frame
            self._passed += 1
            if self._passed % SEGMENTS_BETWEEN != 1:
                return frame
            self._wanted -= 1
            self.spoiled += 1
            return changed

    def spoil_next(self, count: int) -> None:
        """Changes a byte in so many of the next segments with data."""
        with self._lock:
            self._wanted += count

    def close(self) -> None:
        for one in (*self._listeners, *self._sockets):
            # Wakes its thread, which a close does not.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for place in self.places.values():
            place.unlink(missing_ok=True)
