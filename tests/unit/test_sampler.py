"""The sampler, by native kernels of every instruction set and in torch operations: every step against a plain rewriting
or transformers' own processors, rows against themselves alone, the kernels against the torch operations."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from service.engine.protocol.messages import Request, SamplingParams
from service.engine.runner.sampling import filters
from service.engine.runner.sampling.filters import masses_of, weights_of
from service.engine.runner.sampling.native import NativeSampling
from service.engine.runner.sampling.reference import TorchSampling
from service.engine.runner.sampling.row import MASK64, POINT_BITS, SamplerRow, mix64
from service.engine.runner.sampling.sampler import Backend, Sampler, verified
from service.engine.sequences.batch import SampledToken, Scheduled
from service.engine.sequences.sequence import Sequence, TokenCounts
from tests.kernels import LIBRARIES

VOCABULARY = 700
PLAIN = SamplingParams(max_tokens=9, temperature=1.0)
INF = float("inf")
BACKENDS: dict[str, Backend] = {"torch": TorchSampling()} | {
    level: NativeSampling(kernels) for level, kernels in LIBRARIES.items()
}


@pytest.fixture(params=BACKENDS)
def sampler(request: pytest.FixtureRequest) -> Sampler:
    return Sampler(BACKENDS[request.param])


def row(params: SamplingParams = PLAIN, prompt: Seq[int] = (1, 2), output: Seq[int] = ()) -> SamplerRow:
    counts = TokenCounts(0, len(prompt))
    counts.follow([*prompt, *output])
    return SamplerRow(params, len(output), counts)


def logits(rows: int, seed: int = 0, vocabulary: int = VOCABULARY) -> Tensor:
    return 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


def ids(sampler: Sampler, table: Tensor, *rows: SamplerRow) -> list[int | None]:
    return [token.token_id for token in sampler.sample(table, rows)]


def processed(table: Tensor, *rows: SamplerRow) -> Tensor:
    return torch.stack(Sampler().processed(list(table), rows))


def kept(table: Tensor, params: SamplingParams) -> Tensor:
    """Which tokens the torch operations keep."""
    return torch.stack([filters.filtered(each, weights_of(each, params.temperature), params) > 0 for each in table])


def uniform(seed: int, position: int) -> float:
    return float(row(replace(PLAIN, seed=seed), output=[0] * position).point / 2**POINT_BITS)


# -- greedy -----------------------------------------------------------------------------------------------------------

GREEDY = SamplingParams(max_tokens=9)


def test_greedy_takes_the_largest_and_of_equals_the_lowest_id(sampler: Sampler) -> None:
    table = torch.tensor([[0.0, 5.0, 5.0], [7.0, -1.0, 7.0], [-3.0, -4.0, -2.0]])
    assert ids(sampler, table, row(GREEDY), row(GREEDY), row(GREEDY)) == [1, 0, 2]


@pytest.mark.parametrize("params", [GREEDY, PLAIN, replace(PLAIN, repetition_penalty=1.5, top_p=0.5, logprobs=2)])
def test_rows_without_a_usable_number(sampler: Sampler, params: SamplingParams) -> None:
    """They get no token; their neighbours get theirs as if alone."""
    table = logits(6)
    table[1, 3] = float("nan")
    table[2] = -INF
    table[3, 0] = INF
    table[4, VOCABULARY - 1] = float("nan")
    rows = [row(params) for _ in range(6)]
    found = sampler.sample(table, rows)
    assert [token.token_id is None for token in found] == [False, True, True, True, True, False]
    assert all(token.logprobs is None for token in found[1:5])
    assert found[0] == sampler.sample(table[:1], rows[:1])[0]
    assert found[5] == sampler.sample(table[5:], rows[5:])[0]


def test_a_certain_token_has_no_logprob_where_its_row_has_no_numbers(sampler: Sampler) -> None:
    """Its grammar allows one token, so nothing is drawn; the row is without a usable number all the same."""
    table = torch.full((2, VOCABULARY), float("nan"))
    rows = [replace(row(replace(GREEDY, logprobs=wanted)), allowed=3) for wanted in (0, None)]
    assert ids(sampler, table, *rows) == [None, 3]


def test_no_rows(sampler: Sampler) -> None:
    assert sampler.sample(logits(0), []) == []


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-38, 9.9e-6])
def test_a_temperature_too_small_to_divide_by_is_greedy(sampler: Sampler, temperature: float) -> None:
    table = logits(3)
    assert ids(sampler, table, *[row(replace(PLAIN, temperature=temperature))] * 3) == table.argmax(-1).tolist()


# -- changes of the logits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    table = logits(1)
    want = hf.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[4, 4, 9, 11, 4]]), table.clone())
    assert torch.equal(processed(table, row(replace(PLAIN, repetition_penalty=penalty), (4, 4, 9), (11, 4))), want)


def test_frequency_and_presence_penalties_count_the_output_only() -> None:
    table = logits(1)
    one = row(replace(PLAIN, frequency_penalty=0.5, presence_penalty=0.25), (4, 5), (7, 8, 7))
    want = table.clone()
    want[0, 7] -= 2 * 0.5 + 0.25
    want[0, 8] -= 0.5 + 0.25
    torch.testing.assert_close(processed(table, one), want)


def test_each_row_has_its_own_changes() -> None:
    """Rows with and without penalties, bias and bans side by side, in the order of the rows."""
    table = logits(5)
    rows = [
        row(),
        row(replace(PLAIN, repetition_penalty=2.0), (1,), (5, 6)),
        row(replace(PLAIN, presence_penalty=1.0, logit_bias=((9, -3.0), (9, 1.0))), (1, 2, 3), (7,)),
        row(GREEDY),
        row(replace(PLAIN, frequency_penalty=-0.5, min_tokens=9, stop_token_ids=(2, VOCABULARY, -1)), (), (5, 5)),
    ]
    alone = torch.cat([processed(table[i : i + 1], one) for i, one in enumerate(rows)])
    assert torch.equal(processed(table, *rows), alone)
    changed = [(alone[i] != table[i]).nonzero()[:, 0].tolist() for i in range(5)]
    assert changed == [[], [1, 5, 6], [7, 9], [], [2, 5]]


def test_bias_is_added_to_what_is_penalised(sampler: Sampler) -> None:
    table = torch.full((1, VOCABULARY), 2.0)
    params = replace(GREEDY, repetition_penalty=2.0, logit_bias=((1, 3.0),))
    [found] = sampler.processed(list(table), [row(params, prompt=(1,))])
    assert found[:2].tolist() == [2.0, 2.0 / 2.0 + 3.0]


def test_bias_is_added_and_can_ban(sampler: Sampler) -> None:
    table = torch.tensor([[3.0, 2.0, 1.0]])
    assert ids(sampler, table, row(replace(GREEDY, logit_bias=((2, 5.0),)))) == [2]
    assert ids(sampler, table, row(replace(GREEDY, logit_bias=((0, -100.0), (1, -100.0))))) == [2]


def test_stop_tokens_are_banned_until_min_tokens(sampler: Sampler) -> None:
    params = replace(GREEDY, min_tokens=2, stop_token_ids=(0, 1))
    table = torch.tensor([[3.0, 2.0, 1.0]])
    assert [ids(sampler, table, row(params, output=output))[0] for output in ((), (2,), (2, 2))] == [2, 2, 0]
    everything = replace(params, stop_token_ids=(0, 1, 2))
    assert ids(sampler, table, row(everything)) == [None]


def test_logits_are_left_as_they_were(sampler: Sampler) -> None:
    table = logits(2)
    before = table.clone()
    params = replace(PLAIN, repetition_penalty=2.0, logit_bias=((3, 9.0),), top_k=4)
    first = sampler.sample(table, [row(params)] * 2)
    assert torch.equal(table, before)
    assert sampler.sample(table, [row(params)] * 2) == first, "nor is what the last step left seen"


def test_in_place_only_rows_without_logprobs_are_changed(sampler: Sampler) -> None:
    table = logits(4)
    before, params = table.clone(), replace(PLAIN, repetition_penalty=2.0, logit_bias=((3, 9.0),), top_k=4)
    rows = [row(params), row(replace(params, logprobs=2)), row(), row(replace(params, logprobs=0), output=(3,))]
    assert sampler.sample(table, rows, in_place=True) == sampler.sample(before.clone(), rows)
    assert [torch.equal(*each) for each in zip(table, before, strict=True)] == [False, True, True, True]


# -- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("params", "processor"),
    [
        (replace(PLAIN, top_k=1), hf.TopKLogitsWarper(1)),
        (replace(PLAIN, top_k=40), hf.TopKLogitsWarper(40)),
        (replace(PLAIN, top_p=0.1), hf.TopPLogitsWarper(0.1)),
        (replace(PLAIN, top_p=0.9), hf.TopPLogitsWarper(0.9)),
        (replace(PLAIN, min_p=0.05), hf.MinPLogitsWarper(0.05)),
        (replace(PLAIN, typical_p=0.3), hf.TypicalLogitsWarper(0.3)),
        (replace(PLAIN, typical_p=0.95), hf.TypicalLogitsWarper(0.95)),
    ],
)
def test_filters_keep_what_transformers_keeps(params: SamplingParams, processor: hf.LogitsProcessor, seed: int) -> None:
    table = logits(3, seed)
    want = torch.isfinite(processor(torch.zeros(3, 1, dtype=torch.long), table.clone()))
    assert torch.equal(kept(table, params), want)


@pytest.mark.parametrize("count", [0.1, 1.0, 3.0])
def test_top_n_sigma_keeps_what_is_near_the_likeliest(count: float) -> None:
    """A token that a grammar forbids counts in no deviation."""
    table = logits(1)
    forbidden = table.clone()
    forbidden[0, 10:20] = -INF
    for scores in (table, forbidden):
        finite = [each for each in scores[0].tolist() if each > -INF]
        mean = sum(finite) / len(finite)
        sigma = (sum((each - mean) ** 2 for each in finite) / len(finite)) ** 0.5
        want = [each >= max(finite) - count * sigma for each in scores[0].tolist()]
        assert kept(scores, replace(PLAIN, top_n_sigma=count)).tolist() == [want]


def test_top_n_sigma_keeps_a_token_where_typical_p_has_dropped_the_likeliest() -> None:
    scores = torch.cat([torch.tensor([3.0]), torch.zeros(299)])[None]
    typical = replace(PLAIN, typical_p=0.1)
    assert not kept(scores, typical)[0, 0], "the likeliest one is not typical"
    assert kept(scores, replace(typical, top_n_sigma=0.1)).any()


def test_ties_are_kept_by_lower_id(sampler: Sampler) -> None:
    table = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    for params in (replace(PLAIN, top_k=2), replace(PLAIN, top_p=0.3)):
        assert kept(table, params).tolist() == [[False, True, True, False, False]]
        drawn = {ids(sampler, table, row(replace(params, seed=seed)))[0] for seed in range(40)}
        assert drawn == {1, 2}


def test_top_p_of_a_flat_distribution() -> None:
    assert int(kept(torch.zeros(1, 2000), replace(PLAIN, top_p=0.8)).sum()) == 1600


def test_top_k_of_more_than_there_are(sampler: Sampler) -> None:
    table = logits(1, vocabulary=9)
    assert bool(kept(table, replace(PLAIN, top_k=50)).all())
    assert ids(sampler, table, row(replace(PLAIN, top_k=50))) == ids(sampler, table, row(PLAIN))


# -- weights ----------------------------------------------------------------------------------------------------------


def test_weights_are_the_exponential() -> None:
    scores = torch.linspace(-27.4, 0, 5000)
    want = scores.double().exp()
    error = (weights_of(scores, 1.0).double() - want).abs() / want
    assert float(error.max()) < 3e-7
    assert weights_of(torch.tensor([0.0, -27.6, -INF]), 1.0).tolist() == [1.0, 0.0, 0.0]
    assert masses_of(torch.tensor([1.0, 0.0])).tolist() == [2**40, 0]


def test_the_least_weight_has_a_mass() -> None:
    """Otherwise a kept token could have no place in the distribution."""
    assert int(masses_of(weights_of(torch.tensor([0.0, -27.5]), 1.0))[1]) == 1


# -- drawing ----------------------------------------------------------------------------------------------------------


def test_the_random_numbers_are_splitmix64() -> None:
    """First outputs of the published generator for seed 1234567, which adds the same constant at each step."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    gamma = 0x9E3779B97F4A7C15
    assert [mix64((1234567 + i * gamma) & MASK64) for i in range(3)] == published


