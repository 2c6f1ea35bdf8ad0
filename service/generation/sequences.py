"""This module runs the sequences of answers side by side in the engine: those of one answer share one prompt and differ
in their seed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from service.engine.protocol.messages import Request as EngineRequest
from service.generation.answer import Answer, Delta
from service.generation.output_sequence import OutputSequence
from service.tasks import cancelled

T = TypeVar("T")


def deltas_of(answer: Answer) -> AsyncGenerator[Delta, None]:
    """Yields the deltas of all sequences as they come. The other sequences start after the first one's first step: then
    they share the prompt's blocks and do not compute them again."""
    started = asyncio.Event()
    sources = [_run(answer, sequence, started) for sequence in answer.sequences]
    return sources[0] if len(sources) == 1 else merged(sources)


async def _run(answer: Answer, sequence: OutputSequence, started: asyncio.Event) -> AsyncGenerator[Delta, None]:
    """Runs one engine request to its end. Leaving early (a stop string, a closed reader) aborts the request."""
    if sequence.number:
        await started.wait()
    try:
        async with aclosing(answer.deployment.generate(_engine_request(answer, sequence))) as outputs:
            async for output in outputs:
                answer.note(sequence.number, output)
                for delta in sequence.accept(output, answer):
                    started.set()
                    yield delta
                if sequence.finish_reason is not None:
                    return
    finally:
        started.set()


def _engine_request(answer: Answer, sequence: OutputSequence) -> EngineRequest:
    request = answer.request
    stop_ids = answer.tokenizer.stop_token_ids
    params = request.params(answer.max_new_tokens, sequence.seed, stop_ids)
    if request.embedding is not None:
        params = replace(params, pooling=request.embedding.kind(answer.deployment.pooling))
    token_ids = answer.prompt.token_ids
    if request.choices is not None:
        params = replace(params, max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=len(token_ids))
        token_ids = (*token_ids, *request.choices.token_ids[sequence.number])
    return EngineRequest(
        id=f"{request.id}-{sequence.number}",
        token_ids=token_ids,
        params=params,
        priority=request.priority,
        arrival=request.arrival,
        deadline=request.deadline,
        cache_salt=request.prefix_salt,
        owner=request.owner,
        is_streamed=request.is_streamed,
    )


class _End:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


async def merged(sources: list[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yields the items of all `sources`, which it owns and closes. The first error ends all sources and is raised here.

    It reads at most one item ahead from each source, so a slow reader holds every source back.
    """
    queue: asyncio.Queue[T | _End] = asyncio.Queue(maxsize=1)
    tasks = [asyncio.create_task(_pump(source, queue)) for source in sources]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                running -= 1
    finally:
        await cancelled(tasks)
        for source in sources:  # a source that was cancelled before its first step never began
            await source.aclose()


async def _pump(source: AsyncGenerator[T, None], queue: asyncio.Queue[T | _End]) -> None:
    try:
        async with aclosing(source):
            async for item in source:
                await queue.put(item)
    except Exception as error:
        await queue.put(_End(error))
    else:
        await queue.put(_End())
