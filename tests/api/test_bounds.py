"""No wait without a bound: places, deadlines, loading, draining."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush
from pathlib import Path
from random import Random
from statistics import median

import pytest

from service.api.http.errors import headers_of
from service.context.sources import Text
from service.engine.protocol.messages import EngineStats, FinishReason
from service.errors import DeadlineExceeded, Overloaded
from service.generation.admission import MOST_REMEMBERED, Admission
from service.generation.request import GenerationRequest
from tests.api.conftest import KEY, Serve
from tests.api.reading import error, events, openai_error
from tests.fake_service import ScriptedEngine, World, publish, serving
from tests.fakes import FakeClock
from tests.waiting import until


async def test_more_than_the_places_are_refused_and_say_when(serve: Serve) -> None:
    async with serve(engine={"hold": (hold := asyncio.Event())}, max_in_progress=3) as world:
        waiting = [asyncio.create_task(world.client.post("/generate", json={"inputs": "x"})) for _ in range(3)]
        await until(lambda: len(world.engine.alive) == 3)
        response = await world.client.post("/generate", json={"inputs": "x"})
        body = error(response, 503, "overloaded")
        assert (body["in_progress"], body["max_in_progress"]) == (3, 3)
        assert int(response.headers["retry-after"]) >= 1
        hold.set()
        assert {(await each).status_code for each in waiting} == {200}
        assert (await world.client.post("/generate", json={"inputs": "x"})).status_code == 200


async def test_every_sequence_takes_a_place(serve: Serve) -> None:
    """A request larger than all places is no overload: no other time finds room for it. Embeddings come in parts."""
    async with serve(max_in_progress=3) as world:
        post = world.client.post
        many = await post("/generate", json={"inputs": "x", "parameters": {"n": 4}})
        assert "DOSIRAK_MAX_IN_PROGRESS" in error(many, 422, "invalid_request")["error"]
        prompts = {"prompt": ["a", "b", "c", "d"], "max_tokens": 1, "stream": True}
        openai_error(await post("/v1/completions", json=prompts), 400, "invalid_request")
        assert world.app.state.service.answers.admission.in_progress == 0
        assert not world.engine.requests
        vectors = await post("/v1/embeddings", json={"input": ["a"] * 8, "model": "demo"})
        assert len(vectors.json()["data"]) == 8


async def test_the_tokens_of_prompts_are_bounded(serve: Serve) -> None:
    """Alone a prompt of any length is served."""
    async with serve(engine={"hold": (hold := asyncio.Event())}, max_tokens_in_progress=10) as world:
        long = asyncio.create_task(world.client.post("/generate", json={"input_ids": [7] * 12}))
        await until(lambda: len(world.engine.alive) == 1)
        response = await world.client.post("/generate", json={"input_ids": [7]})
        body = error(response, 503, "overloaded")
        assert (body["tokens_in_progress"], body["max_tokens_in_progress"]) == (12, 10)
        assert "DOSIRAK_MAX_TOKENS_IN_PROGRESS" in body["error"] and int(response.headers["retry-after"]) >= 1
        hold.set()
        assert (await long).status_code == 200
        twice = {"input_ids": [7] * 5, "parameters": {"n": 2}}
        assert (await world.client.post("/generate", json=twice)).status_code == 200
        vectors = {"model": "demo", "input": [[7] * 5] * 3}
        assert (await world.client.post("/v1/embeddings", json=vectors)).status_code == 200
        assert world.app.state.service.answers.tokens.in_progress == 0


async def test_a_full_batch_takes_no_more_than_it_gets_to_soon(serve: Serve) -> None:
    """Four places, and one becomes free each 3 s: who would wait for longer than 5 s comes back later, or says that it
    has time."""
    async with serve(engine={"hold": (hold := asyncio.Event())}) as world:
        world.engine.stats = replace(world.engine.stats, seats=4, seat_seconds=3.0)
        waiting = [asyncio.create_task(world.client.post("/generate", json={"inputs": "x"})) for _ in range(5)]
        await until(lambda: len(world.engine.alive) == 5)
        response = await world.client.post("/generate", json={"inputs": "x"})
        body = error(response, 503, "overloaded")
        assert (body["queue_seconds"], body["max_queue_seconds"], response.headers["retry-after"]) == (6.0, 5.0, "4")
        patient = asyncio.create_task(world.client.post("/generate", json={"inputs": "x", "deadline_ms": 60_000}))
        await until(lambda: len(world.engine.alive) == 6)
        hold.set()
        assert {(await each).status_code for each in [*waiting, patient]} == {200}
        assert (await world.client.post("/generate", json={"inputs": "x"})).status_code == 200
        assert not world.app.state.service.answers.admission._queues


def test_an_owner_waits_for_the_turns_of_others_and_not_for_their_line() -> None:
    admission = Admission(100, longest_queue_seconds=10)
    stats = EngineStats(seats=4, seat_seconds=1.0, backlog_seconds=20.0)
    greedy, light = (GenerationRequest("r", Text("x"), owner=owner) for owner in ("greedy", "light"))
    with ExitStack() as held:
        for _ in range(14):
            held.enter_context(admission.queued("engine", greedy, 1, stats))
        with pytest.raises(Overloaded):
            held.enter_context(admission.queued("engine", greedy, 1, stats))
        soon = replace(light, deadline_ms=5_000, arrival=time.monotonic())
        held.enter_context(admission.queued("engine", soon, 1, stats))
        for _ in range(5):
            held.enter_context(admission.queued("engine", light, 1, stats))
        with pytest.raises(Overloaded):
            held.enter_context(admission.queued("engine", light, 3, stats))
        with pytest.raises(DeadlineExceeded):
            late = replace(greedy, deadline_ms=5_000, arrival=time.monotonic())
            held.enter_context(admission.queued("engine", late, 1, stats))
        held.enter_context(admission.queued("another", greedy, 1, stats))
        with pytest.raises(Overloaded):
            held.enter_context(admission.queued("refused at once", greedy, 40, stats))
    assert not admission._queues


async def test_a_timeout_of_the_work_is_no_deadline(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("service.generation.answers.build", slow)
    async with serve() as world:
        error(await world.client.post("/generate", json={"inputs": "x", "deadline_ms": 60_000}), 500, "internal")


class Line:
    """Four places, of which one becomes free each quarter of a second, and clients who come back as they were told."""

    def __init__(self, *arrivals: float, is_same: bool = False) -> None:
        self.idle = 0
        self.waited: list[float] = []
        """Of each who was refused at first: the seconds until it entered, as a multiple of those that it was told."""
        self._stats = EngineStats(seats=4, seat_seconds=0.25)
        self._clock = FakeClock()
        self._admission = Admission(10_000, self._clock, longest_queue_seconds=5)
        self._held = deque[ExitStack]()
        events = [(moment, 1, moment, 0) for moment in arrivals]
        heapify(events)
        heappush(events, (0.25, 0, 0.0, 0))
        while any(is_client for _, is_client, *_ in events):
            self._clock.now, is_client, first, told = heappop(events)
            wait = self._ask(b"" if is_same else b"%r" % first) if is_client else self._end()
            if wait:
                heappush(events, (self._clock.now + wait, is_client, first, told or int(wait)))
            elif told:
                self.waited.append((self._clock.now - first) / told)

    def _end(self) -> float:
        if self._held:
            self._held.popleft().close()
        else:
            self.idle += 1
        return 0.25

    def _ask(self, sent: bytes) -> float:
        held = ExitStack()
        try:
            if self._admission.is_crowded and (refused := self._admission.refusal("e", "", self._stats, sent)):
                raise refused
            held.enter_context(self._admission.queued("e", GenerationRequest("r", Text("x")), 1, self._stats))
        except Overloaded as refused:
            return float(headers_of(refused)["Retry-After"])
        self._held.append(held)
        return 0


@pytest.mark.parametrize("crowd", [30, 100, 240])
def test_who_comes_back_as_told_finds_a_place_and_no_place_is_left_empty(crowd: int) -> None:
    line = Line(*[0.0] * crowd)
    assert len(line.waited) == crowd - 24, "four run, and twenty wait for 5 s at most"
    assert max(line.waited) <= 2
    assert line.idle == 0


@pytest.mark.parametrize("seed", range(3))
def test_who_comes_back_into_a_load_that_goes_on_finds_a_place_in_time(seed: int) -> None:
    """Twice as many come as can be served, by chance, for half a minute. The first who is refused is looked at by no
    door; and where all send the same, most find a place in time."""
    rng, moment = Random(seed), 0.0
    arrivals = [moment := moment + rng.expovariate(8) for _ in range(240)]
    line = Line(*arrivals)
    late = [waited for waited in line.waited if waited > 2]
    assert len(line.waited) > 60 and len(late) <= len(line.waited) / 50, late
    same = Line(*arrivals, is_same=True)
    assert median(same.waited) <= 2
    assert max(line.idle, same.idle) <= 2, "at the start"


def test_what_is_remembered_of_refused_requests_takes_few_bytes_and_goes_with_them() -> None:
    """Deques of ten thousand refused requests took 8 MB in an overload."""
    clock, stats = FakeClock(), EngineStats(seats=4, seat_seconds=0.25)
    admission = Admission(1, clock)
    admission.enter(1)
    sent = [b"%d" % at for at in range(MOST_REMEMBERED + 500)]
    tracemalloc.start()
    try:
        assert all(admission.refusal("e", "", stats, each) for each in sent)
        assert tracemalloc.get_traced_memory()[0] / MOST_REMEMBERED < 300, "bytes of one"
    finally:
        tracemalloc.stop()
    admission.leave(1)
    clock.advance(100)
    assert not any(admission.refusal("e", "", stats, each) for each in sent)
    assert not admission._told


async def test_one_owners_repetitions_leave_places_for_loads_of_others(tmp_path: Path) -> None:
    """Repetitions of a request wait for its answer, and took all the places of those who wait for a load."""
    hold = asyncio.Event()
    async with serving(tmp_path, admin_key=KEY, max_in_progress=16, engine={"hold": hold}) as world:
        publish(world.deployments.repository, name="other")
        bearers = []
        for name in ("one", "two"):
            body, operator = {"name": name, "scopes": ["generate"]}, {"Authorization": f"Bearer {KEY}"}
            made = await world.client.post("/v1/keys", json=body, headers=operator)
            bearers.append({"Authorization": f"Bearer {made.json()['key']}"})
        waiting = world.app.state.service.answers.waiting
        with waiting.entered(1, "one"), waiting.entered(1, "two"):  # that there are several owners is known
            pass
        repeat = partial(world.client.post, "/generate", json={"inputs": "x"})
        repeated = {**bearers[0], "Idempotency-Key": "k"}
        sent = [asyncio.create_task(repeat(headers=repeated)) for _ in range(17)]
        await until(lambda: waiting.in_progress >= 14)
        other = {"model": "other:1", "inputs": "x"}
        answered = asyncio.create_task(world.client.post("/generate", json=other, headers=bearers[1]))
        await until(lambda: len(world.engines) == 2 or answered.done())
        hold.set()
        assert (await answered).status_code == 200
        assert {(await each).status_code for each in sent} == {200, 503}


def test_retry_after_follows_the_measured_rate() -> None:
    clock = FakeClock()
    admission = Admission(10, clock)
    for _ in range(20):
        admission.enter(1)
        clock.advance(2)
        admission.leave(1)
    admission.enter(10)
    with pytest.raises(Overloaded) as refused:
        admission.enter(1)
    assert refused.value.retry_after == 4, "two places, at one in two seconds"
    clock.advance(30)
    admission.leave(1)
    clock.advance(57)
    assert admission.retry_after(1) == 57, "nothing moves: as long again"
    clock.advance(1000)
    assert admission.retry_after(1) == 60
    admission.leave(9)
    clock.advance(1000)
    admission.enter(10)
    assert admission.retry_after(1) == 5, "they came a moment ago"


def test_no_owner_takes_the_places_of_all() -> None:
    """Who has many more than there are places takes each that is given back; the other comes once in two seconds."""
    clock = FakeClock()
    admission = Admission(64, clock)
    admission.enter(64, "greedy")
    with pytest.raises(Overloaded):
        admission.enter(1, "light")
    for _ in range(9):
        admission.leave(1, "greedy")
    admission.enter(1, "greedy")
    with pytest.raises(Overloaded, match="56 of 64 places are taken, 8 are for those who have fewer,"):
        admission.enter(1, "greedy")
    for owner in (*["light"] * 5, *["third"] * 3):
        admission.enter(1, owner)
    with pytest.raises(Overloaded, match="64 of 64 places are taken and"):
        admission.enter(1, "light")


def test_an_owner_alone_has_all_places() -> None:
    admission = Admission(8, FakeClock())
    for _ in range(8):
        admission.enter(1, "anonymous")
    assert admission.in_progress == 8


async def test_deadline_before_the_first_token(serve: Serve) -> None:
    async with serve(engine={"step_seconds": 0.05}) as world:
        response = await world.client.post("/generate", json={"inputs": "x", "deadline_ms": 20})
        assert error(response, 504, "deadline_exceeded")["deadline_ms"] == 20
        stream = await world.client.post("/generate_stream", json={"inputs": "x", "deadline_ms": 20})
        error(stream, 504, "deadline_exceeded")


async def test_deadline_after_some_tokens(serve: Serve) -> None:
    body = {"inputs": "x", "deadline_ms": 60_000}
    async with serve(engine={"fail_after": 3, "end": FinishReason.DEADLINE}) as world:
        whole = (await world.client.post("/generate", json=body)).json()
        assert whole["finish_reason"] == "deadline"
        assert whole["generated_text"].startswith("안녕")
        last = events(await world.client.post("/generate_stream", json=body))[-1]
        assert last["finish_reason"] == "deadline"
        assert world.engine.requests[0].deadline == pytest.approx(world.engine.requests[0].arrival + 60)


async def test_deadline_while_the_model_loads(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forever(engine: ScriptedEngine, on_loading: object = None) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(ScriptedEngine, "start", forever)
    async with serve(start=False) as world:
        await world.deployments.start()
        await until(lambda: world.engines)
        response = await world.client.post("/generate", json={"inputs": "x", "deadline_ms": 100})
        error(response, 504, "deadline_exceeded")
        assert world.app.state.service.answers.admission.in_progress == 0


async def test_not_started_yet(serve: Serve) -> None:
    async with serve(start=False) as world:
        response = await world.client.post("/generate", json={"inputs": "x"})
        error(response, 503, "unavailable")
        assert response.headers["retry-after"] == "2"
        assert error(await world.client.get("/health"), 503, "unavailable")
        assert (await world.client.get("/readyz")).status_code == 503
        assert (await world.client.get("/livez")).status_code == 200


async def test_shutting_down(world: World) -> None:
    await world.deployments.stop()
    error(await world.client.post("/generate", json={"inputs": "x"}), 503, "unavailable")
    error(await world.client.get("/health"), 503, "unavailable")


async def test_a_deadline_out_of_reach_is_refused_at_once(world: World) -> None:
    """By what the engine has told of its backlog; the request never gets there."""
    world.engine.stats = replace(world.engine.stats, backlog_seconds=7.2, cost_error=0.1)
    for path, extra in (("/generate", {}), ("/v1/completions", {"prompt": "x"})):
        body = {"deadline_ms": 5000, **(extra or {"inputs": "x"})}
        response = await world.client.post(path, json=body)
        assert response.status_code == 504
        assert response.headers["retry-after"] == "8"
    refused = await world.client.post("/generate", json={"inputs": "x", "deadline_ms": 5000})
    assert error(refused, 504, "deadline_exceeded")["backlog_ms"] == 7200
    assert world.engine.requests == []
    world.engine.stats = replace(world.engine.stats, backlog_seconds=100, cost_error=0.9)
    assert (await world.client.post("/generate", json={"inputs": "x", "deadline_ms": 60_000})).status_code == 200, (
        "doubt"
    )
    assert (await world.client.post("/generate", json={"inputs": "x"})).status_code == 200


async def test_the_engines_refusal_carries_the_forecast(serve: Serve) -> None:
    async with serve(engine={"fail_after": 0, "end": FinishReason.DEADLINE}) as world:
        world.engine.stats = replace(world.engine.stats, backlog_seconds=2.5)
        response = await world.client.post("/generate", json={"inputs": "x", "deadline_ms": 60_000})
        assert error(response, 504, "deadline_exceeded")["backlog_ms"] == 2500
        assert response.headers["retry-after"] == "3"
        world.engine.stats = replace(world.engine.stats, backlog_seconds=0.0)
        alone = await world.client.post("/generate", json={"inputs": "x", "deadline_ms": 60_000})
        assert "retry-after" not in alone.headers, "nobody stood before it: trying again does not help"
