"""The engine's side of a profile: which steps are recorded, in which pieces, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from service.engine.process.loop import EngineLoop
from service.engine.process.profiler import LONGEST_PIECE, PIECE_BYTES, STEP, Named, Profiler
from service.engine.protocol.messages import Add, Profile, Profiled, Step, StepOutput
from service.engine.protocol.profiling import NamedPart
from tests.fakes import FakeClock, FakeRunner, make_core, make_request
from tests.profiles import FakeRecorder
from tests.scripted_channel import ScriptedChannel


class World:
    """A profiler around a core whose requests never end by themselves; the recorder stays in hand."""

    def __init__(self, directory: Path, piece_bytes: int = 1000) -> None:
        self.clock, self.sent = FakeClock(), list[Profiled]()
        self.recorder = FakeRecorder(piece_bytes=piece_bytes)
        self.core = make_core(num_blocks=512)
        self.core.recorder = lambda kind: self.recorder  # type: ignore[method-assign]
        self.profiler = Profiler(self.core, self.sent.append, self.clock)
        self.directory = str(directory)

    def order(self, steps: int, id: str = "profile-1") -> None:
        self.profiler.take(Profile(id, self.directory, steps))

    def step(self, times: int = 1) -> list[StepOutput]:
        if not self.core.has_work:
            self.core.add(make_request("a", max_tokens=1000, min_tokens=1000))
        return [output for _ in range(times) for output in self.profiler.step()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_it_records_so_many_steps_and_tells(world: World) -> None:
    world.order(3)
    assert world.profiler.is_running
    assert world.step(2)[0].request_id == "a", "the step's own news come all the same"
    assert not world.sent
    world.step()
    assert (ended := world.sent[0]) == Profiled("profile-1", 3, ended.tokens, ended.seconds)
    assert ended.tokens == 3 + 1 + 1, "the prompt, and a token a step"
    assert not world.profiler.is_running
    world.step(5)
    assert world.recorder.calls.count("stepped") == 3, "nothing is recorded behind the end"


def test_the_parts_of_a_step_are_named(world: World) -> None:
    names = list[str]()
    span = world.recorder.span

    def noting(name: str) -> AbstractContextManager[object]:
        names.append(name)
        return span(name)

    world.recorder.span = noting
    world.order(1)
    world.step()
    assert names == [STEP, "dosirak::schedule", "dosirak::update"]


@pytest.mark.parametrize(("piece_bytes", "most"), [(PIECE_BYTES // 10, 10), (100, LONGEST_PIECE), (PIECE_BYTES, 1)])
def test_pieces_have_as_many_steps_as_fit(tmp_path: Path, piece_bytes: int, most: int) -> None:
    world = World(tmp_path, piece_bytes)
    world.order(1 + most + 1)
    world.step(1 + most)
    assert world.recorder.calls[-3:] == ["stepped", "piece-0001", "begin"], "the first piece, of one step, measures"
    world.step()
    assert world.recorder.calls[-1] == "piece-0002"
    assert world.sent[0].steps == 1 + most + 1


def test_steps_that_compute_nothing_do_not_count(world: World) -> None:
    world.order(1)
    world.core.add(make_request("bad", adapter="missing"))
    assert world.profiler.step()[0].request_id == "bad"
    assert world.profiler.is_running
    world.step()
    assert world.sent[0].steps == 1


def test_it_gives_up_when_no_step_comes(world: World) -> None:
    world.order(2)
    assert world.profiler.patience == 60
    world.clock.advance(59)
    world.profiler.look()
    assert not world.sent
    world.step()
    assert world.profiler.patience == 60, "a step begins the wait anew"
    world.clock.advance(60)
    world.profiler.look()
    assert world.sent[0].error.startswith("60 s passed without a step after 1 of 2: send requests")
    assert world.recorder.calls[-1] == "drop"
    assert world.profiler.patience is None


def test_a_second_one_is_refused(world: World) -> None:
    world.order(2)
    world.order(2, id="profile-2")
    assert world.sent == [Profiled("profile-2", error="another profile of this engine runs")]
    world.step(2)
    assert world.sent[1].id == "profile-1"


@pytest.mark.parametrize("steps", [0, 1])
def test_a_recorder_that_fails_ends_the_profile_alone(world: World, steps: int) -> None:
    """At the start, or when a piece is written to a full disk."""
    if not steps:
        world.recorder.fails = OSError("no space left")
    world.order(1)
    if steps:
        world.core.add(make_request("a"))
        world.recorder.stepped = lambda: setattr(world.recorder, "fails", OSError("no space left"))  # type: ignore[method-assign]
        world.step()
    assert "no space left" in world.sent[0].error
    assert not world.profiler.is_running
    world.recorder.fails = None
    world.step(2)


class Counter:
    def __init__(self) -> None:
        self.own: Callable[[int], int] = lambda number: 2 * number

    def plain(self, number: int, *, more: int = 0) -> int:
        return number + more


def test_named_methods_are_themselves_again() -> None:
    counter, names = Counter(), list[str]()
    own = counter.own

    @contextmanager
    def span(name: str) -> Iterator[None]:
        names.append(name)
        yield

    named = Named([NamedPart(counter, "plain", "one"), NamedPart(counter, "own", "two")], span)
    assert (counter.plain(1, more=2), counter.own(4)) == (3, 8)
    assert names == ["one", "two"]
    named.restore()
    assert (counter.plain(1), counter.own(4)) == (1, 8)
    assert names == ["one", "two"]
    assert vars(counter) == {"own": own}


def test_the_loop_takes_orders_and_sleeps_until_it_gives_up(tmp_path: Path) -> None:
    order = Profile("profile-1", str(tmp_path), 2, patience_seconds=0.0)
    channel = ScriptedChannel(
        [[order], [], [Add((make_request("a", max_tokens=2),)), Profile("profile-2", str(tmp_path), 1)]]
    )
    with pytest.raises(EOFError):
        EngineLoop(make_core(FakeRunner()), channel).run()
    ends = [message for message in channel.sent if isinstance(message, Profiled)]
    assert [(each.id, each.steps) for each in ends] == [("profile-1", 0), ("profile-2", 1)]
    assert "passed without a step" in ends[0].error
    assert channel.waited[:2] == [None, None], "it gave up before it slept"
    assert any(isinstance(message, Step) for message in channel.sent)


def test_the_loop_sleeps_no_longer_than_the_profiles_patience(tmp_path: Path) -> None:
    channel = ScriptedChannel([[Profile("profile-1", str(tmp_path), 2)], []])
    with pytest.raises(EOFError):
        EngineLoop(make_core(FakeRunner()), channel).run()
    assert channel.waited[0] is None
    assert channel.waited[1] is not None
    assert 0 < channel.waited[1] <= 60
