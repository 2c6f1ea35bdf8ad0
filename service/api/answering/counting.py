"""This module counts the tokens of the prompt that a request would send."""

from __future__ import annotations

from fastapi import Request

from service.api.answering.callers import for_caller
from service.api.deps import Service
from service.api.http.connection import while_connected
from service.errors import ContextOverflow
from service.generation.request import GenerationRequest


async def prompt_tokens(http: Request, service: Service, request: GenerationRequest) -> int:
    """Returns the exact number of tokens, past the window too. Raises what the request would raise otherwise."""
    request = for_caller(http, request, service.settings.context_policy)
    _, found = await while_connected(http.receive, service.answers.preview(request))
    if isinstance(found, ContextOverflow):
        return int(found.numbers["needed_tokens"] - found.numbers["reserve"])
    return len(found.token_ids)
