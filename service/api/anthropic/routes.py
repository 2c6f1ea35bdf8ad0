"""These routes are Anthropic's: `POST /v1/messages`, and the count of a prompt's tokens. Queries such as `?beta=true`
change nothing."""

from __future__ import annotations

from typing import Final

from fastapi import Request
from starlette.responses import Response

from service.api.answering.callers import note_caller, prompt_tokens
from service.api.answering.responses import respond
from service.api.anthropic import dialect as anthropic
from service.api.anthropic.answer_schemas import AnthropicEvent, AnthropicMessage, TokenCount
from service.api.anthropic.answers import MessageSerialiser
from service.api.anthropic.schemas import CountTokensBody, MessagesBody
from service.api.deps import ServiceDep
from service.api.http.bodies import json_body
from service.api.http.documented import Router, streams
from service.api.http.encoding import json_response

router = Router(prefix="/v1/messages", tags=["anthropic"])
MESSAGES: Final = json_body(MessagesBody)
COUNT: Final = json_body(CountTokensBody)


@router.post("", response_model=AnthropicMessage, responses=streams(AnthropicEvent))
async def messages(http: Request, service: ServiceDep, body: MessagesBody = MESSAGES) -> Response:
    """Anthropic's messages: a whole answer, or its events."""
    note_caller(http, body.request_id, body.user)
    serialiser = MessageSerialiser(shows_thinking=not (body.thinking and body.thinking.display == "omitted"))
    return await respond(http, service, [anthropic.parse(body)], serialiser, stream=bool(body.stream))


@router.post("/count_tokens", response_model=TokenCount)
async def count_tokens(http: Request, service: ServiceDep, body: CountTokensBody = COUNT) -> Response:
    """Counts the tokens of the prompt that the same request would send, past the window too."""
    return json_response({"input_tokens": await prompt_tokens(http, service, anthropic.parse_count(body))})
