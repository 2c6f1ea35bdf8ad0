"""A sequence keeps counts of its tokens, drafts by n-grams, and how often a draft model was right."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.protocol.messages import Request, SamplingParams
from service.engine.sequences.acceptance import Acceptance, OverallAcceptance
from service.engine.sequences.ngram import TABLE_ENTRIES, NgramProposer
from service.engine.sequences.sequence import Sequence, TokenCounts


def test_what_followed_before_is_proposed() -> None:
    ngrams = NgramProposer()
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4]
    assert ngrams.follow(tokens)
    assert ngrams.draft(tokens, 3) == (5, 6, 7)


def test_the_latest_place_counts() -> None:
    ngrams, tokens = NgramProposer(), [2, 3, 4, 5, 0, 2, 3, 4, 6, 0, 2, 3, 4]
    assert ngrams.follow(tokens)
    assert ngrams.draft(tokens, 2) == (6, 0)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3], [1, 2, 3, 1, 3], [1, 2, 3, 4, 5, 6, 7]])
def test_nothing_is_proposed_without_a_match(tokens: list[int]) -> None:
    assert not NgramProposer().follow(tokens)


def test_two_tokens_guess_where_three_are_new() -> None:
    ngrams, tokens = NgramProposer(), [1, 2, 3, 4, 9, 2, 3]
    assert ngrams.follow(tokens)
    assert ngrams.draft(tokens, 2) == (4, 9)
    tokens = [7, 2, 3, 4, 8, 2, 3, 5, 7, 2, 3]
    assert (ngrams := NgramProposer()).follow(tokens)
    assert ngrams.draft(tokens, 2) == (4, 8), "three tokens that came before are surer than two that came later"


def test_each_length_has_its_own_share_of_right_guesses() -> None:
    ngrams, tokens = NgramProposer(), [*range(20), 90, 3, 4]
    assert ngrams.follow(tokens)
    first = ngrams.acceptance
    for wrong in range(91, 95):
        tokens += [wrong, 3, 4]
        assert ngrams.follow(tokens)
    assert ngrams.acceptance < first / 2, "two tokens were wrong four times"
    tokens += [96, 7, 8, 9]
    assert ngrams.follow(tokens)
    assert ngrams.acceptance == first, "three tokens were not asked before"


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
        earlier = [i for i in range(2, len(tokens)) if tokens[i - 2 : i] == tokens[-2:]]
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


def judged(drafts: tuple[int, ...], came: list[int], times: int = 1) -> tuple[float, float]:
    overall = OverallAcceptance()
    acceptance = Acceptance(overall)
    for _ in range(times):
        acceptance.expect(drafts, 2)
        acceptance.judge([8, 9, *came])
    return acceptance.probability, overall.probability


def test_right_drafts_raise_it_and_the_first_wrong_one_lowers_it() -> None:
    start = OverallAcceptance().probability
    right, overall = judged((1, 2), [1, 2, 3])
    assert right > overall > start
    assert judged((5, 2), [1])[0] < start
    assert judged((1, 5, 3), [1, 2]) == judged((1, 5, 9, 9), [1, 2]), "what follows a wrong draft says nothing"


def test_a_sequence_that_ended_among_its_drafts_is_judged_as_far_as_it_came() -> None:
    assert judged((1, 2, 3), [1]) == judged((1,), [1])


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_it_is_a_share(rights: list[bool]) -> None:
    overall = OverallAcceptance()
    acceptance = Acceptance(overall)
    for right in rights:
        acceptance.expect((1,), 0)
        acceptance.judge([1 if right else 2])
        assert 0 < acceptance.probability < 1 and 0 < overall.probability < 1


def test_a_model_that_was_wrong_is_tried_again_after_a_while() -> None:
    overall = OverallAcceptance()
    acceptance, start = Acceptance(overall), overall.probability
    for _ in range(400):
        acceptance.expect((1,), 0)
        acceptance.judge([2])
    assert acceptance.probability < 0.01 and overall.probability < 0.01
    assert Acceptance(overall).probability == overall.probability, "a new sequence knows it"
    for _ in range(10_000):
        acceptance.judge([2])
    assert overall.probability == pytest.approx(start, rel=0.02)
    assert acceptance.probability == pytest.approx(start, rel=0.05)


TOKENS = st.lists(st.integers(0, 6), max_size=12)


def counted(counts: TokenCounts) -> dict[int, int]:
    return dict(zip(counts.token_ids, counts.output_counts, strict=True))


def expected(prompt: list[int], output: list[int]) -> dict[int, int]:
    found = Counter(output)
    return {token: found[token] for token in [*prompt, *output]}


@given(prompt=TOKENS, pieces=st.lists(TOKENS, max_size=5), drafts=TOKENS)
def test_they_follow_a_sequence_piece_by_piece(prompt: list[int], pieces: list[list[int]], drafts: list[int]) -> None:
    sequence = Sequence.of(Request("a", tuple(prompt), SamplingParams(max_tokens=99)))
    output: list[int] = []
    for piece in pieces:
        sequence.token_ids += piece
        output += piece
        assert counted(sequence.counted()) == expected(prompt, output)
    behind = sequence.counted().behind(drafts)
    assert counted(behind) == expected(prompt, output + drafts)
    assert counted(sequence.counted()) == expected(prompt, output), "drafts left no trace"


def test_a_token_is_taken_in_once() -> None:
    """Each call costs what is new: tokens that were changed behind its back are not read again."""
    sequence = Sequence.of(Request("a", (1, 2), SamplingParams(max_tokens=99)))
    counts = sequence.counted()
    sequence.token_ids[0] = 7
    sequence.token_ids.append(2)
    assert counted(sequence.counted()) == {1: 0, 2: 1}
    assert sequence.counted() is counts


def test_a_replay_and_an_encoders_decoder() -> None:
    """What an earlier engine process gave out is output; an encoder's input is not counted."""
    request = Request("a", (1, 2, 3), SamplingParams(max_tokens=99), emitted=(3, 4))
    assert counted(Sequence.of(request).counted()) == {1: 0, 2: 0, 3: 1, 4: 1}
    assert counted(Sequence.of(request, (9,), 16).counted()) == {9: 0, 3: 1, 4: 1}
