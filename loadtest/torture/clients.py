"""The clients of the load. Each draws from its own seed, asks until it is told to stop, and ends what it has begun."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any, Final

import aiohttp

from loadtest.histories import History, Turn, differences
from loadtest.torture.endings import Torn, events_of
from loadtest.torture.ledger import Exchange
from loadtest.torture.requests import QUESTIONS, SHAPES
from loadtest.torture.scene import Scene

PAUSE_SECONDS: Final = 0.1
"""Behind a refusal or a lost connection."""
TURNS: Final = 12
"""Of one session: more would not fit the demo model's window."""
PROBE_SECONDS: Final = 0.05
REPEATED: Final = 0.1
"""So many turns are sent again, with their key, after their answer."""
LEAVING: Final = 0.05
"""So many streams are left by their client."""
KINDS: Final = [kind for kind, shape in SHAPES.items() for _ in range(shape.weight)]


async def ask_on(scene: Scene, draw: random.Random, stop: asyncio.Event) -> None:
    """Asks anything, one request after the other."""
    while not stop.is_set():
        await scene.up()
        kind, question = draw.choice(KINDS), draw.choice(QUESTIONS)
        leaves = SHAPES[kind].dialect != "whole" and draw.random() < LEAVING
        exchange = await scene.ask(kind, question, leave_after=draw.randrange(1, 4000) if leaves else None)
        if exchange.status != 200:
            await asyncio.sleep(PAUSE_SECONDS)


async def chat_on(scene: Scene, draw: random.Random, stop: asyncio.Event, writers: int) -> None:
    """Fills one session after the other, with so many writers at once."""
    while not stop.is_set():
        history = await _new_session(scene)
        each = (_write(scene, random.Random(draw.random()), stop, history, number) for number in range(writers))
        await asyncio.gather(*each)


async def probe_on(scene: Scene, draw: random.Random, stop: asyncio.Event) -> None:
    """Checks `/readyz` between two reads of the deployments. Where both are the same it must be 200 if they are ready,
    and 503 if they are not."""
    before: list[tuple[object, ...]] = []
    while not stop.is_set():
        await scene.up()
        try:
            async with scene.client.get(f"{scene.service.url}/readyz") as response:
                status = response.status
            after = [_state(each) for each in (await scene.get("/v1/deployments"))["data"]]
        except (aiohttp.ClientError, KeyError):
            after = []
        if before == after and len(after) == 1 and scene.service.is_up:
            scene.counts[f"probes {status}"] += 1
            if (status == 200) != (after[0][0] == "ready"):
                scene.find(f"/readyz was {status} while the deployment was {after[0]}")
        before = after
        await asyncio.sleep(draw.uniform(0, 2 * PROBE_SECONDS))


def _state(deployment: dict[str, Any]) -> tuple[object, ...]:
    replica = deployment["replicas"][0] if deployment["replicas"] else {}
    return deployment["state"], replica.get("pid"), replica.get("restarts")


async def read_all(scene: Scene) -> None:
    """Compares what the service keeps with the histories, of all sessions."""
    for history in scene.histories:
        await _read(scene, history)


async def read_full(scene: Scene) -> None:
    """Compares those that are full since the last time."""
    for history in scene.histories:
        if history.answered == len(history.turns) >= TURNS and history.session not in scene.compared:
            scene.compared.add(history.session)
            await _read(scene, history)


async def _read(scene: Scene, history: History) -> None:
    for wrong in differences(history, await _messages(scene, history.session)):
        scene.find(wrong)


async def _new_session(scene: Scene) -> History:
    while True:
        await scene.up()
        exchange = await scene.send(Exchange("session", time.monotonic()), "/v1/sessions", {})
        if scene.judge(exchange).status in (200, 201):
            history = History(json.loads(exchange.body)["id"])
            scene.histories.append(history)
            return history
        await asyncio.sleep(PAUSE_SECONDS)


async def _write(scene: Scene, draw: random.Random, stop: asyncio.Event, history: History, writer: int) -> None:
    streaming = draw.random() < 0.5
    for number in range(TURNS):
        turn = Turn(f"{writer} {number} {history.session}", time.monotonic())
        history.turns.append(turn)
        while turn.answer is None:
            await scene.up()
            answer, _ = await _turn(scene, history.session, turn, streaming)
            if answer is None:
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                turn.answer, turn.told_at = answer, time.monotonic()
        scene.counts["turns"] += 1
        if draw.random() < REPEATED:
            again, is_replayed = await _turn(scene, history.session, turn, streaming)
            if again is not None and not (is_replayed and again == turn.answer):
                scene.find(f"{turn.text!r}, sent again with its key, is answered {again!r}, not {turn.answer!r}")
        if stop.is_set():
            return


async def _turn(scene: Scene, session: str, turn: Turn, streaming: bool) -> tuple[str | None, bool]:
    """Returns the answer if it came whole, and whether it was a kept one."""
    exchange = Exchange("turn", time.monotonic(), "native" if streaming else "whole")
    body = {"session_id": session, "messages": [{"role": "user", "content": turn.text}]}
    path = "/generate_stream" if streaming else "/generate"
    scene.judge(await scene.send(exchange, path, {**body, "parameters": {"max_new_tokens": 3}}, turn.key))
    if exchange.status != 200 or exchange.lost:
        return None, False
    try:
        *_, last = events_of(exchange.dialect, exchange.body)
    except Torn:
        return None, False
    return last.get("generated_text"), exchange.is_replayed


async def _messages(scene: Scene, session: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await scene.get(f"/v1/sessions/{session}/messages?limit=100" + (f"&cursor={cursor}" if cursor else ""))
        messages += page["data"]
        cursor = page["next_cursor"]
    return messages
