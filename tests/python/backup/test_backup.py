"""Backups: every kind of object comes back, by names, namespaces and tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import farrow
from backup_cases import MIB, TABLE, VALUES, check_all, files_of, put_all
from farrow import backup

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node

pytest_plugins = ["backup_cases"]


def test_a_sorted_table_comes_back_sorted(
    client: farrow.Client, make_node: Callable[..., Node], folder: Path
) -> None:
    schema = pa.schema({"country": pa.string(), "ts": pa.int64()})
    rows = {"country": ["nl", "nl"], "ts": [5, 9]}
    for name, order in {
        "sorted": {"sort_by": "ts"},
        "parted": {"partition_by": ["country"]},
        "both": {"sort_by": "ts", "partition_by": ["country"]},
    }.items():
        client.huge_table(name, schema, **order).append(pa.table(rows, schema))
    backup.create(client, folder)
    other = farrow.connect(make_node().socket)
    backup.restore(other, folder)
    for name, sort_by, partition_by in [
        ("sorted", "ts", ()),
        ("parted", None, ("country",)),
        ("both", "ts", ("country",)),
    ]:
        table = other.huge_table(name)
        assert (table.sort_by, table.partition_by, table.rows) == (sort_by, partition_by, 2)
    with pytest.raises(farrow.InvalidArgument, match="has 9"):
        other.huge_table("both").append(pa.table(rows, schema))


def test_every_kind_comes_back(
    client: farrow.Client, make_node: Callable[..., Node], folder: Path
) -> None:
    put_all(client)
    created = backup.create(client, folder)
    assert (created.left_out, created.lost_nodes) == ([], [])
    assert created.objects == len(VALUES) + 2
    other = farrow.connect(make_node().socket)
    restored = backup.restore(other, folder)
    assert len(restored.names) == created.objects
    check_all(other)
    # And once more, from what was restored.
    backup.create(other, folder)
    manifest = backup.verify(folder)
    third = farrow.connect(make_node().socket)
    backup.restore(third, folder)
    check_all(third)
    assert {entry.name for entry in manifest.objects} == set(restored.names)


def test_an_object_with_the_label_of_a_huge_table_is_saved_as_it_is(
    client: farrow.Client, folder: Path
) -> None:
    """Such an object ended each backup with an error, whoever had put it."""
    labels = {"farrow.huge_table": "2", "unit": "metre"}
    client.put(b"no table", "labelled", metadata=labels)
    client.put(b"other", "other")
    assert backup.create(client, folder).objects == 2
    client.delete(["labelled", "other"])
    backup.restore(client, folder)
    assert client.get("labelled").to_pybytes() == b"no table"
    assert client.metadata("labelled") == labels
    assert client.get("other").to_pybytes() == b"other"


def test_names_that_exist_are_refused_skipped_or_replaced(
    client: farrow.Client, folder: Path
) -> None:
    client.put(b"old", "one")
    client.put(TABLE, "two")
    client.huge_table("huge", TABLE.schema).append(TABLE)
    backup.create(client, folder)
    client.delete("one")
    client.put(b"newer", "one")
    client.delete("two")
    client.huge_table("huge").append(TABLE)
    with pytest.raises(farrow.AlreadyExists, match="'huge', 'one'"):
        backup.restore(client, folder)
    assert "two" not in client
    restored = backup.restore(client, folder, existing="skip")
    assert (restored.names, restored.skipped) == (["two"], ["huge", "one"])
    assert client.get("one").to_pybytes() == b"newer"
    restored = backup.restore(client, folder, existing="replace")
    assert restored.names == ["huge", "one", "two"]
    assert client.get("one").to_pybytes() == b"old"
    assert client.huge_table("huge").rows == 3
    # An object in the place of a huge table, and the other way round.
    client.huge_table("huge").drop()
    client.put(b"small", "huge")
    client.delete("one")
    client.huge_table("one", TABLE.schema).append(TABLE)
    backup.restore(client, folder, ["one", "huge"], existing="replace")
    assert client.get("one").to_pybytes() == b"old"
    assert client.huge_table("huge").rows == 3
    names = client.list()["name"].to_pylist()
    assert not [name for name in names if name.startswith("one/")]
    with pytest.raises(farrow.InvalidArgument, match="never"):
        backup.restore(client, folder, existing="never")  # type: ignore[arg-type]


def test_names_select_objects(client: farrow.Client, folder: Path) -> None:
    client.put(b"1", "one")
    client.put(b"2", "two")
    with pytest.raises(farrow.NotFound, match="'three'"):
        backup.create(client, folder, ["one", "three"])
    assert not (folder / "manifest.json").exists()
    assert backup.create(client, folder, ["two"]).objects == 1
    with pytest.raises(farrow.NotFound, match="'one'"):
        backup.restore(client, folder, ["one"])
    with pytest.raises(farrow.NotFound, match="no complete backup"):
        backup.verify(folder / "elsewhere")


def test_a_namespace_is_saved_and_restored_by_itself(client: farrow.Client, folder: Path) -> None:
    client.create_namespace("team")
    team = farrow.connect(client.address, namespace="team")
    client.put(b"default", "same")
    team.put(b"team", "same")
    team.huge_table("huge", TABLE.schema).append(TABLE)
    assert backup.create(team, folder).objects == 2
    assert backup.verify(folder).namespace == "team"
    team.delete("same")
    team.huge_table("huge").drop()
    backup.restore(team, folder)
    assert team.get("same").to_pybytes() == b"team"
    assert team.huge_table("huge").table().equals(TABLE)
    assert client.get("same").to_pybytes() == b"default"


def test_the_files_are_for_their_owner_alone(client: farrow.Client, folder: Path) -> None:
    client.put(b"secret", "one")
    before = os.umask(0o022)
    try:
        backup.create(client, folder)
    finally:
        os.umask(before)
    assert len(files_of(folder)) > 1
    assert {path.stat().st_mode & 0o777 for path in files_of(folder)} == {0o600}


def test_two_backups_to_a_folder_exclude_each_other(client: farrow.Client, folder: Path) -> None:
    client.put(b"1", "one")
    refused = []

    def another(done: int, total: int) -> None:
        with pytest.raises(farrow.InvalidArgument, match="another process") as caught:
            backup.create(client, folder)
        refused.append(str(caught.value))

    backup.create(client, folder, progress=another)
    assert refused


def test_objects_that_change_meanwhile(client: farrow.Client, folder: Path) -> None:
    """Of a replaced name one of the two objects is saved, a deleted name is left out, and said."""
    for name in ("a", "b", "c", "d"):
        client.put(name.encode(), name)

    def change(done: int, total: int) -> None:
        if "d" in client:
            client.put(b"newer", "c", replace=True)
            client.delete("d")

    created = backup.create(client, folder, progress=change)
    assert created.left_out == ["d"]
    client.delete(["a", "b", "c"])
    backup.restore(client, folder)
    assert client.get("c").to_pybytes() == b"newer"
    assert sorted(client.list()["name"].to_pylist()) == ["a", "b", "c"]


def anonymous_bytes() -> int:
    """Private memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("RssAnon:")]
    return int(line.split()[1]) << 10


