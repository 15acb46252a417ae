"""Certificates of all nodes are replaced under load, and no call fails.

A longer run: ``FARROW_RELOADS=1000``.
"""

from __future__ import annotations

import itertools
import os
import random
from typing import TYPE_CHECKING

import pytest

import farrow
from conftest import Node, wait_until
from load_cases import NAMES, Authority, Load, Nodes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RELOADS = int(os.environ.get("FARROW_RELOADS", "20"))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def nodes(make_node: Callable[..., Node], authority: Authority, tmp_path: Path) -> Nodes:
    return Nodes(make_node, authority, tmp_path)


def test_certificates_are_replaced_under_load(nodes: Nodes, authority: Authority) -> None:
    with Load(nodes.sockets()) as load:
        for _ in range(RELOADS):
            before = nodes.reloads()
            for name in NAMES:
                authority.certify(name, nodes.folders[name])
            nodes.wait_for_reload(before, load)
    assert load.failed == []
    assert min(load.objects) >= 2 * RELOADS
    assert [nodes.metric(name, "farrow_certificate_refused") for name in NAMES] == [0.0] * 3
    assert len(farrow.connect(nodes.sockets()[0])) == 0


def test_the_authority_is_replaced_under_load(
    nodes: Nodes, authority: Authority, tmp_path: Path
) -> None:
    """New connections are made with the new certificates: the old authority is trusted no more."""
    with Load(nodes.sockets()) as load:
        for number in range(max(RELOADS // 5, 1)):
            new = Authority(tmp_path / f"new-{number}")
            both = authority.root + new.root
            for issuer, trusted in ((authority, both), (new, both), (new, new.root)):
                before = nodes.reloads()
                for name in NAMES:
                    issuer.certify(name, nodes.folders[name], trusted)
                nodes.wait_for_reload(before, load)
            authority = new
    assert load.failed == []


def test_a_call_that_fails_is_seen(nodes: Nodes) -> None:
    """The canary: the last node trusts another authority than the rest."""
    strange = Authority(nodes.folders["a"].parent / "strange")
    load = Load(nodes.sockets())
    before = nodes.reloads()
    strange.certify("c", nodes.folders["c"])
    wait_until(lambda: nodes.reloads()["c"] > before["c"], "c to use the strange certificate")
    clients = [farrow.connect(socket) for socket in nodes.sockets()]
    for _ in itertools.takewhile(lambda _: not load.failed, range(20)):
        load._one(clients, 0, random.Random(1))
    assert load.failed
