"""Drafts by lookup: what is proposed, how it is judged, what is remembered."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.lookup import SLOTS, Lookup


def test_what_followed_before_is_proposed() -> None:
    lookup = Lookup()
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4]
    assert lookup.follow(tokens)
    assert lookup.draft(tokens, 3) == (5, 6, 7)


def test_the_latest_place_counts() -> None:
    lookup, tokens = Lookup(), [2, 3, 4, 5, 0, 2, 3, 4, 6, 0, 2, 3, 4]
    assert lookup.follow(tokens)
    assert lookup.draft(tokens, 2) == (6, 0)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3], [1, 2, 3, 1, 2], [1, 2, 3, 4, 5, 6, 7]])
def test_nothing_is_proposed_without_a_match(tokens: list[int]) -> None:
    assert not Lookup().follow(tokens)


def test_a_copy_runs_into_itself() -> None:
    lookup, tokens = Lookup(), [1, 8, 9, 8, 9, 8]
    assert lookup.follow(tokens)
    assert lookup.draft(tokens, 5) == (9, 8, 9, 8, 9)


def test_guesses_are_judged_whether_or_not_they_were_used() -> None:
    lookup, tokens = Lookup(), [*range(20), 3, 4, 5]
    lookup.follow(tokens)
    tokens += [6, 7, 8]
    assert lookup.follow(tokens)
    assert lookup.acceptance == pytest.approx(1 - 0.8 * 0.8**3)
    assert lookup.draft(tokens, 2) == (9, 10), "a guess that holds goes on"
    tokens += [99]
    assert not lookup.follow(tokens)
    assert lookup.acceptance == pytest.approx((1 - 0.8 * 0.8**3) * 0.8)
    before = lookup.acceptance
    tokens += [98, 97]
    lookup.follow(tokens)
    assert lookup.acceptance == before, "nothing was guessed"


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 7))
def test_following_in_pieces_finds_what_an_exhaustive_search_finds(seed: int, letters: int, count: int) -> None:
    rng, lookup, tokens = random.Random(seed), Lookup(), list[int]()
    for _ in range(30):
        tokens += [rng.randrange(letters) for _ in range(rng.randint(1, 5))]
        found = lookup.follow(tokens)
        earlier = [i for i in range(3, len(tokens)) if tokens[i - 3 : i] == tokens[-3:]]
        if found:
            unrolled = tokens + list(lookup.draft(tokens, count))
            continues = any(
                all(unrolled[start + i] == unrolled[len(tokens) + i] for i in range(count))
                for start in range(1, len(tokens))
            )
            assert continues
        else:
            assert not earlier


def test_a_long_text_is_indexed_at_its_end() -> None:
    lookup, rng = Lookup(), random.Random(1)
    far = [5, 6, 7, 8]
    tokens = far + [rng.randrange(100, 1 << 20) for _ in range(2 * SLOTS)]
    assert not lookup.follow(tokens + far[:3]), "more than the table holds lies between"
    assert lookup.follow(tokens := tokens + far[:3] + [9, 10, 5, 6, 7])
    assert lookup.draft(tokens, 2) == (9, 10)