def test_a_point_depends_on_seed_and_position_alone() -> None:
    numbers = {uniform(seed, position) for seed in range(-20, 20) for position in range(50)}
    assert len(numbers) == 40 * 50
    assert all(0 <= number < 1 for number in numbers)
    torch.manual_seed(5)
    before = ids(Sampler(), logits(3), row(), row(), row())
    torch.manual_seed(6)
    assert ids(Sampler(), logits(3), row(), row(), row()) == before


def test_the_token_is_the_inverse_of_the_cumulative_distribution(sampler: Sampler) -> None:
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
        assert ids(sampler, table, row(replace(params, seed=seed))) == [token]


def test_the_whole_distribution_is_inverted(sampler: Sampler) -> None:
    """Against the running sum over a vocabulary of several blocks, in the order of ids."""
    generator = torch.Generator().manual_seed(4)
    table = torch.randn(1, 1000, generator=generator).expand(400, -1) * 2
    rows = [row(replace(PLAIN, seed=seed)) for seed in range(400)]
    cumulative = table[0].double().softmax(-1).cumsum(-1)
    expected = [int(torch.searchsorted(cumulative, uniform(seed, 0), right=True)) for seed in range(400)]
    assert ids(sampler, table, *rows) == expected


def test_tokens_come_as_often_as_they_should() -> None:
    """Chi-square over fixed seeds and over positions of one seed: 9 degrees of freedom, 27.9 has p = 0.001."""
    table = logits(1, vocabulary=10) / 3
    probabilities = table.softmax(-1)[0]
    count = 4000
    by_seed = [row(replace(PLAIN, seed=seed)) for seed in range(count)]
    by_position = [SamplerRow(replace(PLAIN, seed=77), position) for position in range(count)]
    for rows in (by_seed, by_position):
        counts = torch.bincount(torch.tensor(ids(Sampler(), table.expand(count, -1), *rows)), minlength=10)
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


