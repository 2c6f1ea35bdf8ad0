"""The sampler: every step against a plain rewriting or transformers' own processors, rows against themselves alone."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from service.engine.batch import SampledToken, Scheduled
from service.engine.messages import Request, SamplingParams
from service.engine.sequence import Sequence
from service.runner import filters, sampler
from service.runner.sampler import SamplerRow, draw, process, sample, token_logprobs, uniform, verified

VOCABULARY = 700
PLAIN = SamplingParams(max_tokens=9, temperature=1.0)
INF = float("inf")


def row(params: SamplingParams = PLAIN, prompt: Seq[int] = (1, 2), output: Seq[int] = ()) -> SamplerRow:
    return SamplerRow(params, [*prompt, *output], len(prompt))


def logits(rows: int, seed: int = 0, vocabulary: int = VOCABULARY) -> Tensor:
    return 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


def ids(table: Tensor, *rows: SamplerRow) -> list[int | None]:
    return [token.token_id for token in sample(table, rows)]


def kept(name: str, table: Tensor, params: SamplingParams) -> Tensor:
    """Which tokens a filter keeps, by the sampler."""
    keep = {"top_k": 0, "top_p": 1, "min_p": 2, "typical_p": 3}[name]
    return filters.FILTERS[keep][1](table, [params] * len(table))


# -- greedy -----------------------------------------------------------------------------------------------------------

GREEDY = SamplingParams(max_tokens=9)


def test_greedy_takes_the_largest_and_of_equals_the_lowest_id() -> None:
    table = torch.tensor([[0.0, 5.0, 5.0], [7.0, -1.0, 7.0], [-3.0, -4.0, -2.0]])
    assert ids(table, row(GREEDY), row(GREEDY), row(GREEDY)) == [1, 0, 2]


@pytest.mark.parametrize("params", [GREEDY, PLAIN, replace(PLAIN, repetition_penalty=1.5, top_p=0.5, logprobs=2)])
def test_rows_without_a_usable_number(params: SamplingParams) -> None:
    """They get no token; their neighbours get theirs as if alone."""
    table = logits(5)
    table[1, 3] = float("nan")
    table[2] = -INF
    table[3, 0] = INF
    rows = [row(params) for _ in range(5)]
    found = sample(table, rows)
    assert [token.token_id is None for token in found] == [False, True, True, True, False]
    assert all(token.logprobs is None for token in found[1:4])
    assert found[0] == sample(table[:1], rows[:1])[0]
    assert found[4] == sample(table[4:], rows[4:])[0]


def test_no_rows() -> None:
    assert sample(logits(0), []) == []


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-38, 9.9e-6])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature: float) -> None:
    table = logits(3)
    assert ids(table, *[row(replace(PLAIN, temperature=temperature))] * 3) == table.argmax(-1).tolist()


# -- changes of the logits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    one = row(replace(PLAIN, repetition_penalty=penalty), (4, 4, 9), (11, 4))
    table = logits(1)
    want = hf.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([one.token_ids]), table.clone())
    assert torch.equal(process(table, [one]), want)


def test_frequency_and_presence_penalties_count_the_output_only() -> None:
    table = logits(1)
    one = row(replace(PLAIN, frequency_penalty=0.5, presence_penalty=0.25), (4, 5), (7, 8, 7))
    want = table.clone()
    want[0, 7] -= 2 * 0.5 + 0.25
    want[0, 8] -= 0.5 + 0.25
    torch.testing.assert_close(process(table, [one]), want)


def test_bias_is_added_and_can_ban() -> None:
    table = torch.tensor([[3.0, 2.0, 1.0]])
    assert ids(table, row(replace(GREEDY, logit_bias=((2, 5.0),)))) == [2]
    assert ids(table, row(replace(GREEDY, logit_bias=((0, -100.0), (1, -100.0))))) == [2]


def test_stop_tokens_are_banned_until_min_tokens() -> None:
    params = replace(GREEDY, min_tokens=2, stop_token_ids=(0, 1))
    table = torch.tensor([[3.0, 2.0, 1.0]])
    assert [ids(table, row(params, output=output))[0] for output in ((), (2,), (2, 2))] == [2, 2, 0]
    everything = replace(params, stop_token_ids=(0, 1, 2))
    assert ids(table, row(everything)) == [None]


def test_logits_are_left_as_they_were() -> None:
    table = logits(2)
    before = table.clone()
    sample(table, [row(replace(PLAIN, repetition_penalty=2.0, logit_bias=((3, 9.0),), top_k=4))] * 2)
    assert torch.equal(table, before)
    assert process(table, [row()]) is table


# -- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("name", "params", "processor"),
    [
        ("top_k", replace(PLAIN, top_k=1), hf.TopKLogitsWarper(1)),
        ("top_k", replace(PLAIN, top_k=40), hf.TopKLogitsWarper(40)),
        ("top_p", replace(PLAIN, top_p=0.1), hf.TopPLogitsWarper(0.1)),
        ("top_p", replace(PLAIN, top_p=0.9), hf.TopPLogitsWarper(0.9)),
        ("min_p", replace(PLAIN, min_p=0.05), hf.MinPLogitsWarper(0.05)),
        ("typical_p", replace(PLAIN, typical_p=0.3), hf.TypicalLogitsWarper(0.3)),
        ("typical_p", replace(PLAIN, typical_p=0.95), hf.TypicalLogitsWarper(0.95)),
    ],
)
def test_filters_keep_what_transformers_keeps(
    name: str, params: SamplingParams, processor: hf.LogitsProcessor, seed: int
) -> None:
    table = logits(3, seed)
    want = torch.isfinite(processor(torch.zeros(3, 1, dtype=torch.long), table.clone()))
    assert torch.equal(kept(name, table, params), want)


def test_ties_are_kept_by_lower_id() -> None:
    table = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    assert kept("top_k", table, replace(PLAIN, top_k=2)).tolist() == [[False, True, True, False, False]]
    assert kept("top_p", table, replace(PLAIN, top_p=0.3)).tolist() == [[False, True, True, False, False]]


def test_top_p_with_more_tokens_than_candidates() -> None:
    """A flat distribution needs the full sort; a peaked one in the same batch does not, and gets the same as alone."""
    flat, peaked = torch.zeros(1, 2000), 20 * logits(1, vocabulary=2000)
    both = kept("top_p", torch.cat((flat, peaked)), replace(PLAIN, top_p=0.8))
    assert int(both[0].sum()) in (1600, 1601)
    assert torch.equal(both[1:], kept("top_p", peaked, replace(PLAIN, top_p=0.8)))


def test_top_k_of_more_than_there_are() -> None:
    assert bool(kept("top_k", logits(1, vocabulary=9), replace(PLAIN, top_k=50)).all())


# -- drawing ----------------------------------------------------------------------------------------------------------


def test_the_uniform_numbers_are_splitmix64() -> None:
    """First outputs of the published generator for seed 1234567, which adds the same constant at each step."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    gamma = 0x9E3779B97F4A7C15
    assert [sampler._mix64((1234567 + i * gamma) & sampler.MASK64) for i in range(3)] == published


