"""Turns of stored sessions: the history becomes the prompt's chat, and the answer is stored before its end is told.

    lock the session ─▶ history ─▶ request over system, history, new messages ─▶ answer ─▶ stored ─▶ last delta

Turns sent at once to one session wait for each other. Where another writer has changed the session meanwhile, the
answer is not stored and its caller is told so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from service.answers.answer import Answer
from service.answers.request import GenerationRequest, SessionTurn
from service.context.options import ContextOptions
from service.context.policies import POLICIES, Policy
from service.context.prompt import Chat
from service.context.trimming import Past
from service.errors import Conflict, InvalidRequest, Stale, Unavailable
from service.sessions import Answered, Done, NewMessage, NewReply, NewTurn, Session, StoredMessage
from service.tasks import BackgroundTasks
from service.text.messages import Message

if TYPE_CHECKING:
    from service.sessions import SessionStore

SYSTEM = "system"
"""The name of a session's system message in receipts."""
DEFAULT_POLICY: Policy = "window"
RETRY_SECONDS = 1.0
SWEEP_SECONDS = 600.0
EXPIRE_SESSIONS = "expire_sessions"
NO_DATABASE = "The database of sessions cannot be had: try again shortly; DOSIRAK_DATABASE_URL says where it is"


class Conversations:
    """Owned by the event loop. The store is opened when it is first needed, and again after it could not be."""

    def __init__(
        self,
        open_store: Callable[[], Awaitable[SessionStore]],
        sweep_seconds: float = SWEEP_SECONDS,
        tasks: BackgroundTasks | None = None,
    ) -> None:
        self._open = open_store
        self._sweep_seconds = sweep_seconds
        self._tasks = tasks or BackgroundTasks()
        self._store: SessionStore | None = None
        self._opening = asyncio.Lock()
        self._failed_at = float("-inf")

    async def store(self) -> SessionStore:
        """Raises Unavailable while the database cannot be had; tried once a second, whoever asks."""
        async with self._opening:
            if self._store is None:
                if time.monotonic() - self._failed_at < RETRY_SECONDS:
                    raise Unavailable(NO_DATABASE, retry_after=RETRY_SECONDS)
                try:
                    self._store = await self._open()
                except (Unavailable, OSError):
                    self._failed_at = time.monotonic()
                    raise Unavailable(NO_DATABASE, retry_after=RETRY_SECONDS) from None
            return self._store

    def start(self) -> None:
        """From now on, what has expired is removed now and then."""
        self._tasks.keep(EXPIRE_SESSIONS, self._sweep)

    async def stop(self) -> None:
        await self._tasks.stop([EXPIRE_SESSIONS])
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def _sweep(self) -> None:
        await asyncio.sleep(self._sweep_seconds)
        await (await self.store()).sweep()

    @asynccontextmanager
    async def turn(self, request: GenerationRequest, turn: SessionTurn) -> AsyncIterator[OpenTurn]:
        """The session is this turn's until the block ends. Raises NotFound, Stale, QuotaExceeded, InvalidRequest."""
        store, new = await self.store(), _new(turn)
        async with store.turn_lock(turn.owner, turn.session):
            session, stored = await _read(store, turn, new)
            yield OpenTurn(store, turn, session, new, _asked(request, session, stored, turn.messages, new))

    async def asked(self, request: GenerationRequest, turn: SessionTurn) -> GenerationRequest:
        """What the turn would ask now, without taking it."""
        store, new = await self.store(), _new(turn)
        session, stored = await _read(store, turn, new)
        return _asked(request, session, stored, turn.messages, new)


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """`request` is what the engine is to answer; no new messages replace the last reply."""

    _store: SessionStore
    _turn: SessionTurn
    _session: Session
    _new: tuple[NewMessage, ...]
    request: GenerationRequest

    async def keep(self, answer: Answer, done: Done | None = None) -> None:
        """Store the turn, durably, and `done` with it. Raises Conflict where another writer was here meanwhile."""
        receipt = answer.receipt
        best = answer.best[0]
        answered = Answered(
            receipt.to_dict(),
            answer.manifest.reference,
            answer.manifest.version,
            answer.manifest.short_digest,
            dict(answer.usage()),
            answer.finish_reason.value,
        )
        reply = NewReply(best.text, answered)
        cut = None if receipt.cut is None else {"at": receipt.cut.at, "policy": receipt.policy}
        owner, session, revision = self._turn.owner, self._session.id, self._session.revision
        try:
            if self._new:
                await self._store.append_turn(owner, session, NewTurn(self._new, reply, cut), revision, done)
            else:
                await self._store.replace_last_reply(owner, session, reply, revision, cut=cut, done=done)
        except Stale:
            raise Conflict(
                "Another writer changed the session while this answer was made: send the turn again"
            ) from None


def _new(turn: SessionTurn) -> tuple[NewMessage, ...]:
    return tuple(NewMessage(message.content, message.role, message.name) for message in turn.messages)


async def _read(
    store: SessionStore, turn: SessionTurn, new: tuple[NewMessage, ...]
) -> tuple[Session, tuple[StoredMessage, ...]]:
    """The session and the messages before the turn."""
    owner, session, revision = turn.owner, turn.session, turn.expected_revision
    if new:
        return await store.check_turn(owner, session, new, revision)
    found, stored = await store.history(owner, session, revision)
    return found, _without_last_reply(stored)


def _asked(
    request: GenerationRequest,
    session: Session,
    stored: tuple[StoredMessage, ...],
    given: tuple[Message, ...],
    new: tuple[NewMessage, ...],
) -> GenerationRequest:
    """The same request over the whole chat, by the session's model and policy where it names none of its own."""
    system = [Message("system", session.system)] if session.system else []
    history = [Message(message.role, message.content, message.name) for message in stored]
    names = [*([SYSTEM] if system else []), *(message.id for message in stored), *(message.id for message in new)]
    options = request.context or ContextOptions()
    options = replace(options, policy=options.policy or _policy(session))
    pins = (*options.pin, *(message.id for message in stored if message.pinned))
    cut = session.cut or {}
    chat = Chat(
        (*system, *history, *given),
        tuple(names),
        Past(str(cut.get("at", "")) if cut.get("policy") == options.policy else ""),
    )
    context = replace(options, pin=tuple(dict.fromkeys(pins)))
    return replace(request, source=chat, model=request.model or session.model, context=context)


def _policy(session: Session) -> Policy:
    return next((policy for policy in POLICIES if policy == session.policy), DEFAULT_POLICY)


def _without_last_reply(stored: tuple[StoredMessage, ...]) -> tuple[StoredMessage, ...]:
    if not stored or stored[-1].role != "assistant":
        raise Conflict("The session's last message is not an answer: send a message to get one")
    if len(stored) < 2:
        raise InvalidRequest("The session holds no question to answer again", param="session_id")
    return stored[:-1]
