"""A policy decides which turns of a chat are sent when not all fit. Policies are pure functions over turns and numbers
of tokens.

    refuse     nothing is left out
    window     system messages, pinned turns, and the newest turns
    middle     the first turn as well
    summarise  as window, with a summary of what is left out
    retrieve   as window, with the old turns that match the question

A turn is a user's message, with system messages right before it, and all that follows up to the next one: an answer,
tool calls and their results stay with it. Only whole turns are left out, so that a template that wants roles to
alternate still gets them. The last turn is always kept.

    turns      | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
    window                 ^ cut: 0, 1 and 2 are left out until 3 .. 7 and later turns do not fit any more

A cut goes down to the low-water mark, and stays where it is while room lasts: each prompt then begins as the last
call's did, and its keys and values are in the prefix cache. The cut's position follows from the turns alone, by going
through the calls that they hold from the first one: the same chat with one more turn has the same cut, for every caller
and without a memory. A turn with tools holds several calls.

What replaces old turns, a summary or turns that match, has room set aside from the first cut on, so that a cut does not
depend on it.

Where the low-water mark lies: with turns of t tokens, a budget of B and a mark of L, the server computes L·B tokens
again every (1-L)·B / t turns. That is L / (1-L) for each new token, and (1+L)/2 of the budget is history on average. A
share q of a turn's time goes into its answer, and 1 - q into its new tokens. The mark is where the history kept per
time of a turn is greatest,

    (1+L)/2 / (1 + (1-q) L / (1-L))      =>      L = (1 - sqrt(1 - q²)) / q

    q     0.50   0.70   0.80   0.90   0.95   0.98
    L     0.27   0.41   0.50   0.63   0.72   0.82

so a machine that computes prompts slowly, or a chat of long questions and short answers, cuts deeper and less often.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, Protocol, get_args

Policy = Literal["refuse", "window", "middle", "summarise", "retrieve"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
SYSTEM_ROLES: Final = ("system", "developer")
LOWEST, HIGHEST = 0.25, 0.875
USUAL_DECODE_RATIO: Final = 16.0


@dataclass(frozen=True, slots=True)
class LowWater:
    """The low-water mark as a share of the budget: `fixed`, or chosen by cost. `decode_ratio` is the time of one token
    of an answer divided by the time of one token of a prompt."""

    fixed: float | None = None
    decode_ratio: float = USUAL_DECODE_RATIO

    def share(self, question_tokens: int, answer_tokens: int) -> float:
        """Returns the mark for a chat that had so many tokens of questions and of answers in all so far."""
        if self.fixed is not None:
            return self.fixed
        answering = self.decode_ratio * answer_tokens
        q = answering / (question_tokens + answering) if answer_tokens else 0.0
        return min(HIGHEST, max(LOWEST, (1 - math.sqrt(1 - q * q)) / q if q else 0.0))


class Counts(Protocol):
    """Ascending numbers of tokens, which may be counted when they are read."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """Messages [first, last) of a chat. `tokens` is the number of their tokens; `question_tokens` is how many of them
    were there when their last answer was requested, with tool calls and results before it, and `calls` how many at each
    call before that one. A `pinned` turn is never left out."""

    first: int
    last: int
    tokens: int
    question_tokens: int
    pinned: bool = False
    calls: Counts = ()

    @property
    def answer_tokens(self) -> int:
        return max(0, self.tokens - self.question_tokens)


def turn_starts(roles: Sequence[str]) -> list[int]:
    """Returns where the turns of a chat's messages behind its first system messages begin. Messages before the first
    user message are a turn too."""
    starts = [0] if roles else []
    for at, role in enumerate(roles):
        if role == "user":
            first = at
            while first > starts[-1] + 1 and roles[first - 1] in SYSTEM_ROLES:
                first -= 1
            starts += [first] if first else []
    return starts


def turn_ranges(roles: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the first message of each turn and the one behind its last, as `turn_starts` does."""
    return list(pairwise([*turn_starts(roles), len(roles)]))


@dataclass(frozen=True, slots=True)
class Overrun:
    """A reason of a cut: with turn `turn` the turns that were sent had `tokens`, more than `room`. The cut moved until
    `mark` tokens were left or only that turn; from then on `cut` is the first of the newest turns."""

    turn: int
    tokens: int
    room: int
    mark: int
    cut: int


def cuts_of(
    policy: Policy,
    turns: Sequence[Turn],
    budget: int,
    low_water: LowWater = LowWater(),
    start: int = 0,
    aside: int = 0,
    before: tuple[int, int] | None = None,
) -> tuple[Overrun, ...]:
    """Returns the moves of the cut, none while all turns fit; the last one's `cut` is where the cut is now. Goes
    through every call that led to this one; each call has the answers before it, and not its own. `budget` is the
    tokens of all turns that are sent; `aside` of them are for what replaces old turns. `start` is a cut that was made
    before, and `before` the tokens of questions and of answers ahead of it, where `turns` do not hold all of them. The
    result may cut at the last turn although that alone does not fit."""
    cut, sent, moves = start, used(policy, turns[:start], start), list[Overrun]()
    ahead = sum(turn.question_tokens for turn in turns[:start]), sum(turn.answer_tokens for turn in turns[:start])
    questions, answers = ahead if before is None else before
    for at in range(start, len(turns)):
        turn, call = turns[at], 0
        most = turn.tokens if at == len(turns) - 1 else turn.question_tokens
        while cut < at and sent + most > (room := budget - (aside if cut else 0)):
            call = bisect_right(turn.calls, room - sent, lo=call)  # the first call that does not fit
            now = turn.calls[call] if call < len(turn.calls) else most
            needed, last, mark = sent + now, cut, int((budget - aside) * low_water.share(questions + now, answers))
            cut, sent = _moved(policy, turns, at, cut, sent, mark - now)
            if cut == last:
                break
            moves.append(Overrun(at, needed, room, mark, cut))
        questions += turn.question_tokens
        sent += turn.tokens
        answers += turn.answer_tokens
    return tuple(moves)


def _moved(policy: Policy, turns: Sequence[Turn], last: int, cut: int, sent: int, most: int) -> tuple[int, int]:
    """Returns the cut moved on until at most `most` of the `sent` tokens are left, at the latest to turn `last`, and
    what is left."""
    while cut < last and sent > most:
        sent -= 0 if turns[cut].pinned or is_opening(policy, cut) else turns[cut].tokens
        cut += 1
    return cut, sent


def kept(policy: Policy, turns: Sequence[Turn], cut: int) -> tuple[int, ...]:
    """Returns the indices of the turns that are sent with this cut."""
    return tuple(at for at, turn in enumerate(turns) if at >= cut or turn.pinned or is_opening(policy, at))


def used(policy: Policy, turns: Sequence[Turn], cut: int) -> int:
    """Returns the tokens of the turns that are sent with this cut."""
    return sum(turns[at].tokens for at in kept(policy, turns, cut))


def is_opening(policy: Policy, turn: int) -> bool:
    return policy == "middle" and turn == 0
