"""This route serves `POST /v1/context/preview`: what the next call would send of a chat. It generates nothing."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answering.callers import for_caller
from service.api.deps import ServiceDep
from service.api.http.bodies import json_body
from service.api.http.documented import takes
from service.api.http.encoding import json_response
from service.api.tgi import dialect as native
from service.api.tgi.answer_schemas import Preview
from service.api.tgi.schemas import GenerateBody
from service.errors import ContextOverflow

router = APIRouter(prefix="/v1/context", tags=["context"])
BODY: Final = json_body(GenerateBody)


@router.post("/preview", response_model=Preview, openapi_extra=takes(GenerateBody))
async def preview(http: Request, service: ServiceDep, body: GenerateBody = BODY) -> Response:
    """Returns the receipt that `/generate` would give for the same body, or the numbers of its refusal."""
    request = native.parse(body, service.settings, stream=False)
    deployment, found = await service.answers.preview(for_caller(http, request, service.settings.context_policy))
    manifest = deployment.manifest
    told = {"model": manifest.reference, "version": manifest.version, "digest": manifest.short_digest}
    if isinstance(found, ContextOverflow):
        refusal = {"error": found.message, "code": found.code, **found.numbers}
        return json_response({**told, "would_refuse": True, "context": None, **refusal})
    return json_response({**told, "would_refuse": False, "context": found.shown(found.receipt)})
