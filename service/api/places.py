"""Whose a request is and where its turn goes: the session that a body names, the revision that the caller knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastapi import Request

from service.answers import Ask, InSession
from service.api.etags import revision_of
from service.api.schemas.base import ChatMessage
from service.context.options import ContextOptions
from service.context.policies import Policy
from service.context.prompt import Chat


def owned(request: Request, ask: Ask, policy: Policy) -> Ask:
    """`ask` as its caller's; a chat that names no context policy and has no session gets the server's."""
    ask = replace(ask, owner=request.state.owner)
    options = ask.context or ContextOptions()
    if ask.place is not None or not isinstance(ask.source, Chat) or options.policy is not None:
        return ask
    return replace(ask, context=replace(options, policy=policy))


def placed(request: Request, ask: Ask, session_id: str | None, messages: Sequence[ChatMessage] | None) -> Ask:
    """`ask` as a turn of the session, if there is one. Raises InvalidRequest for an If-Match that is no revision."""
    if session_id is None:
        return ask
    new = tuple(each.message() for each in messages or ())
    place = InSession(request.state.owner, session_id, new, revision_of(request.headers.get("if-match")))
    return replace(ask, place=place)
