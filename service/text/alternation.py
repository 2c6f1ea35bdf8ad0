"""An alternation is a regular expression of many texts, of which it matches the longest that comes next.

A flat one tries text after text at each place. Here texts with a common beginning share it, so that the texts that a
place does not begin cost nothing there:

    <pad>, <end>, <unused1>, <unused10>   ─▶   <(?:end>|pad>|unused1(?:0>|>))

It knows no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from os.path import commonprefix
from typing import Final

_MOST_LEVELS: Final = 48
"""Python's compiler of expressions calls itself at each level. Below, texts stand one beside the other."""


def longest_of(texts: Iterable[str]) -> str:
    """Returns an expression without groups that matches the longest of the texts at a place; one that matches nothing
    where there is no text. An empty text is none."""
    tails = sorted(set(texts) - {""})
    return _of(tails, 0) if tails else r"(?!)"


def _of(tails: Sequence[str], level: int) -> str:
    """`tails` are different, in order; one may be empty."""
    if level == _MOST_LEVELS:
        return _either(map(re.escape, reversed(tails)))  # of two that begin the same, the longer one comes first
    single, options = list[str](), list[str]()
    for _, group in groupby(filter(None, tails), key=lambda tail: tail[0]):
        same = list(group)
        # the texts between begin so too, for they are in order
        begun = commonprefix((same[0], same[-1]))  # noqa: RUF071 - texts, not paths
        if len(same[-1]) == 1:
            single.append(re.escape(begun))
        else:
            options.append(re.escape(begun) + _of([each[len(begun) :] for each in same], level + 1))
    if len(single) > 1:
        single = [f"[{''.join(single)}]"]
    return _either([*options, *single, *("" for tail in tails[:1] if not tail)])


def _either(options: Iterable[str]) -> str:
    found = list(options)
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"
