"""The native kernels that can run here, and how a test chooses among them and torch operations."""

from __future__ import annotations

import pytest

from service.runner.native.build import LEVELS
from service.runner.native.library import Library, library, open_library
from tests.effort import IS_THOROUGH

TORCH = "torch"


library()  # torch's OpenMP first
LIBRARIES = {level: opened for level in LEVELS if isinstance(opened := open_library(level), Library)}
"""By instruction set, those that are built and that this processor runs."""

SELDOM = {"avx512"} if not IS_THOROUGH and "avx512-bf16" in LIBRARIES else set()
"""Its source is compiled for the other sets too: that of 16 lanes with them, that of bf16 for AVX2."""
KERNELS = (*(level for level in LIBRARIES if level not in SELDOM), TORCH)
MAIN_KERNELS = KERNELS if IS_THOROUGH else tuple(dict.fromkeys((KERNELS[0], TORCH)))
"""The most capable ones, and torch operations: for tests of whole models."""


def use(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end of the test the engine has these kernels: an instruction set, or "torch" for none."""
    chosen = LIBRARIES.get(kernels, "switched off by the test")
    monkeypatch.setattr("service.runner.native.library.load", lambda: chosen)
