"""A note is what the audit learns of a request on its way: when its route is known, its body, and what it does where
the route does not say it. `edge.audited` makes the note; a line of a batch has none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request
from pydantic import BaseModel

_STATE = "audit"


class Note:
    """`begin` is called when the route is known; it returns whether the audit tells it, and raises where the request
    may not go on. `body` is kept then; `action` and `subject` are what the handler says that it does."""

    def __init__(self, begin: Callable[[], Awaitable[bool]]) -> None:
        self.begin = begin
        self.is_told = False
        self.body: BaseModel | None = None
        self.action = self.subject = ""

    def put(self, state: dict[str, object]) -> None:
        state[_STATE] = self


def _note(request: Request) -> Note | None:
    return getattr(request.state, _STATE, None)


async def begin(request: Request) -> None:
    """Says that the route is known and its caller may take it. Raises where a row must be written first and cannot
    be."""
    if (note := _note(request)) is not None:
        note.is_told = await note.begin()


def note_fields(request: Request, body: BaseModel) -> None:
    if (note := _note(request)) is not None and note.is_told:
        note.body = body


def note_change(request: Request, action: str, subject: str) -> None:
    """Says what a request does that its route does not say."""
    if (note := _note(request)) is not None:
        note.action, note.subject = action, subject
