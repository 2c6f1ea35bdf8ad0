"""The native kernels that can run here, and how a test chooses among them and torch operations."""

from __future__ import annotations

import pytest

from service.engine.runner.native.build import preferred
from service.engine.runner.native.library import Library, library, open_library
from service.host import processor_vendor
from tests.effort import IS_THOROUGH

TORCH = "torch"


library()  # torch's OpenMP first
_ORDER = preferred(processor_vendor())
LIBRARIES = {level: opened for level in _ORDER if isinstance(opened := open_library(level), Library)}
"""By instruction set, those that are built and that this processor runs, the fastest first."""

_OF_16_LANES = [level for level in LIBRARIES if level.startswith("avx512")]
SELDOM = set() if IS_THOROUGH else set(_OF_16_LANES[1:])
"""All but their bf16 products is compiled for the other set of 16 lanes too."""
KERNELS = (*(level for level in LIBRARIES if level not in SELDOM), TORCH)
MAIN_KERNELS = KERNELS if IS_THOROUGH else tuple(dict.fromkeys((KERNELS[0], TORCH)))
"""The fastest ones, and torch operations: for tests of whole models."""


def use(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end of the test the engine has these kernels: an instruction set, or "torch" for none."""
    chosen = LIBRARIES.get(kernels, "switched off by the test")
    monkeypatch.setattr("service.engine.runner.native.library.load", lambda: chosen)