def test_uniform_depends_on_seed_and_position_alone() -> None:
    numbers = {uniform(seed, position) for seed in range(-20, 20) for position in range(50)}
    assert len(numbers) == 40 * 50
    assert all(0 <= number < 1 for number in numbers)
    torch.manual_seed(5)
    before = ids(logits(3), row(), row(), row())
    torch.manual_seed(6)
    assert ids(logits(3), row(), row(), row()) == before


def test_the_token_is_the_inverse_of_the_cumulative_distribution() -> None:
    """Over the kept tokens in the order of their ids."""
    table = logits(1, vocabulary=12)
    params = replace(PLAIN, temperature=0.7, top_k=5)
    scaled = hf.TopKLogitsWarper(5)(torch.zeros(1, 1, dtype=torch.long), table / 0.7)
    probabilities = scaled.softmax(-1)[0].double().tolist()
    for seed in range(200):
        point, total, token = uniform(seed, 0) * math.fsum(probabilities), 0.0, -1
        while total <= point:
            token += 1
            total += probabilities[token]
        assert draw(table, [row(replace(params, seed=seed))]) == [token]


def test_tokens_come_as_often_as_they_should() -> None:
    """Chi-square over fixed seeds and over positions of one seed: 9 degrees of freedom, 27.9 has p = 0.001."""
    table = logits(1, vocabulary=10) / 3
    probabilities = table.softmax(-1)[0]
    count = 4000
    by_seed = [row(replace(PLAIN, seed=seed)) for seed in range(count)]
    by_position = [row(replace(PLAIN, seed=77), output=[0] * position) for position in range(count)]
    for rows in (by_seed, by_position):
        counts = torch.bincount(torch.tensor(draw(table.expand(count, -1), rows)), minlength=10)
        expected = probabilities * count
        assert float(((counts - expected) ** 2 / expected).sum()) < 27.9


