"""Backups in buckets and in any file system, whose manifest is replaced in one step."""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import boto3
import pyarrow.fs as pafs
import pytest
from moto.server import ThreadedMotoServer

import farrow
from backup_cases import TABLE, check_all, put_all
from farrow import backup
from farrow.backup._place import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Node


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
