"""The cost line against known machines, and budgets against the line."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.protocol.config import Preference
from service.engine.scheduling.batching import Backlog, BatchingPolicy, Offer
from service.engine.scheduling.cost import CostLine, StepWork, chunk_attention
from service.engine.sequences.batch import Batch, Scheduled
from service.engine.sequences.sequence import Sequence
from tests.fakes import make_request

FAST = (0.0005, 2e-5, 1e-8, 1e-9)
SLOW = (0.02, 2e-3, 1e-6, 4e-7)
FLAT = (0.002, 0.0, 0.0, 0.0)


def cost(line: tuple[float, ...], work: StepWork) -> float:
    a, b, c, d = line
    return a + b * work.tokens + c * work.kv_tokens + d * work.attention


def some_work(rng: random.Random) -> StepWork:
    decodes, chunk = rng.randint(0, 32), rng.choice([0, 0, 16, 64, 256, 1024])
    attention = chunk_attention(rng.randint(0, 2000), chunk)
    return StepWork(max(1, decodes + chunk), decodes * rng.randint(10, 1000), attention)


def taught(line: tuple[float, ...], steps: int = 400, noise: float = 0.1, disturbed: float = 0.05) -> CostLine:
    """After steps of a machine with relative noise, some of them delayed fivefold by something else."""
    rng, fitted = random.Random(4), CostLine()
    for _ in range(steps):
        work = some_work(rng)
        seconds = cost(line, work) * (1 + rng.uniform(-noise, noise)) * (5 if rng.random() < disturbed else 1)
        fitted.observe(work, seconds)
    return fitted


@pytest.mark.parametrize(("steps", "disturbed", "bound"), [(60, 0.0, 0.05), (400, 0.05, 0.02), (2000, 0.2, 0.06)])
@pytest.mark.parametrize("line", [FAST, SLOW, FLAT])
def test_the_line_learns_any_machine(line: tuple[float, ...], steps: int, disturbed: float, bound: float) -> None:
    fitted, rng = taught(line, steps, disturbed=disturbed), random.Random(5)
    errors = [abs(fitted.predict(work) / cost(line, work) - 1) for work in (some_work(rng) for _ in range(200))]
    assert sum(errors) / len(errors) < bound
    assert 0 < fitted.error < 0.4


@pytest.mark.parametrize("after", [SLOW, tuple(1.3 * value for value in FAST)], ids=["another machine", "a drift"])
def test_the_line_follows_a_machine_that_changes(after: tuple[float, ...]) -> None:
    fitted, rng = taught(FAST, steps=2000), random.Random(6)
    for _ in range(600):
        work = some_work(rng)
        fitted.observe(work, cost(after, work))
    assert fitted.predict(StepWork(8, 800)) == pytest.approx(cost(after, StepWork(8, 800)), rel=0.05)


def test_equal_steps_do_not_wind_it_up() -> None:
    fitted = CostLine()
    for _ in range(5000):
        fitted.observe(StepWork(1, 100), 0.01)
    assert fitted.predict(StepWork(1, 100)) == pytest.approx(0.01, rel=0.05)
    fitted.observe(StepWork(1, 101), 0.011)
    assert fitted.predict(StepWork(1, 2000)) < 0.05, "one noisy step is no slope"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 4096),
            st.integers(0, 10**6),
            st.floats(0, 1e9),
            st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e-6, 100),
        ),
        max_size=60,
    )
)
def test_coefficients_stay_usable_whatever_is_observed(steps: list[tuple[int, int, float, float]]) -> None:
    fitted = CostLine()
    for tokens, kv_tokens, attention, seconds in steps:
        fitted.observe(StepWork(tokens, kv_tokens, attention), seconds)
    assert all(math.isfinite(value) and value >= 0 for value in fitted.coefficients)
    assert math.isfinite(fitted.error)


@settings(deadline=None, max_examples=100)
@given(
    decodes=st.integers(0, 64),
    kv_tokens=st.integers(0, 10**5),
    context=st.integers(0, 10**4),
    targets=st.tuples(st.floats(0, 3), st.floats(0, 3)),
)
def test_a_budget_is_bounded_and_monotone_in_a_target_that_can_be_kept(
    decodes: int, kv_tokens: int, context: int, targets: tuple[float, float]
) -> None:
    """One that cannot be kept decides nothing."""
    budgets, kept = [], []
    for target in sorted(targets):
        policy = BatchingPolicy(2048, 16, target)
        policy.cost = taught(SLOW, steps=30)
        budgets.append(token_budget(policy, decodes, kv_tokens, context, 1))
        kept.append(decodes == 0 or 1.75 * policy.cost.predict(StepWork(decodes, kv_tokens)) <= target)
    assert all(decodes + 16 <= budget <= 2048 for budget in budgets)
    assert kept == [False, True] or budgets[0] <= budgets[1]
    assert any(kept) or budgets[0] == budgets[1]


@pytest.mark.parametrize(("noise", "least"), [(0.0, 0.97), (0.05, 0.9), (1.0, 0.869)])
def test_a_budget_is_the_largest_that_keeps_the_target(noise: float, least: float) -> None:
    """With a margin of twice the line's error, 15 % at most: half of the steps would be too long without it."""
    policy = BatchingPolicy(2048, 16, 0.3)
    policy.cost = taught(SLOW, noise=noise, disturbed=0)
    planned = 0.3 / (1 + min(2 * policy.cost.error, 0.15))
    budget = token_budget(policy, 8, 4000, 512, 1)
    work = [StepWork(budget + more, 4000, chunk_attention(512, budget - 8 + more)) for more in (0, 1)]
    assert policy.cost.predict(work[0]) <= planned < policy.cost.predict(work[1])
    assert least * 0.3 <= planned <= 0.3


