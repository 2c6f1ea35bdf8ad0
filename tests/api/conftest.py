"""One repository for all tests of this folder, published once; every test has its own app, engine and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from models.repository.repository import Repository
from service.observability.logs import configure_logging
from service.settings import Settings
from tests.fake_service import World, publish, serving
from tests.migrated import begin_with_copies

configure_logging(Settings(log_format="json"))
begin_with_copies()
KEY = "correct horse battery staple"
Serve = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream's headers wait for its first token or its error, also on a busy machine; see test_keep_alive."""
    monkeypatch.setattr("service.api.answering.streaming.HEADERS_SECONDS", 60.0)


@pytest.fixture(scope="session")
def repository_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("repository")
    publish(Repository(directory))
    return directory


@pytest.fixture
def serve(repository_directory: Path) -> Iterator[Serve]:
    """`serve(engine={...}, setting=...)`: see `tests.fake_service.serving`. A key that a test leaves would close the
    servers of all later tests."""
    yield partial(serving, repository_directory)
    for document in (repository_directory / "keys").rglob("*"):
        assert document.is_dir() or "key_" not in document.read_text(), document


@pytest.fixture
async def world(serve: Serve) -> AsyncIterator[World]:
    async with serve() as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(repository_directory: Path) -> AsyncIterator[World]:
    """One server for many tests of a module: none of them may leave a trace in it."""
    async with serving(repository_directory) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(repository_directory: Path) -> AsyncIterator[World]:
    """As `shared`, with an admin key."""
    async with serving(repository_directory, admin_key=KEY) as served:
        yield served
