"""Requests in any order under a tiny pool: each ends exactly once, with the tokens it would get alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from service.engine.block_manager import BlockManager
from service.engine.request import FinishReason, Request, StepOutput
from tests.fakes import FakeClock, FakeRunner, expected_tokens, make_core, make_request, tokens_of
from tests.property.test_blocks_machine import UNSHRUNK, Leaky, Saltless, prompts

BLOCKS, BLOCK_SIZE = 10, 4
SETTINGS = settings(deadline=None, max_examples=80, stateful_step_count=40)

requests = st.fixed_dictionaries(
    {
        "token_ids": prompts(),
        "max_tokens": st.integers(0, 18),
        "min_tokens": st.integers(0, 2),
        "stop_token_ids": st.sampled_from([(), tuple(range(0, 97, 9))]),
        "priority": st.integers(0, 2),
        "seed": st.integers(0, 1),
        "cache_salt": st.sampled_from(["", "owner"]),
        "prompt_logprobs": st.sampled_from([None, None, 0]),
        "replayed": st.integers(0, 3),
        "lifetime": st.none() | st.integers(0, 30),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    blocks: type[BlockManager] = BlockManager

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        pool = self.blocks(BLOCKS, BLOCK_SIZE)
        self.core = make_core(FakeRunner(BLOCK_SIZE), self.clock, blocks=pool, max_num_seqs=4, max_num_batched_tokens=9)
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
        request = make_request(str(len(self.requests)), arrival=self.clock.now, deadline=deadline, **fields)
        return replace(request, emitted=tuple(expected_tokens(request)[:-1][:replayed]))

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.take(self.core.step())
            self.core.scheduler.check_integrity()

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
        assert stats.blocks_free + stats.blocks_cached + len(used) == BLOCKS

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
        assert self.core.scheduler.blocks.num_available == BLOCKS

    def ended(self, id: str) -> bool:
        return any(output.finish_reason for output in self.outputs[id])

    def take(self, outputs: list[StepOutput]) -> None:
        told = [output.request_id for output in outputs]
        assert len(told) == len(set(told)), "one output of a sequence a step"
        for output in outputs:
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
            assert told == list(range(1, len(request.token_ids)))


def machine_of(broken: type[BlockManager]) -> type[SchedulerMachine]:
    class Machine(SchedulerMachine):
        blocks = broken

    return Machine


def test_scheduler() -> None:
    run_state_machine_as_test(SchedulerMachine, settings=SETTINGS)


@pytest.mark.parametrize("planted", [Leaky, Saltless])
def test_a_planted_defect_is_found(planted: type[BlockManager]) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_of(planted), settings=UNSHRUNK)
