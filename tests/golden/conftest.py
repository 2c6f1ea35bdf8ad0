"""Tiny models, each saved and loaded once for all golden tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.engine.runner.native.library import library
from tests.golden.tiny import SEQ2SEQ, SPECIAL, Loaded, save_int8, save_tiny

Load = Callable[[str, str], Loaded]


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """(architecture, precision) → the loaded model; the same one at every call with the same kernels."""
    loaded: dict[tuple[str, str, bool], Loaded] = {}

    def get(name: str, precision: str) -> Loaded:
        key = (name, precision, library() is None)
        if key not in loaded:
            directory = save_tiny(name, tmp_path_factory.mktemp(name))
            if precision == "int8":
                directory = save_int8(directory, tmp_path_factory.mktemp(f"{name}-int8"))
            start = (SPECIAL["decoder_start_token_id"],) if name in SEQ2SEQ else ()
            loaded[key] = Loaded.of(directory, precision, block_size=8, decoder_start=start)
        return loaded[key]

    return get
