"""The screens of the UI: their addresses under `/ui`, their scripts, and the menu. This module knows no request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Screen:
    """`name` is that of the script and of the string that makes the heading; `menu` the entry that is current."""

    path: str
    name: str
    menu: str = ""


_MODEL: Final = "/models/{model}"
SCREENS: Final = (
    Screen("/models", "models", "models"),
    Screen(_MODEL, "model", "models"),
    Screen(_MODEL + "/versions/{version}", "version", "models"),
    Screen(_MODEL + "/compare", "compare", "models"),
    Screen(_MODEL + "/aliases/{alias}", "alias", "models"),
    Screen(_MODEL + "/aliases/{alias}/rollout", "rollout", "models"),
    Screen("/playground", "playground", "playground"),
    Screen("/side-by-side", "side-by-side", "playground"),
    Screen("/sessions", "sessions", "sessions"),
    Screen("/sessions/{session}", "session", "sessions"),
    Screen("/live", "live", "live"),
    Screen("/jobs", "jobs", "jobs"),
    Screen("/keys", "keys", "keys"),
    Screen("/audit", "audit", "keys"),
)
MENU: Final = ("models", "playground", "sessions", "live", "jobs", "keys")
"""Each is a screen without a place in its address, and the string of its entry."""
START: Final = "models"
MISSING: Final = Screen("", "missing")
"""Shown at an address that no screen has."""
