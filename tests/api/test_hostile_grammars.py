"""Grammars that somebody could send to do harm: refused by name within 200 ms, or kept because they do none; meanwhile
others are served, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psutil
import pytest

from service.grammars import Grammar
from service.grammars.checking import MODULE
from tests.fake_service import World, serving
from tests.grammars import random_answer
from tests.hostile_grammars import Hostile, hostile
from tests.schema_values import fits_schema, is_schema

SECONDS = 0.2
TRIES = 3
"""Other work on this machine may take the processors meanwhile; then it is asked again. Where there is more work than
processors, only BUSY_SECONDS can be asked for."""
BUSY_SECONDS = 1.0
MOST_HELD = 0.03
"""Seconds of a processor that one callback of the event loop may take. The body's own reading is the most of it."""
ANSWERS = 4
"""Of each schema that is kept."""


@dataclass
class Held:
    """The longest callback of the event loop since the last `take`, in seconds of the thread's processor time."""

    longest: float = 0.0

    def take(self) -> float:
        longest, self.longest = self.longest, 0.0
        return longest


@contextmanager
def watched_loop() -> Iterator[Held]:
    held, run = Held(), asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        run(handle)
        held.longest = max(held.longest, time.thread_time() - started)

    patched = pytest.MonkeyPatch()
    patched.setattr(asyncio.events.Handle, "_run", timed)
    gc.collect()
    gc.freeze()  # objects of the tests are no load of the server
    try:
        yield held
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


async def tried(world: World, body: bytes) -> tuple[httpx.Response, float]:
    """The answer, and the fewest seconds it took."""
    taken = []
    for number in range(TRIES):
        await asyncio.sleep(0.1 * number)
        world.app.state.service.answers.grammars._known.clear()
        started = time.monotonic()
        answer = await world.client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        taken.append(time.monotonic() - started)
        if taken[-1] < SECONDS:
            break
    return answer, min(taken)


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
    await tried(world, bodies[-1])
    [process] = children()
    found, slowest, most_held, kept = Counter[str](), 0.0, 0.0, list[Hostile]()
    before = process.memory_info().rss
    async with another_client(world) as others:
        with watched_loop() as held:
            for case, body in zip(cases, bodies, strict=True):
                held.take()
                answer, seconds = await tried(world, body)
                is_busy = os.getloadavg()[0] > (os.cpu_count() or 1)
                assert seconds < (BUSY_SECONDS if is_busy else SECONDS), (case.name, seconds)
                slowest, most_held = max(slowest, seconds), max(most_held, held.take())
                assert answer.status_code in (200, 400, 413), (case.name, answer.text)
                if answer.status_code == 200:
                    kept.append(case)
                elif answer.status_code == 400:
                    check_refusal(case, answer.json()["error"])
                found[f"{answer.status_code}"] += 1
    assert len(others) > len(cases) / 10
    assert most_held < MOST_HELD
    assert children() == [process] and process.memory_info().rss < before + (16 << 20)
    ended = sum(map(check_kept, kept))
    assert ended > len(kept) / 4
    return (
        f"{dict(found)}, slowest {1e3 * slowest:.0f} ms, longest callback {1e3 * most_held:.1f} ms, {ended} answers "
        f"fit; of others p50 {1e3 * sorted(others)[len(others) // 2]:.1f} and most {1e3 * max(others):.0f} ms"
    )


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
        answer, _ = await tried(world, body)
        assert answer.status_code == 200
        [process] = children()
        process.kill()
        process.wait()
    assert not children()
