"""This dialect is OpenAI's embeddings: one request for each input, and vectors in their order."""

from __future__ import annotations

import base64
import uuid
from array import array
from collections.abc import Sequence
from typing import Any

from service.api.openai.dialect import Models, named_model
from service.api.openai.embeddings.schemas import EmbeddingBody
from service.api.shared.serialiser import WholeSerialiser
from service.engine.protocol.messages import Pooling
from service.generation.answer import Answer
from service.generation.embedding import Embedding
from service.generation.request import GenerationRequest


def parse(body: EmbeddingBody, models: Models) -> list[GenerationRequest]:
    """Returns one request for each input. `models`: see `openai.requests_of`."""
    cut = body.truncate_prompt_tokens
    embedding = Embedding(
        pooling=None if body.pooling is None else Pooling(body.pooling),
        normalize=body.normalize,
        dimensions=body.dimensions,
        fits=cut == -1,
    )
    return [
        GenerationRequest(
            id=f"embd-{uuid.uuid4().hex}",
            source=source,
            model=named_model(body.model, models),
            max_new_tokens=0,
            truncate=cut if cut and cut > 0 else None,
            embedding=embedding,
            priority=body.priority or 0,
            deadline_ms=body.deadline_ms,
            user=body.user or "",
        )
        for source in body.input
    ]


class EmbeddingSerialiser(WholeSerialiser):
    def __init__(self, is_base64: bool) -> None:
        self._is_base64 = is_base64

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        first = answers[0]
        prompt_tokens = sum(answer.usage()["prompt_tokens"] for answer in answers)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": self._shown(answer.vector)}
                for index, answer in enumerate(answers)
            ],
            "model": first.manifest.reference,
            "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
            "digest": first.manifest.short_digest,
            **how(first),
        }

    def _shown(self, vector: array[float]) -> str | list[float]:
        return base64.b64encode(vector.tobytes()).decode() if self._is_base64 else vector.tolist()


def how(answer: Answer) -> dict[str, Any]:
    """Returns our own fields that say how the vectors were made."""
    embedding, version = answer.request.embedding or Embedding(), answer.deployment.pooling
    return {"pooling": embedding.kind(version).value, "normalized": embedding.normalizes(version)}
