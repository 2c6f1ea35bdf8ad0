"""These routes are OpenAI's responses: `/v1/responses`."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.bodies import json_body
from service.api.callers import for_caller, note_caller
from service.api.connection import while_connected
from service.api.deps import ServiceDep
from service.api.dialects.responses.parsing import parse, parse_input
from service.api.dialects.responses.serialiser import ResponseSerialiser
from service.api.encoding import json_response
from service.api.openapi import streams, takes
from service.api.responses import respond
from service.api.routes.openai import LOGGED
from service.api.schemas.answers.responses import InputTokens, ResponseEvent, ResponseShown
from service.api.schemas.responses import InputTokensBody, ResponseBody
from service.errors import ContextOverflow

router = APIRouter(prefix="/v1/responses", tags=["responses"])
BODY: Final = json_body(ResponseBody)
INPUT: Final = json_body(InputTokensBody)


@router.post("", response_model=ResponseShown, responses=streams(ResponseEvent), openapi_extra=takes(ResponseBody))
async def create_response(http: Request, service: ServiceDep, body: ResponseBody = BODY) -> Response:
    """OpenAI's responses: a whole one, or its typed events."""
    note_caller(http, body.request_id, body.user or body.safety_identifier)
    http.state.log.update({name: value for name in LOGGED if (value := getattr(body, name))})
    return await respond(http, service, [parse(body)], ResponseSerialiser(body), stream=bool(body.stream))


@router.post("/input_tokens", response_model=InputTokens, openapi_extra=takes(InputTokensBody))
async def input_tokens(http: Request, service: ServiceDep, body: InputTokensBody = INPUT) -> Response:
    """Counts the tokens that the same response would have as its input, past the window too."""
    request = for_caller(http, parse_input(body), service.settings.context_policy)
    _, found = await while_connected(http.receive, service.answers.preview(request))
    if isinstance(found, ContextOverflow):
        count = found.numbers["needed_tokens"] - found.numbers["reserve"]
    else:
        count = len(found.token_ids)
    return json_response({"object": "response.input_tokens", "input_tokens": count})
