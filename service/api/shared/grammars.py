"""This module refuses fields that no dialect takes beside a grammar."""

from __future__ import annotations

from service.errors import UnsupportedField
from service.text.grammars import Grammar


def refuse_beside(grammar: Grammar | None, prefix: str = "", **fields: int | bool | None) -> None:
    """Raises UnsupportedField for fields that would change where an answer may end."""
    for name, value in fields.items():
        if grammar is not None and value:
            raise UnsupportedField(
                f"`{prefix}{name}` cannot act beside `{grammar.field}`, which says where the answer may end: remove it",
                param=f"{prefix}{name}",
            )
