"""Damaged backups are refused, and a kill, a full disk or a full node costs nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import farrow
from backup_cases import MIB, TABLE, files_of, put_all
from conftest import LIMIT_SECONDS, run_python, wait_until
from farrow import backup
from farrow.backup import _manifest, _restore
from farrow.backup._place import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Node

pytest_plugins = ["backup_cases"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_damage_of_any_file_is_refused_before_anything_is_restored(
    client: farrow.Client, make_node: Callable[..., Node], folder: Path, tmp_path: Path
) -> None:
    put_all(client)
    backup.create(client, folder)
    other = farrow.connect(make_node().socket)
    for path in files_of(folder):
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        damaged = copy / path.relative_to(folder)
        size = damaged.stat().st_size
        if size:
            flip(damaged)
            with pytest.raises(farrow.DamagedFile) as caught:
                backup.restore(other, copy)
            assert str(damaged) in str(caught.value)
            assert damaged == Path(caught.value.path)
            assert "expected" in str(caught.value) or "manifest" in str(caught.value)
        with damaged.open("ab") as file:
            file.truncate(size + 1)
        with pytest.raises(farrow.DamagedFile, match=r"expected|manifest"):
            backup.verify(copy)
        damaged.unlink()
        missing = farrow.NotFound if damaged.name == "manifest.json" else farrow.DamagedFile
        with pytest.raises(missing, match="no such file"):
            backup.restore(other, copy)
        assert len(other) == 0
        shutil.rmtree(copy)
    files = [path for path in files_of(folder) if path.stat().st_size and path.suffix != ".json"]
    flip(files[0])
    flip(files[1])
    with pytest.raises(farrow.DamagedFile, match="and 1 other damaged"):
        backup.verify(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, "version 9, this Farrow reads version 1"),
        ({"format": "other"}, "no manifest of a backup of Farrow"),
        ({"objects": [{}]}, "KeyError"),
        ({"objects": 5}, "not of type list"),
        ({"id": "../.."}, "the id"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(
    client: farrow.Client, folder: Path, change: dict[str, Any], message: str
) -> None:
    client.put(b"1", "one")
    backup.create(client, folder)
    path = folder / "manifest.json"
    body = {**json.loads(path.read_text()), **change}
    del body["sha256"]
    body["sha256"] = _manifest._sum_of(body)
    path.write_text(json.dumps(body))
    with pytest.raises(farrow.DamagedFile, match=message):
        backup.verify(folder)
    # It may be somebody's: it is not replaced.
    with pytest.raises(farrow.DamagedFile, match=message):
        backup.create(client, folder)
    assert json.loads(path.read_text()) == body


def test_a_manifest_leads_to_no_file_outside(client: farrow.Client, folder: Path) -> None:
    client.put(b"1", "one")
    backup.create(client, folder)
    path = folder / "manifest.json"
    body = json.loads(path.read_text())
    body.pop("sha256")
    body["objects"][0]["file"]["path"] = "data/../../secret.bin"
    body["sha256"] = _manifest._sum_of(body)
    path.write_text(json.dumps(body))
    with pytest.raises(farrow.DamagedFile, match="secret"):
        backup.restore(client, folder, existing="replace")


# Saves objects without an end, until it is killed.
BACKUPS = """
import sys
import farrow
from farrow import backup
client = farrow.connect(sys.argv[1])
while True:
    backup.create(client, sys.argv[2])
"""


def test_a_kill_at_any_moment_leaves_a_whole_backup(node: Node, folder: Path) -> None:
    """Backups run one after the other and are killed.  After each kill one of them is whole."""
    client = farrow.connect(node.socket)
    for number in range(20):
        client.put(bytes([number]) * MIB, f"object {number:02}")
    first = backup.create(client, folder)
    seen = {first.id}
    for kill in range(8):
        process = subprocess.Popen([sys.executable, "-c", BACKUPS, node.socket, str(folder)])
        try:
            before = set(os.listdir(folder / "data"))

            def has_begun(before: set[str] = before, process: Any = process) -> bool:
                assert process.poll() is None
                return bool(set(os.listdir(folder / "data")) - before)

            wait_until(has_begun, "data of the next backup")
            time.sleep(0.005 * kill)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(LIMIT_SECONDS)
        manifest = backup.verify(folder)
        assert len(manifest.objects) == 20
        seen.add(manifest.id)
    # The next one removes what the killed ones left.
    last = backup.create(client, folder)
    assert os.listdir(folder / "data") == [last.id]
    backup.restore(client, folder, existing="replace")
    for number in range(20):
        assert client.get(f"object {number:02}").to_pybytes() == bytes([number]) * MIB


def test_a_failed_backup_leaves_the_former_one(client: farrow.Client, folder: Path) -> None:
    client.put(b"1", "one")
    first = backup.create(client, folder)

    def fail(done: int, total: int) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        backup.create(client, folder, progress=fail)
    assert backup.verify(folder).id == first.id
    assert os.listdir(folder / "data") == [first.id]


def test_an_interrupt_behind_the_new_manifest_costs_no_backup(
    client: farrow.Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression test: the user pressed Ctrl-C while a slow disk confirmed the new manifest.  The
    data of the new backup was removed, though its manifest counted already: nothing could be
    restored."""
    client.put(b"1", "one")
    backup.create(client, folder)
    client.put(b"2", "two")
    replace = Place.replace

    def interrupted(place: Place, path: str, data: bytes) -> None:
        replace(place, path, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Place, "replace", interrupted)
        backup.create(client, folder)
    assert [entry.name for entry in backup.verify(folder).objects] == ["one", "two"]
    client.delete(["one", "two"])
    backup.restore(client, folder)
    assert client.get("two").to_pybytes() == b"2"
    last = backup.create(client, folder)
    assert os.listdir(folder / "data") == [last.id]


