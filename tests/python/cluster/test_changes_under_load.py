"""What an operator changes while nodes serve, in random order: no call fails, nothing is lost.

A longer run: ``FARROW_CHANGES=1000``; the order of a run again: ``FARROW_CHANGES_SEED``.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING

import farrow
from farrow.cli import main
from load_cases import NAMES, Authority, Load, Nodes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Node

MIB = 1 << 20
CHANGES = int(os.environ.get("FARROW_CHANGES", "24"))
KINDS = ("memory", "settings", "certificate", "drain")


class Operator:
    """Makes one change at a time, and checks that the node has it."""

    def __init__(self, nodes: Nodes, authority: Authority, chance: random.Random) -> None:
        self._nodes, self._authority, self._chance = nodes, authority, chance
        self._clients = {name: farrow.connect(nodes.nodes[name].socket) for name in NAMES}

    def change(self, kind: str) -> None:
        getattr(self, f"_{kind}")(self._chance.choice(NAMES))

    def _memory(self, name: str) -> None:
        size = self._chance.randrange(40, 161) * MIB
        self._clients[name]._change_settings({"memory": size})
        assert self._clients[name].stats()["capacity"] == size

    def _settings(self, name: str) -> None:
        changes = {
            "client_bytes": self._chance.choice([None, 30 * MIB]),
            "client_objects": self._chance.choice([None, 1000]),
            "cache": self._chance.randrange(8, 33) * MIB,
            "log": self._chance.choice(["warn", "info"]),
        }
        self._clients[name]._change_settings(changes)
        found = self._clients[name].stats()["settings"]
        assert {key: found[key] for key in changes} == changes

    def _certificate(self, name: str) -> None:
        before = self._nodes.reloads()[name]
        self._authority.certify(name, self._nodes.folders[name])
        self._nodes.wait_for_reload_of(name, before)

    def _drain(self, name: str) -> None:
        """The node becomes empty, and serves again."""
        words = ["node", "drain", "--socket", self._nodes.nodes[name].socket]
        assert main([*words, "--timeout", "60"]) == 0
        assert (
            self._clients[name].list("lasting/").drop_columns(["sealed_at", "last_use"]).to_pylist()
            == []
        )
        assert main([*words, "--cancel"]) == 0


def test_random_changes_under_load(make_node: Callable[..., Node], tmp_path: Path) -> None:
    seed = int(os.environ.get("FARROW_CHANGES_SEED", str(random.randrange(1 << 32))))
    print(f"FARROW_CHANGES_SEED={seed}")
    chance = random.Random(seed)
    authority = Authority(tmp_path / "authority")
    nodes = Nodes(make_node, authority, tmp_path, "--memory-max", "160MiB")
    clients = [farrow.connect(socket) for socket in nodes.sockets()]
    lasting = {f"lasting/{number}": chance.randbytes(200_000 + number) for number in range(24)}
    for name, content in lasting.items():
        clients[0].put(content, name, node=chance.choice(NAMES))
    operator = Operator(nodes, authority, chance)
    # Each kind, also in a short run.
    kinds = [*KINDS, *chance.choices(KINDS, k=max(CHANGES - len(KINDS), 0))]
    chance.shuffle(kinds)
    with Load(nodes.sockets(), "nearest") as load:
        for kind in kinds:
            operator.change(kind)
            name = chance.choice(sorted(lasting))
            assert chance.choice(clients).get(name).to_pybytes() == lasting[name]
            assert not load.failed, f"after {kind}: {load.failed[:3]}"
            load.wait_for_objects()
    assert load.failed == []
    for client in clients:
        for name, content in lasting.items():
            assert client.get(name).to_pybytes() == content
    listed = [name for client in clients for name in client.list()["name"].to_pylist()]
    assert sorted(listed) == sorted(lasting), Counter(kinds)
