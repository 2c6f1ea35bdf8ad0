"""A writing is how a form of calls writes arguments that are no JSON object.

    tags     <parameter=city>\\nSeoul\\n</parameter>\\n<parameter=days>\\n3\\n</parameter>\\n
    Python   city="Seoul", days=3, sure=True
    Gemma    city:<escape>Seoul<escape>,days:3

It knows no schemas: `service.text.tools.rules` makes grammars of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from keyword import kwlist
from typing import Any, Final

from service.text.arguments import written

NAME: Final = "$"
"""Stands for a name in a form's texts."""


class Style(Enum):
    TAGS = auto()
    PYTHON = auto()
    GEMMA = auto()


_PYTHON_WORDS: Final = {None: "None", True: "True", False: "False"}
_NAMES: Final[Mapping[Style, re.Pattern[str]]] = {
    Style.TAGS: re.compile(r'[^\s<>"]+(?: [^\s<>"]+)*'),
    Style.PYTHON: re.compile(rf"(?!(?:{'|'.join(kwlist)})\Z)[A-Za-z_]\w*", re.ASCII),
    Style.GEMMA: re.compile(r"[\w.-]+"),
}
_FUNCTIONS: Final[Mapping[Style, re.Pattern[str]]] = {
    Style.TAGS: re.compile(r"[\w.:-]+"),
    Style.PYTHON: re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII),
    Style.GEMMA: re.compile(r"[\w.:-]+"),
}


@dataclass(frozen=True, slots=True)
class Writing:
    """`key` is written before a value, with NAME for the argument's name, `end` behind it, `separator` between two
    arguments. `quote` stands around texts; tags have none, Python those of JSON."""

    style: Style
    key: str
    end: str = ""
    separator: str = ""
    quote: str = ""

    @property
    def key_tags(self) -> tuple[str, str, str]:
        """Returns what opens a key, what closes it, and what opens its value."""
        opening, _, behind = self.key.partition(NAME)
        closing, _, value = behind.partition("\n")
        return opening, closing, value

    @property
    def value_closing(self) -> str:
        return self.end.strip()

    def can_name(self, name: str, is_function: bool = False) -> bool:
        """Whether a function or an argument of this name is read back."""
        return bool((_FUNCTIONS if is_function else _NAMES)[self.style].fullmatch(name))

    def arguments(self, values: Mapping[str, Any]) -> str:
        """Returns the text of these arguments."""
        items = sorted(values.items()) if self.style is Style.GEMMA else values.items()
        return self.separator.join(
            f"{self.key.replace(NAME, name)}{self.value(value)}{self.end}" for name, value in items
        )

    def value(self, value: Any) -> str:
        if self.style is Style.PYTHON and isinstance(value, bool | None):
            return _PYTHON_WORDS[value]
        if isinstance(value, str) and self.style is not Style.PYTHON:
            return f"{self.quote}{value}{self.quote}"
        if self.style is Style.GEMMA and isinstance(value, dict):
            return f"{{{self.arguments(value)}}}"
        if self.style is Style.GEMMA and isinstance(value, list):
            return f"[{','.join(map(self.value, value))}]"
        return written(value)
