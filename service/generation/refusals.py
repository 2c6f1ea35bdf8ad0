"""Refusals are a request's ends without an answer: its deadline cannot be met, no version serves it, or the engine gave
nothing to answer with. They know forecasts as numbers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from service.engine.protocol.messages import FinishReason
from service.errors import DeadlineExceeded, GenerationFailed, Unavailable
from service.generation.answer import Answer, Delta
from service.generation.request import GenerationRequest

T = TypeVar("T")


@contextmanager
def refusals(observe: Callable[[str], None]) -> Iterator[None]:
    """Calls `observe` with the code of an error that refuses a request before an engine has it, for want of a version
    that serves or of time."""
    try:
        yield
    except (DeadlineExceeded, Unavailable) as error:
        observe(error.code)
        raise


async def in_time(request: GenerationRequest, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`. Raises DeadlineExceeded where the request's deadline passes before."""
    left = None if request.deadline is None else max(0.0, request.deadline - time.monotonic())
    try:
        async with asyncio.timeout(left) as deadline:
            return await work
    except TimeoutError:
        if not deadline.expired():
            raise  # the work's own, which no other deadline_ms changes
        raise too_late(request, 0.0) from None


def refuse_late(request: GenerationRequest, backlog_seconds: float, error: float, now: float) -> None:
    """Raises DeadlineExceeded when the deadline passes before the backlog is done, even if that forecast is wrong by
    its usual `error`."""
    doubt = max(0.0, 1 - error)
    if request.deadline is not None and now + backlog_seconds * doubt > request.deadline:
        raise too_late(request, backlog_seconds)


def too_late(request: GenerationRequest, backlog_seconds: float) -> DeadlineExceeded:
    """Returns the error for a deadline that cannot be met. It has a `retry_after`, from the forecast, where other
    requests were the cause."""
    return DeadlineExceeded(
        f"No token was ready within deadline_ms = {request.deadline_ms}: "
        "allow more time, shorten the prompt, or try later",
        param="deadline_ms",
        retry_after=backlog_seconds or None,
        deadline_ms=request.deadline_ms or 0,
        backlog_ms=round(backlog_seconds * 1000),
    )


def refuse_failed_end(answer: Answer, delta: Delta) -> None:
    """Raises for an end that leaves no text to answer with. With some text, that end is the text's finish reason."""
    if delta.finish_reason is FinishReason.ABORT:
        raise Unavailable(
            "The answer was cut: the server is stopping, or the engine process died and its engine cannot go on with "
            "frequency_penalty or presence_penalty; send the request again",
            retry_after=1,
        )
    if answer.completion_tokens:
        return
    if delta.finish_reason is FinishReason.DEADLINE:
        raise too_late(answer.request, answer.deployment.engine.stats.backlog_seconds)
    if delta.finish_reason is FinishReason.ERROR:
        raise GenerationFailed(
            "The model gave no usable probabilities for this prompt, or the grammar could not be followed; change the "
            "prompt, the grammar or the model"
        )
