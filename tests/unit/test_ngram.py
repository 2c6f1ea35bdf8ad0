"""Drafts by ngrams: what is proposed, how it is judged, what is remembered."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.sequences.ngram import TABLE_ENTRIES, NgramProposer


def test_what_followed_before_is_proposed() -> None:
    ngrams = NgramProposer()
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4]
    assert ngrams.follow(tokens)
    assert ngrams.draft(tokens, 3) == (5, 6, 7)


def test_the_latest_place_counts() -> None:
    ngrams, tokens = NgramProposer(), [2, 3, 4, 5, 0, 2, 3, 4, 6, 0, 2, 3, 4]
    assert ngrams.follow(tokens)
    assert ngrams.draft(tokens, 2) == (6, 0)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3], [1, 2, 3, 1, 2], [1, 2, 3, 4, 5, 6, 7]])
def test_nothing_is_proposed_without_a_match(tokens: list[int]) -> None:
    assert not NgramProposer().follow(tokens)


def test_a_copy_runs_into_itself() -> None:
    ngrams, tokens = NgramProposer(), [1, 8, 9, 8, 9, 8]
    assert ngrams.follow(tokens)
    assert ngrams.draft(tokens, 5) == (9, 8, 9, 8, 9)


def test_guesses_are_judged_whether_or_not_they_were_used() -> None:
    ngrams, tokens = NgramProposer(), [*range(20), 3, 4, 5]
    ngrams.follow(tokens)
    tokens += [6, 7, 8]
    assert ngrams.follow(tokens)
    assert ngrams.acceptance == pytest.approx(1 - 0.8 * 0.8**3)
    assert ngrams.draft(tokens, 2) == (9, 10), "a guess that holds goes on"
    tokens += [99]
    assert not ngrams.follow(tokens)
    assert ngrams.acceptance == pytest.approx((1 - 0.8 * 0.8**3) * 0.8)
    before = ngrams.acceptance
    tokens += [98, 97]
    ngrams.follow(tokens)
    assert ngrams.acceptance == before, "nothing was guessed"


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 7))
def test_following_in_pieces_finds_what_an_exhaustive_search_finds(seed: int, letters: int, count: int) -> None:
    rng, ngrams, tokens = random.Random(seed), NgramProposer(), list[int]()
    for _ in range(30):
        tokens += [rng.randrange(letters) for _ in range(rng.randint(1, 5))]
        found = ngrams.follow(tokens)
        earlier = [i for i in range(3, len(tokens)) if tokens[i - 3 : i] == tokens[-3:]]
        if found:
            unrolled = tokens + list(ngrams.draft(tokens, count))
            continues = any(
                all(unrolled[start + i] == unrolled[len(tokens) + i] for i in range(count))
                for start in range(1, len(tokens))
            )
            assert continues
        else:
            assert not earlier


def test_a_long_text_is_indexed_at_its_end() -> None:
    ngrams, rng = NgramProposer(), random.Random(1)
    far = [5, 6, 7, 8]
    tokens = far + [rng.randrange(100, 1 << 20) for _ in range(2 * TABLE_ENTRIES)]
    assert not ngrams.follow(tokens + far[:3]), "more than the table holds lies between"
    assert ngrams.follow(tokens := tokens + far[:3] + [9, 10, 5, 6, 7])
    assert ngrams.draft(tokens, 2) == (9, 10)
