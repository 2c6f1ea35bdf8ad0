"""Requests in any order under a tiny pool: each ends exactly once, with the tokens it would get alone."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from service.engine.kv_cache.block_manager import BlockManager, Prefix
from service.engine.kv_cache.offload import Offload
from service.engine.process.core import EngineCore
from service.engine.protocol.messages import FinishReason, Pooling, Request, StepOutput
from service.engine.scheduling.batching import BatchingPolicy
from service.engine.scheduling.budget import StepBudget
from service.engine.scheduling.output_processor import OutputProcessor
from service.engine.scheduling.prefill import Prefill
from service.engine.scheduling.scheduler import Scheduler
from service.engine.scheduling.speculation import Speculation
from service.engine.sequences.batch import Batch, BlockCopy, SampledToken, Scheduled
from service.engine.sequences.sequence import Sequence, SequenceStatus
from tests.effort import drawn
from tests.fakes import (
    DECODER_START,
    EncodingRunner,
    FakeClock,
    FakeRunner,
    expected_tokens,
    expected_vector,
    make_request,
    tokens_of,
)
from tests.property.test_blocks_machine import UNSHRUNK, Blind, Disordered, Hasty, Leaky, Saltless, prompts

BLOCKS, BLOCK_SIZE = 10, 4
WINDOW, WINDOW_BLOCKS = 6, 26  # as many as two long sequences and a step of nine tokens can need, and some
MIN_PREFILL = 3  # divides no block
SETTINGS = settings(deadline=None, max_examples=drawn(25, 80), stateful_step_count=40)

requests = st.fixed_dictionaries(
    {
        "token_ids": prompts(),
        "max_tokens": st.integers(0, 18),
        "min_tokens": st.integers(0, 2),
        "stop_token_ids": st.sampled_from([(), tuple(range(0, 97, 9))]),
        "priority": st.integers(-2, 2),
        "seed": st.integers(0, 1),
        "cache_salt": st.sampled_from(["", "owner"]),
        "prompt_logprobs": st.sampled_from([None, None, 0]),
        "prompt_logprobs_start": st.integers(1, 9),
        "pooling": st.sampled_from([None, None, None, *Pooling]),
        "replayed": st.integers(0, 3),
        "lifetime": st.none() | st.integers(0, 30),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    blocks: type[BlockManager] = BlockManager
    scheduler_type: type[Scheduler] = Scheduler
    has_encoder: bool = False
    num_disk_blocks: int = 0
    is_slow: bool = False
    num_blocks: int = BLOCKS
    window: int = 0

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        policy = BatchingPolicy(9, MIN_PREFILL, 0.5 if self.is_slow else 1e9)
        self.runner = EncodingRunner(BLOCK_SIZE) if self.has_encoder else FakeRunner(BLOCK_SIZE)
        self.runner.window, self.runner.num_window_blocks = self.window, WINDOW_BLOCKS
        pool = self.blocks(
            self.num_blocks, BLOCK_SIZE, offload=Offload(self.num_disk_blocks), windows=self.runner.windows()
        )
        start = DECODER_START if self.has_encoder else ()
        scheduler = self.scheduler_type(
            pool, policy, max_num_seqs=4, max_model_len=1024, speculation=True, decoder_start=start
        )
        self.runner.took = self.took
        self.core = EngineCore(self.runner, scheduler, self.clock)
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[StepOutput]] = {}
        self.aborted: set[str] = set()

    @rule(arrivals=st.lists(requests, min_size=1, max_size=3))
    def add(self, arrivals: list[dict[str, Any]]) -> None:
        for fields in arrivals:
            request = self.request(**fields)
            self.requests[request.id], self.outputs[request.id] = request, []
            self.core.add(request)

    def request(self, replayed: int, lifetime: int | None, **fields: Any) -> Request:
        """With the first of its own tokens as emitted by an earlier process, but never with the one that ends it."""
        deadline = None if lifetime is None else self.clock.now + lifetime
        fields |= {"prompt_logprobs": None, "pooling": None} if self.has_encoder else {}
        fields |= {"prompt_logprobs": None, "max_tokens": 0} if fields.get("pooling") else {}
        request = make_request(str(len(self.requests)), arrival=self.clock.now, deadline=deadline, **fields)
        return replace(request, emitted=tuple(expected_tokens(request)[:-1][:replayed]))

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.take(self.core.step())
            self.core.scheduler.check_integrity()
            for sequence in self.core.scheduler.running:
                self.check_held(sequence)

    def took(self, tokens: int, copies: int) -> None:
        """Of a slow machine a second holds three copies, or half a full step."""
        if self.is_slow:
            self.clock.advance(0.1 + 0.2 * tokens + 0.3 * copies)

    @rule(number=st.none() | st.integers(0, 2))
    def disk(self, number: int | None) -> None:
        """From now on every third disk block can be neither written nor read; or all can."""
        self.runner.fails = lambda copy: copy.disk_block % 3 == number

    def check_held(self, sequence: Sequence) -> None:
        """Of every position that counts as computed, the token of that sequence."""
        start, end = sequence.num_encoder_slots, sequence.num_computed_tokens
        assert FakeRunner._read(self.runner, sequence, end, end)[start:] == sequence.token_ids[start:end]

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.requests) or ["nobody"]))
        if id in self.requests and not self.ended(id):
            self.aborted.add(id)
        self.core.abort([id])
        assert all(sequence.request.id != id for sequence in self.core.scheduler.running)

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @invariant()
    def sound(self) -> None:
        self.core.scheduler.check_integrity()
        stats = self.core.stats
        used = {block for sequence in self.core.scheduler.running for block in sequence.block_table}
        assert stats.blocks_free + stats.blocks_cached + len(used) == self.num_blocks
        for sequence in self.core.scheduler.running:
            self.check_shared(sequence)

    def check_shared(self, sequence: Sequence) -> None:
        """What others may find in its blocks is what it has computed: no draft that was not true."""
        blocks = self.core.scheduler.blocks
        fresh = replace(sequence, block_hashes=[])
        for index, block in enumerate(sequence.block_table):
            content = blocks._hash_of.get(block)
            assert content is None or (index + 1) * BLOCK_SIZE <= sequence.num_computed_tokens
            assert content is None or content == blocks._hash(fresh, index)

    def teardown(self) -> None:
        """No livelock and no starvation: with nothing new, everything ends within the sum of its parts."""
        tokens = sum(len(r.token_ids) + r.params.max_tokens + 2 for r in self.requests.values())
        for _ in range(tokens * 4 + 1):
            if not self.core.has_work:
                break
            self.step(1)
        assert not self.core.has_work
        for request in self.requests.values():
            self.check_end(request)
        assert self.core.scheduler.blocks.num_available == self.num_blocks

    def ended(self, id: str) -> bool:
        return any(output.finish_reason for output in self.outputs[id])

    def take(self, outputs: list[StepOutput]) -> None:
        for output in outputs:
            assert len(output.token_ids) <= 1, "one output a token"
            assert not self.ended(output.request_id), "news after the end"
            self.outputs[output.request_id].append(output)

    def check_end(self, request: Request) -> None:
        outputs = self.outputs[request.id]
        reason, tokens = outputs[-1].finish_reason, tokens_of(outputs)
        expected = expected_tokens(request)[len(request.emitted) :]
        if reason in (FinishReason.ABORT, FinishReason.DEADLINE):
            assert request.id in self.aborted if reason is FinishReason.ABORT else request.deadline is not None
            assert tokens == expected[: len(tokens)]
        else:
            assert reason in (FinishReason.STOP, FinishReason.LENGTH)
            assert tokens == expected
        if request.params.prompt_logprobs is not None and reason in (FinishReason.STOP, FinishReason.LENGTH):
            told = [-entry.logprob for output in outputs for entry in output.prompt_logprobs]
            assert told == list(range(request.params.prompt_logprobs_start, len(request.token_ids)))
        if request.params.pooling is not None and reason is FinishReason.LENGTH:
            assert [output.pooled for output in outputs] == [*[b""] * (len(outputs) - 1), expected_vector(request)]


class Guesses(Speculation):
    """For every decode: the tokens that will come, some of them spoiled, so that steps accept none, some or all.
    Whether a place is spoiled follows from the tokens, so that a failure can be replayed."""

    def proposals(self, decodes: Seq[Sequence]) -> Iterable[tuple[Sequence, tuple[int, ...]]]:
        for sequence in decodes:
            request, known = sequence.request, sequence.num_output_tokens
            coming = expected_tokens(request)[known : known + max(0, self.most(sequence))]
            yield sequence, tuple(token if (token + known) % 3 else token + 1 for token in coming)


class Guessing(Scheduler):
    speculation_type = Guesses


class TrustingOutputs(OutputProcessor):
    """Shares the block of a draft before it is known to be true."""

    def take_in(self, item: Scheduled, result: SampledToken, batch_size: int, now: float) -> None:
        sequence = item.sequence
        num_computed, num_tokens = sequence.num_computed_tokens, sequence.num_tokens
        sequence.token_ids += item.draft_token_ids
        self._blocks.mark_computed(sequence, item.num_tokens)
        sequence.num_computed_tokens = num_computed
        del sequence.token_ids[num_tokens:]
        super().take_in(item, result, batch_size, now)


class Trusting(Guessing):
    outputs_type = TrustingOutputs


class GullibleOutputs(OutputProcessor):
    """Takes slots behind rejected drafts for computed."""

    def _sample_following(self, item: Scheduled, result: SampledToken, now: float) -> None:
        super()._sample_following(item, result, now)
        rejected = len(item.draft_token_ids) - len(result.following)
        if rejected and item.sequence.status is SequenceStatus.RUNNING:
            item.sequence.num_computed_tokens = min(
                item.sequence.num_computed_tokens + rejected, item.sequence.num_tokens - 1
            )
            item.sequence.token_ids[-1] = item.draft_token_ids[len(result.following)]


class Gullible(Guessing):
    outputs_type = GullibleOutputs


class Hoarding(BlockManager):
    """Loses the blocks that drafts had needed."""

    def trim(self, sequence: Sequence) -> None:
        del sequence.block_table[self.blocks_for(sequence.num_computed_tokens) :]


class Partial(BlockManager):
    """Takes what is left of an encoder's input."""

    def match(self, sequence: Sequence, most: int = sys.maxsize) -> Prefix:
        return super().match(replace(sequence, num_encoder_slots=0, block_hashes=self._rooted(sequence)), most)

    def _rooted(self, sequence: Sequence) -> list[bytes]:
        return [self._hash(sequence, index) for index in range((sequence.num_tokens - 1) // BLOCK_SIZE)]


class ChoppingPrefill(Prefill):
    """Cuts an encoder's input as any other prompt."""

    def _chunk(self, sequence: Sequence, start: int, prefix: Prefix, budget: StepBudget) -> int:
        return min(sequence.num_tokens - start, budget.chunk(start))


class Chopping(Scheduler):
    prefill_type = ChoppingPrefill


def machine_of(
    planted: type[BlockManager] = BlockManager,
    scheduler: type[Scheduler] = Scheduler,
    encoder: bool = False,
    disk_blocks: int = 0,
    slow: bool = False,
    windows: bool = False,
) -> type[SchedulerMachine]:
    class Machine(SchedulerMachine):
        is_slow = slow
        num_disk_blocks = disk_blocks
        blocks = planted
        scheduler_type = scheduler
        has_encoder = encoder
        window, num_blocks = (WINDOW, 40) if windows else (0, BLOCKS)

    return Machine


@pytest.mark.parametrize("encoder", [False, True], ids=["decoder", "encoder-decoder"])
@pytest.mark.parametrize(("scheduler", "disk_blocks"), [(Scheduler, 0), (Scheduler, 4), (Guessing, 30)])
def test_scheduler(scheduler: type[Scheduler], disk_blocks: int, encoder: bool) -> None:
    machine = machine_of(scheduler=scheduler, encoder=encoder, disk_blocks=disk_blocks)
    run_state_machine_as_test(machine, settings=SETTINGS)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(("scheduler", "disk_blocks"), [(Scheduler, 0), (Scheduler, 8), (Guessing, 60)])
def test_with_sliding_windows(scheduler: type[Scheduler], disk_blocks: int, slow: bool) -> None:
    machine = machine_of(scheduler=scheduler, disk_blocks=disk_blocks, slow=slow, windows=True)
    run_state_machine_as_test(machine, settings=SETTINGS)


def test_a_planted_defect_of_windows_is_found() -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_of(Blind, windows=True), settings=UNSHRUNK)


@pytest.mark.parametrize(("planted", "scheduler"), [(Partial, Scheduler), (BlockManager, Chopping)])
def test_a_planted_defect_of_encoders_is_found(planted: type[BlockManager], scheduler: type[Scheduler]) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_of(planted, scheduler, encoder=True), settings=UNSHRUNK)


