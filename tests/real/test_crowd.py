"""Alone or in a crowd, with drafts and without: the same tokens and bitwise the same log-probabilities, on a model that
others trained. The prompts are pieces of prose, of which some repeat themselves."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from service.engine.protocol.messages import Request, SamplingParams, StepOutput
from service.evaluation.offline import Loaded, run_all
from tests.effort import drawn
from tests.real.precisions import SERVED

pytestmark = pytest.mark.nightly
PROMPTS = drawn(60, 200)
NEW_TOKENS = 16
AT_ONCE = 12

Told = tuple[tuple[int, ...], tuple[object, ...]]


def requests(prose: list[list[int]], count: int, draw: Random) -> list[Request]:
    """Greedy, and seeded at temperature 1, in turn; every third prompt says the same piece three times."""
    found = []
    for number in range(count):
        text = draw.choice(prose)
        start, length = draw.randrange(len(text) - 20), draw.choice((1, 5, 17, 40, 90, 130))
        ids = tuple(text[start : start + length])
        ids = 3 * ids[:30] if number % 3 == 0 else ids
        params = SamplingParams(max_tokens=NEW_TOKENS, logprobs=1)
        if number % 2:
            params = SamplingParams(max_tokens=NEW_TOKENS, temperature=1.0, seed=number, logprobs=1)
        found.append(Request(str(number), ids, params, arrival=number))
    return found


def told(outputs: list[StepOutput]) -> Told:
    return (
        tuple(token for output in outputs for token in output.token_ids),
        tuple(each for output in outputs for each in output.logprobs),
    )


@pytest.mark.parametrize("precision", SERVED)
def test_no_answer_differs_in_a_crowd(loaded: Callable[[str], Loaded], prose: list[list[int]], precision: str) -> None:
    version, asked = loaded(precision), requests(prose, PROMPTS, Random(7))
    alone: dict[str, list[StepOutput]] = {}
    for request in asked:
        alone |= run_all(version.core(speculation=False), [request])
    for speculation in (False, True):
        core = version.core(speculation)
        crowd: dict[str, list[StepOutput]] = {}
        for start in range(0, len(asked), AT_ONCE):
            crowd |= run_all(core, asked[start : start + AT_ONCE])
        differ = [each.id for each in asked if told(crowd[each.id]) != told(alone[each.id])]
        assert not differ, f"{len(differ)} of {len(asked)}, drafts {speculation}"
        assert (core.stats.accepted_tokens_total > 0) is speculation, "drafts that came true"
