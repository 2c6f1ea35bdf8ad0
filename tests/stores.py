"""Stores for tests: a directory, and a bucket of an S3 server in this process."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from werkzeug.serving import WSGIRequestHandler

from models.repository.opening import open_repository
from models.repository.repository import Repository
from models.repository.store.place import StorePlace
from models.repository.store.remote import Remote
from models.repository.store.shared_store import SharedStore

KINDS = ("directory", "s3")
BUCKET = "versions"


@contextmanager
def s3_server() -> Iterator[str]:
    """Gives the endpoint of an S3 server in this process, with a bucket. Its threads put one object at a time: moto
    looks whether there is one and then writes, and on busy cores two would find none."""
    import boto3
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    put, alone = S3Response.put_object, Lock()

    def put_alone(self: S3Response) -> Any:
        with alone:
            return put(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Response, "put_object", put_alone)
        patch.setattr(WSGIRequestHandler, "log_request", lambda *_: None)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        for name, value in s3_environment(endpoint).items():
            patch.setenv(name, value)
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
        try:
            yield endpoint
        finally:
            server.stop()


def s3_environment(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }


def fresh_store(kind: str, tmp_path: Path) -> str:
    """Returns the URL of a store that was just made."""
    url = f"file://{tmp_path}/store" if kind == "directory" else f"s3://{BUCKET}/{uuid.uuid4().hex}"
    SharedStore.init(url)
    return url


def instance(tmp_path: Path, name: str, url: str, cache_bytes: int = 0) -> Repository:
    return open_repository(tmp_path / name, StorePlace(url, cache_bytes))


def with_remote(repository: Repository, remote: Remote) -> None:
    """Puts another remote in place of a repository's."""
    assert repository.mirror is not None
    repository.mirror.store.remote = remote


def weights(repository: Repository, reference: str = "demo:1") -> Path:
    return repository.path(repository.resolve(reference)) / "model.safetensors"
