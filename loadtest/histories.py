"""A history holds the clients' knowledge of their turns and checks a session's messages against it.

The check is Jepsen's list append. Clients send every turn with an Idempotency-Key until it is answered. So each turn
must be there, once, with the answer that its client got. If a turn was answered before another one was sent, by any
client, it must stand before that one.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any


@dataclass(slots=True)
class Turn:
    text: str
    sent_at: float
    told_at: float = inf
    answer: str | None = None
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(slots=True)
class History:
    """The turns of one session, of all its clients."""

    session: str
    turns: list[Turn] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return sum(turn.answer is not None for turn in self.turns)


def differences(history: History, stored: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the reasons why the stored messages differ from the history; none if they agree."""
    found = [(message["role"], message["content"]) for message in stored]
    if [role for role, _ in found] != ["user", "assistant"] * (len(found) // 2):
        return [f"{history.session}: torn, {[role for role, _ in found][-3:]}"]
    sent = {turn.text: turn for turn in history.turns}
    order = [sent.get(text) for _, text in found[::2]]
    wrong = [f"{text!r} was never sent" for (_, text), turn in zip(found[::2], order, strict=True) if turn is None]
    there = [turn for turn in order if turn is not None]
    wrong += [f"{turn.text!r} is doubled" for turn in history.turns if sum(turn is each for each in there) > 1]
    for turn, (_, answer) in zip(order, found[1::2], strict=True):
        if turn is not None and turn.answer not in (None, answer):
            wrong.append(f"{turn.text!r} has another answer than was told")
    for turn in history.turns:
        if turn.answer is None:
            wrong.append(f"{turn.text!r} was never answered")
        elif not any(turn is each for each in there):
            wrong.append(f"{turn.text!r} was answered and is lost")
    return [f"{history.session}: {each}" for each in [*wrong, *_out_of_order(there)]]


def _out_of_order(there: Sequence[Turn]) -> list[str]:
    """Returns turns that were answered before a turn was sent that stands before them."""
    wrong, latest = [], -inf
    for turn in there:
        if turn.told_at < latest:
            wrong.append(f"{turn.text!r} is out of order")
        latest = max(latest, turn.sent_at)
    return wrong