def test_a_row_is_sampled_the_same_alone_and_among_others(sampler: Sampler) -> None:
    table = logits(len(PARAMS) * 3)
    rows = [row(params, (1, 2, 3), range(i)) for i in range(3) for params in PARAMS]
    together = sampler.sample(table, rows)
    alone = [sampler.sample(table[i : i + 1], [one])[0] for i, one in enumerate(rows)]
    assert together == alone
    backwards = sampler.sample(table.flip(0), rows[::-1])
    assert backwards[::-1] == alone


SHAPES = [
    {},
    {"top_p": 0.9},
    {"top_k": 40},
    {"top_k": 5000, "top_p": 0.99},
    {"top_p": 0.99, "top_k": 200, "min_p": 1e-4},
    {"min_p": 0.3},
]


@pytest.mark.parametrize("fields", SHAPES)
def test_every_backend_and_number_of_threads_gives_the_same(fields: dict[str, float]) -> None:
    """In a large vocabulary, whose sums torch cuts among its threads, for peaked rows and flat ones together."""
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(8, 40_003, generator=generator) * torch.linspace(0.2, 6, 8)[:, None]
    table[3] = table[3].round()  # many ties
    rows = [row(replace(PLAIN, temperature=0.9, seed=seed, logprobs=4, **fields)) for seed in range(8)]  # type: ignore[arg-type]
    want = Sampler(BACKENDS["torch"]).sample(table, rows)
    threads = torch.get_num_threads()
    for name, backend in BACKENDS.items():
        for number in (1, 2):
            torch.set_num_threads(number)
            sampler = Sampler(backend)
            found = sampler.sample(table, rows)
            alone = [sampler.sample(table[i : i + 1], [one])[0] for i, one in enumerate(rows)]
            torch.set_num_threads(threads)
            assert found == want, (name, number)
            assert alone == want, (name, number)


