"""The engine client's knowledge of live requests, its restart policy, and the fake engine. No processes run."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.client.client import EngineClient
from service.engine.client.engine import EngineFailed, EngineState
from service.engine.client.poison import MOST_REMEMBERED, PoisonRegister
from service.engine.client.restart_policy import Backoff, DeathKind, HangWatch, RestartPolicy
from service.engine.client.streams import Streams
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import FinishReason, Heartbeat, Request, StepOutput, TokenLogprobs
from service.errors import EngineKilled, Unavailable
from tests.fakes import FakeClock, make_request

CONFIG = EngineConfig(model_dir="m", precision="int8", max_model_len=64)


POLICY = RestartPolicy()
CRASHED, KILLED = DeathKind.CRASHED, DeathKind.KILLED


def ids(requests: Iterable[Request]) -> list[str]:
    return [request.id for request in requests]


def named(id: str) -> Request:
    """With a content of its own."""
    return make_request(id, id.encode())


def test_a_replay_carries_what_was_given_out() -> None:
    streams = Streams()
    streams.open(make_request("a", [1, 2], emitted=(8,)))
    streams.to_give()
    streams.give([StepOutput("a", prompt_logprobs=(TokenLogprobs(-1.0),))])
    streams.give([StepOutput("a", (9,)), StepOutput("nobody", (3,))])
    assert streams.blame(CRASHED, POLICY) is None
    (request,) = streams.to_give()
    assert (request.token_ids, request.emitted, request.emitted_prompt_logprobs) == ((1, 2), (8, 9), 1)


def test_a_consumer_is_told_of_each_replay_once() -> None:
    """Before the tokens that come of it, in an output without any."""
    streams = Streams()
    stream = streams.open(make_request("a"))
    streams.to_give()
    began = time.monotonic()
    for _ in range(2):
        streams.give([StepOutput("a", (9,))])
        streams.blame(KILLED, POLICY)
        streams.to_give()
    streams.give([StepOutput("a", (8,))])
    given = [stream.queue.get_nowait() for _ in range(stream.queue.qsize())]
    outputs = [output for output in given if isinstance(output, StepOutput)]
    assert [output.token_ids for output in outputs] == [(9,), (), (9,), (), (8,)]
    told = [output.replayed_at for output in outputs if output.replayed_at is not None]
    assert len(told) == 2 and began < told[0] <= told[1] <= time.monotonic()


async def test_what_waits_for_a_slow_consumer_takes_little() -> None:
    def output(number: int) -> StepOutput:
        top = tuple((1000 * number + rank, -0.1 * rank - number) for rank in range(20))
        return StepOutput("a", (number,), (TokenLogprobs(-0.5 - number, top),), batch_size_mean=1.0)

    stream = Streams().open(make_request("a"))
    tracemalloc.start()
    try:
        for number in range(1000):
            stream.give(output(number))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    stream.queue.put_nowait(EngineFailed("gone"))
    assert [await stream.next() for _ in range(1000)] == [output(number) for number in range(1000)]
    with pytest.raises(EngineFailed):
        await stream.next()
    assert held < 1_000_000, "as objects 2.8 MB"


def test_what_has_ended_is_not_replayed() -> None:
    streams = Streams()
    ended, closed, stays = (streams.open(make_request(id)) for id in "abc")
    streams.to_give()
    streams.give([StepOutput("a", (9,), finish_reason=FinishReason.STOP)])
    assert streams.close(closed)
    assert not streams.close(ended), "nothing to abort"
    streams.blame(KILLED, POLICY)
    assert ids(streams.to_give()) == ["c"]
    assert not streams.to_give(), "once a process"
    assert list(streams) == [stays]


def test_a_stream_that_the_process_never_had_is_not_aborted() -> None:
    streams = Streams()
    waits = streams.open(make_request("a"))
    assert not streams.close(waits)
    assert streams.to_give() == ()


@dataclass
class Machine:
    """Requests against processes that die as `dies` says: by the outputs that each had in this process."""

    dies: Callable[[dict[str, int]], bool]
    kind: DeathKind = CRASHED
    streams: Streams = field(default_factory=Streams)
    deaths: int = 0
    blamed: list[str] = field(default_factory=list)
    given: dict[str, int] = field(default_factory=dict)

    def open(self, *names: str) -> None:
        for name in names:
            self.streams.open(named(name))

    def run(self, steps: int = 1000, tokens: int = 40) -> None:
        """Each step gives every request of the process an output, or ends the process."""
        had = dict.fromkeys((each.request.id for each in self.streams), 0)
        for _ in range(steps):
            self.given |= dict.fromkeys(ids(self.streams.to_give()), 0)
            if not self.given and not self.streams:
                return
            if self.dies(self.given):
                self.die()
                continue
            for name in list(self.given):
                self.given[name] += 1
                had[name] = had.get(name, 0) + 1
                ends = FinishReason.LENGTH if had[name] >= tokens else None
                self.streams.give([StepOutput(name, (1,), finish_reason=ends)])
                if ends:
                    del self.given[name]

    def die(self) -> None:
        self.deaths += 1
        self.given = {}
        blamed = self.streams.blame(self.kind, POLICY)
        if blamed is not None:
            self.blamed.append(blamed.request.id)
            self.streams.fail(lambda: EngineFailed("blamed"), lambda stream: stream is blamed)


@pytest.mark.parametrize("order", [["poison", "one", "two"], ["one", "poison", "two"], ["one", "two", "poison"]])
@pytest.mark.parametrize("running", [0, 5])
async def test_what_kills_the_engine_again_and_again_is_found(order: list[str], running: int) -> None:
    machine = Machine(dies=lambda given: "poison" in given)
    machine.open(*(f"running {at}" for at in range(running)))
    machine.run(steps=2)
    machine.open(*order)
    machine.run()
    assert (machine.blamed, len(machine.streams)) == (["poison"], 0)
    assert machine.deaths <= 5


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 20])
def test_what_makes_progress_before_each_crash_is_found_too(tokens: int) -> None:
    """So many tokens in each process, and then a crash: each replay has an output, and yet it would go on for ever."""
    machine = Machine(dies=lambda given: given.get("poison", 0) >= tokens)
    machine.open("one", "poison", "two")
    machine.run(steps=3000, tokens=400)
    assert (machine.blamed, len(machine.streams)) == (["poison"], 0)
    assert machine.deaths <= 12


def test_kills_from_outside_blame_nobody_who_makes_progress() -> None:
    """Twenty of them, one after every output."""
    machine = Machine(dies=lambda given: any(given.values()), kind=KILLED)
    machine.open("one", "two", "three")
    machine.run(tokens=20)
    assert machine.deaths >= 19 and not machine.blamed and not machine.streams


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_whoever_dies_every_request_ends_or_is_blamed(data: st.DataObject) -> None:
    """One poison among requests that come at any time, with kills from outside in between: only the poison is blamed,
    and all others end, in a bounded number of steps."""
    after = data.draw(st.integers(0, 6))
    machine = Machine(dies=lambda given: "poison" in given and given["poison"] >= after)
    names = data.draw(st.permutations(["poison", *(f"r{at}" for at in range(data.draw(st.integers(0, 6))))]))
    for name in names:
        machine.open(name)
        machine.run(steps=data.draw(st.integers(0, 3)), tokens=60)
        if data.draw(st.integers(0, 9)) == 0:
            machine.kind = KILLED
            machine.die()
            machine.kind = CRASHED
    machine.run(steps=5000, tokens=60)
    assert set(machine.blamed) <= {"poison"}
    assert not machine.streams


def test_a_suspect_has_a_process_for_itself_until_it_is_proven() -> None:
    streams = Streams()
    for id in "ab":
        streams.open(named(id))
    for _ in range(2):
        streams.to_give()
        assert streams.blame(CRASHED, POLICY) is None, "two were suspected"
    streams.open(named("c"))
    assert ids(streams.to_give()) == ["a"]
    streams.give([StepOutput("a", (1,))] * 3)
    assert streams.to_give() == (), "after two crashes it takes four outputs"
    streams.give([StepOutput("a", (1,))])
    assert ids(streams.to_give()) == ["b"], "in order of arrival"
    streams.open(named("d"))
    assert streams.to_give() == ()
    streams.give([StepOutput("b", (1,), finish_reason=FinishReason.STOP)])
    assert ids(streams.to_give()) == ["c", "d"]


def test_a_suspect_that_left_is_not_waited_for() -> None:
    streams = Streams()
    first, second, _ = [streams.open(named(id)) for id in "abc"]
    for _ in range(2):
        streams.to_give()
        streams.blame(CRASHED, POLICY)
    assert ids(streams.to_give()) == ["a"]
    assert streams.to_give() == ()
    streams.close(first)
    streams.close(second)
    assert streams.to_give() == (), "the process has it still"
    streams.give([StepOutput("a", finish_reason=FinishReason.ABORT)])
    assert ids(streams.to_give()) == ["c"]


def test_what_a_client_gives_up_is_aborted_once() -> None:
    streams = Streams()
    stream = streams.open(make_request("a"))
    streams.to_give()
    assert streams.close(stream)
    assert not len(streams)
    assert not streams.close(stream), "it is told to abort it once"
    streams.give([StepOutput("a", finish_reason=FinishReason.ABORT)])
    assert not streams.close(stream)


@pytest.mark.parametrize("others", [0, 3])
def test_a_client_that_gives_up_and_tries_again_is_found_out_all_the_same(others: int) -> None:
    """It leaves before each death; nobody else is blamed, and after a few deaths the content is."""
    streams, blamed, deaths = Streams(), None, 0
    for at in range(others):
        streams.open(make_request(f"other {at}", [at]))
    while blamed is None:
        deaths += 1
        assert deaths < 6
        poison = streams.open(make_request(f"poison {deaths}", [66], seed=deaths))
        given = ids(streams.to_give())
        while poison.request.id not in given:
            streams.give([StepOutput(id, (1,)) for id in given])
            given += ids(streams.to_give())
        streams.close(poison)
        blamed = streams.blame(CRASHED, POLICY)
    assert blamed.request.token_ids == (66,)
    assert len(streams) == others


async def test_expired_streams_end_once() -> None:
    streams = Streams()
    late, timely = streams.open(make_request("late", deadline=5.0)), streams.open(make_request("timely"))
    streams.to_give()
    waits = streams.open(make_request("waits", deadline=5.0))
    assert streams.expire(4.9) == ()
    assert streams.expire(5.0) == ("late",), "the process has it"
    assert streams.expire(6.0) == ()
    streams.give([StepOutput("late", (1,))])
    for stream in (late, waits):
        assert (await stream.next()).finish_reason is FinishReason.DEADLINE
        assert stream.queue.empty()
    assert list(streams) == [timely]


def test_an_id_streams_once() -> None:
    streams = Streams()
    streams.open(make_request("a"))
    for _ in range(2):
        with pytest.raises(ValueError, match="alive already"):
            streams.open(make_request("a"))
        streams.to_give()


def test_pauses_grow_to_a_bound_and_service_makes_up_for_deaths() -> None:
    backoff = Backoff(RestartPolicy(backoff_seconds=0.1, max_backoff_seconds=1.0, forgiving_seconds=5))
    seen = []
    for _ in range(7):
        backoff.died()
        seen.append(backoff.seconds)
    assert seen == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])
    backoff.served(3600)
    backoff.died()
    assert backoff.seconds == pytest.approx(0.1)
    backoff.died()
    backoff.forgive(2)
    backoff.died()
    assert backoff.seconds == pytest.approx(0.1), "what a request did does not count"


@given(st.lists(st.one_of(st.just(-1.0), st.floats(0, 1e6)), max_size=200), st.floats(1e-3, 1e3), st.floats(1e-3, 1e4))
def test_a_pause_is_never_longer_than_its_bound(lives: list[float], first: float, most: float) -> None:
    """-1 is a process that never became ready."""
    backoff = Backoff(RestartPolicy(backoff_seconds=first, max_backoff_seconds=most))
    for seconds in lives:
        backoff.served(max(0.0, seconds))
        backoff.died()
        assert 0 < backoff.seconds <= most


def test_poison_is_known_by_its_content() -> None:
    clock = FakeClock()
    register = PoisonRegister(RestartPolicy(poison_seconds=10, max_poison_seconds=30), clock)
    register.check(make_request("a", [1, 2]))
    register.add(make_request("a", [1, 2], seed=1, deadline=3.0))
    with pytest.raises(EngineKilled, match="refused for 10 s") as refused:
        register.check(make_request("b", [1, 2], seed=2, cache_salt="another"))
    assert (refused.value.status, refused.value.retryable, refused.value.retry_after) == (422, False, None)
    for other in (
        make_request("c", [1, 2, 3]),
        make_request("c", [1, 2], adapter="one"),
        make_request("c", [1, 2], temperature=1),
    ):
        register.check(other)
    clock.advance(11)
    register.check(make_request("b", [1, 2]))
    lengths = [register.add(make_request("b", [1, 2])) for _ in range(3)]
    assert lengths == [20, 30, 30], "twice as long each time, to a bound"


def test_the_register_of_poison_is_bounded() -> None:
    register = PoisonRegister()
    for token in range(MOST_REMEMBERED + 1):
        register.add(make_request("a", [token]))
    register.check(make_request("a", [0]))
    with pytest.raises(EngineKilled):
        register.check(make_request("a", [MOST_REMEMBERED]))


def test_silence_is_a_hang_only_of_a_ready_process_and_while_we_listen() -> None:
    watch = HangWatch(RestartPolicy(hang_seconds=10))
    now = 0.0
    for _ in range(100):
        now += watch.interval
        assert watch.look(now, is_ready=False) == ""
    now += 1000
    assert watch.look(now, is_ready=True) == "", "this process stood still, not the engine"
    watch.heard()
    for _ in range(10):
        now += watch.interval
        assert watch.look(now, is_ready=True) == ""
    assert "said nothing for 10 s" in watch.look(now + watch.interval, is_ready=True)
    assert "said nothing" in watch.take_reason()
    assert watch.take_reason() == "", "the next process begins with nothing"


@pytest.mark.parametrize(
    ("seconds", "forecast", "hangs"),
    [(85, 60, False), (85, 1, True), (59, 1, False), (1201, 60, True), (85, None, False), (901, None, True)],
)
def test_a_long_step_is_told_from_a_hang_by_its_forecast(seconds: float, forecast: float | None, hangs: bool) -> None:
    watch = HangWatch(RestartPolicy())
    watch.heard()
    watch.beat(Heartbeat(seconds, forecast))
    assert bool(watch.look(1, is_ready=True)) == hangs
    watch = HangWatch(RestartPolicy())
    watch.heard()
    watch.beat(Heartbeat(seconds, forecast))
    watch.heard()
    assert watch.look(1, is_ready=True) == "", "it has ended"


async def test_nothing_is_taken_before_the_start() -> None:
    client = EngineClient(CONFIG)
    assert (client.state, client.info, client.pid, client.restarts) == (EngineState.NEW, None, None, 0)
    with pytest.raises(Unavailable, match="the engine is new"):
        await anext(client.generate(make_request("a")))
    await client.stop()
    assert client.state is EngineState.STOPPED
