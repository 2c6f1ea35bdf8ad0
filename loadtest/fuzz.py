"""This test sends random requests from the borders of every parameter: no engine may die, no answer may be a 5xx.

    python -m loadtest.fuzz --requests 10000 [--clients 16] [--seed 0] [--url http://127.0.0.1:3000]

Without a URL the test starts its own server on empty data: the demo model in bf16 and int8, and a model with random
weights whose tokenizer has one token more than its embedding has rows. Numbers come from their borders: subnormal,
huge, next to a limit, negative; token ids around both ends of the vocabulary. Exit status 1 if an engine died, if a
status was 500 or more, or if the server does not answer a plain request afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from loadtest.checkpoints import Shape, save
from loadtest.crashes import Service

Json = dict[str, Any]
TINY: Final = Shape("padded", 1, 64, 4, 2, 128, 512, tied=False)
PADDING: Final = "<|added-pad|>"
SMALLEST: Final = (5e-324, 1e-310, 1.4e-45, 1e-40, 1.1754942e-38, 1e-38, 1e-30, 1e-10, 9.999e-6, 1e-5, 1e-3)
LARGEST: Final = (1.999, 2.0, 2.001, 99.9, 100.0, 100.1, 1e4, 3.4028235e38, 3.5e38, 1e300, 1.7976931348623157e308)
FLOATS: Final = (0.0, -0.0, 0.5, 0.7, 0.9, 0.999999999, 1.0, 1.0000001, *SMALLEST, *LARGEST)
FRACTIONS: Final = (*SMALLEST, 0.5, 0.7, 0.9, 0.999999999, 1.0)
SMALL_COUNTS: Final = (0, 1, 2, 3)
COUNTS: Final = (-1, 0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 20, 21, 63, 64, 65)
INTEGERS: Final = (*COUNTS, 2047, 2048, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63), 2**64, 2**70)
IDS: Final = (-1, 0, 1, 2, 255, 299, 511, 512, 513, 4095, 4096, 4097, 32000, 131071, 2**31 - 1, 2**31)
ODD: Final[tuple[object, ...]] = (None, True, "1", "NaN", [], {}, [1], {"a": 1})
TEXTS: Final = (
    "",
    "a",
    "안녕하세요",
    "🍱" * 3,
    PADDING * 2,
    "<|pad|><|begin|>",
    "\u0000",
    "\ufeff",
    " ",
    "word " * 300,
)
NATIVE_FLOATS: Final = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
NATIVE_COUNTS: Final = ("top_k", "min_new_tokens", "n", "best_of", "top_n_tokens", "truncate", "seed")
NATIVE_FLAGS: Final = (
    "do_sample",
    "details",
    "decoder_input_details",
    "return_full_text",
    "ignore_eos",
    "include_stop",
)
OPENAI_COUNTS: Final = ("top_k", "min_tokens", "n", "seed", "top_logprobs", "best_of")


@dataclass(slots=True)
class Draw:
    """Draws request bodies. The same seed gives the same requests."""

    random: random.Random
    models: Sequence[str]

    def number(self) -> object:
        """A float from its borders, mostly one that is accepted; rarely something that is no float at all."""
        chance = self.random.random()
        if chance < 0.01:
            return self.random.choice(ODD)
        return (
            self.random.choice(FRACTIONS) if chance < 0.8 else self.random.choice((1, -1)) * self.random.choice(FLOATS)
        )

    def count(self) -> object:
        """An integer, mostly one that is accepted everywhere."""
        chance = self.random.random()
        if chance < 0.01:
            return self.random.choice(ODD)
        return self.random.choice(SMALL_COUNTS if chance < 0.8 else INTEGERS)

    def ids(self) -> list[int]:
        """Token ids, half of the time of every model's vocabulary."""
        pool = range(300) if self.random.random() < 0.5 else IDS
        return [self.random.choice(pool) for _ in range(self.random.randint(0, 6))]

    def text(self) -> str:
        return self.random.choice(TEXTS)

    def messages(self) -> list[Json]:
        roles = ("system", "user", "user", "user", "assistant")
        return [{"role": self.random.choice(roles), "content": self.text()} for _ in range(self.random.randint(1, 3))]

    def some(self, names: Sequence[str], value: Callable[[], object]) -> Json:
        """Up to three of the names, with values."""
        return {name: value() for name in self.random.sample(names, self.random.randint(0, min(3, len(names))))}

    def flag(self) -> object:
        return self.random.random() < 0.5

    def sampling(self, counts: Sequence[str]) -> Json:
        """Numbers that shape sampling, under the names that every dialect has."""
        drawn = self.some(NATIVE_FLOATS, self.number) | self.some(counts, self.count)
        if self.random.random() < 0.2:
            drawn["logit_bias"] = {str(token): self.number() for token in self.ids()}
        if self.random.random() < 0.1:
            drawn["stop"] = [self.text()]
        return drawn

    def parameters(self) -> Json:
        few = {"max_new_tokens": self.random.randint(1, 6)} if self.random.random() < 0.95 else {}
        return few | self.sampling(NATIVE_COUNTS) | self.some(NATIVE_FLAGS, self.flag)

    def head(self) -> Json:
        return {"model": self.random.choice(self.models), "stream": self.flag()}

    def native(self) -> tuple[str, Json]:
        source: Json = self.random.choice(
            ({"inputs": self.text()}, {"messages": self.messages()}, {"input_ids": self.ids()})
        )
        return "/generate", {**self.head(), **source, "parameters": self.parameters()}

    def chat(self) -> tuple[str, Json]:
        body = {"messages": self.messages(), "max_tokens": self.random.randint(1, 6), **self.sampling(OPENAI_COUNTS)}
        return "/v1/chat/completions", {**self.head(), **body, **self.some(("logprobs", "ignore_eos"), self.flag)}

    def completion(self) -> tuple[str, Json]:
        prompt = self.random.choice((self.text(), self.ids(), [self.text(), self.text()], [self.ids()]))
        body = {"prompt": prompt, "max_tokens": self.random.randint(0, 6), **self.sampling(OPENAI_COUNTS)}
        return "/v1/completions", {**self.head(), **body, **self.some(("echo", "ignore_eos"), self.flag)}

    def preview(self) -> tuple[str, Json]:
        context = self.some(("max_input_tokens", "reserve_output_tokens", "documents_budget"), self.count)
        policy = self.random.choice(("refuse", "window", "middle", "retrieve", "summarise"))
        return "/v1/context/preview", {"messages": self.messages(), "context": {"policy": policy, **context}}

    def tokenize(self) -> tuple[str, Json]:
        return "/tokenize", {"inputs": self.text(), "model": self.random.choice(self.models)}

    def regenerate(self, session: str) -> tuple[str, Json]:
        body = {"parameters": self.parameters(), "stream": self.flag()}
        return f"/v1/sessions/{session}/regenerate", body

    def request(self, session: str) -> tuple[str, Json]:
        """A path and a body."""
        if self.random.random() < 0.1:
            return self.regenerate(session)
        makers = (self.native,) * 5 + (self.chat,) * 3 + (self.completion,) * 3 + (self.preview, self.tokenize)
        return self.random.choice(makers)()


