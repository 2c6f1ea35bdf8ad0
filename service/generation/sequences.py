"""This module runs the sequences of one answer side by side in the engine: they share one prompt and differ in their
seed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from service.engine.protocol.messages import Request as EngineRequest
from service.generation.answer import Answer
from service.generation.merging import merged
from service.generation.output_sequence import OutputSequence
from service.generation.token_delta import TokenDelta

SequenceDelta = tuple[OutputSequence, TokenDelta]
Deltas = AsyncGenerator[SequenceDelta, None]


def token_deltas(answer: Answer) -> Deltas:
    """Yields the deltas of all sequences as they come. The other sequences start after the first one's first step: then
    they share the prompt's blocks and do not compute them again."""
    first, *others = answer.sequences
    if not others:
        return _run(answer, first)
    started = asyncio.Event()
    return merged([_leading(answer, first, started), *(_following(answer, each, started) for each in others)])


async def _leading(answer: Answer, sequence: OutputSequence, started: asyncio.Event) -> Deltas:
    try:
        async with aclosing(_run(answer, sequence)) as added:
            async for item in added:
                started.set()
                yield item
    finally:
        started.set()


async def _following(answer: Answer, sequence: OutputSequence, started: asyncio.Event) -> Deltas:
    await started.wait()
    async with aclosing(_run(answer, sequence)) as added:
        async for item in added:
            yield item


async def _run(answer: Answer, sequence: OutputSequence) -> Deltas:
    """Runs one engine request to its end. Leaving early (a stop string, a closed reader) aborts the request."""
    async with aclosing(answer.deployment.generate(_engine_request(answer, sequence))) as outputs:
        async for output in outputs:
            answer.note(sequence.number, output)
            for delta in sequence.accept(output):
                yield sequence, delta
            if sequence.finish_reason is not None:
                return


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
        cache_salt=request.owner,
    )
