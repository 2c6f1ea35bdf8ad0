"""The context policies choose turns: by hand-made numbers, and for chats that grow call by call."""

from __future__ import annotations

import random
from typing import Any

import pytest

from service.context.policies import LowWater, Overrun, Policy, Turn, cuts_of, kept, turns_of, used

HALF = LowWater(0.5)


def cut_of(*chat: Any, **options: Any) -> int:
    """Where the moves of the cut end."""
    moves = cuts_of(*chat, **options)
    return moves[-1].cut if moves else int(options.get("start", 0))


def turns(*tokens: int, pinned: tuple[int, ...] = ()) -> tuple[Turn, ...]:
    return tuple(Turn(at, at + 1, count, count, at in pinned) for at, count in enumerate(tokens))


def test_a_turn_begins_with_a_users_message() -> None:
    roles = ("assistant", "user", "assistant", "tool", "assistant", "user")
    assert turns_of(roles, (1, 2, 4, 8, 16, 32), (False,) * 3 + (True,) + (False,) * 2) == (
        Turn(0, 1, 1, 0),
        Turn(1, 5, 30, 14, True),
        Turn(5, 6, 32, 32),
    )
    assert turns_of(("user",), (3,), (False,)) == (Turn(0, 1, 3, 3),)


def test_a_cut_says_what_it_was_for() -> None:
    chat = turns(10, 10, 11, 5, 20, pinned=(1,))
    first = Overrun(turn=2, tokens=31, room=30, mark=15, cut=2)
    assert cuts_of("window", chat[:3], 30, HALF) == (first,), "the pinned turn stays, and its tokens with it"
    assert cuts_of("window", chat, 30, HALF, aside=4) == (
        Overrun(turn=2, tokens=31, room=30, mark=13, cut=2),
        Overrun(turn=4, tokens=46, room=26, mark=13, cut=4),
    )
    assert cuts_of("window", turns(40), 30) == (), "nothing was left out"


def test_nothing_is_cut_while_all_fit() -> None:
    assert cut_of("window", turns(10, 10, 10), 30) == 0
    assert cut_of("window", turns(10, 10, 11), 30, HALF) == 2, "down to the low-water mark"
    assert cut_of("window", turns(10, 10, 11), 30, LowWater(0.9)) == 1


def test_the_last_turn_stays_though_it_does_not_fit() -> None:
    assert cut_of("window", turns(10, 99), 30) == 1
    assert kept("window", turns(10, 99), 1) == (1,)


def test_pinned_turns_and_the_first_one_stay() -> None:
    chat = turns(10, 10, 10, 10, 10, pinned=(1,))
    assert kept("window", chat, cut_of("window", chat, 40, HALF)) == (1, 4)
    assert kept("middle", chat, cut_of("middle", chat, 40, HALF)) == (0, 1, 4)
    assert used("middle", chat, 4) == 30


@pytest.mark.parametrize("policy", ["window", "middle"])
def test_a_cut_stays_while_room_lasts(policy: Policy) -> None:
    """Call by call: the cut of a chat with more turns is the same or a later one, moves only when what is sent would
    not fit, and then leaves half of the budget. A sliding window moves at nearly every call."""
    rng, budget = random.Random(3), 1000
    chat: list[Turn] = []
    moves, cut = 0, 0
    for at in range(400):
        question, answer = rng.randint(5, 40), rng.randint(5, 60)
        call = (*chat, Turn(at, at + 1, question, question))
        now = cut_of(policy, call, budget, HALF)
        assert now >= cut and used(policy, call, now) <= budget
        if now != cut:
            assert used(policy, call, cut) > budget
            assert used(policy, call, now) <= budget / 2
            assert used(policy, call, now - 1) > budget / 2
            assert cut_of(policy, call, budget, HALF, start=cut) == now, "the same from a cut that was remembered"
            moves, cut = moves + 1, now
        chat.append(Turn(at, at + 1, question + answer, question))
    assert 20 < moves < 60
