"""The chats of a simulation, asked of real servers: the same token ids at the same times, placed by the chats' hash."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

import aiohttp

from loadtest.fleet.chats import Chat, weight
from loadtest.fleet.instance import Line, Shape
from loadtest.fleet.simulation import Outcome
from service.engine.scheduling.cost import StepWork, chunk_attention

WINDOW_LEFT = 2
"""Tokens that a prompt and its answer leave free, for what the server's tokenizer adds."""
TEMPERATURE: Final = 2.0
"""The highest: no answer repeats itself, so none has drafts, which the simulation does not know."""
LONE_TURNS: Final = 40
LONE_PROMPT: Final = 16
LONE_TOKENS: Final = 128
COEFFICIENTS: Final = ("constant_seconds", "seconds_per_token", "seconds_per_kv_token", "seconds_per_attention_pair")


async def day(servers: Sequence[aiohttp.ClientSession], chats: Iterable[tuple[float, Chat]], window: int) -> Outcome:
    """Runs until every turn is answered. Raises where one was not answered whole."""
    outcome, began = Outcome(), time.perf_counter()

    async def talk(at: float, chat: Chat) -> None:
        await asyncio.sleep(began + at - time.perf_counter())
        server = servers[max(range(len(servers)), key=lambda name: weight(chat.number, name))]
        while chat.turns > 0:
            prompt, answer = chat.ask(window - WINDOW_LEFT)
            await _turn(server, prompt, answer, outcome)
            chat.hear([0] * answer)
            if chat.turns > 0:
                await asyncio.sleep(chat.pause())

    await asyncio.gather(*(talk(at, chat) for at, chat in chats))
    outcome.seconds = time.perf_counter() - began
    return outcome


async def _turn(server: aiohttp.ClientSession, prompt: Sequence[int], answer: int, outcome: Outcome) -> None:
    body = {
        "model": "demo",
        "prompt": list(prompt),
        "max_tokens": answer,
        "temperature": TEMPERATURE,
        "ignore_eos": True,
    }
    asked, first, last = time.perf_counter(), None, b""
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    async with server.post("/v1/completions", json={**body, **options}) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                first, last = first or time.perf_counter(), line
    ended = time.perf_counter()
    made = (json.loads(last[6:]).get("usage") or {}).get("completion_tokens") if last else None
    if made != answer:
        raise RuntimeError(f"{made} of {answer} tokens: {last.decode()}")
    outcome.tokens += answer
    outcome.first_tokens.append((first or ended) - asked)
    outcome.answers.append(ended - asked)


async def calibrated(server: aiohttp.ClientSession, shape: Shape) -> Shape:
    """Returns the shape with what lone turns take besides their steps and the API process's own seconds, on this host
    and now: the loop's seconds of each step, and the way's of each turn."""
    short, long, steps = Outcome(), Outcome(), DaysLines()
    listening = asyncio.create_task(steps.listen(server))
    for number in range(LONE_TURNS):
        prompt = [number + token for token in range(1, LONE_PROMPT + 1)]
        await _turn(server, prompt, 1, short)
        await _turn(server, prompt, 1 + LONE_TOKENS, long)
    await asyncio.sleep(1.0)  # until the last event
    listening.cancel()
    decode = median(steps.decode_seconds)
    loop = max(0.0, (long.answer(50) - short.answer(50)) / LONE_TOKENS - decode)
    prefill = shape.predict(StepWork(LONE_PROMPT, attention=chunk_attention(0, LONE_PROMPT)), math.inf)
    way = max(0.0, short.answer(50) - prefill - loop - shape.turn_seconds - shape.event_seconds)
    return replace(shape, loop=(max(0.0, loop - shape.loop[1]), shape.loop[1]), way_seconds=way)


class DaysLines:
    """The cost lines of a day, one for each second in which a server computed, from its live events. A line that the
    engine fitted is taken times the measured seconds of that second's steps by the predicted ones, for a line weighs a
    delayed step little, and a day contains it whole."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.lines: list[tuple[float, Line]] = []
        self.decode_seconds: list[float] = []
        """Of the steps that computed one token."""

    async def listen(self, server: aiohttp.ClientSession) -> None:
        """Returns never: cancel it at the day's end."""
        async with server.get("/v1/live", timeout=aiohttp.ClientTimeout()) as response:
            async for told in response.content:
                if told.startswith(b"data: "):
                    self.add(json.loads(told[6:]))

    def add(self, told: Mapping[str, Any]) -> None:
        """Takes an event of `/v1/live`."""
        version, ended = told["versions"][0], time.perf_counter() - self._began
        self.decode_seconds += [step["seconds"] for step in version["steps"] if step["tokens"] == 1]
        predicted = sum(step["predicted_seconds"] for step in version["steps"])
        if predicted:
            slower = sum(step["seconds"] for step in version["steps"]) / predicted
            a, b, c, d = (slower * (version["cost"][name] or 0.0) for name in COEFFICIENTS)
            self.lines.append((ended - told["interval_seconds"], (a, b, c, d)))

    @property
    def last(self) -> Line:
        return self.lines[-1][1]
