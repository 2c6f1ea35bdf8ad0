"""The native kernels that can run here, and how a test chooses among them and torch operations."""

from __future__ import annotations

import ctypes

import pytest

from service.runner.native.build import LEVELS, library_path
from service.runner.native.library import Library, library

TORCH = "torch"


def _runnable() -> dict[str, Library]:
    found = {}
    for level in LEVELS:
        if library_path(level).exists():
            functions = ctypes.CDLL(str(library_path(level)))
            if functions.dosirak_supported():
                found[level] = Library(level, functions)
    return found


library()  # torch's OpenMP first
LIBRARIES = _runnable()
"""By instruction set, those that are built and that this processor runs."""

KERNELS = (*LIBRARIES, TORCH)


def use(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end of the test the engine has these kernels: an instruction set, or "torch" for none."""
    chosen = LIBRARIES.get(kernels, "switched off by the test")
    monkeypatch.setattr("service.runner.native.library.load", lambda: chosen)
