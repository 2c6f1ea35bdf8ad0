"""Heartbeats come while there is something to do, and tell how long the step in progress has run."""

from __future__ import annotations

import queue
import threading

import pytest

from service.engine.kv_cache.block_manager import BlockManager
from service.engine.process.core import EngineCore
from service.engine.process.heartbeat import Pulse
from service.engine.protocol.messages import Heartbeat
from service.engine.scheduling.batching import BatchingPolicy
from service.engine.scheduling.cost import Work
from service.engine.scheduling.scheduler import Scheduler
from tests.fakes import (
    DECODER_START,
    EncodingRunner,
    FakeClock,
    FakeRunner,
    make_core,
    make_request,
    make_scheduler,
    run_all,
)


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
    assert beats.get(timeout=30).step_seconds > told.step_seconds
    pulse.end()
    pulse.rest()
    pulse.work()
    assert beats.get(timeout=30)


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
        core.scheduler.policy.cost.observe(Work(1 + seconds % 4), 0.1)
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
        policy.cost.observe(Work(1 + seconds % 4), 0.1)
    for name, length, is_known in (("short", 4, False), ("long", 100, False), ("again", 100, True)):
        runner.told = []
        core.add(make_request(name, [len(name)] * length, max_tokens=1))
        run_all(core)
        assert (runner.told[0] is not None) == is_known, name


def test_no_forecast_before_enough_steps_are_measured() -> None:
    runner = Asking()
    runner.core, runner.told = make_core(runner), []
    runner.core.add(make_request("a", max_tokens=5))
    run_all(runner.core)
    assert set(runner.told) == {None}
