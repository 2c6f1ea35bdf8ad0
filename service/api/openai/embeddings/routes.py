"""This route is OpenAI's `/v1/embeddings`."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answering.callers import note_caller
from service.api.answering.responses import respond_whole
from service.api.deps import ServiceDep
from service.api.http.bodies import json_body
from service.api.http.documented import takes
from service.api.openai.embeddings.answer_schemas import Embeddings
from service.api.openai.embeddings.dialect import EmbeddingSerialiser, parse
from service.api.openai.embeddings.schemas import EmbeddingBody

router = APIRouter(tags=["openai"])
BODY: Final = json_body(EmbeddingBody)


@router.post("/v1/embeddings", response_model=Embeddings, openapi_extra=takes(EmbeddingBody))
async def embeddings(http: Request, service: ServiceDep, body: EmbeddingBody = BODY) -> Response:
    """OpenAI's embeddings: a vector of each input, in fp32."""
    note_caller(http, body.request_id, body.user)
    requests = parse(body, service.deployments.repository.models)
    return await respond_whole(http, service, requests, EmbeddingSerialiser(body.encoding_format == "base64"))
