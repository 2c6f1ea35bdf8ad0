"""This module draws a receipt as a bar of one window, with its numbers. It is pure; of a terminal it knows the width.

[tsshhhhhhhhhhhhhhhhhhhhhhhhhhcc....................rrrr]
t 12 template · s 60 system · h 900 history · c 28 current · 1,000 of 2,048 · 128 reserved · 920 free
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from service.cli.wire import Receipt

LETTERS: Final = {"summary": "m", "free": ".", "reserve": "r"}
"""Letters of the bar; every other part has its first letter."""
STYLES: Final = {
    "template": "black on white",
    "system": "white on magenta",
    "documents": "black on yellow",
    "summary": "black on cyan",
    "history": "white on blue",
    "current": "black on green",
    "free": "dim",
    "reserve": "white on red",
}
WIDEST: Final = 80
NARROWEST: Final = 16
BETWEEN: Final = " · "


def cells(counts: Sequence[int], width: int) -> list[int]:
    """Returns `width` cells shared by size; every count above zero has at least one."""
    total, rest = sum(counts), width - sum(count > 0 for count in counts)
    shares = [divmod(count * rest, total) for count in counts]
    by_rest = sorted(range(len(counts)), key=lambda at: -shares[at][1])
    more = set(by_rest[: rest - sum(whole for whole, _ in shares)])
    return [(count > 0) + shares[at][0] + (at in more) for at, count in enumerate(counts)]


def bar(receipt: Receipt, width: int) -> Text:
    """Returns a bar of exactly `width` cells with its brackets; at most a few dozen cells are useful."""
    room = {**receipt.parts, "free": max(0, receipt.free), "reserve": receipt.reserved_output}
    text = Text("[")
    for name, size in zip(room, cells(list(room.values()), width - 2), strict=True):
        text.append(_letter(name) * size, STYLES.get(name))
    return text.append("]")


def legend(receipt: Receipt) -> list[Text]:
    """Returns the numbers behind the bar, one by one."""
    parts = [
        Text.assemble((_letter(name), STYLES.get(name, "")), f" {count:,} {name}")
        for name, count in receipt.parts.items()
        if count
    ]
    numbers = [f"{receipt.used:,} of {receipt.window:,}", f"{receipt.reserved_output:,} reserved"]
    numbers += [f"{receipt.free:,} free", f"{receipt.cached_tokens:,} cached"]
    return [*parts, *map(Text, numbers)]


def picture(receipt: Receipt, width: int) -> list[Text]:
    """Returns the bar and its legend in lines of at most `width` cells, if the longest number fits that."""
    width = max(NARROWEST, width)
    return [bar(receipt, min(width, WIDEST)), *wrapped(legend(receipt), width)]


def wrapped(items: Iterable[Text], width: int) -> list[Text]:
    """Returns items in lines; no item is broken."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + len(BETWEEN) + item.cell_len <= width:
            lines[-1].append(BETWEEN).append_text(item)
        else:
            lines.append(item.copy())
    return lines


def receipt_lines(receipt: Receipt, before: Iterable[str], words: str, width: int) -> list[str]:
    """Returns what happened to the chat's messages, a line each, where not all are sent as they are."""
    lines = [left_out(receipt, before, words, width)] if receipt.dropped else []
    if receipt.summarised:
        lines.append(f"in the summary: {_messages(receipt.count('summarised'))}")
    if receipt.recalled:
        lines.append(f"back for this question: {_messages(len(receipt.recalled))}")
    return lines


def left_out(receipt: Receipt, before: Iterable[str], words: str, width: int) -> str:
    """Returns one line that says what the model did not see. `words` are the text of the last message left out; the
    messages `before` were left out already."""
    count, news = receipt.count("dropped"), len(set(receipt.dropped) - set(before))
    line = f"left out: {counted(receipt)}, up to "
    since = f", {news:,} of them from now on" if 0 < news < count else ""
    return f'{line}"{shortened(words, max(NARROWEST, width - len(line) - len(since) - 2))}"{since}'


def counted(receipt: Receipt) -> str:
    """Returns how much was left out."""
    return f"{_messages(receipt.count('dropped'))}, {receipt.dropped_tokens:,} tokens"


def mark(receipt: Receipt | None, id: str) -> str:
    """Returns what happened to one message, by its last receipt; empty where it is sent as it is."""
    if receipt is None:
        return ""
    return "left out" if id in receipt.dropped else "summarised" if id in receipt.summarised else ""


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


def shortened(text: str, width: int) -> str:
    """Returns the first words, in at most `width` cells."""
    line = " ".join(text.split())
    return line if cell_len(line) <= width else set_cell_size(line, width - 1).rstrip() + "…"


def _letter(name: str) -> str:
    return LETTERS.get(name, name[0])
