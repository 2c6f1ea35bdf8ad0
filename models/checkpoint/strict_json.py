"""JSON of a foreign file is read strictly: no key twice, and no more values than memory has room for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

MAX_VALUES: Final = 1_000_000
"""The tensors of the largest checkpoints are 100,000, the pieces of the largest vocabularies 300,000."""


def loads(data: bytes, constant: Callable[[str], object] | None = None) -> Any:
    """Returns what UTF-8 `data` holds; `constant` takes NaN and the infinities. Raises ValueError, whose text is the
    end of a sentence."""
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MAX_VALUES:
        raise ValueError(f"has more than {MAX_VALUES:,} values")
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=constant)
        if b"\\ud" in data.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError:
        raise ValueError("is nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    except UnicodeError:
        raise ValueError("is not UTF-8, or has half of a character") from None


def _unique(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"has the key {key[:80]!r} twice")
        result[key] = value
    return result
