"""Real engine processes around the fake model: killed, stopped, hung, poisoned, orphaned. Streams must not notice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.engine.client.client import EngineClient
from service.engine.client.engine import EngineFailed, EngineState
from service.engine.client.process import EngineProcess, Started
from service.engine.client.restart_policy import DEFAULT_POLICY, RestartPolicy
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.frames import FrameReader, decode_from_engine, encode
from service.engine.protocol.messages import (
    Abort,
    Add,
    EngineStats,
    Fatal,
    FinishReason,
    FromEngine,
    Pooling,
    Ready,
    Request,
    Shutdown,
    Start,
    Step,
    StepOutput,
    ToEngine,
)
from service.errors import EngineKilled, Unavailable
from tests.fakes import expected_tokens, expected_vector, make_request, tokens_of
from tests.waiting import block_until, until

ROOT = str(Path(__file__).parents[2])
CONFIG = EngineConfig(model_dir="m", precision="fp32", max_model_len=8192, block_size=4, heartbeat_seconds=0.1)
POISON = 96
QUICK = RestartPolicy(backoff_seconds=0.02)
HANGS = RestartPolicy(hang_seconds=0.4, backoff_seconds=0.02)


def environment(**fake: Any) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": ROOT, "DOSIRAK_FAKE": json.dumps(fake)}


def client_of(
    restart_policy: RestartPolicy = DEFAULT_POLICY, on_step: Callable[[EngineStats], None] | None = None, **fake: Any
) -> EngineClient:
    module = "tests.fake_worker"
    return EngineClient(CONFIG, module=module, env=environment(**fake), restart_policy=restart_policy, on_step=on_step)


@asynccontextmanager
async def engine(
    restart_policy: RestartPolicy = DEFAULT_POLICY, on_step: Callable[[EngineStats], None] | None = None, **fake: Any
) -> AsyncIterator[EngineClient]:
    client = client_of(restart_policy, on_step, **fake)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def answer(client: EngineClient, request: Request) -> list[StepOutput]:
    return [output async for output in client.generate(request)]


def kill(client: EngineClient, number: signal.Signals = signal.SIGKILL) -> None:
    assert client.pid is not None
    os.kill(client.pid, number)


def is_gone(pid: int) -> bool:
    """Ended, reaped or not: who adopts an orphan may be slow to reap."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


async def test_from_start_to_stop() -> None:
    seen: list[tuple[str, float]] = []
    client = client_of(num_blocks=32)
    await client.start(on_loading=lambda phase, fraction: seen.append((phase, fraction)))
    assert seen == [("weights", 0.5), ("weights", 1.0)]
    assert client.state == "ready"
    assert client.info is not None
    assert (client.info.pid, client.info.blocks_total) == (client.pid, 32)
    request = make_request("a", range(10), max_tokens=8)
    outputs = await answer(client, request)
    assert tokens_of(outputs) == expected_tokens(request)
    assert outputs[0].queue_seconds is not None
    assert (client.stats.running, client.stats.blocks_free + client.stats.blocks_cached) == (0, 32)
    assert [step.tokens for step in client.recent_steps] == [10, *[1] * 7]
    await client.stop(grace=60)
    assert client.state == "stopped"
    assert is_gone(client.info.pid)
    with pytest.raises(Unavailable, match="stopped"):
        await answer(client, request)


async def test_many_streams_at_once() -> None:
    requests = [make_request(str(i), range(i % 5, 20), max_tokens=20, seed=i % 3) for i in range(40)]
    async with engine() as client:
        answers = await asyncio.gather(*(answer(client, request) for request in requests))
    assert [tokens_of(outputs) for outputs in answers] == [expected_tokens(request) for request in requests]


async def test_a_closed_stream_frees_its_blocks() -> None:
    seen: list[EngineStats] = []
    async with engine(on_step=seen.append, step_seconds=0.01) as client:
        stays = asyncio.create_task(answer(client, make_request("stays", [1], max_tokens=30)))
        async with aclosing(client.generate(make_request("leaves", [2], max_tokens=5000))) as stream:
            async for _ in stream:  # the two may join in different steps
                if client.stats.running == 2:
                    break
            assert client.stats.running == 2
            before = len(seen)
        await stays
    after = [stats.running for stats in seen[before:]]
    assert 1 in after[:10], "at the next step boundary, and a few frames may lie in the socket"