@dataclass(slots=True)
class Outcome:
    """What came of the requests: how often each status came, and what must not come."""

    statuses: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    restarts: int = 0
    alive: bool = False

    @property
    def held(self) -> bool:
        return self.alive and not self.errors and not self.restarts


async def send(client: aiohttp.ClientSession, url: str, path: str, body: Json, outcome: Outcome) -> None:
    """One request to its end; a 5xx, a broken connection or a stream that ends with a server's error is noted."""
    shown = f"{path} {json.dumps(body)[:600]}"
    try:
        async with client.post(url + path, json=body) as response:
            raw = await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        outcome.errors.append(f"{type(error).__name__}: {shown}")
        return
    outcome.statuses[response.status] += 1
    if response.status >= 500:
        outcome.errors.append(f"{response.status} {raw[:200]!r}: {shown}")
    elif b'"code":"internal"' in raw or b'"code": "internal"' in raw:
        outcome.errors.append(f"error in a stream {raw[-200:]!r}: {shown}")


async def fuzz(url: str, requests: int, clients: int, draw: Draw) -> Outcome:
    """`requests` in all, `clients` at a time, each client with a session of its own."""
    outcome, left = Outcome(), iter(range(requests))
    limits = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=limits) as client:
        before = await _restarts(client, url)

        async def work() -> None:
            session = await _session(client, url)
            for number in left:
                path, body = draw.request(session)
                await send(client, url, path, body, outcome)
                if number % 1000 == 999:
                    print(f"{number + 1} requests, {len(outcome.errors)} errors", flush=True)

        await asyncio.gather(*(work() for _ in range(clients)))
        outcome.restarts = await _restarts(client, url) - before
        outcome.alive = await _answers(client, url)
    return outcome