@pytest.mark.parametrize("encoder", [False, True], ids=["decoder", "encoder-decoder"])
@pytest.mark.parametrize("disk_blocks", [0, 4, 30])
def test_on_a_slow_machine(disk_blocks: int, encoder: bool) -> None:
    """Where seconds and copies bound the steps, and forecasts refuse."""
    run_state_machine_as_test(machine_of(encoder=encoder, disk_blocks=disk_blocks, slow=True), settings=SETTINGS)


def test_the_guesses_are_partly_right() -> None:
    machine = machine_of(scheduler=Guessing)()
    machine.add([{"token_ids": (1, 2, 3), "max_tokens": 18, "replayed": 0, "lifetime": None}])
    machine.teardown()
    stats = machine.core.stats
    assert 0 < stats.accepted_tokens_total < stats.draft_tokens_total
    assert stats.steps_total < 18


class Careless(Scheduler):
    """Goes on with blocks that did not come back."""

    def without(self, batch: Batch, failed: Iterable[BlockCopy]) -> Batch:
        return batch


@pytest.mark.parametrize(
    ("planted", "scheduler"), [(BlockManager, Careless), (Disordered, Scheduler), (Hasty, Scheduler)]
)
def test_a_planted_defect_of_the_spill_is_found(planted: type[BlockManager], scheduler: type[Scheduler]) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_of(planted, scheduler, disk_blocks=4), settings=UNSHRUNK)


@pytest.mark.parametrize("planted", [Leaky, Saltless])
def test_a_planted_defect_is_found(planted: type[BlockManager]) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_of(planted), settings=UNSHRUNK)


@pytest.mark.parametrize(
    ("planted", "scheduler"), [(BlockManager, Trusting), (BlockManager, Gullible), (Hoarding, Guessing)]
)
def test_a_planted_defect_of_speculation_is_found(planted: type[BlockManager], scheduler: type[Scheduler]) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_of(planted, scheduler), settings=UNSHRUNK)
