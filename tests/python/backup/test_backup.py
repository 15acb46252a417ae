"""Backups: every kind of object comes back, damage is refused, and a kill costs nothing."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from moto.server import ThreadedMotoServer

import farrow
from conftest import LIMIT_SECONDS, run_python, wait_until
from farrow import backup
from farrow.backup import _create, _manifest, _restore
from farrow.backup._place import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Cluster, Node

MIB = 1 << 20
TABLE = pa.table(
    {
        "n": [1, 2, None],
        "text": pa.array(["a", "b", "a"]).dictionary_encode(),
        "list": [[1.5], None, []],
    },
    metadata={"unit": "metre"},
)
VALUES: dict[str, Any] = {
    "table": TABLE,
    "several chunks": pa.concat_tables([TABLE, TABLE.slice(1)]),
    "no rows": TABLE.slice(0, 0),
    "no columns": TABLE.select([]),
    "batch": TABLE.to_batches()[0],
    "array": pa.array([1, None, 3]),
    "array/of structs": pa.array([{"a": 1}, None]),
    "chunked array": pa.chunked_array([[1], [2, 3]]),
    "chunked array without chunks": pa.chunked_array([], pa.int8()),
    "numpy": np.arange(6).reshape(2, 3),
    "numpy/fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "numpy/scalar": np.array(5.5),
    "numpy/none": np.empty((0, 3), np.float32),
    "numpy/times": np.array(["2026-01-01", "NaT"], "M8[s]"),
    "numpy/records": np.array([(1, "x")], [("größe €", ">i4"), ("b", "U3")]),
    "tensor": pa.Tensor.from_numpy(np.ones((2, 2)), dim_names=["x", "y"]),
    "bytes": b"hello",
    "bytes/none": b"",
    "large": pa.table({"x": np.arange(MIB)}),
}


def same(found: Any, value: Any) -> bool:
    """Whether a value that was restored is the one that was put."""
    if isinstance(value, bytes):
        return bool(found.to_pybytes() == value)
    if isinstance(value, np.ndarray):
        alike = (found.dtype, found.shape) == (value.dtype, value.shape)
        order = found.flags.f_contiguous == value.flags.f_contiguous
        return alike and order and found.tobytes("A") == value.tobytes("A")
    if isinstance(value, pa.Tensor):
        return bool(found.equals(value)) and found.dim_names == value.dim_names
    equal = found.equals(value, check_metadata=True) if hasattr(value, "schema") else found == value
    return type(found) is type(value) and bool(equal)


def put_all(client: farrow.Client) -> None:
    for name, value in VALUES.items():
        client.put(value, name, metadata={"what": name})
    client.pin("table")
    farrow.put_object({"a": [1, np.arange(3)]}, "object", client=client)
    table = client.huge_table("huge", TABLE.schema)
    # Not in the order of the rows, and with a gap.
    for position in (3, 0, 9):
        table.append(TABLE, position=position)
    client.put(b"no name")


def check_all(client: farrow.Client) -> None:
    for name, value in VALUES.items():
        assert same(client.get(name), value), name
        assert client.metadata(name) == {"what": name}
    listed = client.list().to_pylist()
    pinned = {row["name"] for row in listed if row["pinned"] and "huge" not in row["name"]}
    assert pinned == {"table"}
    found = farrow.get_object("object", client=client)
    assert found["a"][1].tolist() == [0, 1, 2]
    table = client.huge_table("huge")
    parts = [(part.position, part.rows, part.version) for part in table.partitions()]
    assert parts == [(0, 3, 2), (3, 3, 1), (9, 3, 3)]
    assert table.table(rows=slice(0, 6)).equals(pa.concat_tables([TABLE, TABLE]))
    with pytest.raises(farrow.RowsMissing):
        table.table()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backup"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for key, value in {
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(key, value)
    yield f"{host}:{port}"
    server.stop()


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


def test_a_bucket_holds_a_backup(
    client: farrow.Client, make_node: Callable[..., Node], endpoint: str
) -> None:
    s3 = boto3.client("s3", endpoint_url=f"http://{endpoint}")
    s3.create_bucket(Bucket="backups")
    url = f"s3://backups/a/b?scheme=http&endpoint_override={endpoint}"
    put_all(client)
    backup.create(client, url)
    second = backup.create(client, url)
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket="backups")["Contents"]]
    # The data of the first one is gone, and the manifest is there.
    files = [key for key in keys if not key.endswith("/")]
    assert all(key.startswith(("a/b/manifest", f"a/b/data/{second.id}/")) for key in files)
    other = farrow.connect(make_node().socket)
    backup.restore(other, url)
    check_all(other)
    # Damage in a bucket is found as in a folder.
    key = next(key for key in files if key.endswith(".bin"))
    s3.put_object(Bucket="backups", Key=key, Body=b"other")
    with pytest.raises(farrow.DamagedFile, match="expected"):
        backup.verify(url)


def test_any_file_system_of_fsspec_holds_a_backup(client: farrow.Client) -> None:
    pytest.importorskip("fsspec")
    client.put(TABLE, "table")
    backup.create(client, "memory://backups/one")
    assert backup.verify("memory://backups/one").objects[0].name == "table"
    backup.restore(client, "memory://backups/one", existing="replace")
    assert client.get("table").equals(TABLE)
    with pytest.raises(farrow.InvalidArgument, match="nowhere://"):
        backup.create(client, "nowhere://x")


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_manifest_is_replaced_in_one_step_on_file_systems_without_that(
    client: farrow.Client, tmp_path: Path, is_killed: bool
) -> None:
    """A kill while it was written left half of it, and every later backup was refused."""
    place = Place(tmp_path)
    handler = pytest.importorskip("fsspec").filesystem("file", skip_instance_cache=True)
    place._filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(handler))
    place.is_local = False
    path = tmp_path / "manifest.json"
    path.write_bytes(b"the former one")

    def move(*_: object, **__: object) -> None:
        raise OSError("killed")

    if is_killed:
        handler.mv = move
        with pytest.raises(OSError, match="killed"):
            place.replace("manifest.json", b"another one")
        assert path.read_bytes() == b"the former one"
    else:
        place.replace("manifest.json", b"another one")
        assert path.read_bytes() == b"another one"
        assert not path.with_name(".manifest.json.new").exists()


class Store:
    """A bucket as pyarrow has it: what was written is an object when the stream ends, for whatever
    reason."""

    type_name = "s3"

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.is_interrupted = True

    @contextlib.contextmanager
    def open_output_stream(self, path: str) -> Iterator[io.BytesIO]:
        stream = io.BytesIO()
        try:
            if self.is_interrupted:
                raise KeyboardInterrupt
            yield stream
        finally:
            self.files[path] = stream.getvalue()

    def get_file_info(self, path: str) -> Any:
        return SimpleNamespace(type=pafs.FileType.File, size=len(self.files[path]))

    def move(self, source: str, target: str) -> None:
        self.files[target] = self.files.pop(source)


def test_an_interrupted_upload_leaves_the_former_manifest(tmp_path: Path) -> None:
    """Regression test: Ctrl-C while the upload of the manifest began left an empty one there:
    neither a restore nor a later backup was possible."""
    place = Place(tmp_path)
    place.is_local = False
    path = f"{tmp_path}/manifest.json"
    store = Store({path: b"the former one"})
    place._filesystem = store
    with pytest.raises(KeyboardInterrupt):
        place.replace("manifest.json", b"another one")
    assert store.files[path] == b"the former one"
    store.is_interrupted = False
    place.replace("manifest.json", b"another one")
    assert store.files == {path: b"another one"}


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


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.*") if path.is_file() and path.name != ".lock")


def test_the_files_are_for_their_owner_alone(client: farrow.Client, folder: Path) -> None:
    client.put(b"secret", "one")
    before = os.umask(0o022)
    try:
        backup.create(client, folder)
    finally:
        os.umask(before)
    assert len(files_of(folder)) > 1
    assert {path.stat().st_mode & 0o777 for path in files_of(folder)} == {0o600}


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


def test_a_full_node_restores_nothing(
    client: farrow.Client, make_node: Callable[..., Node], folder: Path
) -> None:
    for number in range(4):
        client.put(bytes(20 * MIB), f"object {number}")
    backup.create(client, folder)
    small = farrow.connect(make_node("--memory", "64MiB").socket)
    with pytest.raises(farrow.OutOfMemory, match=f"take {80 * MIB} B, and the node has") as caught:
        backup.restore(small, folder)
    assert caught.value.asked == 80 * MIB
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
    monkeypatch.setattr(_restore._Reader, "check_room", lambda *_: None)
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


def test_a_cluster_is_saved_as_a_whole_and_restored_where_it_was(
    make_cluster: Callable[..., Cluster], folder: Path
) -> None:
    cluster = make_cluster(3)
    client = cluster.client("a")
    client.put(b"at a", "one")
    client.put(b"at b", "two", node="b")
    table = client.huge_table("huge", TABLE.schema)
    for node in ("a", "b", "c"):
        table.append(TABLE, node=node)
    assert backup.create(client, folder).objects == 3
    client.delete(["one", "two"])
    table.drop()
    backup.restore(client, folder)
    listed = client.list(all_nodes=True).to_pylist()
    assert {row["name"]: row["node"] for row in listed if len(row["name"]) == 3} == {
        "one": "a",
        "two": "b",
    }
    parts = client.huge_table("huge").partitions()
    assert [part.node for part in parts] == ["a", "b", "c"]
    # The new object is on another node than the old one.
    client.delete("two")
    client.put(b"newer", "two", node="c")
    backup.restore(client, folder, ["two"], existing="replace")
    assert client.get("two").to_pybytes() == b"at b"
    cluster.nodes["b"].kill9()
    wait_until(lambda: any(node.reach == "lost" for node in client.nodes()), "the loss of node b")
    first = backup.verify(folder).id
    with pytest.raises(farrow.NodeLost, match="objects of b would be left out") as caught:
        backup.create(client, folder)
    assert caught.value.node == "b"
    assert backup.verify(folder).id == first
    created = backup.create(client, folder, partial=True)
    assert (created.objects, created.lost_nodes) == (1, ["b"])
    assert created.left_out == ["huge"]
    assert backup.verify(folder).lost_nodes == ("b",)


def test_a_node_that_was_lost_a_moment_ago_is_a_lost_node(
    make_cluster: Callable[..., Cluster], folder: Path
) -> None:
    """Regression test: until the cluster had noticed the loss, a backup left out the objects of the
    node without an error, and removed the earlier backup, the last place that had them."""
    cluster = make_cluster(2)
    client = cluster.client("a")
    client.put(b"at b", "two", node="b")
    first = backup.create(client, folder)
    del client
    cluster.nodes["b"].kill9()
    client = cluster.client("a")
    with pytest.raises(farrow.NodeLost, match="objects of b would be left out"):
        backup.create(client, folder)
    assert backup.verify(folder).id == first.id
    assert backup.create(client, folder, partial=True).lost_nodes == ["b"]


class Listed:
    """A client of two nodes: an object moves from b to a between two lists."""

    def __init__(self, client: farrow.Client, error: farrow.FarrowError | None = None) -> None:
        self._client = client
        self._error = error
        self.lists = 0

    def nodes(self) -> list[Any]:
        reach = "live" if self._error else "draining"
        states = {"a": "live", "b": reach, "c": "left"}
        return [
            SimpleNamespace(name=name, reach=reach, is_own=name == "a")
            for name, reach in states.items()
        ]

    def list(self, prefix: str, node: str) -> pa.Table:
        self.lists += 1
        if node == "b" and self._error:
            raise self._error
        # It leaves b after a was listed and before b is.
        return self._client.list(prefix if self.lists == 3 else "nothing")


def test_an_object_that_moves_while_it_is_looked_for_is_found(client: farrow.Client) -> None:
    client.put(b"1", "moved")
    moving = Listed(client)
    rows, lost = _create._listed(moving, partial=False)  # type: ignore[arg-type]
    assert ([row["name"] for row in rows], lost, moving.lists) == (["moved"], [], 4)


def test_a_node_that_refuses_the_client_is_missing(client: farrow.Client) -> None:
    refusing = Listed(client, farrow.NotGranted("b refuses"))
    with pytest.raises(farrow.NodeLost, match="objects of b would be left out: b refuses"):
        _create._listed(refusing, partial=False)  # type: ignore[arg-type]
    assert _create._listed(refusing, partial=True)[1] == ["b"]  # type: ignore[arg-type]


def farrow_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farrow.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_commands(node: Node, folder: Path) -> None:
    client = farrow.connect(node.socket)
    client.put(TABLE, "trades")
    client.put(b"1", "one")
    here = ("--socket", node.socket)
    done = farrow_command("backup", *here, str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 objects, ")
    done = farrow_command("restore", *here, "--check", str(folder), "trades")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 objects, ")
    done = farrow_command("restore", *here, str(folder))
    assert done.returncode == 1
    assert done.stderr == "farrow: 'one', 'trades' exist: replace or skip them\n"
    done = farrow_command("restore", *here, "--skip", "--json", str(folder))
    assert json.loads(done.stdout)["skipped"] == ["one", "trades"]
    client.delete("trades")
    done = farrow_command("restore", *here, "--replace", str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 objects, ")
    assert client.get("trades").equals(TABLE)
    [file] = folder.rglob("*.bin")
    file.write_bytes(b"2")
    done = farrow_command("restore", *here, "--check", str(folder))
    assert done.returncode == 1
    assert f"farrow: {file}: SHA-256 " in done.stderr
    assert "Traceback" not in done.stderr


def test_errors_of_the_system_are_one_line(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = farrow_command("backup", "--socket", node.socket, str(tmp_path / "file" / "sub"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert (tmp_path / "file").read_text() == "x"
