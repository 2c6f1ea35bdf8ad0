"""This module reads the guard file: TOML that names the rules. Every entry acts; a wrong one is refused by name.

[patterns]
email = "mask"              # phone, card, resident_number as well; "flag", "mask" or "stop"
[canaries]
action = "stop"
strings = ["…"]
[corpus]
action = "flag"
file = "sensitive.grams"    # made by `dosirak guard hash`; beside the guard file where it is no absolute path
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from service.errors import InvalidRequest
from service.generation.guard.corpus import Canaries, CanaryScanner, CorpusScanner, Grams
from service.generation.guard.patterns import CARD, PHONE, RESIDENT_NUMBER, AddressScanner, PatternScanner
from service.generation.guard.rules import Action, Rule, Scanner
from service.generation.guard.stream import Guard

Scanners = Callable[[], Scanner]
PATTERNS: Final[Mapping[str, Scanners]] = {
    "email": AddressScanner,
    "resident_number": partial(PatternScanner, RESIDENT_NUMBER),
    "phone": partial(PatternScanner, PHONE),
    "card": partial(PatternScanner, CARD),
}
SECTIONS: Final = {
    "patterns": frozenset(PATTERNS),
    "canaries": frozenset({"action", "strings"}),
    "corpus": frozenset({"action", "file"}),
}
SHORTEST_CANARY: Final = 6
_LISTED = ", ".join(Action)


def read_guard(path: Path) -> Guard:
    """Returns the guard. Raises InvalidRequest for an unreadable file, an unknown rule, or a file without rules."""
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"Guard file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"Guard file {path} is not TOML: {error}") from None
    sections = {name: _section(name, body[name]) for name in body}
    rules = _patterns(sections.get("patterns", {}))
    if "canaries" in sections:
        rules.append(_canaries(sections["canaries"]))
    if "corpus" in sections:
        rules.append(_corpus(sections["corpus"], path.parent))
    if not rules:
        raise InvalidRequest(f"Guard file {path} names no rule: add one, or unset DOSIRAK_GUARD_FILE")
    return Guard(rules)


def _section(name: str, body: object) -> Mapping[str, object]:
    if name not in SECTIONS or not isinstance(body, dict):
        _refuse(name, f"is no section of a guard file; there are {', '.join(SECTIONS)}")
    for key in body:
        if key not in SECTIONS[name]:
            _refuse(f"{name}.{key}", f"is not known; there are {', '.join(sorted(SECTIONS[name]))}")
    return body


def _patterns(section: Mapping[str, object]) -> list[tuple[Rule, Scanners]]:
    named = [name for name in PATTERNS if name in section]
    return [(Rule(name, _action(f"patterns.{name}", section[name])), PATTERNS[name]) for name in named]


def _canaries(section: Mapping[str, object]) -> tuple[Rule, Scanners]:
    strings = section.get("strings")
    if not isinstance(strings, list) or not strings:
        _refuse("canaries.strings", 'must be a list of strings, as in ["…"]')
    for number, each in enumerate(strings):
        if not isinstance(each, str) or len(each) < SHORTEST_CANARY:
            _refuse(f"canaries.strings[{number}]", f"must be a string of {SHORTEST_CANARY} characters or more")
    canaries = Canaries(strings)
    return Rule("canary", _action("canaries.action", section.get("action"))), lambda: CanaryScanner(canaries)


def _corpus(section: Mapping[str, object], directory: Path) -> tuple[Rule, Scanners]:
    file = section.get("file")
    if not isinstance(file, str):
        _refuse("corpus.file", "must be the path of a file that `dosirak guard hash` made")
    grams = Grams.read(directory / file)
    return Rule("corpus", _action("corpus.action", section.get("action"))), lambda: CorpusScanner(grams)


def _action(key: str, value: object) -> Action:
    if value not in tuple(Action):
        _refuse(key, f"must be one of {_LISTED}")
    return Action(str(value))


def _refuse(key: str, why: str) -> NoReturn:
    raise InvalidRequest(f"Guard file: `{key}` {why}")
