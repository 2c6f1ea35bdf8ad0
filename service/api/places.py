"""Where a turn goes: the session that a body names, whose it is, and the revision that the caller knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastapi import Request

from service.answers import Ask, InSession
from service.api.etags import revision_of
from service.api.schemas.base import ChatMessage


def placed(request: Request, ask: Ask, session_id: str | None, messages: Sequence[ChatMessage] | None) -> Ask:
    """`ask` as a turn of the session, if there is one. Raises InvalidRequest for an If-Match that is no revision."""
    if session_id is None:
        return ask
    new = tuple(each.message() for each in messages or ())
    place = InSession(request.state.owner, session_id, new, revision_of(request.headers.get("if-match")))
    return replace(ask, place=place)