PARAMS = [
    GREEDY,
    PLAIN,
    replace(PLAIN, top_p=0.7, seed=3),
    replace(PLAIN, temperature=2.0, top_k=30, min_p=0.02, seed=4, logprobs=3),
    replace(PLAIN, typical_p=0.5, repetition_penalty=1.2, seed=5, logprobs=0),
    replace(GREEDY, frequency_penalty=1.0, logit_bias=((5, 3.0),), logprobs=5),
]


def test_a_row_is_sampled_the_same_alone_and_among_others() -> None:
    table = logits(len(PARAMS) * 3)
    rows = [row(params, (1, 2, 3), range(i)) for i in range(3) for params in PARAMS]
    together = sample(table, rows)
    alone = [sample(table[i : i + 1], [one])[0] for i, one in enumerate(rows)]
    assert together == alone
    backwards = sample(table.flip(0), rows[::-1])
    assert backwards[::-1] == alone


# -- logprobs ---------------------------------------------------------------------------------------------------------


def test_logprobs_are_of_the_raw_distribution() -> None:
    params = replace(GREEDY, temperature=0.5, top_k=3, repetition_penalty=3.0, logprobs=4, seed=1)
    table = logits(1)
    (token,) = sample(table, [row(params)])
    raw = table.log_softmax(-1)[0]
    assert token.token_id is not None and token.logprobs is not None
    assert token.logprobs.logprob == raw[token.token_id].item()
    order = sorted(range(VOCABULARY), key=lambda i: (-raw[i].item(), i))[:4]
    assert token.logprobs.top == tuple((i, raw[i].item()) for i in order)


def test_tied_logprobs_come_by_lower_id() -> None:
    table = torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.0], [0.0] * 5])
    first, second = token_logprobs(table, [0, 4], 2)
    assert [token for token, _ in first.top] == [1, 2]
    assert [token for token, _ in second.top] == [0, 1]


def test_no_logprobs_unless_asked() -> None:
    first, second = sample(logits(2), [row(), row(replace(PLAIN, logprobs=0))])
    assert first.logprobs is None
    assert second.logprobs is not None and second.logprobs.top == ()


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9}, {"top_k": 40}, {"top_p": 0.99, "top_k": 700, "min_p": 1e-4}])
def test_a_row_of_a_large_vocabulary_is_drawn_alone_as_in_a_crowd(fields: dict[str, float]) -> None:
    """Past 32,768 numbers torch sums one row in pieces, one a thread. Peaked rows and flat ones together."""
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(24, 40_000, generator=generator) * torch.linspace(0.5, 6, 24)[:, None]
    rows = [row(replace(PLAIN, temperature=0.9, seed=seed, **fields)) for seed in range(24)]  # type: ignore[arg-type]
    together = ids(table, *rows)
    assert together == [ids(table[i : i + 1], one)[0] for i, one in enumerate(rows)]


def test_the_stretches_invert_the_whole_distribution() -> None:
    """Against the running sum over the vocabulary, in the order of ids."""
    generator = torch.Generator().manual_seed(4)
    table = torch.randn(1, 1000, generator=generator).expand(400, -1) * 2
    rows = [row(replace(PLAIN, temperature=1.0, seed=seed)) for seed in range(400)]
    cumulative = table[0].double().softmax(-1).cumsum(-1)
    expected = [int(torch.searchsorted(cumulative, uniform(seed, 0), right=True)) for seed in range(400)]
    assert ids(table, *rows) == expected


def test_drafts_count_as_output() -> None:
    """The row behind drafts is that of a sequence which has them as its own tokens."""
    params = replace(PLAIN, temperature=1.0, repetition_penalty=1.5, frequency_penalty=0.5, min_tokens=3, seed=2)
    behind = SamplerRow(params, [1, 2, 7], 2, (4, 4))
    assert behind.position == 3
    table = logits(1)
    assert sample(table, [behind]) == sample(table, [row(params, output=(7, 4, 4))])
    assert process(table, [behind]).tolist() != process(table, [row(params, output=(7,))]).tolist()


@pytest.mark.parametrize(
    ("sampled", "expected"),
    [((5, 6, 7), [5, 6, 7]), ((5, 9, 7), [5, 9]), ((4, 6, 7), [4]), ((None, 6, 7), [None])],
)
def test_what_follows_the_first_untrue_draft_is_dropped(sampled: tuple[int | None, ...], expected: list[int]) -> None:
    sequence = Sequence.of(Request("a", (1, 2), PLAIN))
    item = Scheduled(sequence, 4, (5, 6))
    rest = iter([*(SampledToken(token) for token in sampled), SampledToken(99)])
    first = verified(item, rest)
    assert [first.token_id, *(token.token_id for token in first.following)] == expected
    assert next(rest).token_id == 99, "the next item's rows are left"
