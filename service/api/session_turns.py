"""Resolves a request's owner and session turn: the session that a body names, the revision that the caller knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastapi import Request

from service.answers import GenerationRequest, SessionTurn
from service.api.etags import revision_of
from service.api.schemas.base import ChatMessage
from service.context.options import ContextOptions
from service.context.policies import Policy
from service.context.prompt import Chat


def owned(http: Request, request: GenerationRequest, policy: Policy) -> GenerationRequest:
    """`request` as its caller's; a chat that names no context policy and has no session gets the server's."""
    request = replace(request, owner=http.state.owner)
    options = request.context or ContextOptions()
    if request.turn is not None or not isinstance(request.source, Chat) or options.policy is not None:
        return request
    return replace(request, context=replace(options, policy=policy))


def in_session(
    http: Request, request: GenerationRequest, session_id: str | None, messages: Sequence[ChatMessage] | None
) -> GenerationRequest:
    """`request` as a turn of the session, if it names one. Raises InvalidRequest for a malformed If-Match."""
    if session_id is None:
        return request
    new = tuple(each.message() for each in messages or ())
    turn = SessionTurn(http.state.owner, session_id, new, revision_of(http.headers.get("if-match")))
    return replace(request, turn=turn)
