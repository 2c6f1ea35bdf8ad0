"""The UI's strings in each language, and which language and theme a browser gets. It knows no screen."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "strings"
LANGUAGES: Final = {"en": "English", "ko": "한국어"}
"""Each with its name in itself."""
THEMES: Final = ("system", "light", "dark")
LANGUAGE_COOKIE: Final = "dosirak_language"
THEME_COOKIE: Final = "dosirak_theme"


@cache
def strings(language: str) -> Mapping[str, str]:
    """Returns every string of a language by its key. A string has places as `{name}`."""
    found: dict[str, str] = json.loads((FOLDER / f"{language}.json").read_text(encoding="utf-8"))
    return found


def filled(language: str, key: str, values: Mapping[str, str]) -> str:
    """Returns the string with `values` in its places; a place without a value shows nothing."""
    return re.sub(r"\{(\w+)\}", lambda place: values.get(place[1], ""), strings(language)[key])


def chosen_language(cookies: Mapping[str, str], accepted: str) -> str:
    """Returns the language that the visitor chose, else the first of `Accept-Language` that the UI has, else English.

    >>> chosen_language({}, "fr, ko-KR;q=0.8, en;q=0.5"), chosen_language({"dosirak_language": "ko"}, "en")
    ('ko', 'ko')
    """
    kept = cookies.get(LANGUAGE_COOKIE, "")
    if kept in LANGUAGES:
        return kept
    ranked = sorted(map(_ranked, accepted.split(",")), reverse=True, key=lambda entry: entry[0])
    return next((tag for quality, tag in ranked if quality > 0 and tag in LANGUAGES), "en")


def chosen_theme(cookies: Mapping[str, str]) -> str:
    """Returns the theme that the visitor chose; `system` follows the device."""
    kept = cookies.get(THEME_COOKIE, "")
    return kept if kept in THEMES else "system"


def _ranked(entry: str) -> tuple[float, str]:
    tag, _, quality = entry.partition(";q=")
    try:
        return float(quality) if quality else 1.0, tag.strip().lower().partition("-")[0]
    except ValueError:
        return 0.0, ""
