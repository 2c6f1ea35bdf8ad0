"""The engine's loop over a scripted inbox: what takes effect at which step."""

from __future__ import annotations

import pytest

from service.engine.process.loop import EngineLoop
from service.engine.process.worker import build_core
from service.engine.protocol.messages import Abort, Add, EngineConfig, FinishReason, Shutdown, Start
from tests.fakes import FakeRunner, make_core, make_request
from tests.scripted_channel import ScriptedChannel


def test_an_abort_takes_effect_before_the_next_forward() -> None:
    runner = FakeRunner()
    both = Add((make_request("a", max_tokens=50), make_request("b", range(9), max_tokens=50)))
    channel = ScriptedChannel([[both], [], [Abort(("b",))], []])
    with pytest.raises(EOFError):
        EngineLoop(make_core(runner, num_blocks=16, prefix_caching=False), channel).run()
    assert [[id for id, _ in batch] for batch in runner.batches] == [["a", "b"], ["a", "b"], ["a"], ["a"]]
    assert [step.stats.blocks_free for step in channel.steps[1:3]] == [12, 14], "a holds its second block by now"
    assert channel.steps[2].outputs[0].finish_reason is FinishReason.ABORT


def test_it_waits_only_when_there_is_nothing_to_do() -> None:
    channel = ScriptedChannel([[], [Add((make_request("a", max_tokens=2),))], [], []])
    with pytest.raises(EOFError):
        EngineLoop(make_core(), channel).run()
    assert channel.waited == [None, None, 0.0, None, None]


def test_one_frame_a_step_with_news_and_none_without() -> None:
    core = make_core(max_num_batched_tokens=12, num_blocks=64)
    loop = EngineLoop(
        core, channel := ScriptedChannel([[Add((make_request("a", range(60), max_tokens=2),))], *[[]] * 5])
    )
    with pytest.raises(EOFError):
        loop.run()
    assert core.stats.steps_total == 6
    assert 2 <= len(channel.steps) <= 3, "the first chunk's stats may be told; the other chunks come too soon after it"
    told = [step for frame in channel.steps for step in frame.steps]
    assert [step.tokens for step in told] == [12, 12, 12, 12, 12, 1], "no step is left out"


def test_shutdown_drains() -> None:
    channel = ScriptedChannel([[Add((make_request("a", max_tokens=3),)), Shutdown()], [], [], []])
    EngineLoop(make_core(), channel).run()
    assert channel.steps[-1].outputs[0].finish_reason is FinishReason.LENGTH


def test_a_second_start_is_refused() -> None:
    config = EngineConfig(model_dir="m", precision="int8", max_model_len=8)
    with pytest.raises(ValueError, match="second Start"):
        EngineLoop(make_core(), ScriptedChannel([[Start(config)]])).run()


def test_a_step_has_room_for_prefill_whatever_is_configured() -> None:
    config = EngineConfig(
        model_dir="m", precision="int8", max_model_len=64, max_num_seqs=32, max_num_batched_tokens=8, block_size=16
    )
    assert build_core(config, FakeRunner(), 4).scheduler.policy.max_num_batched_tokens == 40


@pytest.mark.parametrize(("prefix_caching", "slots"), [(True, 5), (False, 0)])
def test_the_spill_has_as_many_slots_as_the_runner(prefix_caching: bool, slots: int) -> None:
    config = EngineConfig(model_dir="m", precision="int8", max_model_len=64, prefix_caching=prefix_caching)
    blocks = build_core(config, FakeRunner(num_disk_blocks=5), 4).scheduler.blocks
    assert blocks.offload.num_disk_blocks == slots
    assert blocks._worth(3) > blocks._worth(0) > 0, "by the fitted line"
