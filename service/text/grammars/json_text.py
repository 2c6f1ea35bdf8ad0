"""JSON texts inside of a request's strings are read as strictly as its body is."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refused)
"""Raises ValueError for what is no JSON, for NaN and Infinity, and for a name that comes twice in an object."""