def test_large_objects_take_little_memory_of_the_process(
    make_node: Callable[..., Node], folder: Path
) -> None:
    if farrow._native.bridge_series() is None:
        pytest.skip("no pool for this pyarrow")
    client = farrow.connect(make_node("--memory", "512MiB").socket)
    pool = client.memory_pool()
    columns = {str(n): pa.array(np.zeros(MIB), memory_pool=pool) for n in range(16)}
    client.put(pa.table(columns), "table")
    client.put(bytes(1), "warm")
    del columns
    backup.create(client, folder, ["warm"])
    before, most = anonymous_bytes(), 0

    def look(done: int, total: int) -> None:
        nonlocal most
        most = max(most, anonymous_bytes())

    backup.create(client, folder, progress=look)
    client.delete("table")
    backup.restore(client, folder, existing="replace", progress=look)
    look(0, 0)
    table = client.get("table")
    assert table.nbytes == 128 * MIB
    assert all(part["in_region"] for part in client.locate(table))
    assert most - before < 64 * MIB


def test_spilled_objects_are_saved(make_node: Callable[..., Node], folder: Path) -> None:
    node = make_node("--memory", "64MiB", "--spill", str(folder.parent / "spill"))
    client = farrow.connect(node.socket)
    for number in range(5):
        client.put(bytes([number]) * 20 * MIB, f"o{number}", metadata={"n": str(number)}, wait=30)
    assert any(client.list()["spilled"].to_pylist())
    backup.create(client, folder)
    for number in range(5):
        client.delete(f"o{number}")
    backup.restore(client, folder)
    for number in range(5):
        assert client.get(f"o{number}", timeout=30).to_pybytes() == bytes([number]) * 20 * MIB
        assert client.metadata(f"o{number}") == {"n": str(number)}
