"""This module divides a decoded text among its tokens: the texts join to the whole text, however its decoder works.

    tokens   <s>   he   <0xEC>  <0x95>  <0x88>   llo
    texts    <s>   he   ""      ""      안       llo

A character's text is on the token that completes it. Each step is linear. The module knows pieces of text and bytes; no
vocabulary.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final

from service.text.streams import REPLACEMENT

NEARBY: Final = 16
"""How many characters a piece may lie behind the place where it was expected."""


def joining(whole: str, pieces: Sequence[str]) -> list[str]:
    """Returns one text for each of `pieces`, which is that piece where it stands in `whole` next. The texts join to
    `whole`; what no piece explains is in the text of the next piece that is found, and at last in the last one."""
    texts, at = list[str](), 0
    for piece in pieces:
        found = whole.find(piece, at, at + len(piece) + NEARBY) if piece else -1
        stop = at if found < 0 else found + len(piece)
        texts.append(whole[at:stop])
        at = stop
    if texts:
        texts[-1] += whole[at:]
    return texts


def with_bytes(pieces: Sequence[str], values: Sequence[int | None]) -> list[str]:
    """Returns `pieces` in which each byte token has its own text. `values` are the tokens' bytes: None for a token that
    is no byte, whose piece begins with the text of the bytes before it; -1 for a token that the decode leaves out."""
    texts, run = list(pieces), dict[int, int]()
    for at, value in enumerate([*values, None]):
        if value is not None:
            if value >= 0:
                run[at] = value
            continue
        own = _texts_of(bytes(run.values()))
        text = "".join(own)
        is_last = at == len(pieces)
        if is_last or pieces[at].startswith(text):
            for place, one in zip(run, own, strict=True):
                texts[place] = one
            if not is_last:
                texts[at] = pieces[at][len(text) :]
        run.clear()
    return texts


def _texts_of(run: bytes) -> list[str]:
    """Returns the text of each byte, as decoders with byte fallback write it: of a run that is not UTF-8, one U+FFFD
    for each byte."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return [decoder.decode(run[at : at + 1], final=at == len(run) - 1) for at in range(len(run))]
    except UnicodeDecodeError:
        return [REPLACEMENT] * len(run)
