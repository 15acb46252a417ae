"""A bucket of S3 as the emulator moto speaks it, on a port of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import boto3
import pytest
from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Bucket:
    """A bucket of one test."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.name = name
        self.url = f"s3://{name}/spilled/here"
        self._client = boto3.client("s3", endpoint_url=endpoint)
        self._client.create_bucket(Bucket=name)

    def files(self) -> list[str]:
        """Keys of what is in it."""
        found = self._client.list_objects_v2(Bucket=self.name)
        return [file["Key"] for file in found.get("Contents", [])]

    def remove(self, key: str) -> None:
        self._client.delete_object(Bucket=self.name, Key=key)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bucket]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    # The emulator's buckets outlive it.
    name = tmp_path.name.lower().replace("_", "-")[-40:].strip("-")
    yield Bucket(endpoint, name)
    server.stop()
