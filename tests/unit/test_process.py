"""The engine's process: its loop over a scripted inbox, its heartbeats, and frames that survive any cut."""

from __future__ import annotations

import queue
import threading
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.process.core import EngineCore
from service.engine.process.heartbeat import Pulse
from service.engine.process.loop import EngineLoop
from service.engine.process.worker import build_core
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.frames import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    FrameReader,
    decode_from_engine,
    decode_to_engine,
    encode,
)
from service.engine.protocol.messages import (
    Abort,
    AdapterLoaded,
    Add,
    EngineStats,
    Fatal,
    FinishReason,
    FromEngine,
    Heartbeat,
    LoadAdapter,
    Loading,
    Ready,
    Shutdown,
    Start,
    Step,
    StepOutput,
    StepRecord,
    ToEngine,
    TokenLogprobs,
    UnloadAdapter,
)
from service.engine.scheduling.batching import BatchingPolicy
from service.engine.scheduling.cost import StepWork
from service.engine.scheduling.scheduler import Scheduler
from tests.fakes import (
    DECODER_START,
    EncodingRunner,
    FakeClock,
    FakeRunner,
    fake_info,
    make_core,
    make_request,
    make_scheduler,
    run_all,
)
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


def test_one_frame_a_step_with_news_and_none_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.process.loop._NEWS_SECONDS", 60.0)
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


def test_a_step_and_a_rest() -> None:
    beats: queue.Queue[Heartbeat] = queue.Queue()
    pulse = Pulse(beats.put, 0.01, lambda: 2.5)
    pulse.start()
    pulse.work()
    assert beats.get(timeout=30) == Heartbeat(0.0, None), "between steps"
    pulse.begin()
    told = beats.get(timeout=30)
    while not told.step_seconds:  # it may have been on its way
        told = beats.get(timeout=30)
    assert told.forecast_seconds == 2.5
    while beats.get(timeout=30).step_seconds <= told.step_seconds:  # where the thread stood still they begin anew
        pass
    pulse.end()
    pulse.rest()
    while beats.get(timeout=30).step_seconds:
        pass
    assert beats.get(timeout=30) == Heartbeat(0.0, None), "also while there is nothing to do"
    pulse.work()
    assert beats.get(timeout=30)


def test_seconds_in_which_the_process_stood_still_are_not_the_steps() -> None:
    """Else an engine that is stopped for a minute, together with its server, is killed when both go on."""
    pulse, now = Pulse(lambda beat: None, 1.0, lambda: 0.1), time.monotonic()
    pulse._began = pulse._woken = now - 70
    pulse._wake(now)
    assert pulse._beat().step_seconds < 10
    pulse._began = now - 70
    for second in range(70, -1, -1):
        pulse._woken = now - second - 1
        pulse._awake_since = 0.0
        pulse._wake(now - second)
    assert pulse._beat().step_seconds >= 70, "a step without an end"


def test_the_thread_ends_with_its_listener() -> None:
    ended = threading.Event()

    def send(heartbeat: Heartbeat) -> None:
        ended.set()
        raise EOFError

    pulse = Pulse(send, 0.001, lambda: None)
    pulse.start()
    pulse.work()
    assert ended.wait(30)
    pulse._thread.join(30)
    assert not pulse._thread.is_alive()


class Asking(FakeRunner):
    """Asks for the forecast of each step while it computes it."""

    def run(self, batch):  # type: ignore[no-untyped-def]
        self.told.append(self.core.forecast_seconds())
        return super().run(batch)

    core: EngineCore
    told: list[float | None]


def test_a_step_is_forecast_by_steps_of_its_size() -> None:
    runner = Asking()
    core = runner.core = EngineCore(runner, make_scheduler(num_blocks=64, max_num_batched_tokens=200), FakeClock())
    runner.told = []
    for seconds in range(40):
        core.scheduler.policy.cost.observe(StepWork(1 + seconds % 4), 0.1)
    core.add(make_request("short", range(4), max_tokens=3))
    run_all(core)
    assert runner.told[0] is None, "no step was computed yet"
    assert runner.told[1] == pytest.approx(0.1, rel=0.5)
    assert core.forecast_seconds() is None, "none is in progress"


class AskingEncoder(Asking, EncodingRunner):
    """Computes an encoder's input whole, however much longer it is than all before."""


def test_a_step_that_is_much_larger_than_all_before_is_not_forecast() -> None:
    runner = AskingEncoder()
    policy, blocks = BatchingPolicy(200, 4, inter_token_latency_target=1e9), BlockManager(128, 4)
    scheduler = Scheduler(blocks, policy, max_num_seqs=8, max_model_len=1024, decoder_start=DECODER_START)
    core = runner.core = EngineCore(runner, scheduler, FakeClock())
    for seconds in range(40):
        policy.cost.observe(StepWork(1 + seconds % 4), 0.1)
    for name, length, is_known in (("short", 4, False), ("long", 100, False), ("again", 100, True)):
        runner.told = []
        core.add(make_request(name, [len(name)] * length, max_tokens=1))
        run_all(core)
        assert (runner.told[0] is not None) == is_known, name


CONFIG = EngineConfig(model_dir="m", precision="int8", max_model_len=64)
TO_ENGINE: list[ToEngine] = [
    Start(CONFIG),
    Add((make_request("a", range(5), emitted=(1,), logit_bias=((3, -1.5),), logprobs=2, deadline=4.5),)),
    Abort(("a", "b")),
    LoadAdapter("digest", "/models/chat/2", 3),
    UnloadAdapter("digest"),
    Shutdown(),
]
FROM_ENGINE: list[FromEngine] = [
    Loading("weights", 0.5),
    Ready(fake_info(8, 16)),
    AdapterLoaded("digest", 3, "its files do not fit"),
    Step(
        (StepOutput("a", (5,), (TokenLogprobs(-0.5, ((5, -0.5),)),), finish_reason=FinishReason.STOP),),
        EngineStats(running=1, cost=(1.0, 2.0, 3.0, 4.0)),
        (StepRecord(12, 3, 0.02, 0.021), StepRecord(1, 1, 0.01, 0.009)),
    ),
    Heartbeat(85.5, None),
    Heartbeat(2.0, 1.5),
    Fatal("no weights"),
]


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_to_the_engine_and_back(message: ToEngine) -> None:
    assert decode_to_engine(encode(message)[HEADER_BYTES:]) == message


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda message: type(message).__name__)
def test_from_the_engine_and_back(message: FromEngine) -> None:
    assert decode_from_engine(encode(message)[HEADER_BYTES:]) == message


@given(st.lists(st.integers(1, 50)))
def test_frames_survive_any_cut(cuts: list[int]) -> None:
    stream = b"".join(encode(message) for message in FROM_ENGINE)
    reader, bodies, start = FrameReader(), list[bytes](), 0
    for cut in [*cuts, len(stream)]:
        bodies += reader.feed(stream[start : start + cut])
        start += cut
    assert [decode_from_engine(body) for body in bodies] == FROM_ENGINE


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_to_engine(encode(Fatal("x"))[HEADER_BYTES:])


def test_a_header_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="passes the limit"):
        FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(HEADER_BYTES, "big"))


def test_a_message_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="passes the limit"):
        encode(Fatal("x" * MAX_FRAME_BYTES))
