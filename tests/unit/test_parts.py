"""Parts of a batch: every token once and in order, and few rows of prompt logits at once."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.protocol.messages import Request, SamplingParams, TokenLogprobs
from service.engine.runner import model_runner
from service.engine.runner.model_runner import joined, parts_of
from service.engine.sequences.batch import Batch, SampledToken, Scheduled
from service.engine.sequences.sequence import Sequence

ITEMS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30), st.booleans()), min_size=1, max_size=5)


def scheduled(length: int, computed: int, tells: bool) -> Scheduled:
    params = SamplingParams(max_tokens=1, prompt_logprobs=0 if tells else None)
    sequence = Sequence.of(Request("a", tuple(range(length)), params))
    sequence.num_computed_tokens = min(computed, length - 1)
    return Scheduled(sequence, length - sequence.num_computed_tokens)


@given(ITEMS)
def test_every_token_is_computed_once_and_in_order(drawn: list[tuple[int, int, bool]]) -> None:
    items = [scheduled(*each) for each in drawn]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_runner, "PART_ROWS", 7)
        found = parts_of(Batch(tuple(items)))
    for place, item in enumerate(items):
        pieces = [part[place] for part in found if place in part]
        assert [token for piece in pieces for token in piece.token_ids] == item.token_ids
        ends = accumulate((piece.num_tokens for piece in pieces), initial=item.sequence.num_computed_tokens)
        assert [piece.sequence.num_computed_tokens for piece in pieces] == list(ends)[:-1]
        assert [piece.samples for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    telling = [[piece for place, piece in part.items() if drawn[place][2]] for part in found]
    assert all(sum(piece.num_tokens for piece in part) <= 7 for part in telling)
    assert len(found) == max(
        1, -(-sum(item.num_tokens for item, each in zip(items, drawn, strict=True) if each[2]) // 7)
    )


def test_a_batch_without_prompt_logprobs_stays_whole() -> None:
    items = (scheduled(2000, 0, False), scheduled(5, 4, True))
    assert parts_of(Batch(items)) == [dict(enumerate(items))]


def test_what_two_pieces_gave_is_joined() -> None:
    first = SampledToken(None, prompt_logprobs=(TokenLogprobs(-1.0),))
    last = SampledToken(7, prompt_logprobs=(TokenLogprobs(-2.0),))
    assert joined(first, last) == SampledToken(7, prompt_logprobs=(TokenLogprobs(-1.0), TokenLogprobs(-2.0)))
    assert (joined(None, last), joined(first, None)) == (last, first)
