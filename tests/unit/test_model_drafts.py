"""The choice of drafts by a draft model: as many as pay with its passes counted, where n-grams are not better."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.scheduling.batching import BatchingPolicy, ModelOffer
from service.engine.scheduling.cost import CostLine, StepWork
from service.engine.scheduling.draft_model import DraftOrder
from service.engine.scheduling.scheduler import Scheduler
from service.engine.scheduling.speculation import Speculation
from service.engine.sequences.batch import SampledToken
from service.engine.sequences.constraint import MOST_CERTAIN, Constraint
from service.engine.sequences.sequence import Sequence
from tests.fakes import make_request
from tests.unit.test_batching import taught

TARGET = (0.04, 0.002, 1e-6, 0.0)
SMALL = (0.004, 0.0002, 0.0, 0.0)
LARGE = (0.04, 0.002, 0.0, 0.0)


def policy_of(line: tuple[float, ...], target: float = 1e9) -> BatchingPolicy:
    policy = BatchingPolicy(2048, 4, target)
    policy.cost = taught(line, noise=0.0, disturbed=0.0)
    return policy


def lengths(policy: BatchingPolicy, offers: list[ModelOffer], drafting: CostLine, room: int = 2048) -> list[int]:
    work = StepWork(len(offers), sum(offer.context for offer in offers))
    return policy.model_draft_lengths(work, len(offers), offers, drafting, room)


def test_a_small_model_drafts_where_it_is_often_right() -> None:
    policy, small = policy_of(TARGET), taught(SMALL, noise=0.0, disturbed=0.0)
    assert lengths(policy, [ModelOffer(0.9, 100, 7)], small) == [7]
    assert 1 <= lengths(policy, [ModelOffer(0.6, 100, 7)], small)[0] <= 3
    assert lengths(policy, [ModelOffer(0.1, 100, 7)], small) == [0]
    assert lengths(policy, [ModelOffer(0.9, 100, 2), ModelOffer(0.02, 100, 7)], small) == [2, 0]
    assert lengths(policy, [ModelOffer(0.9, 100, 0), ModelOffer(0.9, 100, -1)], small) == [0, 0]


def test_a_model_as_slow_as_the_one_that_serves_never_drafts() -> None:
    assert lengths(policy_of(TARGET), [ModelOffer(1.0, 100, 7)], taught(LARGE, noise=0.0, disturbed=0.0)) == [0]


def test_much_to_read_for_few_tokens_is_not_read() -> None:
    policy, small = policy_of(TARGET), taught((*SMALL[:3], 1e-6), noise=0.0, disturbed=0.0)
    assert lengths(policy, [ModelOffer(0.8, 2000, 7, unread=2000, steps=64)], small)[0] > 0
    assert lengths(policy, [ModelOffer(0.8, 2000, 7, unread=2000, steps=2)], small) == [0]


def test_a_step_with_drafts_keeps_the_target_or_stays_near_its_own_seconds() -> None:
    small = taught(SMALL, noise=0.0, disturbed=0.0)
    free, bound = policy_of(TARGET), policy_of(TARGET, target=0.001)
    offers = [ModelOffer(0.95, 100, 7)]
    many, few = lengths(free, offers, small)[0], lengths(bound, offers, small)[0]
    seconds = free.cost.predict(StepWork(1 + few, 100 * (1 + few))) + few * small.predict(StepWork(1, 100))
    assert 0 < few < many
    assert seconds <= 1.75 * free.cost.predict(StepWork(1, 100)) * 1.001


@given(
    probabilities=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6),
    most=st.lists(st.integers(-1, 7), min_size=6, max_size=6),
    room=st.integers(0, 40),
    constant=st.floats(1e-4, 0.05),
)
def test_no_choice_of_depth_and_sequences_gives_more(
    probabilities: list[float], most: list[int], room: int, constant: float
) -> None:
    """Against every prefix of the likeliest, at every depth."""
    policy, drafting = policy_of(TARGET), taught((constant, 1e-4, 0.0, 0.0), noise=0.0, disturbed=0.0)
    offers = [ModelOffer(p, 50, m) for p, m in zip(probabilities, most, strict=False)]
    assume(len({offer.probability for offer in offers}) == len(offers))
    found = lengths(policy, offers, drafting, room)
    assert all(0 <= length <= max(0, offer.most) for length, offer in zip(found, offers, strict=True))
    assert sum(found) <= room
    trust = 1 - policy.cost.error
    work = StepWork(len(offers), 50 * len(offers))
    plain = policy.cost.predict(work)

    def rate(chosen: SequenceOf[ModelOffer], depth: int) -> float:
        rows = sum(max(0, min(depth, offer.most)) for offer in chosen)
        if rows > room:
            return 0.0
        step = policy.cost.predict(StepWork(work.tokens + rows, work.kv_tokens + 50 * rows))
        gained = trust * sum(offer.gain(depth) for offer in chosen)
        return (len(offers) + gained) / (step + depth * drafting.predict(StepWork(len(chosen), 50 * len(chosen))))

    ranked = sorted(offers, key=lambda offer: -offer.probability)
    best = max(
        rate(ranked[:count], depth) for count, depth in itertools.product(range(1, len(offers) + 1), range(1, 8))
    )
    members = [offer for offer, length in zip(offers, found, strict=True) if length]
    if members:
        depth = max(found)
        among = ranked[: max(ranked.index(offer) for offer in members) + 1]
        assert rate(among, depth) == pytest.approx(best, rel=1e-6)
    else:
        assert best <= 1.1 * len(offers) / plain * (1 + 1e-6)


@dataclass
class Told:
    """A draft model that always guesses the next number, and says what it was asked for."""

    cost: CostLine = field(default_factory=lambda: taught(SMALL, noise=0.0, disturbed=0.0))
    max_num_tokens: int = 1000
    unread: int = 1
    orders: list[tuple[str, int]] = field(default_factory=list)

    def num_unread(self, sequence: Sequence) -> int:
        return self.unread

    def draft(self, orders: SequenceOf[DraftOrder]) -> tuple[list[tuple[int, ...]], float]:
        self.orders += [(order.sequence.request.id, order.count) for order in orders]
        found = []
        for order in orders:
            last = order.sequence.token_ids[-1]
            assert len(order.sequence.block_table) * 4 >= order.sequence.num_tokens + order.count, "it has slots"
            found.append(tuple(range(last + 1, last + 1 + order.count)))
        return found, 0.25


def drafting(model: Told, num_blocks: int = 64, line: tuple[float, ...] = TARGET) -> Scheduler:
    return Scheduler(BlockManager(num_blocks, 4), policy_of(line), 8, 1024, speculation=True, draft_model=model)


def drafts(scheduler: Scheduler, prompt: list[int], **fields: object) -> tuple[int, ...]:
    """The drafts of the first decode of a request whose first token is 40."""
    scheduler.add(make_request("a", prompt, **fields))
    batch = scheduler.schedule(0)
    scheduler.update(batch, [SampledToken(40)], 0)
    (item,) = scheduler.schedule(0).scheduled
    return item.draft_token_ids


FRESH = [2, 30, 14, 5, 26, 17, 8]


def test_the_model_drafts_behind_a_decode() -> None:
    scheduler, model = drafting(Told()), Told()
    found = drafts(scheduler, FRESH, max_tokens=50)
    assert found == tuple(range(41, 41 + len(found))) and found
    assert scheduler.speculation.num_draft_tokens == len(found)
    assert scheduler.speculation.take_model_seconds() == 0.25
    assert scheduler.speculation.take_model_seconds() == 0.0, "it was a part of one step"
    assert drafts(drafting(model), FRESH, max_tokens=2) == () == tuple(model.orders), "only the last token is left"


def test_text_that_repeats_is_copied_where_that_was_right_more_often() -> None:
    model = Told()
    scheduler = drafting(model)
    scheduler.speculation._acceptance.probability = 0.1
    repeating = [38, 39, 40, 5, 6, 7, 8, 9, 1, 38, 39]
    assert drafts(scheduler, repeating, max_tokens=50)[:1] == (5,)
    assert not model.orders


def test_no_drafts_past_the_models_window_or_where_it_costs_too_much() -> None:
    short, slow = Told(max_num_tokens=8), Told(cost=taught(LARGE, noise=0.0, disturbed=0.0))
    assert drafts(drafting(short), FRESH, max_tokens=50) == () and not short.orders
    assert drafts(drafting(slow), FRESH, max_tokens=50) == () and not slow.orders
    edge = Told(max_num_tokens=10)
    assert len(drafts(drafting(edge), FRESH, max_tokens=50)) <= 2, "positions 8 and 9 are its last"


def test_drafts_take_no_reserved_block() -> None:
    """7 + 1 tokens fill two blocks; the third one is reserved for the running sequence."""
    model = Told()
    assert drafts(drafting(model, num_blocks=3), FRESH, max_tokens=4) == () and not model.orders


class Certain(Constraint):
    """A grammar that leaves one way only, however far it is asked for."""

    def __init__(self) -> None: ...

    is_complete = is_broken = False

    def follow(self, output: SequenceOf[int]) -> None: ...

    def certain(self, most: int = MOST_CERTAIN) -> tuple[int, ...]:
        return tuple(range(100, 100 + most))


class Ngrams(Speculation):
    def proposals(self, decodes: SequenceOf[Sequence]) -> Iterable[tuple[Sequence, tuple[int, ...]]]:
        return ((each, tuple(range(41, 48))) for each in decodes)


@pytest.mark.parametrize("by_model", [True, False])
def test_drafts_take_the_rows_that_certain_tokens_leave(by_model: bool) -> None:
    policy = policy_of(TARGET)
    policy.max_num_batched_tokens = 2 + MOST_CERTAIN + 1
    scheduler = Scheduler(
        BlockManager(64, 4), policy, 2, 1024, speculation=True, draft_model=Told() if by_model else None
    )
    if not by_model:
        scheduler.speculation.__class__ = Ngrams
    scheduler.add(make_request("certain", FRESH, max_tokens=50), Certain())
    scheduler.add(make_request("drafted", FRESH[::-1], max_tokens=50, arrival=1))
    scheduler.update(scheduler.schedule(0), [SampledToken(40)] * 2, 0)
    behind = {item.sequence.request.id: len(item.draft_token_ids) for item in scheduler.schedule(0).scheduled}
    assert behind["certain"] == MOST_CERTAIN and behind["drafted"] <= 1


def test_a_model_that_is_always_wrong_is_asked_less_and_less() -> None:
    model = Told()
    scheduler = drafting(model, num_blocks=256)
    drafts(scheduler, FRESH, max_tokens=400)
    batch = scheduler.schedule(0)
    for number in range(300):
        scheduler.update(batch, [SampledToken(100 + 7 * number)], 0)
        batch = scheduler.schedule(0)
    assert 5 < len(model.orders) < 60
