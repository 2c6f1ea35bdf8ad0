"""Recollection finds what the server knows of a chat beside its messages, before the prompt is built: summaries,
passages of the knowledge base, and the cost of an answer's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.context import retrieval
from service.context.composition import current
from service.context.policies import USUAL_DECODE_RATIO
from service.context.prompt import Chat
from service.deployments.deployment import Deployment
from service.errors import Unavailable
from service.generation.conversations import Conversations
from service.generation.request import GenerationRequest
from service.generation.summaries import Summaries
from service.storage.sessions import Passage
from service.text.messages import Document, Message
from service.text.passages import titled


class Recollection:
    def __init__(self, conversations: Conversations, summaries: Summaries) -> None:
        self._conversations = conversations
        self._summaries = summaries

    async def of(self, request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
        """Returns the same request with what its policy can use. Raises Unavailable where the request names a knowledge
        base that cannot be read."""
        if not isinstance(request.source, Chat) or request.context is None:
            return request
        past = replace(request.source.past, decode_ratio=deployment.decode_ratio or USUAL_DECODE_RATIO)
        if request.context.chosen == "summarise":
            past = replace(past, summaries=await self._summaries.known(request, request.source.messages))
        if request.context.wants_knowledge:
            past = replace(past, passages=await self._passages(request, request.source.messages))
        return replace(request, source=replace(request.source, past=past))

    async def _passages(self, request: GenerationRequest, messages: Sequence[Message]) -> tuple[Document, ...] | None:
        question = current(messages)
        try:
            store = await self._conversations.store()
            found = await store.knowledge.find(request.owner, question, request.turn.session if request.turn else None)
        except Unavailable:
            if request.context is not None and request.context.knowledge:
                raise
            return None  # only the policy wanted it, so the chat goes on without it
        return None if found is None else matching(question, found)


def matching(question: str, passages: Sequence[Passage]) -> tuple[Document, ...]:
    """Returns the passages that match the question nearly as well as the best one, best first."""
    texts = [titled(each.title, each.text) for each in passages]
    scores = retrieval.scores(question, texts, information_weight=0.0)
    enough = retrieval.ENOUGH * max(scores, default=0.0)
    return tuple(
        Document(passages[at].text, passages[at].title, passages[at].id)
        for at in retrieval.ranked(scores)
        if scores[at] > enough
    )