async def _session(client: aiohttp.ClientSession, url: str) -> str:
    """A session with one turn, so that there is something to regenerate."""
    async with client.post(f"{url}/v1/sessions", json={}) as response:
        session: str = (await response.json())["id"]
    turn = {"session_id": session, "messages": [{"role": "user", "content": "hello"}]}
    async with client.post(f"{url}/generate", json={**turn, "parameters": {"max_new_tokens": 4}}) as response:
        await response.read()
    return session


async def _restarts(client: aiohttp.ClientSession, url: str) -> int:
    """Restarts of all engines that are loaded now."""
    async with client.get(f"{url}/v1/deployments") as response:
        deployments = (await response.json())["data"]
    return sum(replica["restarts"] for each in deployments for replica in each["replicas"])


async def _answers(client: aiohttp.ClientSession, url: str) -> bool:
    async with client.post(f"{url}/generate", json={"inputs": "hello"}) as response:
        return response.status == 200


def publish_padded(data_dir: Path, folder: Path) -> bool:
    """Import the model whose tokenizer knows a token that its embedding lacks. False where the import refuses it."""
    source = folder / "padded"
    save(TINY, source)
    path = source / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    token = {"id": TINY.vocabulary, "content": PADDING, "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append(token | flags)
    path.write_text(json.dumps(tokenizer))
    command = [sys.executable, "-m", "service.cli", "model", "import", str(source), "padded", "--precision", "bf16"]
    environment = {"DOSIRAK_DATA_DIR": str(data_dir), "BENTOML_HOME": str(data_dir)}
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"the model with an added token is refused at import: {done.stdout[-300:]}{done.stderr[-300:]}")
    return done.returncode == 0


async def run(requests: int, clients: int, seed: int, url: str) -> Outcome:
    """Against `url`, or against a server of its own."""
    async with AsyncExitStack() as stack:
        models = ["demo:1", "demo:2"]
        if not url:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            service = Service(folder / "data")
            stack.push_async_callback(service.kill)
            async with aiohttp.ClientSession() as client:
                await service.start(client)
            if await asyncio.to_thread(publish_padded, service.data_dir, folder):
                models.append("padded:1")
            url = service.url
        return await fuzz(url, requests, clients, Draw(random.Random(seed), models))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--url", default="", help="a running server, instead of one started for this")
    options = parser.parse_args()
    outcome = asyncio.run(run(options.requests, options.clients, options.seed, options.url))
    print("\n".join(outcome.errors[:20]))
    statuses = ", ".join(f"{count} × {status}" for status, count in sorted(outcome.statuses.items()))
    alive = "answers" if outcome.alive else "DOES NOT ANSWER"
    print(f"{statuses}; {len(outcome.errors)} errors, {outcome.restarts} engine restarts, the server {alive}")
    return 0 if outcome.held else 1


if __name__ == "__main__":
    raise SystemExit(main())
