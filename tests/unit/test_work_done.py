"""Useful work is counted once: whatever is cached, cut into chunks, preempted, replayed or drafted."""

from __future__ import annotations

import random
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pytest

from service.engine.process.core import EngineCore
from service.engine.process.work_done import WINDOW_STEPS, WorkDone
from service.engine.protocol.messages import EngineStats, Request
from service.engine.protocol.work import ModelWork
from service.engine.scheduling.speculation import Speculation
from service.engine.sequences.sequence import Sequence
from service.engine.sequences.tally import PhaseTally
from tests.fakes import (
    DECODER_START,
    EncodingRunner,
    FakeClock,
    FakeRunner,
    expected_tokens,
    make_request,
    make_scheduler,
    run_all,
)

MODEL = ModelWork(
    weights=1000,
    pair_flops=16,
    head_weights=300,
    encoder_weights=700,
    encoder_pair_flops=8,
    layer_bytes=2000,
    head_bytes=600,
    encoder_bytes=1400,
    kv_bytes=10,
)


class HalfRight(Speculation):
    """Proposes three tokens behind every decode, of which the first is right and the second is not."""

    def proposals(self, decodes: Seq[Sequence]) -> Iterable[tuple[Sequence, tuple[int, ...]]]:
        for sequence in decodes:
            follows = expected_tokens(sequence.request)[sequence.num_output_tokens :]
            if len(follows) > 3:
                yield sequence, (follows[0], follows[1] + 1, follows[2])


def core_of(runner: FakeRunner | None = None, clock: FakeClock | None = None, **scheduler: Any) -> EngineCore:
    made = make_scheduler(**scheduler)
    return EngineCore(runner or FakeRunner(made.blocks.block_size), made, clock or FakeClock(), MODEL)


def flops_of(prompt: int, cached: int, answer: int) -> int:
    """PaLM, appendix B: the tokens from the cached ones to the last but one, each with its position; each sample."""
    positions = range(cached, prompt + answer - 1)
    return sum(2 * 1000 + 16 * (position + 1) for position in positions) + answer * 2 * 300


def done(stats: EngineStats) -> float:
    return stats.prefill.flops + stats.decode.flops


def test_phases_are_the_prompt_and_the_answer() -> None:
    core = core_of()
    core.add(make_request("a", range(10), max_tokens=5))
    run_all(core)
    assert core.stats.prefill.flops == flops_of(10, 0, 1)
    assert core.stats.decode.flops == flops_of(10, 0, 5) - flops_of(10, 0, 1)


def test_a_cached_prompt_counts_what_is_computed() -> None:
    core = core_of()
    core.add(make_request("a", range(20), max_tokens=3))
    run_all(core)
    before = done(core.stats)
    core.add(make_request("b", range(20), max_tokens=3))
    [news] = run_all(core).values()
    assert news[0].num_cached_tokens == 16
    assert done(core.stats) - before == flops_of(20, 16, 3)


@pytest.mark.parametrize("speculation", [False, True])
@pytest.mark.parametrize("num_blocks", [12, 64])
def test_every_token_counts_once_in_a_crowd(num_blocks: int, speculation: bool) -> None:
    rng = random.Random(7)
    core = core_of(num_blocks=num_blocks, max_num_batched_tokens=14, speculation=speculation)
    if speculation:
        core.scheduler.speculation.__class__ = HalfRight
    requests = [
        make_request(str(n), [n, *rng.choices(range(90), k=rng.randint(1, 25))], max_tokens=rng.randint(0, 18))
        for n in range(24)
    ]
    for request in requests:
        core.add(request)
    outputs = run_all(core)
    expected = 0
    for request in requests:
        answer = len([token for output in outputs[request.id] for token in output.token_ids])
        expected += flops_of(len(request.token_ids), outputs[request.id][-1].num_cached_tokens, answer)
        if not answer:  # its last prompt token is computed and nothing is sampled from it
            expected += 2 * 1000 + 16 * len(request.token_ids)
    assert done(core.stats) == expected
    assert (core.stats.preemptions_total > 0) == (num_blocks == 12)
    assert (core.stats.accepted_tokens_total > 0) == speculation
    assert core.stats.accepted_tokens_total < core.stats.draft_tokens_total or not speculation