@pytest.mark.parametrize("kills", [1, 3])
async def test_a_killed_engine_is_a_pause(kills: int) -> None:
    requests = [make_request(str(i), range(i, 12), max_tokens=400, prompt_logprobs=0, logprobs=0) for i in range(4)]
    killed = list[bool]()
    async with engine(QUICK, step_seconds=0.005) as client:

        async def read(request: Request) -> list[StepOutput]:
            outputs: list[StepOutput] = []
            async for output in client.generate(request):
                outputs.append(output)
                is_next = client.state == "ready" and len(outputs) >= 7 * (len(killed) + 1)
                if request.id == "0" and len(killed) < kills and client.restarts == len(killed) and is_next:
                    killed.append(True)
                    kill(client)
            return outputs

        answers = await asyncio.gather(*(read(request) for request in requests))
        assert client.restarts == kills
    for request, outputs in zip(requests, answers, strict=True):
        assert tokens_of(outputs) == expected_tokens(request)
        assert [output.finish_reason is not None for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert sum(len(output.prompt_logprobs) for output in outputs) == len(request.token_ids) - 1
        assert sum(output.queue_seconds is not None for output in outputs) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("kind", Pooling)
async def test_vectors_outlive_engines(kind: Pooling) -> None:
    """Prompts of many steps, whose sums die with their engines: each vector comes once, and is its own."""
    requests = [make_request(str(i), [i] * 900, max_tokens=0, pooling=kind) for i in range(4)]
    async with engine(QUICK, step_seconds=0.1) as client:
        asked = [asyncio.create_task(answer(client, request)) for request in requests]
        for number in (1, 2):
            await asyncio.sleep(0.15)  # within a step of the first prompt, or soon behind it
            assert not all(each.done() for each in asked)
            kill(client)
            await until(lambda number=number: (client.restarts, client.state) == (number, "ready"))  # type: ignore[misc]
        answers = await asyncio.gather(*asked)
    for request, outputs in zip(requests, answers, strict=True):
        assert [output.pooled for output in outputs if output.pooled] == [expected_vector(request)]
        assert tokens_of(outputs) == [] and outputs[-1].finish_reason is FinishReason.LENGTH


async def test_requests_wait_for_an_engine_that_is_starting_again() -> None:
    died = asyncio.Event()
    async with engine(QUICK, on_step=lambda stats: died.set()) as client:
        kill(client)
        await died.wait()
        request = make_request("a", range(5))
        assert tokens_of(await answer(client, request)) == expected_tokens(request)
        assert client.restarts == 1


async def test_a_hung_engine_is_killed_and_its_streams_go_on() -> None:
    request = make_request("a", range(5), max_tokens=400)
    outputs: list[StepOutput] = []
    async with engine(HANGS, step_seconds=0.005) as client:
        async for output in client.generate(request):
            outputs.append(output)
            if len(outputs) == 5:
                kill(client, signal.SIGSTOP)
        assert client.restarts >= 1
    assert tokens_of(outputs) == expected_tokens(request)


@pytest.mark.parametrize("is_busy", [True, False])
async def test_a_stopped_engine_is_seen_before_it_is_killed(is_busy: bool) -> None:
    request = make_request("a", range(5), max_tokens=200 if is_busy else 1)
    async with engine(replace(QUICK, hang_seconds=60.0), step_seconds=0.005) as client:
        running = asyncio.create_task(answer(client, request))
        await until(lambda: client.stats.steps_total > 3 or running.done())
        assert client.silent_seconds < 1.5
        kill(client, signal.SIGSTOP)
        await until(lambda: client.silent_seconds > 1.5)
        kill(client, signal.SIGCONT)
        assert tokens_of(await running) == expected_tokens(request)
        await until(lambda: not client.silent_seconds)
        assert client.restarts == 0


async def test_an_engine_that_is_stopped_without_work_is_replaced_before_a_request_needs_it() -> None:
    async with engine(HANGS, step_seconds=0.005) as client:
        kill(client, signal.SIGSTOP)
        await until(lambda: client.restarts >= 1)
        assert await answer(client, make_request("a", max_tokens=1))


async def test_a_step_may_take_longer_than_a_hang() -> None:
    """Its heartbeats go on: a step of over twice `hang_seconds`."""
    request = make_request("a", max_tokens=1)
    async with engine(replace(HANGS, hang_seconds=2.0), step_seconds=4.5) as client:
        assert tokens_of(await answer(client, request)) == expected_tokens(request)
        assert client.restarts == 0


@pytest.mark.parametrize("how", ["hang_on_token", "freeze_on_token"])
async def test_a_request_whose_step_never_ends_fails_alone(how: str) -> None:
    """A kernel that never returns is known by its seconds, native code that keeps the interpreter's lock by silence."""
    innocent = make_request("innocent", [1, 2], max_tokens=60)
    policy = replace(HANGS, unforecast_step_seconds=0.4, max_suspected_crashes=2)
    fake: dict[str, Any] = {how: POISON}
    async with engine(policy, step_seconds=0.005, **fake) as client:
        running = asyncio.create_task(answer(client, innocent))
        with pytest.raises(EngineKilled):
            await answer(client, make_request("poison", [POISON]))
        assert tokens_of(await running) == expected_tokens(innocent)


async def test_an_idle_engine_is_never_taken_for_a_hung_one() -> None:
    async with engine(replace(HANGS, hang_seconds=2.0), step_seconds=0.2) as client:
        await asyncio.sleep(2.5)
        await answer(client, make_request("a", max_tokens=1))
        assert client.restarts == 0


async def test_a_deadline_holds_while_there_is_no_engine() -> None:
    async with engine(RestartPolicy(hang_seconds=0.4, backoff_seconds=30), step_seconds=0.01) as client:
        started = time.monotonic()
        request = make_request("a", max_tokens=5000, deadline=started + 0.5)
        stream = client.generate(request)
        outputs = [await anext(stream)]
        kill(client)
        outputs += [output async for output in stream]
        assert outputs[-1].finish_reason is FinishReason.DEADLINE
        assert time.monotonic() < started + 15, "before the engine is back"


async def test_the_engine_ends_a_request_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.client.client._LATE_SECONDS", 60.0)
    async with engine(step_seconds=0.01) as client:
        outputs = await answer(client, make_request("a", max_tokens=5000, deadline=time.monotonic() + 0.2))
        assert outputs[-1].finish_reason is FinishReason.DEADLINE
        assert outputs[-1].batch_size_mean == 1.0, "told by the engine, not by the client's own watch"


async def test_stop_lets_streams_finish_within_its_grace() -> None:
    request = make_request("a", max_tokens=20)
    async with engine(step_seconds=0.01) as client:
        stream = client.generate(request)
        outputs = [await anext(stream)]
        await client.stop(grace=60)
        outputs += [output async for output in stream]
    assert tokens_of(outputs) == expected_tokens(request)


async def test_stop_without_grace_tells_the_streams() -> None:
    async with engine(step_seconds=0.01) as client:
        stream = client.generate(make_request("a", max_tokens=5000))
        await anext(stream)
        await client.stop()
        with pytest.raises(EngineFailed, match="stopped"):
            async for _ in stream:
                pass


async def test_signals_of_the_group_do_not_end_the_engine() -> None:
    async with engine(step_seconds=0.01) as client:
        for number in (signal.SIGINT, signal.SIGTERM):
            kill(client, number)
        request = make_request("a")
        assert tokens_of(await answer(client, request)) == expected_tokens(request)
        assert client.restarts == 0


@pytest.mark.parametrize(
    ("module", "fake", "cause"),
    [
        ("tests.fake_worker", {"fail_load": "no such weights"}, "ValueError: no such weights"),
        ("tests.no_such_module", {}, "ended with exit code 1 while it was loading"),
    ],
)
async def test_a_failed_load_says_why(module: str, fake: dict[str, str], cause: str) -> None:
    client = EngineClient(CONFIG, module=module, env=environment(**fake))
    with pytest.raises(EngineFailed, match=cause):
        await client.start()
    assert client.state is EngineState.FAILED
    assert client.pid is not None
    assert is_gone(client.pid)


async def test_a_load_that_never_ends_is_given_up() -> None:
    client = client_of(RestartPolicy(load_seconds=0.3), load_seconds=60)
    with pytest.raises(EngineFailed, match=r"not loaded after 0\.3 s"):
        await client.start()
    assert client.pid is not None
    assert is_gone(client.pid)


async def test_a_cancelled_load_leaves_no_process() -> None:
    client = client_of(load_seconds=60)
    loading = asyncio.Event()
    task = asyncio.create_task(client.start(on_loading=lambda phase, fraction: loading.set()))
    await loading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await client.stop()
    assert client.pid is not None
    assert is_gone(client.pid)


async def test_idle_means_idle() -> None:
    async with engine() as client:
        await answer(client, make_request("a", max_tokens=50))
        process = psutil.Process(client.pid)
        was, now = None, process.num_ctx_switches()
        while now != was:  # its last step has ended
            await asyncio.sleep(0.05)
            was, now = now, process.num_ctx_switches()
        await asyncio.sleep(0.6)
        assert process.num_ctx_switches() == now, "it was not even woken"


PARENT = """
import asyncio
from tests.faults.test_engine_process import client_of, make_request

async def main():
    client = client_of(step_seconds=30)
    await client.start()
    print(client.pid, flush=True)
    await anext(client.generate(make_request("a")))

asyncio.run(main())
"""


def test_an_orphan_dies_at_once_even_within_a_step() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.1)
        assert not is_gone(pid)
        parent.kill()
        parent.wait()
        block_until(lambda: is_gone(pid), 20)  # a step takes 30


