"""Two network namespaces joined by a link that holds each packet back for a given time.

The link is a pair of TUN devices and a process that forwards between them: no queueing discipline
of the kernel is needed, since not all kernels have ``netem``.  Needs root, ``ip`` and
``/dev/net/tun``.  Run as a program, this file is the forwarder or one end of a round trip.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import select
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Link", "slow_link", "why_not"]

_TUN = Path("/dev/net/tun")
# linux/if_tun.h: TUNSETIFF, IFF_TUN without packet information.
_SET_INTERFACE, _FLAGS = 0x400454CA, 0x0001 | 0x1000
# Large packets: the forwarder is a Python program, and pays for each.
_MTU = 65_000
# Packets that wait in the forwarder; beyond it none are read, and senders wait.
_HELD_BYTES_MAX = 64 << 20
_QUEUE_PACKETS = 4_000
_COMMAND_SECONDS_MAX = 20.0
_ROUND_TRIPS = 40


@dataclasses.dataclass(frozen=True)
class Link:
    """Two namespaces with their addresses.

    Attributes:
        namespaces: names for ``ip netns exec``.
        addresses: IPv4 address of each.
    """

    namespaces: tuple[str, str]
    addresses: tuple[str, str]

    def command(self, side: int, command: Sequence[str]) -> list[str]:
        """A command that runs on one side, 0 or 1."""
        return ["ip", "netns", "exec", self.namespaces[side], *command]

    def round_trip(self) -> float:
        """Median seconds of a byte to the other side and back over TCP."""
        with contextlib.ExitStack() as stack:
            echo = stack.enter_context(_started(self.command(1, _own("echo", self.addresses[1]))))
            assert echo.stdout is not None
            port = echo.stdout.readline().decode().strip()
            asked = _own("ask", self.addresses[1], port)
            done = subprocess.run(
                self.command(0, asked), stdout=subprocess.PIPE, check=True,
                timeout=_COMMAND_SECONDS_MAX,
            )  # fmt: skip
        return float(done.stdout)


def why_not() -> str | None:
    """The reason why this machine can have no such link; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip (iproute2)"
    if not _TUN.exists():
        return f"there is no {_TUN}"
    return None


@contextlib.contextmanager
def slow_link(seconds: float) -> Iterator[Link]:
    """A link that delays each packet by ``seconds`` in each direction."""
    with contextlib.ExitStack() as stack:
        spaces = tuple(f"farrow-{os.getpid()}-{side}" for side in "ab")
        addresses = tuple(f"10.231.77.{number}" for number in (1, 2))
        ends = []
        for space, address in zip(spaces, addresses, strict=True):
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space)
            device = f"fw{os.getpid()}{space[-1]}"
            end = _tun(device)
            stack.callback(os.close, end)
            ends.append(end)
            _ip("link", "set", device, "netns", space)
            inside = ("-n", space)
            _ip(*inside, "addr", "add", f"{address}/30", "dev", device)
            _ip(*inside, "link", "set", device, "mtu", str(_MTU), "qlen", str(_QUEUE_PACKETS))
            _ip(*inside, "link", "set", device, "up")
            _ip(*inside, "link", "set", "lo", "up")
        command = _own("forward", *map(str, ends), str(seconds))
        stack.enter_context(_started(command, ends))
        yield Link((spaces[0], spaces[1]), (addresses[0], addresses[1]))


def _own(*arguments: str) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), *arguments]


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, timeout=_COMMAND_SECONDS_MAX)


def _tun(name: str) -> int:
    end = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(end, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _FLAGS))
    except OSError:
        os.close(end)
        raise
    return end


@contextlib.contextmanager
def _started(
    command: Sequence[str], passed: Sequence[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when its standard input does."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=tuple(passed)
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()
        try:
            process.wait(_COMMAND_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _forward(ends: tuple[int, int], seconds: float) -> None:
    """Forward until standard input ends."""
    waiting: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    held = 0
    while True:
        now = time.monotonic()
        for target, queue in waiting.items():
            while queue and queue[0][0] <= now:
                packet = queue.popleft()[1]
                held -= len(packet)
                # A full device loses the packet, as any link does.
                with contextlib.suppress(BlockingIOError, OSError):
                    os.write(target, packet)
        due = [queue[0][0] for queue in waiting.values() if queue]
        rest = max(0.0, min(due) - time.monotonic()) if due else None
        reading = ends if held < _HELD_BYTES_MAX else ()
        ready, _, _ = select.select([sys.stdin, *reading], [], [], rest)
        if sys.stdin in ready:
            return
        for end in ready:
            for packet in _packets(end):
                held += len(packet)
                waiting[other[end]].append((time.monotonic() + seconds, packet))


def _packets(end: int) -> Iterator[bytes]:
    """What a device has now, a few packets at most, so that none waits behind many."""
    for _ in range(16):
        try:
            yield os.read(end, 1 << 16)
        except BlockingIOError:
            return


def _echo(address: str) -> None:
    """One connection, until its other end closes it."""
    with socket.create_server((address, 0)) as server:
        server.settimeout(_COMMAND_SECONDS_MAX)
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while one := connection.recv(1):
                connection.sendall(one)


def _ask(address: str, port: int) -> None:
    times = []
    with socket.create_connection((address, port), timeout=_COMMAND_SECONDS_MAX) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_ROUND_TRIPS):
            began = time.perf_counter()
            connection.sendall(b"1")
            connection.recv(1)
            times.append(time.perf_counter() - began)
    print(statistics.median(times))


if __name__ == "__main__":
    if sys.argv[1] == "forward":
        _forward((int(sys.argv[2]), int(sys.argv[3])), float(sys.argv[4]))
    elif sys.argv[1] == "echo":
        _echo(sys.argv[2])
    else:
        _ask(sys.argv[2], int(sys.argv[3]))
