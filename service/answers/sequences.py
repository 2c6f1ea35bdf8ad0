"""The sequences of one answer, run side by side in the engine: they share one prompt and differ in their seed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from service.answers.answer import Answer
from service.answers.decoding import Decoding
from service.answers.merging import merged
from service.answers.piece import Piece
from service.engine.messages import Request

News = tuple[Decoding, Piece]


def pieces(answer: Answer) -> AsyncGenerator[News, None]:
    """Pieces of all sequences as they come. The others start after the first one's first step, when the prompt's
    blocks can be shared instead of computed again."""
    first, *others = answer.decodings
    if not others:
        return _run(answer, first)
    started = asyncio.Event()
    return merged([_leading(answer, first, started), *(_following(answer, each, started) for each in others)])


async def _leading(answer: Answer, decoding: Decoding, started: asyncio.Event) -> AsyncGenerator[News, None]:
    try:
        async with aclosing(_run(answer, decoding)) as news:
            async for item in news:
                started.set()
                yield item
    finally:
        started.set()


async def _following(answer: Answer, decoding: Decoding, started: asyncio.Event) -> AsyncGenerator[News, None]:
    await started.wait()
    async with aclosing(_run(answer, decoding)) as news:
        async for item in news:
            yield item


async def _run(answer: Answer, decoding: Decoding) -> AsyncGenerator[News, None]:
    """One engine request to its end; leaving early (a stop string, a closed reader) aborts it."""
    async with aclosing(answer.deployment.generate(_request(answer, decoding))) as outputs:
        async for output in outputs:
            answer.note(decoding.number, output)
            for piece in decoding.accept(output):
                yield decoding, piece
            if decoding.finish_reason is not None:
                return


def _request(answer: Answer, decoding: Decoding) -> Request:
    ask = answer.ask
    stop_ids = answer.tokenizer.stop_token_ids
    return Request(
        id=f"{ask.id}-{decoding.number}",
        token_ids=answer.prompt.token_ids,
        params=ask.params(answer.max_new_tokens, decoding.seed, stop_ids),
        priority=ask.priority,
        arrival=ask.arrival,
        deadline=ask.deadline,
        cache_salt=ask.owner,
    )
