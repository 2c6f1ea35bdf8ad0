"""Durations as Go writes them, in which Ollama's clients send them: `300`, `"5m"`, `"1h30m"`, `"-1s"`."""

from __future__ import annotations

import math
import re
from typing import Final

from pydantic_core import PydanticCustomError

UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(rf"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)({'|'.join(UNITS)})")
_LONGEST_TEXT: Final = 64
_TEXT: Final = "must be seconds, or a duration such as 5m, 1h30m or 500ms; negative: for ever"


def seconds_of(value: object) -> float:
    """Returns the seconds of a JSON number or of a text; infinity for a negative duration.

    >>> seconds_of("1h30m"), seconds_of(300), seconds_of("-1s"), seconds_of("0")
    (5400.0, 300.0, inf, 0.0)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        seconds = _parsed(value)
    else:
        raise PydanticCustomError("wrong_field", "{text}", {"text": _TEXT})
    return math.inf if seconds < 0 else seconds


def _parsed(text: str) -> float:
    magnitude = text[1:] if text[:1] in ("-", "+") else text
    parts = _PART.findall(magnitude)
    if magnitude != "0" and (not parts or "".join(map("".join, parts)) != magnitude):
        raise PydanticCustomError("wrong_field", "{text}", {"text": _TEXT})
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    return -seconds if text.startswith("-") else seconds
