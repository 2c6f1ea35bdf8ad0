"""Grammars that somebody could send to do harm: refused by name within 200 ms of processor time, or kept because they
do none; meanwhile others are served, and nothing is left behind. With `-s` the tests print the time by the clock."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psutil
import pytest

from service.text.grammars import Grammar
from service.text.grammars.checking import MODULE
from service.text.recent import Recent
from tests.fake_service import World, serving
from tests.grammars import random_answer
from tests.hostile_grammars import Hostile, hostile
from tests.schema_values import fits_schema, is_schema

SECONDS = 0.2
"""Of processors, for one grammar: those of the process that tries it, and those of the event loop for its request. On
a quiet machine the clock shows no more; beside other work it shows that as well."""
MOST_HELD = 0.04
"""Seconds of a processor that one callback of the event loop may take. The body's own reading is the most of it."""
TRIES = 3
"""Of a grammar that takes more: other work makes a processor itself slower."""
ANSWERS = 4
"""Of each schema that is kept."""


IS_MEASURED = ContextVar("is_measured", default=False)
"""Whether a callback of the event loop belongs to the request that is measured."""


@dataclass
class LoopTime:
    """Processor seconds of the event loop's callbacks since the last `take`: of those that are measured all, and of all
    the longest."""

    total: float = 0.0
    longest: float = 0.0

    def take(self) -> tuple[float, float]:
        taken, self.total, self.longest = (self.total, self.longest), 0.0, 0.0
        return taken


@contextmanager
def watched_loop() -> Iterator[LoopTime]:
    loop_time, run = LoopTime(), asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        run(handle)
        taken = time.thread_time() - started
        loop_time.total += taken * handle._context.get(IS_MEASURED, False)  # type: ignore[attr-defined]
        loop_time.longest = max(loop_time.longest, taken)

    patched = pytest.MonkeyPatch()
    patched.setattr(asyncio.events.Handle, "_run", timed)
    gc.collect()
    gc.freeze()  # objects of the tests are no load of the server
    try:
        yield loop_time
    finally:
        gc.unfreeze()
        patched.undo()


@asynccontextmanager
async def another_client(world: World) -> AsyncIterator[list[float]]:
    """Somebody who asks again and again; yields the seconds of the answers."""
    taken: list[float] = []

    async def ask() -> None:
        while True:
            started = time.monotonic()
            answer = await world.client.post("/generate", json={"inputs": "hi", "parameters": {"max_new_tokens": 2}})
            assert answer.status_code == 200
            taken.append(time.monotonic() - started)
            await asyncio.sleep(0.02)

    asking = asyncio.create_task(ask())
    try:
        yield taken
    finally:
        asking.cancel()


def children() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if MODULE in " ".join(each.cmdline())]


@dataclass(frozen=True)
class Taken:
    """What an answer took: processor seconds in all and of the longest callback, and seconds by the clock."""

    work: float
    held: float
    waited: float

    @property
    def is_much(self) -> bool:
        return self.work >= SECONDS or self.held >= MOST_HELD


async def asked(world: World, body: bytes) -> httpx.Response:
    """Asks about a grammar that nobody has asked about."""
    world.app.state.service.answers.grammars._known = Recent(1)
    return await world.client.post("/v1/completions", content=body, headers={"content-type": "application/json"})


