"""Ollama's embeddings: `/api/embed`, and `/api/embeddings`, which is older and takes one text."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final

from fastapi import Request
from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from service.api.answering.responses import respond_whole
from service.api.deps import ServiceDep
from service.api.http.bodies import json_body
from service.api.http.documented import Router
from service.api.http.encoding import encoded, json_response
from service.api.ollama.answer_schemas import OllamaEmbedAnswer, OllamaEmbeddingsAnswer
from service.api.ollama.dialect import nanoseconds
from service.api.ollama.routes import STAND_IN, load_or_unload
from service.api.ollama.schemas import OPERATORS, OPERATORS_OPTIONS, KeepAlive, Name, OllamaOptions
from service.api.shared.schemas import MAX_INPUTS, Absent, Dimensions, Tokens, Wire
from service.api.shared.serialiser import WholeSerialiser
from service.context.prompt import Text
from service.generation.answer import Answer
from service.generation.request import Embedding, GenerationRequest

OF_TEXT: Final = tuple(
    name
    for name in dict.fromkeys((*OllamaOptions.model_fields, *OllamaOptions.later))
    if name not in ("num_ctx", *OPERATORS_OPTIONS)
)
"""Options that shape a generated text."""
NO_TEXT: Final = "shapes a generated text, and this route generates none: remove it"


def _inputs(value: Any) -> Any:
    match value:
        case None | "":
            return []
        case str():
            return [value]
        case [*texts] if len(texts) <= MAX_INPUTS and all(isinstance(each, str) and each for each in texts):
            return texts
    text = f"must be a text, or a list of at most {MAX_INPUTS} texts; none empty"
    raise PydanticCustomError("wrong_field", "{text}", {"text": text})


class OllamaEmbedOptions(Wire):
    later: ClassVar[dict[str, Absent]] = {**OPERATORS_OPTIONS, **dict.fromkeys(OF_TEXT, (None,))}
    reasons: ClassVar[dict[str, str]] = {
        **dict.fromkeys(OPERATORS_OPTIONS, OPERATORS),
        **dict.fromkeys(OF_TEXT, NO_TEXT),
    }
    num_ctx: Annotated[Tokens | None, Field(description="Window of each input, if less than the model's.")] = None


class OllamaVectorBody(Wire):
    """The fields of both routes."""

    model: Name
    options: OllamaEmbedOptions | None = None
    keep_alive: KeepAlive | None = None


class OllamaEmbedBody(OllamaVectorBody):
    """Without an input nothing is computed: the model is loaded, or with `keep_alive` 0 unloaded."""

    input: Annotated[
        list[str],
        BeforeValidator(_inputs),
        WithJsonSchema(
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
        ),
    ] = Field(default=[])
    truncate: Annotated[bool | None, Field(description="Whether an input loses the end that does not fit.")] = None
    dimensions: Dimensions | None = None


class OllamaEmbeddingsBody(OllamaVectorBody):
    """Without a prompt nothing is computed: the model is loaded, or with `keep_alive` 0 unloaded."""

    prompt: str | None = None


def parse_embed(body: OllamaEmbedBody) -> list[GenerationRequest]:
    """Returns one request for each input. Vectors have length 1, as Ollama's."""
    embedding = Embedding(normalize=True, dimensions=body.dimensions, fits=body.truncate is not False)
    return [_request(body, Text(text, name="input"), embedding) for text in body.input]


def parse_embeddings(body: OllamaEmbeddingsBody) -> list[GenerationRequest]:
    """Returns the request. This route's vector keeps its length, as Ollama's."""
    return [_request(body, Text(body.prompt or "", name="prompt"), Embedding(normalize=False, fits=True))]


def _request(body: OllamaVectorBody, source: Text, embedding: Embedding) -> GenerationRequest:
    return GenerationRequest(
        id=f"embd-{uuid.uuid4().hex}",
        source=source,
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
            "embeddings": [encoded(answer.vector.tolist()) for answer in answers],
            "total_duration": nanoseconds(max(ends, default=arrival) - arrival),
            "load_duration": nanoseconds(first.admitted_at - arrival),
            "prompt_eval_count": sum(answer.usage()["prompt_tokens"] for answer in answers),
            "digest": first.manifest.short_digest,
        }


class EmbeddingsSerialiser(WholeSerialiser):
    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        [answer] = answers
        return {"embedding": answer.vector.tolist()}


router = Router(tags=["ollama"])
EMBED: Final = json_body(OllamaEmbedBody, any_type=True)
EMBEDDINGS: Final = json_body(OllamaEmbeddingsBody, any_type=True)


@router.post("/api/embed", response_model=OllamaEmbedAnswer)
async def embed(http: Request, service: ServiceDep, body: OllamaEmbedBody = EMBED) -> Response:
    """Returns a vector of each input. Without an input it loads the model, or with `keep_alive` 0 unloads it."""
    if not body.input:
        [request] = parse_embed(body.model_copy(update={"input": [STAND_IN]}))
        reference, _ = await load_or_unload(http, service, body, request)
        return json_response({"model": reference, "embeddings": []})
    return await respond_whole(http, service, parse_embed(body), EmbedSerialiser())


@router.post("/api/embeddings", response_model=OllamaEmbeddingsAnswer)
async def embeddings(http: Request, service: ServiceDep, body: OllamaEmbeddingsBody = EMBEDDINGS) -> Response:
    """Returns a vector of the prompt. Without a prompt it loads the model, or with `keep_alive` 0 unloads it."""
    if not body.prompt:
        [request] = parse_embeddings(body.model_copy(update={"prompt": STAND_IN}))
        await load_or_unload(http, service, body, request)
        return json_response({"embedding": []})
    return await respond_whole(http, service, parse_embeddings(body), EmbeddingsSerialiser())
