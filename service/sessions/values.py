"""Sessions, messages and turns as the store takes and gives them. Knows no database and no wire format.

Times are zone-aware UTC. JSON objects are plain dicts that nobody changes once they are inside a value.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypedDict, TypeVar

Json = Mapping[str, object]
Item = TypeVar("Item")
_ID_BYTES = 16  # 128 random bits, 22 characters of base64url


def new_session_id() -> str:
    return f"s_{secrets.token_urlsafe(_ID_BYTES)}"


def new_message_id() -> str:
    """Callers that name a message in a receipt before it is stored make its id themselves."""
    return f"m_{secrets.token_urlsafe(_ID_BYTES)}"


def new_knowledge_id() -> str:
    return f"k_{secrets.token_urlsafe(_ID_BYTES)}"


class SessionFields(TypedDict, total=False):
    """What a caller may set of a session; a key that is absent keeps what is there, None takes it away.

    `ttl_seconds` counts from the last write."""

    title: str | None
    model: str | None
    system: str | None
    policy: str | None
    metadata: Json
    ttl_seconds: float | None


@dataclass(frozen=True, slots=True)
class Session:
    """`revision` counts writes, from 1; `message_count` is what is there now; `cut` says at which message the context
    was last cut, as the policy that cut it wrote it; its
    `at` is that message's position."""

    id: str
    owner: str
    title: str | None
    model: str | None
    system: str | None
    policy: str | None
    metadata: Json
    revision: int
    message_count: int
    ttl_seconds: float
    created_at: datetime
    updated_at: datetime
    expires_at: datetime
    cut: Json | None


@dataclass(frozen=True, slots=True)
class Answered:
    """What is known of how an assistant's message came about: its receipt, what served it, what it cost."""

    context: Json | None = None
    model: str | None = None
    version: str | None = None
    digest: str | None = None
    usage: Json | None = None
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class NewMessage:
    content: str
    role: str = "user"
    name: str | None = None
    pinned: bool = False
    id: str = field(default_factory=new_message_id)


@dataclass(frozen=True, slots=True)
class NewReply:
    """An assistant's message. No limit applies to it, since it is generated already; U+0000, which PostgreSQL cannot
    hold, is stored as U+FFFD."""

    content: str
    answered: Answered = Answered()
    name: str | None = None
    id: str = field(default_factory=new_message_id)


@dataclass(frozen=True, slots=True)
class NewTurn:
    """`cut` replaces the session's where it is given."""

    messages: tuple[NewMessage, ...]
    reply: NewReply
    cut: Json | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A stored message as a prompt needs it. `position`: its place in the session's order, with gaps where messages
    were deleted."""

    id: str
    position: int
    role: str
    content: str
    name: str | None
    pinned: bool


@dataclass(frozen=True, slots=True)
class Part:
    """What of a history is wanted: the first `systems` messages, the turns that hold a pinned message or one of `pins`,
    with `opening` the first turn too, and all from position `since` on."""

    since: int
    systems: int = 0
    opening: bool = False
    pins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """A session before a turn. `messages`: all of them, or the part that was wanted; then `others` are positions and
    ids of some that are not among them, next to where it begins. New messages come at `next_position`."""

    session: Session
    messages: tuple[Said, ...]
    next_position: int
    others: tuple[tuple[int, str], ...] = ()
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class StoredMessage:
    id: str
    role: str
    content: str
    name: str | None
    pinned: bool
    created_at: datetime
    answered: Answered | None
    """None for all but an assistant's messages."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What was stored: user messages with their reply, and the session as it is after them."""

    session: Session
    messages: tuple[StoredMessage, ...]
    reply: StoredMessage


@dataclass(frozen=True, slots=True)
class Knowledge:
    """`session_id` None: for all chats of its owner. `passages` is their number."""

    id: str
    title: str | None
    text: str
    session_id: str | None
    passages: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Passage:
    """`id` is the document's."""

    id: str
    title: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """`next_cursor` is None on the last page."""

    data: tuple[Item, ...]
    next_cursor: str | None