@pytest.mark.parametrize(("prefills", "stretch"), [(1, 1.75), (16, 1.75), (20, 1 + 0.75 * 1.25**3), (64, 4), (200, 4)])
def test_past_the_target_a_crowd_of_prompts_is_computed_first(prefills: int, stretch: float) -> None:
    """Up to a prompt for four streams, the streams go on at 1.75 times their pace."""
    policy = BatchingPolicy(2048, 16, 0.001)
    policy.cost = taught(SLOW)
    budget = token_budget(policy, 64, 4000, 0, prefills)
    longest = stretch * policy.cost.predict(StepWork(64, 4000))
    work = [StepWork(budget + more, 4000, chunk_attention(0, budget - 64 + more)) for more in (0, 1)]
    assert budget > 64 + 16 and policy.cost.predict(work[0]) <= longest < policy.cost.predict(work[1])


@pytest.mark.parametrize("target", [0.001, 0.3], ids=["out of reach", "in reach"])
@pytest.mark.parametrize("prefills", [1, 8, 200])
def test_streams_stay_calm_however_many_prompts_wait(prefills: int, target: float) -> None:
    """Not beside one stream of eight either; where nobody reads along, or prompts are preferred, prompts come first."""
    alone = policy_of(SLOW).cost.predict(StepWork(8, 4000))
    longest = {0.001: 1.75 * alone, 0.3: 0.3}[target]
    for streams in (1, 8):
        calm = policy_of(SLOW, target).step_budget(8, 4000, prefills, streams)
        assert 0.8 * longest < alone + calm.seconds <= longest * 1.001
    hasty = [policy_of(SLOW, target), policy_of(SLOW, target, prefer="prompts")]
    budgets = [
        policy.step_budget(8, 4000, prefills, streams).seconds for policy, streams in zip(hasty, (0, 8), strict=True)
    ]
    assert budgets[0] == budgets[1] >= calm.seconds
    assert budgets[0] > {0.001: 1.5, 0.3: 1.3}[target] * calm.seconds or prefills < 200, "of 0.4 s at most"


def test_a_step_without_decodes_is_the_largest_within_a_second() -> None:
    policy = BatchingPolicy(2048, 16, 1e-9)
    policy.cost = taught(SLOW)
    budget = token_budget(policy, 0, 0, 512, 9)
    work = [StepWork(budget + more, 0, chunk_attention(512, budget + more)) for more in (0, 1)]
    assert policy.cost.predict(work[0]) <= 1.0 < policy.cost.predict(work[1])
    quick = BatchingPolicy(2048, 16, 1e-9)
    quick.cost = taught(FAST)
    assert token_budget(quick, 0, 0, 512, 9) == 2048


