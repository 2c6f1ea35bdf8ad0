"""Conversations turns stored sessions into prompts: the history becomes the prompt's chat, and the answer is stored
before its last delta goes out.

    lock the session ─▶ history ─▶ a request over system, history and the new messages ─▶ answer ─▶ stored ─▶ last delta

Turns that are sent to one session at the same time wait for each other. Where another writer has changed the session
meanwhile, the answer is not stored and its client gets a Conflict.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from service.context.budget import ContextOptions
from service.context.partition import SYSTEM, SYSTEM_POSITION
from service.context.policies import POLICIES, Policy
from service.context.prompt import Chat
from service.context.sources import Past
from service.errors import Conflict, DosirakError, InvalidRequest, Stale, Unavailable
from service.generation.answer import Answer
from service.generation.request import GenerationRequest, SessionTurn
from service.generation.stored_turns import (
    cut_limit,
    cut_of,
    cut_position,
    message_of,
    named,
    new_messages,
    numbers_before,
    open_calls,
    reply_of,
)
from service.storage.sessions import (
    Answered,
    Done,
    History,
    NewMessage,
    NewTurn,
    PromptPart,
    Session,
    UnusableDatabase,
    check_results,
)
from service.tasks import BackgroundTasks
from service.text.messages import Message

if TYPE_CHECKING:
    from service.storage.sessions import SessionStore

DEFAULT_POLICY: Policy = "window"
log = structlog.get_logger(__name__)
RETRY_SECONDS = 1.0
SWEEP_SECONDS = 600.0
EXPIRE_SESSIONS = "expire_sessions"
CUT_FOR_GOOD: Final[tuple[Policy, ...]] = ("window", "middle")
"""Policies that never read turns before the cut again, except turns that stay."""
NO_DATABASE = "The database of sessions cannot be had: try again shortly; DOSIRAK_DATABASE_URL says where it is"


class Conversations:
    """The event loop owns `Conversations`. It opens the store at the first use, and tries again after a failed
    opening."""

    def __init__(
        self,
        open_store: Callable[[], Awaitable[SessionStore]],
        tasks: BackgroundTasks,
        sweep_seconds: float = SWEEP_SECONDS,
        is_fit: Callable[[], bool] = lambda: True,
    ) -> None:
        """Expired rows stay while `is_fit` says no: by a wrong clock, others' rows would be expired."""
        self._is_fit = is_fit
        self._open = open_store
        self._sweep_seconds = sweep_seconds
        self._tasks = tasks
        self._store: SessionStore | None = None
        self._opening = asyncio.Lock()
        self._failed_at = float("-inf")
        self._unusable: str | None = None
        self._is_swept = True

    @property
    def unusable(self) -> str | None:
        """Returns why the database cannot be used until an operator acts, and what to do. Returns None where the
        database works, was not tried yet, or is out of reach for now."""
        return self._unusable

    async def store_for_writing(self) -> SessionStore:
        """Returns the store, for an answer that will be stored. Raises as `store`, and StorageFull."""
        store = await self.store()
        await store.require_writing()
        return store

    async def store(self) -> SessionStore:
        """Returns the store. Raises Unavailable while the database cannot be opened; it is tried once a second for all
        callers."""
        async with self._opening:
            if self._store is None:
                if time.monotonic() - self._failed_at < RETRY_SECONDS:
                    raise self._refusal()
                try:
                    self._store, self._unusable = await self._open(), None
                except Exception as error:
                    self._failed_at = time.monotonic()
                    self._fail(error)
                    raise self._refusal() from None
            return self._store

    def _fail(self, error: Exception) -> None:
        """Keeps why the database cannot be used until an operator acts. The log says each cause once."""
        before, self._unusable = self._unusable, _cause(error)
        if self._unusable is not None and self._unusable != before:
            is_told = isinstance(error, UnusableDatabase | ValueError | ImportError)
            log.error("session_database_unusable", reason=self._unusable, exc_info=None if is_told else error)

    def _refusal(self) -> Unavailable:
        return Unavailable(self._unusable or NO_DATABASE, retry_after=RETRY_SECONDS)

    def start(self) -> None:
        """Opens the database now, so that readiness reports a database that cannot be used; from now on removes expired
        rows at intervals."""
        self._tasks.keep(EXPIRE_SESSIONS, self._sweep)

    async def stop(self) -> None:
        await self._tasks.stop([EXPIRE_SESSIONS])
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def _sweep(self) -> None:
        """Makes one pass. While the database cannot be used, a pass only checks whether it can be used again."""
        with suppress(DosirakError):
            await self.store()
        if self._unusable:
            await asyncio.sleep(RETRY_SECONDS)
            return
        if self._is_swept:  # a sweep that failed is tried again sooner
            await asyncio.sleep(self._sweep_seconds)
        self._is_swept = False
        if self._is_fit():
            await (await self.store()).sweep()
        self._is_swept = True

    @asynccontextmanager
    async def turn(self, request: GenerationRequest, turn: SessionTurn) -> AsyncIterator[OpenTurn]:
        """Holds the session for this turn until the block ends. Raises NotFound, Stale, QuotaExceeded,
        InvalidRequest."""
        turn = named(turn)
        store, new = await self.store_for_writing(), new_messages(turn)
        async with store.turn_lock(turn.owner, turn.session):
            history = await _read(store, turn, new, request.context)
            yield OpenTurn(store, turn, history.session, new, _request(request, history, turn))

    async def request_of(self, request: GenerationRequest, turn: SessionTurn) -> GenerationRequest:
        """Returns the request that the turn would make now, without taking the turn."""
        turn = named(turn)
        store, new = await self.store(), new_messages(turn)
        return _request(request, await _read(store, turn, new, request.context), turn)

    async def counted_by(self, request: GenerationRequest, digest: str, limit: int) -> GenerationRequest:
        """Returns the same request for the version with this digest, where the input budget is `limit`. Where the
        chat's numbers are another version's tokens, or were made for a smaller budget, the request has all messages of
        the chat and no numbers. Raises Conflict where the session has changed since it was read."""
        turn, source = request.turn, request.source
        if turn is None or not isinstance(source, Chat) or source.past.before is None:
            return request
        if source.past.before.digest == digest and not source.past.is_outgrown(limit):
            return request
        store, new, revision = await self.store(), new_messages(turn), turn.expected_revision
        with _told_of_changes():
            history = await store.history(turn.owner, turn.session, revision)
        history = history if new else _without_last_reply(history)
        return _request(request, history, turn, with_numbers=False)