def test_wrong_drafts_count_nothing() -> None:
    core = core_of(speculation=True)
    core.scheduler.speculation.__class__ = HalfRight
    core.add(make_request("a", range(10), max_tokens=8))
    core.step()
    assert len(core.step()) == 2
    assert (core.stats.draft_tokens_total, core.stats.accepted_tokens_total) == (3, 1)
    assert core.stats.decode.flops == flops_of(10, 10, 3) - 600, "two positions, two samples; the first was prefill's"


def test_a_replayed_request_counts_what_is_new() -> None:
    request = make_request("a", range(10), max_tokens=8)
    whole, first, second = core_of(), core_of(), core_of()
    whole.add(request)
    run_all(whole)
    first.add(request)
    emitted: list[int] = []
    while len(emitted) < 4:
        emitted += [token for output in first.step() for token in output.token_ids]
    second.add(replace(request, emitted=tuple(emitted)))
    run_all(second)
    assert done(first.stats) + done(second.stats) == done(whole.stats)


def test_an_encoder_counts_its_input_without_padding() -> None:
    scheduler = make_scheduler()
    scheduler._decoder_start = DECODER_START
    core = EngineCore(EncodingRunner(4), scheduler, FakeClock(), MODEL)
    core.add(make_request("a", range(6), max_tokens=3))
    run_all(core)
    decoder = sum(2 * 1000 + 16 * (position + 1 + 6) for position in range(2 + 3 - 1))
    assert done(core.stats) == 6 * 2 * 700 + 36 * 8 + decoder + 3 * 2 * 300


def test_seconds_and_bytes_are_those_of_the_steps() -> None:
    clock = FakeClock()
    runner = FakeRunner(4, took=lambda tokens, copies: clock.advance(0.001 * tokens))
    core = core_of(runner, clock)
    core.add(make_request("a", range(8), max_tokens=3))
    core.step()
    assert core.stats.prefill.seconds == pytest.approx(0.008)
    assert core.stats.prefill.bytes == 2000 + 600 + 10 * (8 + 8), "eight positions written, and read"
    core.add(make_request("b", range(50, 59), max_tokens=1))
    core.step()
    assert core.stats.prefill.seconds + core.stats.decode.seconds == pytest.approx(0.018)
    assert core.stats.decode.seconds == pytest.approx(0.001), "its share of the step's rows"
    assert core.stats.decode.bytes == 2600 // 10 + 10 * (9 + 1)


def test_the_window_holds_a_phases_last_steps() -> None:
    work, decode, prefill = WorkDone(MODEL), tally(rows=1, tokens=1, pairs=1), tally(rows=1, tokens=2, pairs=2)
    nothing = PhaseTally()
    work.add(prefill, nothing, 0.5)
    for _ in range(WINDOW_STEPS + 44):
        work.add(nothing, decode, 0.25)
    assert work.decode.seconds == 75.0
    assert work.decode.recent_seconds == WINDOW_STEPS / 4
    assert work.decode.recent_flops == WINDOW_STEPS * 2016
    assert (work.prefill.recent_seconds, work.prefill.recent_flops) == (0.5, 4032), "decodes do not push it out"


def test_experts_are_read_as_tokens_need_them() -> None:
    work = WorkDone(ModelWork(layer_bytes=100, expert_bytes=80, active_expert_bytes=20))
    work.add(PhaseTally(), tally(rows=1), 1.0)
    assert work.decode.bytes == 120
    work.add(PhaseTally(), tally(rows=64), 1.0)
    assert work.decode.bytes == 120 + 180


def tally(**counts: int) -> PhaseTally:
    made = PhaseTally()
    for name, count in counts.items():
        setattr(made, name, count)
    return made


def test_unfinished_prompt_logprobs_of_a_replay_are_not_counted_again() -> None:
    request = Request("a", tuple(range(12)), replace(make_request("b").params, prompt_logprobs=0, max_tokens=1))
    core = core_of()
    core.add(replace(request, emitted_prompt_logprobs=7))
    run_all(core)
    assert done(core.stats) == flops_of(12, 7, 1)
