"""The revocation of the certificate of one node.  It once meant a new authority and a restart of
all nodes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import farrow
from conftest import LEASE_MS, wait_until
from farrow._nodes._ports import free_addresses
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node

NAMES = ("a", "b", "c")


def certify(authority: Path, name: str, to: Path) -> None:
    assert main(["certs", "issue", str(authority), name, "127.0.0.1"]) == 0
    to.mkdir(exist_ok=True)
    # As a tool that renews does it: written beside, then moved.
    for file in (f"{name}.key", f"{name}.pem", "ca.pem"):
        shutil.copy(authority / file, to / f"{file}.new")
        (to / f"{file}.new").rename(to / file)


def reach(client: farrow.Client) -> dict[str, str]:
    return {node.name: node.reach for node in client.nodes() if node.fabric or node.reach != "live"}


def test_a_revoked_node_leaves_the_cluster_and_returns_with_a_new_certificate(
    make_node: Callable[..., Node], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = tmp_path / "authority"
    assert main(["certs", "init", str(authority)]) == 0
    addresses = free_addresses(3)
    nodes: dict[str, Node] = {}
    for name, address in zip(NAMES, addresses, strict=True):
        certify(authority, name, tmp_path / name)
        # Objects are read over the network, so that the data path is cut, too.
        nodes[name] = make_node(
            "--memory", "32MiB", "--name", name, "--listen", address,
            *[f"--join={other}" for other in addresses if other != address],
            "--certs", str(tmp_path / name), "--net=only", "--lease-ms", LEASE_MS,
        )  # fmt: skip
    a, b, c = (farrow.connect(nodes[name].socket) for name in NAMES)
    everybody = dict.fromkeys(NAMES, "live")
    for client in (a, b, c):
        wait_until(lambda client=client: reach(client) == everybody, "three nodes")
    a.put(b"of a", "from-a")
    a.put(b"more of a", "more-from-a")
    c.put(b"of c", "from-c")
    assert c.get("from-a", timeout=30).to_pybytes() == b"of a"

    # The list reaches the two others only: the revoked node may be in a stranger's hands.
    capsys.readouterr()
    assert main(["certs", "revoke", str(authority), "c"]) == 0
    assert "ca.crl" in capsys.readouterr().out
    for name in "ab":
        shutil.copy(authority / "ca.crl", tmp_path / name / "ca.crl")
    for client in (a, b):
        wait_until(
            lambda client=client: (
                reach(client).get("c") in (None, "lost")
                and reach(client)["a"] == reach(client)["b"] == "live"
            ),
            "the revoked node to be lost",
        )
    with pytest.raises(farrow.FarrowError):
        c.get("more-from-a", timeout=2)
    with pytest.raises(farrow.FarrowError):
        a.get("from-c", timeout=2)
    assert b.get("more-from-a", timeout=30).to_pybytes() == b"more of a"
    assert "revoked" in nodes["a"].log()

    for end in ("pem", "key"):
        (authority / f"c.{end}").unlink()
    certify(authority, "c", tmp_path / "c")
    nodes["c"].restart()
    c = farrow.connect(nodes["c"].socket)
    for client in (a, b, c):
        wait_until(lambda client=client: reach(client) == everybody, "three nodes again")
    assert c.get("from-a", timeout=30).to_pybytes() == b"of a"
