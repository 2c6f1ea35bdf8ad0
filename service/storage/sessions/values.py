"""The values are sessions, messages and turns as the store takes and returns them. They know no database and no wire
format.

Times are zone-aware UTC. JSON objects are plain dicts that no code changes once they are inside a value.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypedDict, TypeVar

Json = Mapping[str, object]
AnswerKind = Literal["response", "chat.completion"]
"""The kinds of stored answers. An id of the one kind is none of the other."""
Item = TypeVar("Item")
_ID_BYTES = 16  # 128 random bits, 22 characters of base64url


def new_session_id() -> str:
    return f"s_{secrets.token_urlsafe(_ID_BYTES)}"


def new_message_id() -> str:
    """Returns a new id. A caller that names a message in a receipt before it is stored makes the id itself."""
    return f"m_{secrets.token_urlsafe(_ID_BYTES)}"


def new_knowledge_id() -> str:
    return f"k_{secrets.token_urlsafe(_ID_BYTES)}"


class SessionFields(TypedDict, total=False):
    """The fields of a session that a caller may set. An absent key keeps the present value, None removes it.

    `ttl_seconds` counts from the last write.
    """

    title: str | None
    model: str | None
    system: str | None
    policy: str | None
    metadata: Json
    ttl_seconds: float | None


@dataclass(frozen=True, slots=True)
class Session:
    """`revision` counts writes, from 1; `message_count` is the present number. `cut` says at which message the context
    was last cut, in the form of the policy that cut it; its `at` is that message's position."""

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
    """What is known of how an assistant's message was made: its receipt, the version that made it, its cost."""

    context: Json | None = None
    model: str | None = None
    version: str | None = None
    digest: str | None = None
    usage: Json | None = None
    finish_reason: str | None = None
    answer_id: str | None = None
    """The id that the answer had. None once the text is another one: it was edited."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """`tool_call_id` of a tool's message names the call of its result. An assistant's message may have `tool_calls`,
    as those of a `NewReply`, and reasoning."""

    content: str
    role: str = "user"
    name: str | None = None
    pinned: bool = False
    id: str = field(default_factory=new_message_id)
    tool_call_id: str | None = None
    tool_calls: Sequence[Json] | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class NewReply:
    """An assistant's message. No limit applies to it, since it is generated already. PostgreSQL cannot hold U+0000, so
    it is stored as U+FFFD. `tool_calls` are objects with `id`, `name` and `arguments`, a JSON object as text."""

    content: str
    answered: Answered = Answered()
    name: str | None = None
    id: str = field(default_factory=new_message_id)
    tool_calls: Sequence[Json] | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class NewTurn:
    """New messages and their reply. `cut`, where set, replaces the session's."""

    messages: tuple[NewMessage, ...]
    reply: NewReply
    cut: Json | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A stored message as a prompt needs it. `position` is its number in the session's order, with gaps where messages
    were deleted."""

    id: str
    position: int
    role: str
    content: str
    name: str | None
    pinned: bool
    tool_calls: Sequence[Json] | None = None
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class PromptPart:
    """The part of a history that is wanted: the first `systems` messages, the turns that hold a pinned message or one
    of `pins`, with `opening` the first turn too, and all from position `since` on."""

    since: int
    systems: int = 0
    opening: bool = False
    pins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """A session before a turn. `messages` are all messages or the wanted part. With a part, `others` are positions and
    ids of some other messages, next to the part's start. New messages come at `next_position`."""

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
    tool_calls: Sequence[Json] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """The stored turn: user messages with their reply, and the session after them."""

    session: Session
    messages: tuple[StoredMessage, ...]
    reply: StoredMessage


@dataclass(frozen=True, slots=True)
class Knowledge:
    """A document. `session_id` None: it is for all chats of its owner. `passages` is the number of its passages."""

    id: str
    title: str | None
    text: str
    session_id: str | None
    passages: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a document. `id` is the document's."""

    id: str
    title: str | None
    text: str


@dataclass(frozen=True, slots=True)
class NewVote:
    """A vote on the answer `id`: `rating` 1 is good, -1 is bad. With `preferred_over`, the id of another answer, it is
    1 and says that `id` is the better of the two."""

    id: str
    rating: int
    preferred_over: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """A stored vote, with the version that made the answer and the answer's session. `created` is the last time that it
    was given."""

    id: str
    model: str | None
    version: str | None
    digest: str | None
    rating: int
    preferred_over: str | None
    comment: str | None
    session_id: str
    created: datetime


@dataclass(frozen=True, slots=True)
class Tally:
    """How many votes a version got. A vote between two answers counts for the one and against the other."""

    model: str | None
    version: str | None
    preferred: int
    not_preferred: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers, of which the first is preferred. `prompt` is the chat before the chosen answer: roles and contents.
    `same_prompt` says whether the rejected one answered the same chat."""

    prompt: tuple[tuple[str, str], ...]
    chosen: str
    rejected: str
    chosen_model: str | None
    chosen_digest: str | None
    rejected_model: str | None
    rejected_digest: str | None
    created: datetime
    same_prompt: bool


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer as its client read it (`body`), with what its request brought (`asked`), each thing with an id. `model`
    is name:version. It goes on from the answer `previous`."""

    id: str
    kind: AnswerKind
    model: str
    metadata: Json
    asked: list[dict[str, Any]]
    body: dict[str, Any]
    previous: str | None = None


@dataclass(frozen=True, slots=True)
class WantedAnswers:
    """Which answers a list has: of a model, by its name or name:version, and with all of `metadata` in theirs; behind
    the answer `after`."""

    kind: AnswerKind
    model: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    after: str | None = None
    newest_first: bool = False

    def fits(self, model: str, metadata: Json) -> bool:
        named = self.model is None or model == self.model or model.startswith(f"{self.model}:")
        return named and self.metadata.items() <= metadata.items()


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page of a list. `next_cursor` is None on the last page."""

    data: tuple[Item, ...]
    next_cursor: str | None
