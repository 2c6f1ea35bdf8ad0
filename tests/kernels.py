"""The native kernels that can run here, and how a test chooses among them and torch operations."""

from __future__ import annotations

import pytest

from service.runner.native.build import LEVELS
from service.runner.native.library import Library, library, open_library

TORCH = "torch"


library()  # torch's OpenMP first
LIBRARIES = {level: opened for level in LEVELS if isinstance(opened := open_library(level), Library)}
"""By instruction set, those that are built and that this processor runs."""

KERNELS = (*LIBRARIES, TORCH)


def use(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end of the test the engine has these kernels: an instruction set, or "torch" for none."""
    chosen = LIBRARIES.get(kernels, "switched off by the test")
    monkeypatch.setattr("service.runner.native.library.load", lambda: chosen)
