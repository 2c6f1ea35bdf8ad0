"""Two real servers with data directories of their own: one PostgreSQL, one store, nginx before them, which takes turns.

The first one publishes the demo model into the store; the second one has nothing but what the store and the database
give it, and the first one's measurements of this machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from loadtest.bench.running import free_port
from tests import nginx, postgres
from tests.e2e.server import ROOT, Server, end, python, starting, until_ready
from tests.nginx import Nginx
from tests.stores import fresh_store, s3_server
from tests.waiting import block_until

KEY: Final = {"Authorization": "Bearer key"}
VERSIONS: Final = ("1", "2")
START_SECONDS: Final = 400.0
"""The first one makes the demo model's second version, which takes a busy machine minutes."""
ALIAS: Final = "/v1/repository/models/demo/aliases/production"


def missing() -> str | None:
    """Why they cannot be started here, or None."""
    return nginx.missing() or postgres.missing()


@dataclass
class Instance:
    """One server after the other in one data directory, on one port."""

    directory: Path
    settings: Mapping[str, str]
    port: int = field(default_factory=free_port)
    server: Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> Server:
        assert self.server is not None
        return self.server

    def start(self) -> None:
        command, log = python("-m", "service.cli", "serve"), self.directory.with_suffix(".log")
        self.server = starting(command, self.directory, log, self.port, ROOT, **self.settings)
        until_ready(self.server, START_SECONDS)

    def end(self) -> None:
        if self.server is not None:
            end(self.server)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=KEY, timeout=60)

    def get(self, path: str) -> Any:
        with self.client() as client:
            return client.get(path).raise_for_status().json()

    def serves(self, reference: str) -> bool:
        listed = self.get("/v1/deployments")["data"]
        return any(each["model"] == reference and each["state"] == "ready" for each in listed)


@dataclass
class Pair:
    """`url` is nginx's; `store_url` the store's."""

    database: postgres.Server
    database_name: str
    store_url: str
    instances: list[Instance]
    balancer: Nginx

    @property
    def url(self) -> str:
        return self.balancer.url

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=KEY, timeout=60)

    def load_both_versions(self) -> None:
        """Has both versions of the demo model loaded at both, and production at version 2."""
        with self.client() as client:
            for version in VERSIONS:
                client.post("/v1/deployments", json={"model": f"demo:{version}"}).raise_for_status()
            move(client, "2")
        for each in self.instances:
            for version in VERSIONS:
                block_until(lambda each=each, version=version: each.serves(f"demo:{version}"), 120)  # type: ignore[misc]


def move(client: httpx.Client, version: str, **headers: str) -> httpx.Response:
    """Moves production of the demo model."""
    body = {"version": version, "override": True, "reason": "a test"}
    return client.put(ALIAS, json=body, headers=headers)


@contextmanager
def two_instances(folder: Path, store: str = "directory") -> Iterator[Pair]:
    """Yields two ready instances; `store` is of `tests.stores.KINDS`. Ends all of it at exit."""
    with ExitStack() as stack:
        if store == "s3":
            stack.enter_context(s3_server())  # its variables are the servers' too
        database = postgres.Server()
        stack.callback(database.remove)
        url, store_url = database.new_database(), fresh_store(store, folder)
        settings = {
            "DOSIRAK_DATABASE_URL": url,
            "DOSIRAK_STORE_URL": store_url,
            "DOSIRAK_ADMIN_KEY": "key",
            "DOSIRAK_THREADS": "1",
        }
        instances = [Instance(folder / name, settings) for name in ("one", "two")]
        for number, each in enumerate(instances):
            if number:
                shutil.copytree(instances[0].directory / "engine", each.directory / "engine")
            stack.callback(each.end)
            each.start()
        balancer = Nginx(folder / "balancer", instances)
        stack.callback(balancer.end)
        name = url.partition("@/")[2].partition("?")[0]
        yield Pair(database, name, store_url, instances, balancer)
