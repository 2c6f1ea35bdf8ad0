"""A batch runs embedding requests that came together: on one version, few at a time, each refused before any runs.

Vectors of two versions cannot be compared, so one version answers all of them, also while an alias moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final

from service.errors import InvalidRequest
from service.generation.answer import Answer, Delta
from service.generation.merging import merged
from service.generation.request import GenerationRequest

MOST_AT_ONCE: Final = 32
"""More would take the places of other clients, and fill a step no better."""

Deltas = AsyncGenerator[Delta, None]


async def begun(
    requests: Sequence[GenerationRequest], begin: Callable[[GenerationRequest], Awaitable[Answer]]
) -> list[Answer]:
    """Returns the answers, with their prompts. The errors of several name the input that is wrong."""
    answers = []
    for number, request in enumerate(requests):
        try:
            answers.append(await begin(request))
        except InvalidRequest as error:
            if len(requests) > 1:
                error.message = f"Input {number}: {error.message}"
            raise
        await asyncio.sleep(0)  # tokenizing thousands of texts must not hold the event loop
    return answers


async def run(answers: Sequence[Answer], measured: Callable[[Answer], Deltas]) -> Deltas:
    """Yields the deltas of all answers as they come, with MOST_AT_ONCE answers in the engine at most."""
    turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def in_turn(answer: Answer) -> Deltas:
        async with turns, aclosing(measured(answer)) as deltas:
            async for delta in deltas:
                yield delta

    async with aclosing(merged([in_turn(answer) for answer in answers])) as deltas:
        async for delta in deltas:
            yield delta
