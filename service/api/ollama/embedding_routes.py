"""These routes are Ollama's `POST /api/embed` and the older `POST /api/embeddings`."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answering.responses import respond_whole
from service.api.deps import ServiceDep
from service.api.http.bodies import json_body
from service.api.http.documented import takes
from service.api.http.encoding import json_response
from service.api.ollama.answer_schemas import OllamaEmbedAnswer, OllamaEmbeddingsAnswer
from service.api.ollama.embedding_schemas import OllamaEmbedBody, OllamaEmbeddingsBody
from service.api.ollama.embeddings import (
    EmbeddingsSerialiser,
    EmbedSerialiser,
    parse_embed,
    parse_embeddings,
)
from service.api.ollama.routes import load_or_unload

router = APIRouter(tags=["ollama"])
EMBED: Final = json_body(OllamaEmbedBody, any_type=True)
EMBEDDINGS: Final = json_body(OllamaEmbeddingsBody, any_type=True)


@router.post("/api/embed", response_model=OllamaEmbedAnswer, openapi_extra=takes(OllamaEmbedBody))
async def embed(http: Request, service: ServiceDep, body: OllamaEmbedBody = EMBED) -> Response:
    """Returns a vector of each input. Without an input it loads the model, or with `keep_alive` 0 unloads it."""
    if not body.input:
        reference, _ = await load_or_unload(http, service, body.model, body.keep_alive)
        return json_response({"model": reference, "embeddings": []})
    return await respond_whole(http, service, parse_embed(body), EmbedSerialiser())


@router.post("/api/embeddings", response_model=OllamaEmbeddingsAnswer, openapi_extra=takes(OllamaEmbeddingsBody))
async def embeddings(http: Request, service: ServiceDep, body: OllamaEmbeddingsBody = EMBEDDINGS) -> Response:
    """Returns a vector of the prompt. Without a prompt it loads the model, or with `keep_alive` 0 unloads it."""
    if not body.prompt:
        await load_or_unload(http, service, body.model, body.keep_alive)
        return json_response({"embedding": []})
    return await respond_whole(http, service, parse_embeddings(body), EmbeddingsSerialiser())
