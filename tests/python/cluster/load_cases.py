"""Three nodes with certificates, and threads that use them while a test changes something."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import farrow
from conftest import LIMIT_SECONDS, Node, wait_until
from farrow._nodes._ports import free_addresses
from farrow.cli import main
from farrow.dashboard import _metrics

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("a", "b", "c")
# No node is excluded because the machine is busy: a call to it would fail then.
LEASE_MS = "10000"
KIB = 1 << 10
# Small objects travel with messages, large ones by connections of their own.
SIZES = (1, 100, 64 * KIB, 700 * KIB)
# Objects of a client, after which a new client and its sessions take its place.
CLIENT_OBJECTS = 40


class Authority:
    """An authority in a folder, which issues a new certificate at each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        assert main(["certs", "init", str(folder)]) == 0

    def certify(self, name: str, to: Path, trusted: bytes | None = None) -> None:
        """Replace the certificate of a node, and the authorities that it trusts."""
        for end in ("pem", "key"):
            (self.folder / f"{name}.{end}").unlink(missing_ok=True)
        assert main(["certs", "issue", str(self.folder), name, "127.0.0.1"]) == 0
        to.mkdir(exist_ok=True)
        for file in (f"{name}.key", f"{name}.pem"):
            replace(to / file, (self.folder / file).read_bytes())
        replace(to / "ca.pem", self.root if trusted is None else trusted)

    @property
    def root(self) -> bytes:
        return (self.folder / "ca.pem").read_bytes()


def replace(path: Path, data: bytes) -> None:
    """As a tool that renews does it: written beside, then moved."""
    beside = path.with_name(f"{path.name}.new")
    beside.touch(mode=0o600)
    beside.write_bytes(data)
    beside.rename(path)


class Load:
    """Threads that put at one node, get at the next and delete at a third, until they are ended."""

    def __init__(self, sockets: list[str], node: str | None = None) -> None:
        """``node``: where each object is put; None: in turn at its own node and at the next one."""
        self.failed: list[str] = []
        self.objects = [0] * len(sockets)
        self._sockets = sockets
        self._node = node
        self._is_ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(place,)) for place in range(len(sockets))
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending.set()
        for thread in self._threads:
            thread.join(LIMIT_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads)

    def wait_for_objects(self) -> None:
        """Until each thread has used each node since this call."""
        done = list(self.objects)
        wait_until(
            lambda: all(now > then + 1 for now, then in zip(self.objects, done, strict=True)),
            f"objects of each thread; failed: {self.failed}",
        )

    def _run(self, place: int) -> None:
        rng = random.Random(place)
        while not self._is_ending.is_set():
            turned = self._sockets[place:] + self._sockets[:place]
            clients = [farrow.connect(socket) for socket in turned]
            for _ in range(CLIENT_OBJECTS):
                if self._is_ending.is_set():
                    break
                self._one(clients, place, rng)
            for client in clients:
                client.close()

    def _one(self, clients: list[farrow.Client], place: int, rng: random.Random) -> None:
        writer, reader, remover = clients
        number = self.objects[place]
        data, name = rng.randbytes(rng.choice(SIZES)), f"load-{place}-{number}"
        step = "put"
        try:
            at = self._node or NAMES[(place + number % 2) % len(NAMES)]
            writer.put(data, name, node=at)
            step = "get"
            assert reader.get(name).to_pybytes() == data
            step = "delete"
            remover.delete(name)
            step = "contains"
            assert name not in writer
        except (farrow.FarrowError, AssertionError) as error:
            self.failed.append(f"{step} of {name}, {len(data)} bytes: {error!r}")
        self.objects[place] += 1


class Nodes:
    """Three nodes that share no memory, with certificates in a folder each."""

    def __init__(
        self, make_node: Callable[..., Node], authority: Authority, folder: Path, *options: str
    ) -> None:
        self.folders = {name: folder / name for name in NAMES}
        self.nodes: dict[str, Node] = {}
        addresses = free_addresses(len(NAMES))
        for name, address in zip(NAMES, addresses, strict=True):
            authority.certify(name, self.folders[name])
            self.nodes[name] = make_node(
                "--memory", "64MiB", "--name", name, "--listen", address,
                *[f"--join={other}" for other in addresses if other != address],
                "--certs", str(self.folders[name]), "--net=only", "--no-prepare",
                "--metrics", "--lease-ms", LEASE_MS, *options,
            )  # fmt: skip
        for node in self.nodes.values():
            client = farrow.connect(node.socket)
            wait_until(
                lambda client=client: [one.reach for one in client.nodes()] == ["live"] * 3,
                "three nodes",
            )

    def sockets(self) -> list[str]:
        return [self.nodes[name].socket for name in NAMES]

    def metric(self, name: str, metric: str) -> float:
        found: Any = _metrics.read(f"unix:{self.nodes[name].socket}.metrics")
        assert found is not None
        return float(found[metric, ()])

    def reloads(self) -> dict[str, float]:
        return {name: self.metric(name, "farrow_certificate_reloads_total") for name in NAMES}

    def wait_for_reload_of(self, name: str, before: float) -> None:
        wait_until(
            lambda: self.metric(name, "farrow_certificate_reloads_total") > before,
            f"{name} to read its files again",
        )

    def wait_for_reload(self, before: dict[str, float], load: Load) -> None:
        """Until each node uses the new files, and each thread has used each node since then."""
        for name, reloads in before.items():
            self.wait_for_reload_of(name, reloads)
        load.wait_for_objects()
