"""The n-gram proposer guesses draft tokens: the tokens that followed when a sequence's last tokens occurred before.

The last three tokens decide; where those three are new, the last two.

It knows the token ids of one sequence only: no steps, costs or models. The model verifies every draft. So drafts change
how many tokens a step gives, never which tokens. Source of the idea: A. Saxena, Prompt Lookup Decoding, 2023. The copy
may run into itself, as in LZ77: a repeated "ab" goes on as "ababab".

token_ids    .. x y z p q r .. .. x y z |
                      ^ source          ^ the next token is guessed to be p, then q, then r
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as SequenceOf
from typing import Final

NGRAMS: Final = (3, 2)
"""Lengths of n-grams, the surest first."""
MAX_DRAFT_TOKENS: Final = 7
"""A step verifies at most 8 rows of a sequence."""
TABLE_ENTRIES: Final = 1 << 13
_MASK: Final = TABLE_ENTRIES - 1
_RATE: Final = 0.2


class NgramProposer:
    """An index of one sequence's n-grams, built token by token: constant time per token, 64 KiB at any length.

    A table for each length forgets: it keeps the latest place of each hash. A place counts only if the tokens there are
    the same.
    """

    __slots__ = ("_kind", "_rates", "_seen", "_source", "_tables")

    def __init__(self) -> None:
        self._tables = [array("i", bytes(4 * TABLE_ENTRIES)) for _ in NGRAMS]  # positions after an n-gram; 0: none
        self._rates = [_RATE] * len(NGRAMS)
        self._kind = 0  # which of NGRAMS found the guess
        self._seen = 0
        self._source = 0  # the position of the guess for the next token; 0: no guess

    @property
    def acceptance(self) -> float:
        """Share of guesses that were right, of those by n-grams of the length that found the present guess; recent ones
        count most. Guesses that no step verified count too. The share starts low, because text that only seems to
        repeat shows that with its first guess."""
        return self._rates[self._kind]

    def follow(self, token_ids: SequenceOf[int]) -> bool:
        """Takes in the tokens since the last call; `token_ids` only grows. Returns whether there is a guess now."""
        end = len(token_ids)
        if self._source:
            self._judge(token_ids, end)
        for kind, (length, table) in enumerate(zip(NGRAMS, self._tables, strict=True)):
            earlier = 0
            for position in range(max(self._seen, length, end - TABLE_ENTRIES), end + 1):
                key = hash(tuple(token_ids[position - length : position])) & _MASK
                earlier = table[key]
                table[key] = position
            if not self._source and earlier and token_ids[earlier - length : earlier] == token_ids[end - length :]:
                self._source, self._kind = earlier, kind
        self._seen = end + 1
        return self._source > 0

    def draft(self, token_ids: SequenceOf[int], count: int) -> tuple[int, ...]:
        """Returns the next `count` tokens by the guess that `follow` has just found."""
        source, end = self._source, len(token_ids)
        copied = list(token_ids[source : source + count])
        while len(copied) < count:
            copied.append(copied[source + len(copied) - end])
        return tuple(copied)

    def _judge(self, token_ids: SequenceOf[int], end: int) -> None:
        """Compares the guess with the new tokens. The guess goes on as long as it is right."""
        for position in range(self._seen - 1, end):
            hit = token_ids[self._source] == token_ids[position]
            self._rates[self._kind] += _RATE * (hit - self.acceptance)
            if not hit:
                self._source = 0
                return
            self._source += 1
