"""The core on the fake model: outputs against an oracle that knows no engine."""

from __future__ import annotations

import random
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pytest

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.kv_cache.offload import Offload
from service.engine.process.core import EngineCore
from service.engine.protocol.messages import MAX_STEPS, FinishReason, Pooling, StepRecord
from service.engine.scheduling.batching import BatchingPolicy
from service.engine.scheduling.cost import CostLine, StepWork
from service.engine.scheduling.draft_model import DraftOrder
from service.engine.scheduling.scheduler import Scheduler
from service.engine.scheduling.speculation import Speculation
from service.engine.sequences.batch import Batch, SampledToken
from service.engine.sequences.sequence import Sequence
from tests.fakes import (
    FakeClock,
    FakeRunner,
    expected_tokens,
    expected_vector,
    make_core,
    make_request,
    run_all,
    tokens_of,
)


@pytest.mark.parametrize("num_blocks", [12, 64])
@pytest.mark.parametrize("max_num_batched_tokens", [12, 200])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_alone_or_in_a_crowd(num_blocks: int, max_num_batched_tokens: int, prefix_caching: bool) -> None:
    rng = random.Random(1)
    requests = [
        make_request(
            str(index),
            [*range(rng.choice([0, 8, 13])), *rng.choices(range(90), k=rng.randint(1, 12))],
            max_tokens=rng.randint(1, 20),
            stop_token_ids=(3, 5),
            min_tokens=rng.randint(0, 3),
            priority=rng.randint(0, 2),
            seed=rng.randint(0, 1),
        )
        for index in range(24)
    ]
    core = make_core(
        num_blocks=num_blocks, max_num_batched_tokens=max_num_batched_tokens, prefix_caching=prefix_caching
    )
    for request in requests:
        core.add(request)
    outputs = run_all(core)
    assert {id: tokens_of(news) for id, news in outputs.items()} == {r.id: expected_tokens(r) for r in requests}
    assert all(
        [o.finish_reason is not None for o in news] == [False] * (len(news) - 1) + [True] for news in outputs.values()
    )
    assert (core.stats.preemptions_total > 0) == (num_blocks == 12)
    assert (core.stats.prefix_hit_tokens_total > 0) == prefix_caching


def test_a_wrong_block_changes_the_output() -> None:
    """The oracle can fail: the fake model sees what is in the blocks, not what should be."""
    runner = FakeRunner()
    core, request = make_core(runner), make_request("a", range(10), max_tokens=6)
    core.add(request)
    tokens = tokens_of(core.step())
    runner.kv[core.scheduler.running[0].block_table[1], 0] = ("", 4, 96)
    tokens += tokens_of(run_all(core)["a"])
    assert tokens[0] == expected_tokens(request)[0]
    assert tokens[1:] != expected_tokens(request)[1:]


def test_a_refused_request_ends_with_error() -> None:
    core = make_core(num_blocks=2)
    core.add(make_request("a", range(30)))
    core.add(make_request("b"))
    assert core.has_work
    ends = {o.request_id: o.finish_reason for o in [*core.step(), *core.step(), *core.step(), *core.step()]}
    assert ends == {"a": FinishReason.ERROR, "b": FinishReason.LENGTH}
    assert not core.has_work


def test_a_broken_model_ends_one_request_only() -> None:
    core = make_core(FakeRunner(broken=frozenset({"a"})))
    core.add(make_request("a"))
    core.add(make_request("b", [4, 5]))
    outputs = run_all(core)
    assert [o.finish_reason for o in outputs["a"]] == [FinishReason.ERROR]
    assert tokens_of(outputs["b"]) == expected_tokens(make_request("b", [4, 5]))


NOT_A_NUMBER, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": NOT_A_NUMBER},
        {"temperature": INFINITE},
        {"temperature": -1.0},
        {"repetition_penalty": 1e-40},
        {"repetition_penalty": INFINITE},
        {"frequency_penalty": -1e38},
        {"presence_penalty": NOT_A_NUMBER},
        {"top_p": 1.0000001},
        {"min_p": -0.1},
        {"typical_p": NOT_A_NUMBER},
        {"top_k": -1},
        {"logprobs": -1},
        {"logit_bias": ((3, 1e38),)},
        {"logit_bias": ((FakeRunner.vocab_size, 1.0),)},
        {"logit_bias": ((-1, 1.0),)},
        {"token_ids": (1, FakeRunner.vocab_size)},
        {"token_ids": (1, -1)},
        {"emitted": (FakeRunner.vocab_size,)},
    ],
)
def test_a_value_that_cannot_be_computed_ends_its_own_request(fields: dict[str, Any]) -> None:
    core = make_core()
    core.add(make_request("a", **{"token_ids": (1, 2), **fields}))
    core.add(make_request("b"))
    outputs = run_all(core)
    assert [output.finish_reason for output in outputs["a"]] == [FinishReason.ERROR]
    assert tokens_of(outputs["b"]) == expected_tokens(make_request("b"))


