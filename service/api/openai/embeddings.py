"""OpenAI's embeddings: the wire models, one request for each input, vectors in their order, and the route."""

from __future__ import annotations

import base64
import uuid
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import Request
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from service.api.answering.callers import note_caller
from service.api.answering.responses import respond_whole
from service.api.deps import ServiceDep
from service.api.http.bodies import json_body
from service.api.http.documented import Router
from service.api.http.encoding import encoded
from service.api.openai.dialect import Models, named_model
from service.api.openai.schemas import SOURCES_SCHEMA, sources_of
from service.api.shared.answer_schemas import Shown
from service.api.shared.schemas import (
    MAX_INPUTS,
    MAX_TOKENS,
    CacheSalt,
    DeadlineMs,
    Dimensions,
    ModelReference,
    Priority,
    RequestIdText,
    UserText,
    Wire,
)
from service.api.shared.serialiser import WholeSerialiser
from service.context.prompt import Text
from service.engine.protocol.messages import Pooling
from service.generation.answer import Answer
from service.generation.request import Embedding, GenerationRequest

PoolingName = Annotated[
    Literal["mean", "last", "cls"],
    Field(description="How the hidden states become one vector, where it is not the version's own way."),
]


def _not_empty(sources: list[Any]) -> list[Any]:
    empty = next((at for at, each in enumerate(sources) if isinstance(each, Text) and not each.text), None)
    if empty is not None:
        raise PydanticCustomError("wrong_field", "{text}", {"at": (empty,), "text": "is an empty string: leave it out"})
    return sources


def _some_tokens(value: int) -> int:
    if not value:
        text = "must be at least 1, or -1 for as many as fit: 0 would keep no token"
        raise PydanticCustomError("wrong_field", "{text}", {"text": text})
    return value


class EmbeddingBody(Wire):
    """`truncate_prompt_tokens` keeps the last so many tokens of each input; -1 keeps as many from its beginning as the
    window has."""

    input: Annotated[
        list[Any],
        BeforeValidator(partial(sources_of, most=MAX_INPUTS, name="input")),
        AfterValidator(_not_empty),
        WithJsonSchema(SOURCES_SCHEMA),
    ]
    model: ModelReference | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions | None = None
    user: UserText | None = None
    pooling: PoolingName | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKENS), AfterValidator(_some_tokens)] | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    deadline_ms: DeadlineMs | None = None
    request_id: RequestIdText | None = None


class EmbeddingVector(Shown):
    """`embedding` holds fp32 numbers, as numbers or as base64 of their little-endian bytes."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Shown):
    prompt_tokens: int
    total_tokens: int


class Embeddings(Shown):
    """`data` has the order of the inputs. `digest`, `pooling` and `normalized` are our own."""

    object: Literal["list"]
    data: list[EmbeddingVector]
    model: str
    usage: EmbeddingUsage
    digest: str
    pooling: Literal["mean", "last", "cls"]
    normalized: bool


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
            cache_salt=body.cache_salt or "",
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
                {"object": "embedding", "index": index, "embedding": encoded(self._shown(answer.vector))}
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


router = Router(tags=["openai"])
BODY: Final = json_body(EmbeddingBody)


@router.post("/v1/embeddings", response_model=Embeddings)
async def embeddings(http: Request, service: ServiceDep, body: EmbeddingBody = BODY) -> Response:
    """OpenAI's embeddings: a vector of each input, in fp32."""
    note_caller(http, body.request_id, body.user)
    requests = parse(body, service.deployments.repository.models)
    return await respond_whole(http, service, requests, EmbeddingSerialiser(body.encoding_format == "base64"))
