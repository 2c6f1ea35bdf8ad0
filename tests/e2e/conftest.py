"""One server for all end-to-end tests that only ask it things."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import Server, free_port, python, running


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty at first; the first server publishes the demo model into it."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def served(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`dosirak serve`, which is what `make serve` runs."""
    log = tmp_path_factory.mktemp("log") / "serve.log"
    with running(python("-m", "service.cli", "serve"), data_dir, log, free_port()) as server:
        yield server
