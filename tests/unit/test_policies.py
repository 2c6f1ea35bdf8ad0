"""Context policies choose turns: by hand-made numbers, for chats that grow call by call, and by what matches."""

from __future__ import annotations

import random
from typing import Any

import pytest

from service.context.policies import LowWater, Overrun, Policy, Turn, cuts_of, kept, turn_ranges, used
from service.context.retrieval import asks, ranked, scores
from service.engine.scheduling.cost import decode_ratio
from service.text.grams import terms

HALF = LowWater(0.5)


def cut_of(*chat: Any, **options: Any) -> int:
    """Where the moves of the cut end."""
    moves = cuts_of(*chat, **options)
    return moves[-1].cut if moves else int(options.get("start", 0))


def turns(*tokens: int, pinned: tuple[int, ...] = ()) -> tuple[Turn, ...]:
    return tuple(Turn(at, at + 1, count, count, at in pinned) for at, count in enumerate(tokens))


def test_a_turn_begins_with_a_users_message() -> None:
    roles = ("assistant", "user", "assistant", "tool", "assistant", "user")
    assert turn_ranges(roles) == [(0, 1), (1, 5), (5, 6)]
    assert turn_ranges(("user",)) == [(0, 1)] and turn_ranges(()) == []
    roles = ("user", "assistant", "system", "developer", "user", "user")
    assert turn_ranges(roles) == [(0, 2), (2, 5), (5, 6)], "system messages are the next turn's"


def test_a_turn_with_tools_is_gone_through_call_by_call() -> None:
    """The cut after each call is the one that the call itself had, with the calls before it."""
    calls, cuts = (4, 9, 12, 20, 21, 31), list[int]()
    mark = LowWater(0.6)
    before = turns(10, 10, 10)
    for at, tokens in enumerate(calls):
        cuts.append(cut_of("window", (*before, Turn(3, 4, tokens, tokens, False, calls[:at])), 40, mark))
    assert cuts == [0, 0, 2, 2, 2, 3], "12 leave room for one turn until 31 come"
    asked = Turn(3, 4, 32, 31, False, calls[:-1])
    assert cut_of("window", (*before, asked, *turns(8)), 40, mark) == 3
    asked = Turn(3, 4, 22, 21, False, calls[:4])
    assert cut_of("window", (*before, asked, *turns(8)), 40, mark) == 2
    assert [move.tokens for move in cuts_of("window", (*before, asked, *turns(8)), 40, mark)] == [42]


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


def test_words_of_alphabets_are_whole_and_others_are_pairs() -> None:
    assert terms("My  NAME: Ünal, 8,000원!") == ["my", "name", "ünal", "8000", "원"]
    assert terms("땅콩이에요") == ["땅콩", "콩이", "이에", "에요"]
    assert terms("땅콩이에요") == terms("땅콩이에요"), "decomposed"
    assert terms("bento를 샀다") == ["bento", "를", "샀다"] and terms("  ?! ") == []


def test_what_matches_comes_first_and_then_what_tells_most() -> None:
    texts = ["hello there", "I am allergic to boiled shrimp", "my number is 010-2233-4455", "hello again"]
    found = scores("what am I allergic to?", texts)
    assert ranked(found)[:2] == [1, 2], "a number is rarer than a greeting"
    assert [score > 0 for score in scores("allergic", texts, information_weight=0.0)] == [False, True, False, False]
    assert ranked([1.0, 2.0, 1.0]) == [1, 2, 0], "of equal ones the newest"
    assert scores("anything", []) == [] and scores("", ["", "a"]) == pytest.approx([0.0, scores("", ["", "a"])[1]])


def test_a_question_is_no_answer_to_one() -> None:
    texts = ["what is my phone number?", "my phone number? 3392.", "lovely weather"]
    plain, told = (
        scores("tell me my phone number?", texts),
        scores("tell me my phone number?", texts, [True, False, False]),
    )
    assert told[0] == plain[0] / 4 and told[1:] == plain[1:] and ranked(told)[0] == 1
    assert [asks(text) for text in texts] == [True, False, False] and asks('"뭐예요？" ')


def test_the_mark_is_where_history_per_time_of_a_turn_is_greatest() -> None:
    def kept_per_time(mark: float, q: float) -> float:
        return (1 + mark) / 2 / (1 + (1 - q) * mark / (1 - mark))

    for asked, answered, ratio in ((40, 30, 4.0), (40, 30, 1.5), (100, 60, 8.0)):
        q = ratio * answered / (asked + ratio * answered)
        mark = LowWater(None, ratio).share(asked, answered)
        assert all(kept_per_time(mark, q) >= kept_per_time(at / 1000, q) for at in range(1, 999))
    assert LowWater(None, 16).share(50, 0) == 0.25, "nothing is known of answers yet"
    assert LowWater(None, 4096).share(1, 1000) == 0.875 and LowWater(0.3).share(5, 5) == 0.3


def test_room_is_set_aside_from_the_first_cut_on() -> None:
    chat = tuple(Turn(at, at + 1, 10, 5) for at in range(12))
    assert cut_of("retrieve", chat[:10], 100, LowWater(0.5), aside=40) == 0, "all fit: nothing is set aside"
    cut = cut_of("retrieve", chat, 100, LowWater(0.5), aside=40)
    assert sum(turn.tokens for turn in chat[cut:]) <= 60


def test_how_much_longer_a_token_of_an_answer_takes() -> None:
    assert decode_ratio((0.002, 0.0001, 0.0, 0.0), 1000) == 16.0, "21, as a power of two"
    assert decode_ratio((0.0, 0.001, 0.0, 0.0), 1000) == 1.0
    assert decode_ratio((1.0, 0.0, 0.0, 0.0), 1000) == 4096.0
