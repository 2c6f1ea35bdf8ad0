"""Lines are the hand-written turns of speech under `text/`; this module reads them and picks one.

A file has sections: `== key` (what is said) and `=== key` (what the shop replies). In a line `[a|b]` is either, `<x>`
is a turn of speech of `macros.txt`, `{x}` a value, and `(은/는)` a Korean particle that the sound before it decides.
It knows no kinds of fact and no dialogue.
"""

import random
import re
from functools import cache
from pathlib import Path
from typing import TypeAlias

from models.demo.lexicon import Lang

TEXT = Path(__file__).with_name("text")
FILES = (
    "customer_told",
    "customer_told_2",
    "customer_asked",
    "order",
    "combined",
    "shop",
    "shop_more",
    "talk",
    "off_topic",
    "around",
    "raw",
    "more",
    "told_more",
    "asked_more",
    "shop_asked",
    "order_more",
    "beside",
)
SHORT_PARTICLES = {"{은}": "(은/는)", "{이}": "(이/가)", "{으로}": "(으/로)", "{이랑}": "(이)랑"}
PLACES = re.compile(r"\{(\w+)\}")

Part: TypeAlias = "str | tuple[Line, ...]"
Line: TypeAlias = "tuple[Part, ...]"


def pick(rng: random.Random, key: str, lang: Lang) -> str:
    """One line of the section `key`, its alternatives drawn."""
    return drawn(rng, rng.choice(section(key, lang)))


def first(key: str, lang: Lang) -> str:
    """The first line of a section, with the first of its alternatives: the usual wording."""
    return _usual(section(key, lang)[0])


def last(key: str, lang: Lang) -> str:
    """The last line of a section, with the first of its alternatives."""
    return _usual(section(key, lang)[-1])


def mostly_first(rng: random.Random, key: str, lang: Lang) -> str:
    """A line of a section of replies: the first of them two times in three."""
    return first(key, lang) if rng.random() < 2 / 3 else pick(rng, key, lang)


def section(key: str, lang: Lang) -> list[Line]:
    """The lines of `key`; a key without an aspect is what is said. Raises KeyError for a section that no file has."""
    return sections(lang)[key if "." in key else f"{key}.said"]


def places(text: str) -> list[str]:
    """The names of the values that `text` has places for."""
    return PLACES.findall(text)


@cache
def sections(lang: Lang) -> dict[str, list[Line]]:
    """Every section of a language."""
    macros = _macros(lang)
    found: dict[str, list[Line]] = {}
    for name in FILES:
        for key, text in _entries(TEXT / lang / f"{name}.txt"):
            found.setdefault(key, []).append(_parsed(_expanded(text, macros)))
    return found


def _entries(path: Path) -> list[tuple[str, str]]:
    """The lines of a file, each with the key of its section; a section of talk is `key.said` or `key.reply`."""
    entries, key = [], ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("=="):
            mark, key = line.split(" ", 1)
            if "." not in key:
                key += ".reply" if mark == "===" else ".said"
        elif line and not line.startswith("#"):
            entries.append((key, line))
    return entries


def _macros(lang: Lang) -> dict[str, str]:
    lines = (TEXT / lang / "macros.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" = ", 1) for line in lines if " = " in line and not line.startswith("#"))


def _expanded(text: str, macros: dict[str, str]) -> str:
    for short, particle in SHORT_PARTICLES.items():
        text = text.replace(short, particle)
    while found := re.search(r"<([^<>]+)>", text):
        text = text.replace(found.group(), f"[{macros[found.group(1)]}]")
    return text


def _parsed(text: str) -> Line:
    line, rest = _sequence(text, 0)
    if rest != len(text):
        raise ValueError(f"a bracket is closed that was not opened: {text}")
    return line


def _sequence(text: str, at: int) -> tuple[Line, int]:
    """The parts of `text` from `at` to the end of their alternative, and where that is."""
    parts: list[Part] = []
    while at < len(text) and text[at] not in "|]":
        if text[at] == "[":
            options, at = _alternatives(text, at + 1)
            parts.append(options)
        else:
            end = next((end for end in range(at, len(text)) if text[end] in "[|]"), len(text))
            parts.append(text[at:end])
            at = end
    return tuple(parts), at


def _alternatives(text: str, at: int) -> tuple[tuple[Line, ...], int]:
    options = []
    while True:
        option, at = _sequence(text, at)
        options.append(option)
        if at == len(text):
            raise ValueError(f"a bracket is not closed: {text}")
        if text[at] == "]":
            return tuple(options), at + 1
        at += 1


def drawn(rng: random.Random, line: Line) -> str:
    """The line with one of its alternatives at each place."""
    return "".join(part if isinstance(part, str) else drawn(rng, rng.choice(part)) for part in line)


def _usual(line: Line) -> str:
    return "".join(part if isinstance(part, str) else _usual(part[0]) for part in line)
