"""The load on one engine: what is counted when, the same requests for every engine, and nothing left behind."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from service.engine.client.engine import EngineFailed
from service.engine.protocol.messages import FinishReason, Request, StepOutput
from service.evaluation.scenarios.figures import NotMeasured
from service.evaluation.scenarios.reading import parse
from service.evaluation.scenarios.scenario import Scenario
from service.evaluation.tuning import objective
from service.evaluation.tuning.driving import Broken, drive
from service.evaluation.tuning.workload import Workload, _require_engine_only
from service.text.tokenizer import Tokenizer
from tests.fakes import InProcessEngine
from tests.tokenizers import write
from tests.tuning import CLOSED, OPEN

KIND: dict[str, Any] = {"route": "/generate_stream", "prompt_words": 4, "max_new_tokens": 8}


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time moves when nobody has work, and a little at each look: a machine that stands still changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._now, self._select = 1000.0, self._selector.select  # type: ignore[attr-defined]
        self._selector.select = self._skip  # type: ignore[attr-defined]

    def _skip(self, timeout: float | None = None) -> list[Any]:
        events = list(self._select(None if timeout is None else 0))
        if not events and timeout:
            self._now += timeout
        return events

    def stand_still(self, seconds: float) -> None:
        self._now += seconds

    def time(self) -> float:
        self._now += 1e-6
        return self._now


class VirtualPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> VirtualLoop:
        return VirtualLoop()


@pytest.fixture
def event_loop_policy() -> VirtualPolicy:
    return VirtualPolicy()


@pytest_asyncio.fixture(autouse=True)
async def _virtual(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", asyncio.get_running_loop().time)
        yield


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write(tmp_path_factory.mktemp("tokenizer")))


def load(given: dict[str, Any] = CLOSED, kind: dict[str, Any] = KIND, **fields: Any) -> Scenario:
    return parse({**given, "load": {**given["load"], **fields}, "requests": [kind]})


def workload(tokenizer: Tokenizer, scenario: Scenario, window: int = 1000, has_encoder: bool = False) -> Workload:
    return Workload(scenario, tokenizer, window, has_encoder)


class Recording(InProcessEngine):
    """Remembers the requests; `fails` at the nth."""

    def __init__(self, step_seconds: float = 0.001, fails: int = 0) -> None:
        super().__init__(step_seconds=step_seconds)
        self.got: list[Request] = []
        self.fails = fails

    async def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
        if not request.id.startswith("settled"):
            self.got.append(request)
        if self.fails and len(self.got) >= self.fails:
            raise EngineFailed("it was stopped")
        async for output in super().generate(request):
            yield output


async def started(**fields: Any) -> Recording:
    engine = Recording(**fields)
    await engine.start()
    return engine


async def test_a_closed_loop_keeps_its_users_busy(tokenizer: Tokenizer) -> None:
    engine = await started()
    found = await drive(engine, workload(tokenizer, load(users=5)), 1, 1.2)
    assert 0.8 <= found.seconds <= 0.9 + 1e-6, "a quarter is the warm-up"  # floats of a machine that is long up
    assert found.most_at_once == 5 and found.ended > 0 and not found.failed, "how many end is the machine's"
    assert found.tokens > 0 and len(found.ttft_ms) + len(found.itl_ms) >= found.tokens
    assert found.longest_prompt == max(len(each.token_ids) for each in engine.got)
    assert all(gap > 0 for gap in found.ttft_ms) and len(found.e2e_ms) == found.ended
    assert not engine.core.has_work, "what ran at the end is aborted, and gone"
    await engine.stop()


async def test_every_engine_gets_the_same_requests_in_a_pass_and_others_in_the_next(tokenizer: Tokenizer) -> None:
    prompts = list[set[tuple[int, ...]]]()
    for number in (1, 1, 2):
        engine = await started()
        await drive(engine, workload(tokenizer, load(users=4)), number, 0.2)
        prompts.append({each.token_ids for each in engine.got[:4]})
        await engine.stop()
    assert prompts[0] == prompts[1] != prompts[2]


async def test_an_open_loop_follows_its_schedule_and_counts_from_it(tokenizer: Tokenizer) -> None:
    engine = await started()
    given = load(OPEN, rate=100.0, arrivals="constant", seconds=20.0)
    found = await drive(engine, workload(tokenizer, given), 1, 1.2)
    assert 2 < len(engine.got) <= 121 and 0 < found.arrived <= 91, "late on a busy machine, never early"
    dues = sorted(each.arrival for each in engine.got)
    assert all(0.009 < after - before < 0.011 for before, after in itertools.pairwise(dues))
    await engine.stop()


async def test_requests_that_still_wait_count_with_their_wait(tokenizer: Tokenizer) -> None:
    """Else an engine that answers a few at once and the others never would have the best times."""

    class Unfair(Recording):
        async def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
            if not request.id.startswith("settled") and len(self.got) >= 3:
                await asyncio.sleep(60)
            async for output in super().generate(request):
                yield output

    engine = Unfair(step_seconds=0.001)
    await engine.start()
    found = await drive(engine, workload(tokenizer, load(OPEN, rate=30.0, arrivals="constant")), 1, 0.6)
    assert max(found.ttft_ms) > 300 and found.ended <= 3 < found.arrived
    await engine.stop()


async def test_requests_that_find_no_user_free_have_arrived_and_wait(tokenizer: Tokenizer) -> None:
    """A candidate that is far too slow for the schedule seemed to keep up, where the users were few."""
    engine = await started(step_seconds=0.02)
    scenario = load(OPEN, rate=100.0, arrivals="constant", seconds=20.0, users=8)
    found = await drive(engine, workload(tokenizer, scenario), 1, 2.0)
    await engine.stop()
    assert found.arrived > 1.5 * found.ended, "they were due, sent or not"
    assert max(found.ttft_ms) > 300
    assert "the schedule's rate" in objective.broken(scenario, {1: found})


async def test_requests_that_a_late_machine_never_sent_have_arrived_and_wait(tokenizer: Tokenizer) -> None:
    """It seemed to keep up with a schedule that it had not begun."""
    engine = await started()
    scenario = load(OPEN, rate=100.0, arrivals="constant", seconds=20.0)
    asyncio.get_running_loop().call_later(0.3, time.monotonic.__self__.stand_still, 1.0)  # type: ignore[attr-defined]
    found = await drive(engine, workload(tokenizer, scenario), 1, 1.2)
    await engine.stop()
    assert found.arrived >= 89 and found.ended < 10
    assert "the schedule's rate" in objective.broken(scenario, {1: found})


async def test_the_probe_ends_with_enough_answers(tokenizer: Tokenizer) -> None:
    engine = await started()
    found = await drive(engine, workload(tokenizer, load(users=4)), 0, 30, enough=6)
    assert found.seconds < 5 and 4 <= found.ended <= 8
    await engine.stop()


async def test_chats_grow_and_users_begin_at_different_turns(tokenizer: Tokenizer) -> None:
    engine = await started()
    kind = {**KIND, "turns": 4}
    await drive(engine, workload(tokenizer, load(kind=kind, users=4)), 1, 0.3)
    first = [len(each.token_ids) for each in sorted(engine.got[:4], key=lambda each: len(each.token_ids))]
    assert first[0] < first[1] < first[2] < first[3]
    await engine.stop()


@pytest.mark.parametrize("kind", [{}, {"route": "/generate"}])
async def test_an_engine_that_fails_is_broken(tokenizer: Tokenizer, kind: dict[str, Any]) -> None:
    engine = await started(fails=7)
    with pytest.raises(Broken, match="it was stopped"):
        await drive(engine, workload(tokenizer, load(kind=KIND | kind, users=3)), 1, 5)
    await engine.stop()


async def test_a_process_that_was_started_again_is_broken(tokenizer: Tokenizer) -> None:
    engine = await started()
    asyncio.get_running_loop().call_later(0.1, setattr, engine, "restarts", 1)
    with pytest.raises(Broken, match="its engine process ended"):
        await drive(engine, workload(tokenizer, load(users=3)), 1, 0.3)
    await engine.stop()


async def test_a_cancelled_slice_leaves_nothing_behind(tokenizer: Tokenizer) -> None:
    engine = await started()
    slice_ = asyncio.create_task(drive(engine, workload(tokenizer, load(users=3)), 1, 30))
    await asyncio.sleep(0.1)
    slice_.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slice_
    await asyncio.sleep(0.05)
    assert not engine.core.has_work and not [
        task for task in asyncio.all_tasks() if "_closed_user" in repr(task) and not task.done()
    ]
    await engine.stop()


async def test_a_prompt_that_fits_no_window_is_refused_with_numbers(tokenizer: Tokenizer) -> None:
    engine = await started()
    with pytest.raises(NotMeasured, match=r"a prompt of \d+ tokens and 8 new ones do not fit the window of 20: lower"):
        await drive(engine, workload(tokenizer, load(users=2), window=20), 1, 5)
    await engine.stop()


def test_a_chat_that_has_outgrown_its_window_begins_anew(tokenizer: Tokenizer) -> None:
    here = workload(tokenizer, load(kind={**KIND, "turns": 9}), window=150)
    dialogue = here.dialogue(Random(1))
    for _ in range(4):
        drawn = dialogue.next_request()
        dialogue.hear("x" * 50, whole=True)
    assert here.requests(drawn, "a", 0, 0.0) == []


def test_requests_are_what_the_scenario_says(tokenizer: Tokenizer) -> None:
    here = workload(tokenizer, load(kind={**KIND, "ignore_eos": False, "temperature": 0.5}, answer_seconds=7))
    [request] = here.requests(here.dialogue(Random(1)).next_request(), "a", 3, 100.0)
    params = request.params
    assert (params.temperature, params.max_tokens, params.stop_token_ids) == (0.5, 8, tokenizer.stop_token_ids)
    assert (request.arrival, request.deadline, params.seed) == (100.0, 107.0, 3)
    assert request.is_streamed, "so its steps are as short as the server's"
    other = workload(tokenizer, load(kind={**KIND, "route": "/generate"}))
    [forced] = other.requests(other.dialogue(Random(1)).next_request(), "a", 3, 100.0)
    assert forced.params.stop_token_ids == () and not forced.is_streamed


async def test_a_late_answer_has_failed(tokenizer: Tokenizer) -> None:
    class Late(Recording):
        async def generate(self, request: Request) -> AsyncGenerator[StepOutput, None]:
            await asyncio.sleep(0.01)
            yield StepOutput(request.id, finish_reason=FinishReason.DEADLINE)

    engine = Late()
    await engine.start()
    found = await drive(engine, workload(tokenizer, load(users=2)), 1, 0.2)
    assert found.failed > 2 and not found.ended
    await engine.stop()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"actions": [{"kind": "promote", "at_seconds": 1, "model": "demo", "version": "1"}]},
            "actions of the scenario",
        ),
        ({"requests": [KIND, {**KIND, "model": "other"}]}, r"requests\[2\].model is other, and demo is tuned"),
        ({"requests": [{**KIND, "model": "../x"}]}, r"requests\[1\].model: "),
    ],
)
def test_what_only_a_server_can_do_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(NotMeasured, match=said):
        _require_engine_only(parse({**CLOSED, **changed}), "demo")
    _require_engine_only(parse({**CLOSED, "requests": [{**KIND, "model": "demo@staging"}]}), "demo")