class RawEngine:
    """An engine process and the bare socket, for what a well-behaved client never does."""

    def __init__(self, **fake: Any) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(60)
        command = [sys.executable, "-m", "tests.fake_worker", str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment(**fake), cwd=ROOT)
        self._frames = FrameReader()
        self.send(Start(CONFIG))
        assert any(isinstance(message, Ready) for message in self.read())

    def send(self, *messages: ToEngine) -> None:
        self.socket.sendall(b"".join(encode(message) for message in messages))

    def read(self) -> list[FromEngine]:
        """Up to the next frame that is not a Loading one, or to the end."""
        messages: list[FromEngine] = []
        while not any(isinstance(message, (Ready, Fatal, Step)) for message in messages):
            data = self.socket.recv(1 << 20)
            if not data:
                break
            messages += [decode_from_engine(body) for body in self._frames.feed(data)]
        return messages

    def rest(self) -> list[FromEngine]:
        messages: list[FromEngine] = []
        while more := self.read():
            messages += more
        return messages


def test_the_engine_exits_when_the_socket_ends() -> None:
    raw = RawEngine(step_seconds=0.01)
    raw.send(Add((make_request("a", max_tokens=5000),)))
    raw.read()
    raw.socket.close()
    assert raw.process.wait(timeout=60) == 0