class TrueDrafts(Speculation):
    """Proposes one draft for every decode of the request "a", and the draft is right."""

    def proposals(self, decodes: Seq[Sequence]) -> Iterable[tuple[Sequence, tuple[int, ...]]]:
        for sequence in decodes:
            if sequence.request.id == "a":
                known = sequence.num_output_tokens
                yield sequence, tuple(expected_tokens(sequence.request)[known : known + 1])


class WildRunner(FakeRunner):
    """Samples what is no token id for the request "a": first of all, or behind a draft that came true."""

    def __init__(self, wild: int, behind: bool) -> None:
        super().__init__()
        self._wild, self._behind = SampledToken(wild), behind

    def run(self, batch: Batch) -> list[SampledToken | None]:
        sampled = super().run(batch)
        for index, item in enumerate(batch.scheduled):
            first = sampled[index]
            if item.sequence.request.id != "a" or first is None:
                continue
            if not self._behind:
                sampled[index] = self._wild
            elif first.following:
                sampled[index] = replace(first, following=(self._wild,))
        return sampled


@pytest.mark.parametrize("wild", [-1, FakeRunner.vocab_size, 2**62])
@pytest.mark.parametrize("behind", [False, True])
def test_a_sampled_id_outside_of_the_vocabulary_ends_its_own_request(wild: int, behind: bool) -> None:
    core = make_core(WildRunner(wild, behind), speculation=True)
    core.scheduler.speculation.__class__ = TrueDrafts
    core.add(make_request("a"))
    core.add(make_request("b", [4, 5]))
    outputs = run_all(core)
    assert tokens_of(outputs["a"]) == expected_tokens(make_request("a"))[: 2 * behind]
    assert outputs["a"][-1].finish_reason is FinishReason.ERROR
    assert tokens_of(outputs["b"]) == expected_tokens(make_request("b", [4, 5]))


def test_prompt_logprobs_come_once_each_in_order_over_chunks() -> None:
    core = make_core(max_num_batched_tokens=12)
    core.add(make_request("a", range(30), prompt_logprobs=1, logprobs=0))
    outputs = run_all(core)["a"]
    assert [entry.logprob for output in outputs for entry in output.prompt_logprobs] == [
        -float(p) for p in range(1, 30)
    ]
    assert [len(output.logprobs) for output in outputs] == [len(output.token_ids) for output in outputs]


class SlowRunner(FakeRunner):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.stands_still = 0.0

    def run(self, batch: Batch) -> list[SampledToken | None]:
        self._clock.advance(0.25 + self.stands_still)
        self.stands_still = 0.0
        return super().run(batch)


def test_stats_tell_the_last_step_and_conserve_blocks() -> None:
    clock = FakeClock()
    core = make_core(SlowRunner(clock), clock)
    core.add(make_request("a", range(10)))
    core.add(make_request("b", range(20, 23)))
    core.step()
    stats = core.stats
    assert (stats.running, stats.waiting, stats.steps_total) == (2, 0, 1)
    assert (stats.step_seconds, stats.step_tokens, stats.step_sequences) == (0.25, 13, 2)
    assert (stats.blocks_total, stats.blocks_free, stats.blocks_cached) == (16, 12, 0)
    assert stats.cost_error > 0
    core.abort(["a", "b"])
    assert [o.finish_reason for o in core.step()] == [FinishReason.ABORT] * 2
    assert core.stats.steps_total == 1, "nothing was computed"
    assert core.stats.blocks_free + core.stats.blocks_cached == 16


def test_steps_are_told_once_with_the_prediction_made_before_each() -> None:
    clock = FakeClock()
    core = make_core(SlowRunner(clock), clock, num_blocks=64)
    cost, predicted = core.scheduler.policy.cost, []
    core.add(make_request("a", range(10), max_tokens=3))
    for tokens, context, attention in ((10, 0, 55.0), (1, 11, 0.0), (1, 12, 0.0)):
        predicted.append(cost.predict(StepWork(tokens, context, attention)))
        core.step()
    assert core.take_steps() == tuple(
        StepRecord(tokens, 1, seconds, 0.25) for tokens, seconds in zip((10, 1, 1), predicted, strict=True)
    )
    assert len(set(predicted)) == 3
    assert core.take_steps() == ()
    core.add(make_request("b", max_tokens=2 * MAX_STEPS))
    run_all(core)
    assert len(core.take_steps()) == MAX_STEPS, "the newest"
    assert core.stats.prefill_tokens_total == 10 + len(make_request("b").token_ids)