def test_a_long_constant_makes_longer_steps_up_to_two_seconds() -> None:
    for constant, longest in ((0.02, 1.0), (0.04, 1.6), (0.3, 2.0)):
        policy = policy_of((constant, 0.003, 0.0, 0.0), target=0.1)
        assert policy.cost.predict(StepWork(token_budget(policy, 0, 0, 0, 1))) == pytest.approx(longest, rel=0.02)


def test_a_crowd_of_prompts_makes_no_pause_longer_than_two_fifths_of_a_second() -> None:
    """On a slower machine, than four steps of the streams, and no step longer than two seconds."""
    for constant, longest in ((0.02, 0.4), (0.15, 0.6), (0.6, 2.0)):
        policy = policy_of((constant, 0.001, 0.0, 0.0), target=0.001)
        step = policy.cost.predict(StepWork(token_budget(policy, 1, 1000, 0, 200)))
        assert step == pytest.approx(longest, rel=0.02)


@pytest.mark.parametrize(("prefills", "is_kept"), [(1, True), (2, True), (4, False), (8, False)])
def test_a_target_that_can_be_kept_gives_way_to_a_crowd_of_prompts_alone(prefills: int, is_kept: bool) -> None:
    """Up to a prompt for four decodes that nobody reads along it is kept; a crowd makes pauses of 0.4 s at most."""
    policy = policy_of(SLOW, target=0.12)
    alone = policy.cost.predict(StepWork(8, 4000))
    assert 1.75 * alone <= 0.12
    step = alone + policy.step_budget(8, 4000, prefills, 0).seconds
    assert step <= 0.12 * 1.001 if is_kept else 0.12 * 1.2 < step <= 0.4 * 1.001


def test_a_target_that_can_be_kept_is_kept_beside_any_prompts_while_anybody_reads_along() -> None:
    policy = policy_of(SLOW, target=0.3)
    for decodes, prefills in ((1, 1), (8, 2), (8, 8), (1, 200)):
        alone = policy.cost.predict(StepWork(decodes, 500 * decodes))
        assert 1.75 * alone <= 0.3
        assert alone + policy.step_budget(decodes, 500 * decodes, prefills, 1).seconds <= 0.3 * 1.001


@pytest.mark.parametrize("seconds_per_token", [1e-5, 1e-3, 0.05])
def test_the_first_steps_of_an_unknown_machine_are_small_and_grow(seconds_per_token: float) -> None:
    """0.05: a model of 3B parameters on a slow core; its whole prompt would take 100 s in one step."""
    policy, done, steps = BatchingPolicy(2048, 16, 0.1), 0, list[float]()
    while done < 4096:
        tokens = token_budget(policy, 0, 0, done, 1)
        steps.append(0.005 + seconds_per_token * tokens)
        policy.observe(StepWork(tokens, 0, chunk_attention(done, tokens)), steps[-1])
        done += tokens
    assert max(steps) < 4.0
    assert max(steps[5:], default=0.0) < 2.3
    if seconds_per_token < 1e-4:
        assert len(steps) == 5, "64, 256, 1024, and twice all"


def test_the_work_of_a_batch() -> None:
    decode, chunk = Sequence.of(make_request("a", range(10))), Sequence.of(make_request("b", range(10)))
    decode.num_computed_tokens, chunk.num_computed_tokens = 9, 4
    assert StepWork.of(Batch((Scheduled(decode, 1), Scheduled(chunk, 6)))) == StepWork(7, 10, 5 + 6 + 7 + 8 + 9 + 10)


def token_budget(policy: BatchingPolicy, decodes: int, kv_tokens: int, context: int, prefills: int) -> int:
    """Returns the most tokens of a step that no client reads along with, if its prefill continues at `context`."""
    return decodes + policy.step_budget(decodes, kv_tokens, prefills, 0).chunk(context)


def policy_of(line: tuple[float, ...], target: float = 10.0, prefer: Preference = "streams") -> BatchingPolicy:
    """That knows its machine."""
    policy = BatchingPolicy(2048, 16, target, prefer)
    policy.cost = taught(line, noise=0.0, disturbed=0.0)
    return policy


