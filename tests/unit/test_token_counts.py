"""Counts of a sequence's tokens, against counting anew."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from service.engine.protocol.messages import Request, SamplingParams
from service.engine.sequences.sequence import Sequence
from service.engine.sequences.token_counts import TokenCounts

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
