"""Acceptance is the share of a draft model's guesses that were right: of one sequence, and of all of them.

It knows token ids only: no models, steps or costs.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Final

_EXPECTED: Final = 0.6  # before any draft was judged
_RATE: Final = 0.1
_OVERALL_RATE: Final = 0.025
_DRIFT: Final = 0.005  # of each step without drafts
_OVERALL_DRIFT: Final = 0.0005


class OverallAcceptance:
    """The share of right drafts among those of all sequences. A new sequence begins with it."""

    __slots__ = ("probability",)

    def __init__(self) -> None:
        self.probability = _EXPECTED

    def note(self, right: bool) -> None:
        """Counts one judged draft."""
        self.probability += _OVERALL_RATE * (right - self.probability)

    def drift(self) -> None:
        """Moves a little towards the expected share. So a draft model that was wrong is tried again after a while."""
        self.probability += _OVERALL_DRIFT * (_EXPECTED - self.probability)


class Acceptance:
    """The share of right drafts of one sequence. Recent ones count most."""

    __slots__ = ("_drafts", "_first", "_overall", "probability")

    def __init__(self, overall: OverallAcceptance) -> None:
        self.probability = overall.probability
        self._overall = overall
        self._drafts: tuple[int, ...] = ()
        self._first = 0

    def expect(self, drafts: tuple[int, ...], position: int) -> None:
        """Keeps drafts for the tokens from `position` on, to judge them when these are known."""
        self._drafts, self._first = drafts, position

    def judge(self, token_ids: SequenceOf[int]) -> None:
        """Compares the kept drafts with the sequence's tokens, up to the first wrong one. Without drafts the share
        drifts towards that of all sequences."""
        if not self._drafts:
            self.probability += _DRIFT * (self._overall.probability - self.probability)
            self._overall.drift()
            return
        came = token_ids[self._first : self._first + len(self._drafts)]
        for draft, token in zip(self._drafts, came, strict=False):
            right = draft == token
            self.probability += _RATE * (right - self.probability)
            self._overall.note(right)
            if not right:
                break
        self._drafts = ()
