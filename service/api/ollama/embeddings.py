"""This dialect is Ollama's embeddings: `/api/embed`, and `/api/embeddings`, which is older and takes one text."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from service.api.ollama.dialect import nanoseconds
from service.api.ollama.embedding_schemas import OllamaEmbedBody, OllamaEmbeddingsBody, OllamaVectorBody
from service.api.shared.serialiser import WholeSerialiser
from service.context.prompt import Text
from service.generation.answer import Answer
from service.generation.embedding import Embedding
from service.generation.request import GenerationRequest


def parse_embed(body: OllamaEmbedBody) -> list[GenerationRequest]:
    """Returns one request for each input. Vectors have length 1, as Ollama's."""
    embedding = Embedding(normalize=True, dimensions=body.dimensions, fits=body.truncate is not False)
    return [_request(body, text, embedding) for text in body.input]


def parse_embeddings(body: OllamaEmbeddingsBody) -> list[GenerationRequest]:
    """Returns the request. This route's vector keeps its length, as Ollama's."""
    return [_request(body, body.prompt or "", Embedding(normalize=False, fits=True))]


def _request(body: OllamaVectorBody, text: str, embedding: Embedding) -> GenerationRequest:
    return GenerationRequest(
        id=f"embd-{uuid.uuid4().hex}",
        source=Text(text),
        model=body.model,
        max_new_tokens=0,
        max_window=body.options.num_ctx if body.options else None,
        embedding=embedding,
        keep_alive=body.keep_alive,
    )


class EmbedSerialiser(WholeSerialiser):
    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        first = answers[0]
        ends = [answer.last_at for answer in answers if answer.last_at is not None]
        arrival = first.request.arrival
        return {
            "model": first.manifest.reference,
            "embeddings": [answer.vector.tolist() for answer in answers],
            "total_duration": nanoseconds(max(ends, default=arrival) - arrival),
            "load_duration": nanoseconds(first.admitted_at - arrival),
            "prompt_eval_count": sum(answer.usage()["prompt_tokens"] for answer in answers),
            "digest": first.manifest.short_digest,
        }


class EmbeddingsSerialiser(WholeSerialiser):
    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        [answer] = answers
        return {"embedding": answer.vector.tolist()}
