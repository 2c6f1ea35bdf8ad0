"""How fairly keys share a server, over HTTP.

    DOSIRAK_ADMIN_KEY=… python -m loadtest.shares http://127.0.0.1:3000

First five keys want all that the server can do, each with other numbers of clients, of words and of tokens; who is
refused comes back after its `Retry-After`. Jain's index of the tokens that each got, of prompts and of answers, is 1
where all are equal and 0.2 where one has all. Then a light key asks once each `--every` seconds: alone, and beside a
greedy key with `--users` clients. The keys are made for the measurement and revoked behind it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import aiohttp

from loadtest.goodput import Clients, Tally, quantile

ADMIN_KEY: Final = "DOSIRAK_ADMIN_KEY"

PATIENCE: Final = 60.0
WARM: Final = 0.2
"""The part of a load that is not counted."""


@dataclass(frozen=True, slots=True)
class Wants:
    """What a key's clients send: so many of them, with prompts of so many words and answers of so many tokens."""

    users: int
    words: int
    tokens: int


BACKLOGGED: Final = (Wants(48, 30, 64), Wants(64, 30, 64), Wants(96, 30, 64), Wants(48, 120, 16), Wants(64, 10, 128))


def jain(shares: Sequence[float]) -> float:
    """Returns Jain's index of fairness: 1 where all shares are equal, 1/n where one has all."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares) or 1)


class Keys:
    """Keys of the server at `url`, each with a client's session of its own; all are revoked at the end."""

    def __init__(self, url: str, admin_key: str) -> None:
        self._url = url
        self._admin = aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {admin_key}"})
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Keys:
        await self._open.enter_async_context(self._admin)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def one(self, name: str) -> aiohttp.ClientSession:
        """Makes a key that may ask for answers alone."""
        async with self._admin.post("/v1/keys", json={"name": name, "scopes": ["generate"]}) as response:
            if response.status != 201:
                raise SystemExit(f"no key was made: {response.status} {await response.text()}")
            made = await response.json()
        self._open.push_async_callback(self._revoke, made["id"])
        headers = {"Authorization": f"Bearer {made['key']}"}
        session = aiohttp.ClientSession(self._url, headers=headers, connector=aiohttp.TCPConnector(limit=0))
        return await self._open.enter_async_context(session)

    async def _revoke(self, key_id: str) -> None:
        async with self._admin.delete(f"/v1/keys/{key_id}") as response:
            await response.read()


async def shares(keys: Keys, url: str, seconds: float) -> None:
    """Prints what each of the backlogged keys got, and Jain's index of it."""
    sessions = [await keys.one(f"shares-{number}") for number in range(len(BACKLOGGED))]
    clients = [
        Clients(url, session, wants.words, wants.tokens, PATIENCE, comes_back=True)
        for session, wants in zip(sessions, BACKLOGGED, strict=True)
    ]
    asking = [
        asyncio.create_task(each.again_and_again(wants.users, seconds))
        for each, wants in zip(clients, BACKLOGGED, strict=True)
    ]
    counts = list[list[int]]()
    for pause in (WARM * seconds, (1 - WARM) * seconds):
        await asyncio.sleep(pause)
        counts.append(await asyncio.gather(*map(tokens_of, sessions)))
    had = [after - before for before, after in zip(*counts, strict=True)]
    tallies = await asyncio.gather(*asking)
    for wants, tally, tokens in zip(BACKLOGGED, tallies, had, strict=True):
        print(f"{wants}: {tokens / (1 - WARM) / seconds:.0f} tokens a second; {dict(tally.ends)}")
    print(f"Jain's index of {len(had)} backlogged keys: {jain(had):.3f}", flush=True)


async def tokens_of(session: aiohttp.ClientSession) -> int:
    """Returns the tokens of prompts and answers that the session's own key was counted."""
    async with session.get("/v1/usage") as response:
        response.raise_for_status()
        return sum(day["prompt_tokens"] + day["completion_tokens"] for day in (await response.json())["data"])


async def light(keys: Keys, url: str, args: argparse.Namespace) -> None:
    """Prints a light key's first token, alone and beside a greedy key."""
    one = Clients(url, await keys.one("shares-light"), args.words, args.tokens, PATIENCE)
    greedy = Clients(url, await keys.one("shares-greedy"), args.words, args.tokens, PATIENCE, comes_back=True)

    async def asks() -> Tally:
        tally = Tally()
        for _ in range(round(args.seconds / args.every)):
            await asyncio.gather(one.ask(tally), asyncio.sleep(args.every))
        return tally

    await asks()  # warms
    alone = await asks()
    beside, _ = await asyncio.gather(asks(), greedy.again_and_again(args.users, args.seconds))
    first, then = quantile(alone.firsts, 0.95), quantile(beside.firsts, 0.95)
    if not first:
        raise SystemExit(f"the light key got no token while it was alone: {dict(alone.ends)}")
    print(
        f"a light key's first token p95: alone {first * 1e3:.0f} ms, beside {args.users} clients of a greedy key "
        f"{then * 1e3:.0f} ms, {then / first:.2f} times; {dict(beside.ends)}"
    )


async def measure(args: argparse.Namespace) -> None:
    admin_key = os.environ.get(ADMIN_KEY)
    if not admin_key:
        raise SystemExit(f"{ADMIN_KEY} is not set: give it the server's, for keys are made here")
    async with Keys(args.url, admin_key) as keys:
        await shares(keys, args.url, args.seconds)
        await light(keys, args.url, args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--users", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=0.5)
    parser.add_argument("--words", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=64)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
