"""A lean streaming client: sends one `/generate_stream` request and takes the time of every event, one a token.

Only the last event is parsed: a client that is busy parsing would time itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, quantiles

import aiohttp


@dataclass(slots=True)
class Answer:
    """One answer as its client saw it: seconds from the request to each token, and how it ended."""

    started: float
    token_times: list[float] = field(default_factory=list)
    completion_tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.token_times[0]

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.token_times, self.token_times[1:], strict=False)]


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> Answer:
    """Stream one answer. Whatever goes wrong, on the wire or in the stream, becomes `error`."""
    answer = Answer(time.perf_counter())
    last = b""
    try:
        async with session.post(f"{url}/generate_stream", json=body) as response:
            if response.status != 200:
                answer.error = f"status {response.status}: {(await response.text())[:200]}"
                return answer
            async for line in response.content:
                if line.startswith(b"data:"):
                    answer.token_times.append(time.perf_counter() - answer.started)
                    last = line[5:]
    except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
        answer.error = f"{type(error).__name__}: {error}"
        return answer
    end: dict[str, object] = json.loads(last or b"{}")
    usage = end.get("usage")
    if end.get("generated_text") is None or not isinstance(usage, dict):
        answer.error = f"no last event: {end.get('error', 'the stream was cut')}"
    else:
        answer.completion_tokens = int(usage["completion_tokens"])
    return answer


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and quantiles of one figure, in milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        if not seconds:
            return cls(*[float("nan")] * 4)
        cuts = quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 99
        return cls(fmean(seconds) * 1e3, cuts[49] * 1e3, cuts[94] * 1e3, cuts[98] * 1e3)