# Saves objects to a folder where no file may have more than a megabyte.
LIMITED = """
import resource, sys
import farrow
from farrow import backup
client = farrow.connect(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    backup.create(client, sys.argv[2])
except OSError as error:
    print(type(error).__name__, error.errno)
"""


def test_a_full_disk_leaves_the_former_backup(client: farrow.Client, folder: Path) -> None:
    client.put(b"1", "one")
    first = backup.create(client, folder)
    client.put(bytes(4 * MIB), "large")
    assert run_python(LIMITED, client.address, str(folder)) == f"OSError {errno.EFBIG}\n"
    assert backup.verify(folder).id == first.id
    assert os.listdir(folder / "data") == [first.id]


def test_a_full_node_restores_nothing(
    client: farrow.Client, make_node: Callable[..., Node], folder: Path
) -> None:
    for number in range(4):
        client.put(bytes(20 * MIB), f"object {number}")
    backup.create(client, folder)
    small = farrow.connect(make_node("--memory", "64MiB").socket)
    with pytest.raises(farrow.OutOfMemory, match=f"take {80 * MIB} B, and the node has") as caught:
        backup.restore(small, folder)
    assert caught.value.requested == 80 * MIB
    assert 0 < caught.value.free <= 64 * MIB
    assert len(small) == 0
    assert backup.restore(small, folder, ["object 1", "object 2"]).nbytes == 40 * MIB


def test_more_objects_than_a_node_has_places_for_are_refused(
    client: farrow.Client, make_node: Callable[..., Node], folder: Path
) -> None:
    """Those that came last took the places of the first ones, and the restore was a success."""
    client.put_many([b"1"] * 40, [f"object {number}" for number in range(40)])
    backup.create(client, folder)
    small = farrow.connect(make_node("--objects-max", "30", "--evict", "lru").socket)
    with pytest.raises(farrow.LimitReached, match="40 objects with their parts, and the node has"):
        backup.restore(small, folder)
    assert len(small) == 0


def test_objects_that_were_evicted_for_later_ones_are_named(
    client: farrow.Client,
    make_node: Callable[..., Node],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(4):
        client.put(bytes(20 * MIB), f"object {number}")
    backup.create(client, folder)
    small = farrow.connect(make_node("--memory", "64MiB", "--evict", "lru").socket)
    # As if other clients had put objects since the check.
    monkeypatch.setattr(_restore._ObjectReader, "check_room", lambda *_: None)
    with pytest.raises(backup.IncompleteRestore, match="not in the node any more") as caught:
        backup.restore(small, folder)
    assert sorted(small.list()["name"].to_pylist()) == caught.value.restored
    assert sorted(caught.value.restored + caught.value.missing) == [f"object {n}" for n in range(4)]
    assert caught.value.missing


def test_a_table_that_a_killed_restore_left_in_part_is_not_skipped(
    client: farrow.Client, folder: Path
) -> None:
    table = client.huge_table("table", TABLE.schema)
    table.append(TABLE)
    table.append(TABLE)
    backup.create(client, folder)
    assert backup.restore(client, folder, existing="skip").skipped == ["table"]
    table.drop()
    client.huge_table("table", TABLE.schema).append(TABLE)
    rows = f"exists with {len(TABLE)} rows of {2 * len(TABLE)}"
    with pytest.raises(farrow.AlreadyExists, match=rows):
        backup.restore(client, folder, existing="skip")
    backup.restore(client, folder, existing="replace")
    assert client.huge_table("table").rows == 2 * len(TABLE)


def test_an_error_in_the_middle_says_what_was_restored(
    client: farrow.Client, make_node: Callable[..., Node], folder: Path
) -> None:
    for number in range(5):
        client.put(b"1", f"object {number}")
    client.huge_table("table", TABLE.schema).append(TABLE)
    backup.create(client, folder)
    limited = farrow.connect(make_node("--client-objects", "3").socket)
    with pytest.raises(backup.IncompleteRestore, match="3 of 6 objects were restored") as caught:
        backup.restore(limited, folder)
    assert caught.value.restored == ["object 0", "object 1", "object 2"]
    assert caught.value.missing == ["object 3", "object 4", "table"]
    assert isinstance(caught.value.__cause__, farrow.QuotaExceeded)
    assert sorted(limited.list()["name"].to_pylist()) == caught.value.restored
    # A huge table is there as a whole or not at all.
    limited.delete(caught.value.restored)
    limited.put_many([b"1"] * 2)
    with pytest.raises(farrow.QuotaExceeded):
        backup.restore(limited, folder, ["table"])
    assert limited.list("table").num_rows == 0
