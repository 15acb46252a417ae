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
    rules = ("--permit=team:*:read", "--permit=team:a:all")
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
    with pytest.raises(farrow.NotPermitted) as caught:
        far.put(b"x", "new", node="a")
    error = caught.value
    assert (error.node, error.namespace, error.right) == ("b", "team", "write")
    assert isinstance(error, farrow.PermissionDenied)
    with pytest.raises(farrow.NotPermitted, match="delete"):
        far.delete("old")

    a.permit("b", ["read", "delete"], namespace="team")
    in_team.permit("b", "read, write", namespace="*")
    far.delete("old")
    in_team.permit("b", "write")
    far.put(b"x", "new", node="a")
    assert a.permissions() == [
        {"namespace": "*", "node": "b", "rights": ["read", "write"]},
        {"namespace": "team", "node": "*", "rights": ["read"]},
        {"namespace": "team", "node": "a", "rights": ["read", "write", "delete"]},
        {"namespace": "team", "node": "b", "rights": ["write"]},
    ]
    for rights in ("reed", ["read", "all the rest"], 7):
        with pytest.raises(farrow.InvalidArgument):
            a.permit("b", rights)  # type: ignore[arg-type]
    for node, namespace in (("B", "team"), ("b", "x" * 64)):
        with pytest.raises(farrow.InvalidArgument):
            a.permit(node, "read", namespace=namespace)

    assert main(["namespaces", "--socket", socket, "permit", "team:b:default", ":*:none"]) == 0
    assert main(["namespaces", "--socket", socket, "permissions", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == a.permissions()
    assert {"namespace": "", "node": "*", "rights": []} in a.permissions()
    assert main(["namespaces", "--socket", socket, "permissions"]) == 0
    assert "none" in capsys.readouterr().out
    with pytest.raises(farrow.NotPermitted, match="write"):
        far.put(b"x", "newer", node="a")
    with pytest.raises(farrow.NotPermitted):
        farrow.connect(cluster.nodes["b"].socket).at("a")
    for words in (["b:read"], ["team:b:default"]):
        assert main(["namespaces", "--socket", socket, "permit", *words]) != 0
    with pytest.raises(farrow.NotFound):
        a.drop_permission("b", namespace="team")
