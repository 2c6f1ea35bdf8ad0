"""The engine client's knowledge of live requests, its restart policy, and the fake engine. No processes run."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from service.engine.messages import EngineConfig, FinishReason, Request, StepOutput, TokenLogprobs
from service.engine_client.client import Engine, EngineClient, EngineState
from service.engine_client.restart_policy import Deaths, RestartPolicy
from service.engine_client.streams import EngineFailed, Streams
from service.errors import Unavailable
from tests.fakes import InProcessEngine, expected_tokens, make_request, tokens_of

CONFIG = EngineConfig(model_dir="m", precision="int8", max_model_len=64)


def test_a_replay_carries_what_was_given_out() -> None:
    streams = Streams()
    streams.open(make_request("a", [1, 2], emitted=(8,)))
    streams.give([StepOutput("a", prompt_logprobs=(TokenLogprobs(-1.0),))])
    streams.give([StepOutput("a", (9,)), StepOutput("nobody", (3,))])
    (request,) = streams.replay(max_fruitless=2)
    assert (request.token_ids, request.emitted, request.emitted_prompt_logprobs) == ((1, 2), (8, 9), 1)


def test_what_has_ended_is_not_replayed() -> None:
    streams = Streams()
    ended, closed, live = (streams.open(make_request(id)) for id in "abc")
    streams.give([StepOutput("a", (9,), finish_reason=FinishReason.STOP)])
    assert streams.close(closed)
    assert not streams.close(ended), "nothing to abort"
    assert [request.id for request in streams.replay(2)] == ["c"]
    assert list(streams) == [live]


def ids(requests: tuple[Request, ...]) -> list[str]:
    return [request.id for request in requests]


@pytest.mark.parametrize("order", [["poison", "one", "two"], ["one", "poison", "two"], ["one", "two", "poison"]])
async def test_what_kills_the_engine_again_and_again_fails_alone(order: list[str]) -> None:
    """Every replay that has the poison in it dies without an output of anyone who is replayed beside it."""
    streams = Streams()
    opened = {id: streams.open(make_request(id)) for id in order}
    deaths = 1
    given = ids(streams.replay(max_fruitless=2))
    assert given == order
    while opened["poison"] in list(streams):
        if "poison" in given:
            deaths += 1
            given = ids(streams.replay(max_fruitless=2))
        else:
            streams.give([StepOutput(id, (1,)) for id in given])
            given += ids(streams.next_suspect())
    assert deaths == 3
    while more := ids(streams.next_suspect()):
        streams.give([StepOutput(id, (1,)) for id in more])
    assert [stream.request.id for stream in streams] == [id for id in order if id != "poison"]
    with pytest.raises(EngineFailed, match="died 3 times over this request"):
        await opened["poison"].next()


def test_a_suspect_that_left_is_not_waited_for() -> None:
    streams = Streams()
    first, second, _ = [streams.open(make_request(id)) for id in "abc"]
    assert ids(streams.replay(max_fruitless=2)) == ["a", "b", "c"]
    assert ids(streams.replay(max_fruitless=2)) == ["a"]
    assert ids(streams.next_suspect()) == []
    streams.close(first)
    streams.close(second)
    assert ids(streams.next_suspect()) == ["c"]


async def test_expired_streams_end_once() -> None:
    streams = Streams()
    late, timely = streams.open(make_request("late", deadline=5.0)), streams.open(make_request("timely"))
    assert streams.expire(4.9) == ()
    assert streams.expire(5.0) == ("late",)
    assert streams.expire(6.0) == ()
    streams.give([StepOutput("late", (1,))])
    assert (await late.next()).finish_reason is FinishReason.DEADLINE
    assert late.queue.empty()
    assert list(streams) == [timely]


def test_an_id_streams_once() -> None:
    streams = Streams()
    streams.open(make_request("a"))
    with pytest.raises(ValueError, match="alive already"):
        streams.open(make_request("a"))


def test_deaths_cost_growing_pauses_until_there_are_too_many() -> None:
    deaths = Deaths(RestartPolicy(max_deaths=4, window_seconds=60, backoff_seconds=0.1))
    assert [deaths.note(now) for now in (0, 1, 2, 3)] == [0.1, 0.2, 0.4, None]
    assert Deaths(RestartPolicy()).note(0) == 0.1
    assert [deaths.note(now) for now in (100, 200)] == [0.1, 0.1], "those of long ago are forgotten"


async def test_nothing_is_taken_before_the_start() -> None:
    client = EngineClient(CONFIG)
    assert (client.state, client.info, client.pid, client.restarts) == (EngineState.NEW, None, None, 0)
    with pytest.raises(Unavailable, match="the engine is new"):
        await anext(client.generate(make_request("a")))
    await client.stop()
    assert client.state is EngineState.STOPPED


async def test_the_fake_engine_streams_aborts_and_stops() -> None:
    engine = InProcessEngine()
    as_engine: Engine = engine
    await as_engine.start()
    one, two = make_request("one", range(20), max_tokens=9), make_request("two", range(20), max_tokens=5000)
    outputs = [output async for output in as_engine.generate(one)]
    assert tokens_of(outputs) == expected_tokens(one)
    async with aclosing(as_engine.generate(two)) as stream:
        async for _ in stream:
            assert as_engine.stats.running == 1
            break
    await asyncio.sleep(0.01)
    assert (as_engine.stats.running, as_engine.stats.blocks_free + as_engine.stats.blocks_cached) == (0, 1024)
    rest = as_engine.generate(make_request("three", max_tokens=5000))
    await anext(rest)
    await as_engine.stop()
    with pytest.raises(EngineFailed):
        async for _ in rest:
            pass
