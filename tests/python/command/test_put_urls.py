"""``farrow put URL``: files of web servers, buckets and file URLs."""

from __future__ import annotations

import gzip
import http.server
import os
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import farrow
from farrow.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bucket_cases import Bucket
    from conftest import Node

pytest_plugins = ["bucket_cases"]

TABLE = pa.table({"n": range(1000), "word": [str(number) for number in range(1000)]})
CSV = b"a,b\n1,2\n"


class Files(http.server.BaseHTTPRequestHandler):
    """Answers by the path of a request."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/moved.csv":
            self.send_response(302)
            self.send_header("Location", "/deep/a.csv")
            self.end_headers()
            return
        if path == "/mine.csv" and self.headers["Authorization"] != "Basic bWU6cEB3":
            self.send_error(401)
            return
        if path == "/secret.csv" and self.path.partition("?")[2] != "key=s":
            self.send_error(403)
            return
        sink = pa.BufferOutputStream()
        pq.write_table(TABLE, sink)
        bodies = {
            "/deep/a.csv": CSV,
            "/secret.csv": CSV,
            "/mine.csv": CSV,
            "/": CSV,
            "/b%20c.csv.gz": gzip.compress(CSV),
            "/cut.csv": CSV,
            "/t.parquet": sink.getvalue().to_pybytes(),
        }
        body = bodies.get(path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        if path != "/deep/a.csv":
            self.send_header("Content-Length", str(len(body) + (path == "/cut.csv")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, in which nothing may be left."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_files_of_a_web_server(node: Node, server: str, scratch: Path) -> None:
    put = ["put", "--socket", node.socket, "-q"]
    files = ("deep/a.csv", "moved.csv", "b%20c.csv.gz", "secret.csv?key=s", "t.parquet")
    assert main([*put, *(f"{server}/{file}" for file in files)]) == 0
    assert main([*put, f"{server}/", "--name", "root"]) == 0
    assert main([*put, server.replace("//", "//me:p%40w@") + "/mine.csv"]) == 0
    client = farrow.connect(node.socket)
    rows = {"a": [1], "b": [2]}
    for name in ("a", "moved", "b c", "secret", "root", "mine"):
        assert client.get(name).to_pydict() == rows, name
    assert client.get("t").equals(TABLE)
    assert main([*put, "--bytes", "--replace", f"{server}/deep/a.csv"]) == 0
    assert client.get("a").to_pybytes() == CSV
    assert list(scratch.iterdir()) == []


def test_what_does_not_arrive_is_an_error_without_secrets(
    node: Node, server: str, scratch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = server.removeprefix("http://")
    for url, message in (
        (f"{server}/none.csv", f"{server}/none.csv: 404 Not Found"),
        (f"{server}/secret.csv?key=password", f"{server}/secret.csv: 403 Forbidden"),
        (f"http://me:password@{host}/none.csv", f"{server}/none.csv: 404 Not Found"),
        (f"{server}/cut.csv", f"{server}/cut.csv: {len(CSV)} of {len(CSV) + 1} bytes arrived"),
        ("http://127.0.0.1:1/a.csv", "http://127.0.0.1:1/a.csv: [Errno 111] Connection refused"),
        (f"file://{tmp_path}/none.csv", f"file://{tmp_path}/none.csv: no such file"),
        (f"file://{tmp_path}", f"file://{tmp_path}: not a file"),
    ):
        assert main(["put", "--socket", node.socket, "-q", url]) == 1
        err = capsys.readouterr().err
        assert message in err
        assert "password" not in err
    assert len(farrow.connect(node.socket)) == 0
    assert list(scratch.iterdir()) == []


def test_a_local_file_is_read_where_it_is(node: Node, scratch: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(TABLE, path)
    assert main(["put", "--socket", node.socket, "-q", path.as_uri()]) == 0
    assert farrow.connect(node.socket).get("t").equals(TABLE)
    assert list(scratch.iterdir()) == []


def test_a_file_of_a_bucket(
    node: Node, bucket: Bucket, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    options = f"scheme=http&endpoint_override={endpoint}"
    filesystem, root = fs.FileSystem.from_uri(f"s3://{bucket.name}?{options}")
    with filesystem.open_output_stream(f"{root}/t.parquet") as file:
        pq.write_table(TABLE, file)
    put = ["put", "--socket", node.socket, "-q"]
    assert main([*put, f"s3://{bucket.name}/t.parquet?{options}"]) == 0
    assert farrow.connect(node.socket).get("t").equals(TABLE)
    capsys.readouterr()
    assert main([*put, f"s3://{bucket.name}/none.parquet?{options}"]) == 1
    assert f"s3://{bucket.name}/none.parquet: no such file" in capsys.readouterr().err
    assert list(scratch.iterdir()) == []
