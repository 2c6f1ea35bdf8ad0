"""One server for all end-to-end tests that only ask it things."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.bench.running import free_port
from tests.e2e.server import Server, python, running
from tests.published import with_demo


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the demo model, as a first start published it."""
    return with_demo(tmp_path_factory, "served")


@pytest.fixture(scope="session")
def served(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`dosirak serve`, which is what `make serve` runs."""
    log = tmp_path_factory.mktemp("log") / "serve.log"
    command = python("-m", "service.cli", "serve")
    with running(command, data_dir, log, free_port(), DOSIRAK_HEADER_SECONDS="2") as server:
        yield server