MEMORY_BOUND = (0.02, 0.001, 0.0, 0.0)
COMPUTE_BOUND = (0.0001, 0.01, 0.0, 0.0)


@pytest.mark.parametrize(
    ("line", "batch", "probability", "expected"),
    [
        (MEMORY_BOUND, 1, 1.0, 7),
        (MEMORY_BOUND, 1, 0.5, 3),
        (MEMORY_BOUND, 1, 0.03, 0),
        (MEMORY_BOUND, 32, 0.5, 0),
        (COMPUTE_BOUND, 1, 0.9, 0),
    ],
)
def test_drafts_where_they_pay(line: tuple[float, ...], batch: int, probability: float, expected: int) -> None:
    """At batch 1 and p = 0.5: rows are worth p, p², p³ .. tokens, and cost 1 ms beside a step of 21 ms a token.
    0.5 > 1/21, 0.25 > 1.5/22, 0.125 > 1.75/23, and 0.0625 < 1.875/24."""
    offers = [Offer(probability, 100, 7)]
    assert policy_of(line).draft_lengths(StepWork(batch, 100 * batch), offers, 100) == [expected]


def test_drafts_go_to_the_likeliest_and_keep_their_bounds() -> None:
    policy, work = policy_of(MEMORY_BOUND), StepWork(3, 300)
    offers = [Offer(0.9, 100, 7), Offer(0.1, 100, 7), Offer(0.9, 100, 2)]
    assert policy.draft_lengths(work, offers, 100) == [7, 0, 2]
    assert policy.draft_lengths(work, offers, 3) == [2, 0, 1]
    assert policy.draft_lengths(work, [Offer(1.0, 1, 0), Offer(1.0, 1, -1)], 100) == [0, 0]
    sure = [Offer(1.0, 100, 7)] * 3
    assert sum(policy_of((0.02, 0.004, 0.0, 0.0), target=0.001).draft_lengths(work, sure, 100)) in (5, 6), (
        "up to 56 ms, 1.75 times the 32 ms without drafts, where the target is out of reach"
    )
    assert sum(policy_of((0.02, 0.004, 0.0, 0.0), target=0.0701).draft_lengths(work, sure, 100)) == 9


def test_no_draft_before_the_machine_is_known() -> None:
    assert not BatchingPolicy(2048, 16, 1.0).pays(StepWork(1, 10))
    assert policy_of(MEMORY_BOUND).pays(StepWork(1, 10))


def test_forecasts() -> None:
    policy = policy_of(MEMORY_BOUND)
    assert policy.first_token_seconds(Backlog()) == 0.0
    assert policy.first_token_seconds(Backlog(tokens=100)) == pytest.approx(0.02 + 0.1, rel=0.01)
    assert policy.first_token_seconds(Backlog(tokens=4096)) == pytest.approx(2 * 0.02 + 4.096, rel=0.01)
    beside = Backlog(decodes=8, kv_tokens=800, tokens=100)
    assert policy.first_token_seconds(beside) == pytest.approx(0.02 + 0.108, rel=0.01)
    assert policy.is_hopeless(beside, 0.05)
    assert not policy.is_hopeless(beside, 0.2)
    crowded = Backlog(decodes=20, tokens=10, unseated=5, seat_seconds=0.08)
    assert policy.first_token_seconds(crowded) == pytest.approx(5 * 0.08, rel=0.01)
    assert not BatchingPolicy(2048, 16, 1.0).is_hopeless(Backlog(tokens=10**6), 0.001), "nothing is known"


def test_what_a_preemption_costs_grows_faster_than_its_tokens() -> None:
    policy = policy_of(SLOW)
    assert policy.recompute_seconds(400) > 2 * policy.recompute_seconds(200) > 0


def test_a_line_that_is_often_wrong_drafts_less() -> None:
    sure, unsure = policy_of(MEMORY_BOUND), policy_of(MEMORY_BOUND)
    unsure.cost._error = 0.4
    offers, work = [Offer(0.5, 100, 7)], StepWork(1, 100)
    assert sure.draft_lengths(work, offers, 7) == [3]
    assert unsure.draft_lengths(work, offers, 7) == [2]
