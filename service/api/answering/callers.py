"""This module adds to a request what HTTP knows beside the body: its caller, its arrival, and the expected revision of
a session; and counts the tokens that such a request would send."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fastapi import Request

from service.api.deps import Service
from service.api.http.connection import while_connected
from service.api.http.headers import revision_of
from service.api.http.scopes import ADMIN, EVERY, Caller
from service.context.budget import ContextOptions
from service.context.policies import Policy
from service.context.prompt import Chat
from service.errors import ContextOverflow, Unauthorized
from service.generation.request import GenerationRequest, SessionTurn
from service.storage.keys import Key, Keys, is_key_id

BACKGROUND: Final = "background"
"""The request's state has it where a batch asks, not a client."""
BEHIND_CLIENTS: Final = -11
"""What a batch adds to a line's priority: 0 to 9 order the lines, all of them behind every client's request."""

PROMPT_TOKENS: Final = "prompt_tokens"
"""The number of an overflow that says how long its prompt is; one without it is of the answer alone."""


def caller_of(key: Key) -> Caller:
    """Returns the bearer of a key. Who may make keys may do everything, for such a bearer could make one that may."""
    return Caller(key.id, key.id, EVERY if ADMIN in key.scopes else key.scopes, key.models, key.limits)


def caller_behind(owner: str, keys: Keys) -> Caller:
    """Returns the caller that work in the background is done for; such work is no request of a quota. Raises
    Unauthorized where its key is no more."""
    if not is_key_id(owner):
        return Caller(owner, owner, EVERY)
    key = keys.living(owner)
    if key is None:
        raise Unauthorized("The key that asked for this has ended or was deleted")
    return replace(caller_of(key), limits=None)


def for_caller(http: Request, request: GenerationRequest, policy: Policy) -> GenerationRequest:
    """Returns `request` as its caller's. A chat that names no context policy and has no session gets the server's
    `policy`. Raises InvalidRequest for a malformed If-Match."""
    state = http.state
    request = replace(request, owner=state.owner, models=state.models, arrival=state.arrival)
    if getattr(http.state, BACKGROUND, False):
        request = replace(request, priority=request.priority + BEHIND_CLIENTS)
    if request.turn is not None:
        return replace(request, turn=_for_caller(http, request.turn))
    options = request.context or ContextOptions()
    if not isinstance(request.source, Chat) or options.policy is not None:
        return request
    return replace(request, context=replace(options, policy=policy))


def _for_caller(http: Request, turn: SessionTurn) -> SessionTurn:
    return replace(turn, owner=http.state.owner, expected_revision=revision_of(http.headers.get("if-match")))


def note_caller(http: Request, request_id: str | None, user: str | None) -> None:
    """Records the request id and the user that the body names, for the response's headers and the log."""
    if request_id:
        http.state.request_id = request_id
    if user:
        http.state.log["user"] = user


async def prompt_tokens(http: Request, service: Service, request: GenerationRequest) -> int:
    """Returns the exact number of tokens, past the window too. Raises what the request would raise otherwise."""
    request = for_caller(http, request, service.settings.context_policy)
    _, found = await while_connected(http.receive, service.answers.preview(request))
    if not isinstance(found, ContextOverflow):
        return len(found.token_ids)
    if PROMPT_TOKENS not in found.numbers:
        raise found
    return int(found.numbers[PROMPT_TOKENS])
