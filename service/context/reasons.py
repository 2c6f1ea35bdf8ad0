"""Reasons say of each message of a chat what became of it, and in one sentence why, by the numbers that decided it.
They know the decisions and the budget; they make none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from service.context.budget import Budget
from service.context.policies import is_opening
from service.context.retrieval import Verdict
from service.context.trimming import Trimmed
from service.text.messages import Document
from service.text.tokenizer import Tokenizer

State = Literal["kept", "dropped", "summarised", "recalled"]


@dataclass(frozen=True)
class Reasons:
    """`names` are the messages' names; the first `systems` messages are system messages. `left_out` are the positions
    of messages that the template did not write. `shortened` is the position of the message whose middle is left out.
    `has_summaries`: a summary of some part of the chat was known."""

    budget: Budget
    trimmed: Trimmed
    names: Sequence[str]
    systems: int
    left_out: frozenset[int] = frozenset()
    shortened: int | None = None
    has_summaries: bool = False

    def of(self, at: int) -> tuple[State, str]:
        """Returns the state and the reason of the message at this position."""
        if at in self.left_out:
            state: State = "summarised" if at < self.trimmed.summarised else "dropped"
            return state, "the chat template leaves this message out"
        if at in self._recalled:
            return "recalled", self._why_recalled(at)
        if at in self._sent:
            return "kept", self._kept(at)
        if at < self.trimmed.summarised:
            return "summarised", f"in the summary of what was said before {self.names[self.trimmed.summarised]}"
        return "dropped", self._dropped(at)

    def _kept(self, at: int) -> str:
        used, limit, policy = self.trimmed.encoded.count, self.budget.limit, self.budget.options.chosen
        if at == len(self.names) - 1 and at != self.shortened:
            return "the current message is always sent"
        if at < self.systems:
            return "system messages are always kept"
        if at == self.shortened:
            return f"the last turn is always kept, but {self.trimmed.shortened} tokens of its middle do not fit {limit}"
        if not self.trimmed.turns:
            return f"policy {policy} leaves nothing out: {used} tokens fit {limit}"
        turn = self._turn(at)
        if turn == len(self.trimmed.turns) - 1:
            return "the last turn is always kept"
        if self.trimmed.turns[turn].pinned:
            return "pinned" if self.names[at] in self.budget.options.pin else "in a turn with a pinned message"
        if self.trimmed.cut is None:
            return f"the whole chat fits: {used} of {limit} tokens"
        if is_opening(policy, turn):
            return "policy middle always keeps the first turn"
        return f"one of the newest turns, which fit: {used} of {limit} tokens are used"

    def _dropped(self, at: int) -> str:
        turn, policy = self._turn(at), self.budget.options.chosen
        if policy == "retrieve" and turn in self._verdicts:
            return _not_recalled(self._verdicts[turn])
        if policy == "summarise":
            aside = f"no known summary covers it within {self.budget.aside} tokens"
            return f"{self._why_cut(turn)}; {aside if self.has_summaries else 'no summary was ready'}"
        return self._why_cut(turn)

    def _why_cut(self, turn: int) -> str:
        trimmed, name = self.trimmed, self._name_of_turn
        if turn < trimmed.start:
            return f"before {name(trimmed.start)}, at which the session was cut in an earlier turn"
        if turn >= trimmed.counted_cut:
            return f"over the budget: as the template writes the turns, they do not fit {self.budget.limit} tokens"
        move = next(move for move in trimmed.cuts if move.cut > turn)
        which = "" if move.turn == len(trimmed.turns) - 1 else f" at {name(move.turn)}"
        return (
            f"over the budget{which}: {move.tokens} tokens of turns do not fit {move.room}, "
            f"so the cut goes down to {max(0, move.mark)}"
        )

    def _why_recalled(self, at: int) -> str:
        verdict, others = self._verdicts[self._turn(at)], len(self._verdicts)
        return f"matches the question: score {verdict.score:.2f}, number {verdict.rank} of {others} older turns"

    @cached_property
    def _verdicts(self) -> dict[int, Verdict]:
        recall = self.trimmed.recall
        return {verdict.turn: verdict for verdict in recall.verdicts()} if recall else {}

    @cached_property
    def _sent(self) -> frozenset[int]:
        return self.trimmed.sent

    @cached_property
    def _recalled(self) -> frozenset[int]:
        return frozenset(self.trimmed.recalled)

    @cached_property
    def _firsts(self) -> list[int]:
        return [self.systems + turn.first for turn in self.trimmed.turns]

    def _turn(self, at: int) -> int:
        return bisect_right(self._firsts, at) - 1

    def _name_of_turn(self, turn: int) -> str:
        return self.names[self._firsts[turn]]


def _not_recalled(verdict: Verdict) -> str:
    if verdict.matches:
        return (
            f"matches the question, but the {verdict.tokens} tokens of its turn do not fit the {verdict.room} that are "
            "left for turns that come back"
        )
    return f"matches the question too little: score {verdict.score:.2f}, more than {verdict.enough:.2f} is needed"


def document_reason(tokenizer: Tokenizer, budget: Budget, document: Document, part: Document | None) -> str:
    """Returns why of a document this `part` was sent: it all, some paragraphs, or None."""
    limit, is_matched = f"the documents' budget of {budget.documents} tokens", budget.options.chosen == "retrieve"
    if part is None:
        others = "paragraphs that match the question better" if is_matched else "documents of higher rank"
        return f"over {limit}, in which {others} come first"
    if part.text == document.text:
        return f"fits {limit}"
    which = "the paragraphs that match the question best" if is_matched else "its beginning"
    sent, whole = tokenizer.text_tokens(part.text), tokenizer.text_tokens(document.text)
    return f"{which}, {sent} of its {whole} tokens, within {limit}"
