"""A rendering is work on a request that renders the version's chat template, which is code of whoever made the version:
on the event loop while it is short, else in a thread, and never without end.

A template that takes 200 ms so delays its own requests, and no other model's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from service.context.prompt import Chat, Ids, Text
from service.deployments.deployment import Deployment
from service.generation.request import GenerationRequest
from service.text.sandbox import TookLong, renderings_within, seconds_for

T = TypeVar("T")

BRIEF_SECONDS: Final = 0.02
"""What the event loop gives to one request; usual templates take less than a millisecond."""
_RENDERINGS: Final = 20
"""How many times as long as one rendering may take all renderings of a request may: some policies try many cuts."""


async def rendered(request: GenerationRequest, deployment: Deployment, work: Callable[[], T]) -> T:
    """Returns what `work` returns on the event loop, or, where its renderings take long, in a thread, from the
    beginning. Raises InvalidRequest where they take too long there, too."""
    try:
        with renderings_within(BRIEF_SECONDS, TookLong):
            return work()
    except TookLong:
        async with deployment.slow_renderings:
            return await in_thread(request, work)


async def in_thread(request: GenerationRequest, work: Callable[[], T]) -> T:
    """Returns what `work` returns in a thread. Raises InvalidRequest where its renderings take too long."""
    with renderings_within(_RENDERINGS * seconds_for(characters(request))):
        return await asyncio.to_thread(work)


def characters(request: GenerationRequest) -> int:
    """Returns how many characters the request's prompt is made of."""
    documents = sum(len(document.text) for document in request.documents)
    match request.source:
        case Text(text):
            return documents + len(text)
        case Chat(messages):
            return documents + sum(len(text) for message in messages for text in message.texts)
        case Ids():
            return documents
