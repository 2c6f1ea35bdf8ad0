"""The demo model as a first start leaves it, made once for all workers of a test run: each server takes a copy."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from loadtest.bench.running import free_port
from tests.e2e.server import python, running

OF_THE_FIRST: Final = ("sessions.db", "sessions.db-shm", "sessions.db-wal", "serve.lock", "prometheus_multiproc_dir")
"""What belongs to the first server alone."""


def with_demo(factory: pytest.TempPathFactory, name: str) -> Path:
    """Returns a new data directory with demo:1, demo:2, its report, and what a load measures and writes down."""
    data = factory.mktemp(name) / "data"
    subprocess.run(["cp", "-a", _shared(factory), data], check=True)  # with the links between its files
    return data


def _shared(factory: pytest.TempPathFactory) -> Path:
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the workers' own lie below it
    made, done = base / "published-demo", base / "published-demo.done"
    with (base / "published-demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():  # what a killed worker began is finished: a start goes on where the last one ended
            with running(python("-m", "service.cli", "serve"), made, base / "published-demo.log", free_port()):
                pass
            for name in OF_THE_FIRST:
                subprocess.run(["rm", "-rf", made / name], check=True)
            done.touch()
    return made
