"""This module leaves out the middle of one overlong text, and marks it. It knows a tokenizer; no chat and no budget."""

from __future__ import annotations

from typing import Final

from service.text.tokenizer import Tokenizer

MARK: Final = "\n[… {count} tokens left out …]\n"


def without_middle(tokenizer: Tokenizer, text: str, tokens: int) -> tuple[str, int]:
    """Returns `text` without about `tokens` of the tokens in its middle, and how many were left out. Both ends are
    equally long, and consist of whole characters."""
    pieces = tokenizer.encode_with_offsets(text, add_special_tokens=False)
    kept = max(0, len(pieces) - tokens)
    head, tail = (kept + 1) // 2, kept // 2
    first = pieces[head - 1][3] if head else 0
    last = pieces[len(pieces) - tail][2] if tail else len(text)
    left_out = len(pieces) - kept
    return f"{text[:first]}{MARK.format(count=left_out)}{text[max(first, last) :]}", left_out
