"""One repository for all clients: a version whose template places tools. Every test has its own server and engine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from models.repository.repository import Repository
from tests.api.conftest import Serve
from tests.fake_service import publish, serving
from tests.tools import WITH_TOOLS


@pytest.fixture(scope="session")
def repository_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("clients")
    publish(Repository(directory), window=8192, chat_template=WITH_TOOLS)
    return directory


@pytest.fixture
def serve(repository_directory: Path) -> Serve:
    """`serve(engine={...}, setting=...)`: see `tests.fake_service.serving`."""
    return partial(serving, repository_directory)
