"""The demo model as a first start publishes it, made once for all workers of a test run: each server takes a copy."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.server import python


def with_demo(factory: pytest.TempPathFactory, name: str) -> Path:
    """Returns a new data directory with demo:1, demo:2 and its report."""
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
        if not done.exists():  # what a killed worker began is finished: publishing goes on where it ended
            subprocess.run(python("-m", "models.starter", str(made)), check=True)
            done.touch()
    return made
