"""Texts of others, as names, reasons and refusals, are shown as they are: brackets in them are no markup, and their
control characters do not reach the terminal."""

from __future__ import annotations

import re
from typing import Any, Final

from rich.console import RenderableType
from rich.style import StyleType
from rich.table import Column, Table
from rich.text import Text

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, so that texts of models and other users do not control a terminal."""


def clean(text: str) -> str:
    """Returns the text without control characters, except new lines and tabs."""
    return _CONTROL.sub("", text)


def plain(text: str, style: StyleType = "") -> Text:
    """Returns the text for a console that reads no markup in it."""
    return Text(clean(text), style)


class Listing(Table):
    """A table whose texts may be of others. It cuts nothing off: an id or a digest that is wider than its column goes
    on in the next line."""

    def __init__(self, *headers: Column | str, **options: Any) -> None:
        columns = [Column(plain(each), overflow="fold") if isinstance(each, str) else each for each in headers]
        super().__init__(*columns, **options)

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        shown = (plain(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*shown, style=style, end_section=end_section)
