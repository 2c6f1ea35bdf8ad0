"""Marks are texts that a model writes around a part of its answer, such as `<tool_call>`. Of a text that grows, this
module tells what may still become one."""

from __future__ import annotations


def possible(text: str, mark: str) -> int:
    """Returns how many characters at the end may belong to a mark: blanks, and the beginning of it."""
    part = next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
    head = text[: len(text) - part]
    return part + len(head) - len(head.rstrip())