# -- logprobs ---------------------------------------------------------------------------------------------------------


def test_logprobs_are_of_the_raw_distribution(sampler: Sampler) -> None:
    params = replace(GREEDY, temperature=0.5, top_k=3, repetition_penalty=3.0, logprobs=4, seed=1)
    table = logits(1)
    (token,) = sampler.sample(table, [row(params)])
    raw = table.double().log_softmax(-1)[0]
    assert token.token_id is not None and token.logprobs is not None
    assert token.logprobs.logprob == pytest.approx(raw[token.token_id].item(), abs=1e-6)
    order = sorted(range(VOCABULARY), key=lambda i: (-raw[i].item(), i))[:4]
    assert [id for id, _ in token.logprobs.top] == order
    assert [value for _, value in token.logprobs.top] == pytest.approx(raw[order].tolist(), abs=1e-6)


def test_tied_logprobs_come_by_lower_id(sampler: Sampler) -> None:
    table = torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.0], [0.0] * 5])
    first, second = sampler.token_logprobs(table, [0, 4], 2)
    assert [token for token, _ in first.top] == [1, 2]
    assert [token for token, _ in second.top] == [0, 1]
    (whole,) = sampler.token_logprobs(table[:1], [0], 9)
    assert [token for token, _ in whole.top] == [1, 2, 3, 0, 4]