def processor_seconds(process: psutil.Process) -> float:
    """Of a process, and of its children that have ended."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


async def measured(
    world: World, body: bytes, process: psutil.Process, loop_time: LoopTime
) -> tuple[httpx.Response, Taken]:
    """The answer, and the least that it took."""
    found: list[Taken] = []
    IS_MEASURED.set(True)
    while not found or (found[-1].is_much and len(found) < TRIES):
        loop_time.take()
        before, started = processor_seconds(process), time.monotonic()
        answer = await asked(world, body)
        waited, (total, longest) = time.monotonic() - started, loop_time.take()
        found.append(Taken(total + processor_seconds(process) - before, longest, waited))
    return answer, Taken(*(min(getattr(each, name) for each in found) for name in ("work", "held", "waited")))


def check_refusal(case: Hostile, error: dict[str, Any]) -> None:
    [field] = case.fields
    assert error["code"] in ("invalid_request", "unsupported_field"), case.name
    assert 20 < len(error["message"]) < 500 and "\n" not in error["message"], case.name
    if error["message"].startswith(f"`{field}"):
        assert error["param"].startswith(field), case.name
    else:
        assert "body" in error["message"] or error["param"].startswith(field), (case.name, error)


def check_kept(case: Hostile) -> int:
    """Its answers fit, if it is a JSON schema. Returns how many ended."""
    assert case.may_act, case.name
    [(field, value)] = case.fields.items()
    if field != "guided_json":
        return 0
    schema = json.loads(value) if isinstance(value, str) else value
    assert is_schema(schema), (case.name, schema)
    if case.name.startswith(("references", "products")) or "pattern" in json.dumps(schema):
        return 0  # the other library would take hours
    grammar, rng, ended = Grammar.of_json_schema(schema, field), Random(case.name), 0
    for _ in range(ANSWERS):
        answer = random_answer(grammar, rng)
        if answer is None:
            continue
        ended += 1
        assert fits_schema(schema, json.loads(answer)), (case.name, schema, answer)
    return ended


async def check(world: World, cases: list[Hostile]) -> str:
    """Returns what to say of them."""
    bodies = [json.dumps({"prompt": "x", "max_tokens": 1, **case.fields}).encode() for case in cases]
    await asked(world, bodies[-1])
    [process] = children()
    found, taken, kept = Counter[str](), list[Taken](), list[Hostile]()
    before = process.memory_info().rss
    async with another_client(world) as others:
        with watched_loop() as loop_time:
            for case, body in zip(cases, bodies, strict=True):
                answer, one = await asyncio.create_task(measured(world, body, process, loop_time))
                assert not one.is_much, (case.name, one)
                assert answer.status_code in (200, 400, 413), (case.name, answer.text)
                taken.append(one)
                if answer.status_code == 200:
                    kept.append(case)
                elif answer.status_code == 400:
                    check_refusal(case, answer.json()["error"])
                found[f"{answer.status_code}"] += 1
    assert len(others) > len(cases) / 10
    assert children() == [process] and process.memory_info().rss < before + (16 << 20)
    ended = sum(map(check_kept, kept))
    assert ended > len(kept) / 4
    work, held, waited = (sorted(getattr(each, name) for each in taken) for name in ("work", "held", "waited"))
    return (
        f"{dict(found)}, {ended} answers fit; processor p50 {_ms(work[len(work) // 2])}, most {_ms(work[-1])}, longest "
        f"callback {_ms(held[-1])}; clock p50 {_ms(waited[len(waited) // 2])}, most {_ms(waited[-1])}, "
        f"{sum(each >= SECONDS for each in waited)} over {_ms(SECONDS)}; of others p50 "
        f"{_ms(sorted(others)[len(others) // 2])}, most {_ms(max(others))}"
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as served:
        yield served


async def test_some_hostile_grammars(world: World) -> None:
    """One of each family, and more of the large ones."""
    cases = list(hostile())
    first = {case.name.rpartition("-")[0]: case for case in reversed(cases)}
    print(await check(world, [*first.values(), *cases[17::40]]))


@pytest.mark.nightly
async def test_all_hostile_grammars(world: World) -> None:
    cases = list(hostile())
    print(await check(world, cases))
    assert sum(not case.may_act for case in cases) > 700


async def test_a_grammar_that_ends_its_process_leaves_the_others(world: World) -> None:
    """A process that tries grammars may die at any time; five times in a row the next one is there."""
    body = json.dumps({"prompt": "x", "max_tokens": 1, "guided_regex": "a{1,3}"}).encode()
    for _ in range(5):
        answer = await asked(world, body)
        assert answer.status_code == 200
        [process] = children()
        process.kill()
        process.wait()
    assert not children()
