"""The chats of a simulation, asked of real servers: the same token ids at the same times, placed by the chats' hash."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import aiohttp

from loadtest.fleet.balancing import weight
from loadtest.fleet.chats import Chat
from loadtest.fleet.instance import Line
from loadtest.fleet.simulation import Outcome

WINDOW_LEFT = 2
"""Tokens that a prompt and its answer leave free, for what the server's tokenizer adds."""


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
    body = {"model": "demo", "prompt": list(prompt), "max_tokens": answer, "temperature": 1.0, "ignore_eos": True}
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


async def fitted_line(server: aiohttp.ClientSession) -> Line:
    """Returns the cost line that the server's engine has fitted."""
    async with server.get("/v1/batching") as response:
        cost = (await response.json())["data"][0]["cost"]
    names = ("constant_seconds", "seconds_per_token", "seconds_per_kv_token", "seconds_per_attention_pair")
    a, b, c, d = (float(cost[name]) for name in names)
    return a, b, c, d