def test_a_row_without_numbers_has_no_number_for_a_logprob(sampler: Sampler) -> None:
    first, second = sampler.token_logprobs(torch.tensor([[float("nan"), 0.0], [0.0, 0.0]]), [1, 1], 0)
    assert math.isnan(first.logprob) and second.logprob == pytest.approx(-math.log(2))


def test_no_logprobs_unless_asked(sampler: Sampler) -> None:
    first, second = sampler.sample(logits(2), [row(), row(replace(PLAIN, logprobs=0))])
    assert first.logprobs is None
    assert second.logprobs is not None and second.logprobs.top == ()


# -- drafts -----------------------------------------------------------------------------------------------------------


def test_drafts_count_as_output() -> None:
    """The row behind drafts is that of a sequence which has them as its own tokens."""
    params = replace(PLAIN, temperature=1.0, repetition_penalty=1.5, frequency_penalty=0.5, min_tokens=3, seed=2)
    sequence = Sequence.of(Request("a", (1, 2), params))
    sequence.token_ids.append(7)
    sequence.num_computed_tokens = 2
    first, second, behind = SamplerRow.of(Scheduled(sequence, 3, (4, 4)))
    assert [each.position for each in (first, second, behind)] == [1, 2, 3]
    table = logits(1)
    sampler = Sampler()
    assert sampler.sample(table, [behind]) == sampler.sample(table, [row(params, output=(7, 4, 4))])
    assert processed(table, behind).tolist() == processed(table, row(params, output=(7, 4, 4))).tolist()
    assert processed(table, behind).tolist() != processed(table, first).tolist()


def test_counts_are_kept_for_penalties_alone() -> None:
    sequence = Sequence.of(Request("a", (1, 2), PLAIN))
    assert [each.counts for each in SamplerRow.of(Scheduled(sequence, 3, (5,)))] == [None, None]
    assert sequence.counts is None


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
