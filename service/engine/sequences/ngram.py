"""The n-gram proposer guesses draft tokens: the tokens that followed when a sequence's last tokens occurred before.

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

NGRAM: Final = 3
MAX_DRAFT_TOKENS: Final = 7
"""A step verifies at most 8 rows of a sequence."""
TABLE_ENTRIES: Final = 1 << 13
_MASK: Final = TABLE_ENTRIES - 1
_RATE: Final = 0.2


class NgramProposer:
    """An index of one sequence's n-grams, built token by token: constant time per token, 32 KiB at any length.

    The table forgets: it keeps the latest place of each hash. A place counts only if the tokens there are the same.
    """

    __slots__ = ("_places", "_seen", "_source", "acceptance")

    def __init__(self) -> None:
        self.acceptance = _RATE
        """Share of guesses that were right; recent ones count most. Guesses that no step verified count too. The share
        starts low, because text that only seems to repeat shows that with its first guess."""
        self._places = array("i", bytes(4 * TABLE_ENTRIES))  # the position after the n-gram; 0: none
        self._seen = 0
        self._source = 0  # the position of the guess for the next token; 0: no guess

    def follow(self, token_ids: SequenceOf[int]) -> bool:
        """Takes in the tokens since the last call; `token_ids` only grows. Returns whether there is a guess now."""
        end = len(token_ids)
        if self._source:
            self._judge(token_ids, end)
        earlier = 0
        places = self._places
        for position in range(max(self._seen, NGRAM, end - TABLE_ENTRIES), end + 1):
            key = hash((token_ids[position - 3], token_ids[position - 2], token_ids[position - 1])) & _MASK
            earlier = places[key]
            places[key] = position
        self._seen = end + 1
        if not self._source and earlier and token_ids[earlier - NGRAM : earlier] == token_ids[end - NGRAM :]:
            self._source = earlier
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
            self.acceptance += _RATE * (hit - self.acceptance)
            if not hit:
                self._source = 0
                return
            self._source += 1