def test_seconds_in_which_the_machine_stood_still_are_no_answers() -> None:
    """Else a full server refuses for a hundred answers who would wait for a moment."""
    clock = FakeClock()
    runner = SlowRunner(clock)
    core = make_core(runner, clock, num_blocks=64)
    for number in range(8):
        core.add(make_request(f"warm {number}", range(number, 10), max_tokens=12))
        run_all(core)
    before = core.stats.seat_seconds
    core.add(make_request("a", range(10), max_tokens=12))
    core.step()
    runner.stands_still = 70.0
    core.step()
    assert before < core.stats.seat_seconds < 2 * before
    run_all(core)
    assert core.stats.seat_seconds < 2 * before


class SlowDrafts:
    """A draft model that is always right, and takes 8 ms."""

    max_num_tokens = 1000

    def __init__(self, clock: FakeClock) -> None:
        self.cost = CostLine()
        self.num_steps = 0
        self._clock = clock
        for tokens in (1, 2, 4, 8) * 8:
            self.cost.observe(StepWork(tokens, tokens), 0.001)

    def num_unread(self, sequence: Sequence) -> int:
        return 1

    def draft(self, orders: Seq[DraftOrder]) -> tuple[list[tuple[int, ...]], float]:
        self.num_steps += 1
        self._clock.advance(0.008)
        known = [(order.sequence, order.sequence.num_output_tokens, order.count) for order in orders]
        return [tuple(expected_tokens(each.request)[at : at + count]) for each, at, count in known], 0.008


def test_the_cost_line_learns_neither_copies_nor_drafts() -> None:
    """Each is taken off once, also in a step that has both. A step takes 10 ms and 0.2 ms a token."""
    clock = FakeClock()
    model, runner, observed = SlowDrafts(clock), FakeRunner(4, num_disk_blocks=64), []
    runner.took = lambda tokens, copies: clock.advance(0.01 + 0.0002 * tokens if tokens else 0.0005 * copies)

    class Recorded(BatchingPolicy):
        def observe(self, work: StepWork, seconds: float) -> None:
            observed.append((work.tokens, seconds))
            super().observe(work, seconds)

    policy = Recorded(64, 8, 0.5)
    pool = BlockManager(40, 4, offload=Offload(64), worth=lambda index: policy.block_seconds(index, 4))
    core = EngineCore(runner, Scheduler(pool, policy, 4, 1024, speculation=True, draft_model=model), clock)
    for number in range(12):
        prompt = [(number * 7 + place * place) % 90 for place in range(12)]
        core.add(make_request(str(number), prompt, max_tokens=60, arrival=clock.now))
        run_all(core)
    assert model.num_steps > 50 and pool.offload.copy_seconds > 0
    assert [seconds for _, seconds in observed] == pytest.approx([0.01 + 0.0002 * tokens for tokens, _ in observed])


def test_an_idle_core_does_nothing() -> None:
    core = make_core()
    assert not core.has_work
    assert core.step() == []
    assert core.take_steps() == ()


@pytest.mark.parametrize("kind", Pooling)
def test_a_vector_begins_again_with_a_preemption(kind: Pooling) -> None:
    """A decode of higher priority takes the blocks of a prompt whose states are summed half."""
    core = make_core(num_blocks=12, max_num_seqs=2, max_num_batched_tokens=6)
    urgent = make_request("urgent", range(3), max_tokens=20, priority=1)
    pooled = make_request("pooled", range(40), max_tokens=0, pooling=kind)
    core.add(urgent)
    core.add(pooled)
    outputs = run_all(core)
    assert core.scheduler.num_preemptions >= 1
    assert outputs["pooled"][-1].num_preemptions >= 1
    assert outputs["pooled"][-1].pooled == expected_vector(pooled)


def test_pooling_is_refused_beside_tokens_and_where_there_are_no_states() -> None:
    wrong: list[dict[str, Any]] = [{"max_tokens": 1}, {"max_tokens": 0, "prompt_logprobs": 0}]
    for fields in wrong:
        core = make_core()
        core.add(make_request("a", pooling=Pooling.MEAN, **fields))
        assert run_all(core)["a"][-1].finish_reason is FinishReason.ERROR
    runner = FakeRunner()
    runner.no_states = "it has an encoder"
    core = make_core(runner)
    core.add(make_request("a", pooling=Pooling.MEAN, max_tokens=0))
    assert run_all(core)["a"][-1].finish_reason is FinishReason.ERROR


def test_a_vector_of_no_numbers_is_an_error() -> None:
    core = make_core(FakeRunner(broken=frozenset("a")))
    core.add(make_request("a", pooling=Pooling.MEAN, max_tokens=0))
    [output] = run_all(core)["a"]
    assert (output.finish_reason, output.pooled) == (FinishReason.ERROR, b"")
