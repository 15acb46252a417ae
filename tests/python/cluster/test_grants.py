"""What clients of other nodes may do: by the API and by the command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import farrow
from conftest import Cluster
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node


def test_other_nodes_do_what_they_were_granted(
    make_node: Callable[..., Node], capsys: pytest.CaptureFixture[str]
) -> None:
    # Both have the same: it is the authority of a name that says whether a may take it.
    rules = ("--grant=team:*:read", "--grant=team:a:all")
    cluster = Cluster(make_node, 2, "--plaintext", *rules)
    a, b = cluster.clients()
    a.create_namespace("team")
    a.create_namespace("other")
    socket = str(cluster.nodes["a"].socket)
    in_team = farrow.connect(cluster.nodes["a"].socket, namespace="team")
    in_team.put(b"old", "old")
    # The namespace has to be there at the node to which the client belongs, too.
    b.create_namespace("team")
    far = farrow.connect(cluster.nodes["b"].socket, namespace="team")
    assert far.get("old") == b"old"
    with pytest.raises(farrow.NotGranted) as caught:
        far.put(b"x", "new", node="a")
    error = caught.value
    assert (error.node, error.namespace, error.right) == ("b", "team", "write")
    assert isinstance(error, farrow.PermissionDenied)
    with pytest.raises(farrow.NotGranted, match="delete"):
        far.delete("old")

    a.grant("b", ["read", "delete"], namespace="team")
    in_team.grant("b", "read, write", namespace="*")
    far.delete("old")
    in_team.grant("b", "write")
    far.put(b"x", "new", node="a")
    assert a.grants() == [
        {"namespace": "*", "node": "b", "rights": ["read", "write"]},
        {"namespace": "team", "node": "*", "rights": ["read"]},
        {"namespace": "team", "node": "a", "rights": ["read", "write", "delete"]},
        {"namespace": "team", "node": "b", "rights": ["write"]},
    ]
    for rights in ("reed", ["read", "all the rest"], 7):
        with pytest.raises(farrow.InvalidArgument):
            a.grant("b", rights)  # type: ignore[arg-type]
    for node, namespace in (("B", "team"), ("b", "x" * 64)):
        with pytest.raises(farrow.InvalidArgument):
            a.grant(node, "read", namespace=namespace)

    assert main(["namespaces", "--socket", socket, "grant", "team:b:default", ":*:none"]) == 0
    assert main(["namespaces", "--socket", socket, "grants", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == a.grants()
    assert {"namespace": "", "node": "*", "rights": []} in a.grants()
    assert main(["namespaces", "--socket", socket, "grants"]) == 0
    assert "none" in capsys.readouterr().out
    with pytest.raises(farrow.NotGranted, match="write"):
        far.put(b"x", "newer", node="a")
    with pytest.raises(farrow.NotGranted):
        farrow.connect(cluster.nodes["b"].socket).at("a")
    for words in (["b:read"], ["team:b:default"]):
        assert main(["namespaces", "--socket", socket, "grant", *words]) != 0
    with pytest.raises(farrow.NotFound):
        a.drop_grant("b", namespace="team")