def test_shutdown_drains_then_exits() -> None:
    raw, request = RawEngine(), make_request("a", max_tokens=20)
    raw.send(Add((request, make_request("b", max_tokens=5000))), Shutdown(), Abort(("b",)))
    steps = [message for message in raw.rest() if isinstance(message, Step)]
    assert tokens_of(o for step in steps for o in step.outputs if o.request_id == "a") == expected_tokens(request)
    assert raw.process.wait(timeout=60) == 0


@pytest.mark.parametrize("broken", [encode(Start(CONFIG)), b"\0\0\0\1\xff", b"\xff" * 8])
def test_a_broken_stream_of_frames_is_fatal(broken: bytes) -> None:
    raw = RawEngine()
    raw.socket.sendall(broken)
    assert any(isinstance(message, Fatal) for message in raw.rest())
    assert raw.process.wait(timeout=60) == 1


async def test_a_process_that_was_started_before_is_the_first_to_serve_and_not_the_second() -> None:
    started = Started.of("tests.fake_worker", environment())
    client = EngineClient(CONFIG, module="tests.fake_worker", env=environment(), restart_policy=QUICK, started=started)
    await client.start()
    assert client.pid == started.process.pid
    request = make_request("a", [1, 2], max_tokens=400)
    stream = client.generate(request)
    first = await anext(stream)
    kill(client)
    rest = [output async for output in stream]
    assert tokens_of([first, *rest]) == expected_tokens(request)
    assert client.restarts == 1 and client.pid != started.process.pid
    await client.stop()


async def test_each_process_is_told_where_the_weights_are_packed_when_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A place that was known at the first start is gone with the process that had it."""
    places, told = iter(("", "/proc/7/fd/3")), []
    load = EngineProcess.load

    async def recorded(
        started: Started, config: EngineConfig, on_message: Callable[[FromEngine], None]
    ) -> EngineProcess:
        told.append(config.packed_weights)
        return await load(started, config, on_message)

    monkeypatch.setattr(EngineProcess, "load", recorded)
    module = "tests.fake_worker"
    client = EngineClient(
        CONFIG, module=module, env=environment(), restart_policy=QUICK, packed_weights=lambda: next(places)
    )
    await client.start()
    try:
        kill(client)
        assert (await answer(client, make_request("a")))[-1].finish_reason is FinishReason.LENGTH
        assert told == ["", "/proc/7/fd/3"]
    finally:
        await client.stop()


async def test_a_process_that_is_never_wanted_ends() -> None:
    started = Started.of("tests.fake_worker", environment())
    client = EngineClient(CONFIG, started=started)
    await client.stop()
    assert started.process.returncode == 0