def _cause(error: Exception) -> str | None:
    """Returns why the database cannot be used, for errors that a retry does not mend; else None."""
    match error:
        case Unavailable() | OSError():
            return None
        case UnusableDatabase() | ValueError():
            return f"The database of sessions cannot be used: {error}"
        case ImportError():
            return f"The database of sessions needs the Python package {error.name}: install it, then start again"
        case _:
            return "The database of sessions cannot be opened: its log says why; set DOSIRAK_DATABASE_URL to another"


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """An open turn holds its session. `request` is what the engine is to answer; where the turn has no new messages,
    the answer replaces the last reply."""

    _store: SessionStore
    _turn: SessionTurn
    _session: Session
    _new: tuple[NewMessage, ...]
    request: GenerationRequest

    async def keep(self, answer: Answer, done: Done | None = None) -> None:
        """Stores the turn durably, and `done` with it. Raises Conflict where another writer has changed the session
        meanwhile."""
        receipt = answer.receipt
        answered = Answered(
            receipt.to_stored(),
            answer.manifest.reference,
            answer.manifest.version,
            answer.manifest.short_digest,
            dict(answer.usage()),
            answer.finish_reason.value,
            answer.request.id,
        )
        reply = reply_of(answer, answered, self._turn.ids[-1])
        cut = cut_of(answer)
        owner, session, revision = self._turn.owner, self._session.id, self._session.revision
        with _told_of_changes():
            if self._new:
                await self._store.append_turn(owner, session, NewTurn(self._new, reply, cut), revision, done)
            else:
                await self._store.replace_last_reply(owner, session, reply, revision, cut=cut, done=done)


async def _read(
    store: SessionStore, turn: SessionTurn, new: tuple[NewMessage, ...], context: ContextOptions | None
) -> History:
    """Returns the session, and the messages before the turn that may be sent; for an inspection all of them."""
    owner, session, revision = turn.owner, turn.session, turn.expected_revision
    options = context or ContextOptions()

    def part_of(stored: Session) -> PromptPart | None:
        policy = options.policy or _policy(stored)
        before = numbers_before(stored, policy)
        if before is None or policy not in CUT_FOR_GOOD or options.inspect:
            return None
        return PromptPart(cut_position(stored), before.systems, policy == "middle", options.pin)

    if new:
        history = await store.check_turn(owner, session, new, revision, part_of)
        check_results(open_calls(history.messages), new, turn.places)
        return history
    return _without_last_reply(await store.history(owner, session, revision, part_of))


def _request(
    request: GenerationRequest,
    history: History,
    turn: SessionTurn,
    *,
    with_numbers: bool = True,
) -> GenerationRequest:
    """Returns the same request over the whole chat, with the session's model and policy where the request names
    none."""
    session, stored = history.session, history.messages
    options = request.context or ContextOptions()
    options = replace(options, policy=options.policy or _policy(session))
    pins = (*options.pin, *(message.id for message in stored if message.pinned))
    is_cut = (session.cut or {}).get("policy") == options.policy
    cut = next((each.id for each in stored if is_cut and each.position == cut_position(session)), "")
    before = numbers_before(session, options.chosen) if cut and with_numbers else None
    chat = _chat(history, turn, Past(cut, before, limit=cut_limit(session)))
    return replace(
        request,
        source=chat,
        model=request.model or session.model,
        context=replace(options, pin=tuple(dict.fromkeys(pins))),
        turn=replace(turn, expected_revision=session.revision),
    )


def _chat(history: History, turn: SessionTurn, past: Past) -> Chat:
    session, stored = history.session, history.messages
    text = turn.system or session.system
    system = [Message("system", text)] if text else []
    said = [message_of(each) for each in stored]
    now = (*turn.messages, *([turn.begun] if turn.begun else []))
    first = history.next_position
    return Chat(
        (*system, *said, *now),
        (*([SYSTEM] if system else []), *(message.id for message in stored), *turn.ids[: len(now)]),
        past,
        (
            *([SYSTEM_POSITION] if system else []),
            *(message.position for message in stored),
            *range(first, first + len(now)),
        ),
        history.others,
    )


@contextmanager
def _told_of_changes() -> Iterator[None]:
    try:
        yield
    except Stale:
        raise Conflict("Another writer changed the session while this answer was made: send the turn again") from None


def _policy(session: Session) -> Policy:
    return next((policy for policy in POLICIES if policy == session.policy), DEFAULT_POLICY)


def _without_last_reply(history: History) -> History:
    stored = history.messages
    if not stored or stored[-1].role != "assistant":
        raise Conflict("The session's last message is not an answer: send a message to get one")
    if len(stored) < 2:
        raise InvalidRequest("The session holds no question to answer again", param="session_id")
    return replace(history, messages=stored[:-1])
