"""Whole steps of random models through kernels that stop at the first access outside of their memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.engine.runner.native import build
from tests import sanitized
from tests.kernels import LIBRARIES
from tests.sanitized import COMPILER

SECONDS = 45
ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no {COMPILER}, whose sanitizers are used"),
]


@pytest.fixture(scope="module")
def runtime() -> str:
    """The sanitizers' libraries, which a process must have before anything else."""
    found = sanitized.runtime()
    if found is None:
        pytest.skip(f"{COMPILER} has no libasan or libubsan: install them")
    build.build(COMPILER, LIBRARIES, sanitized=True)
    return found


def _run(runtime: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=sanitized.environment(runtime),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20 * SECONDS,
    )


@pytest.mark.parametrize("level", LIBRARIES)
def test_steps_stay_within_their_memory(level: str, runtime: str) -> None:
    """Every precision, keys and values of the model's type and of 8 bits, adapters, any number of threads."""
    seed = datetime.now(UTC).date().toordinal()  # another one every night
    done = _run(runtime, "-m", "tests.random_steps", level, str(seed), str(SECONDS))
    assert done.returncode == 0, f"seed {seed}\n{done.stderr[-6000:]}"
    assert "runtime error" not in done.stderr


PLANTED = """
import ctypes, sys, torch
from service.engine.runner.native.library import open_library
kernels = open_library(sys.argv[1], sanitized=True)
row, codes = torch.ones(100), torch.empty(200, dtype=torch.int32)
kernels._quantize(row.data_ptr(), 101, codes.data_ptr(), ctypes.c_float())
"""


@pytest.mark.parametrize("level", LIBRARIES)
def test_one_element_past_the_end_is_reported(level: str, runtime: str) -> None:
    """Otherwise the test above could not fail."""
    done = _run(runtime, "-c", PLANTED, level)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
