"""Retrieval: the terms of a text, the texts that match a question, and the low-water mark."""

from __future__ import annotations

from typing import Any

import pytest

from service.context.policies import LowWater, Turn, cuts_of
from service.context.retrieval import asks, ranked, scores
from service.engine.scheduling.cost import decode_ratio
from service.text.grams import terms


def cut_of(*chat: Any, **options: Any) -> int:
    """Where the moves of the cut end."""
    moves = cuts_of(*chat, **options)
    return moves[-1].cut if moves else int(options.get("start", 0))


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
