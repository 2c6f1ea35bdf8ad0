"""Summaries shortens what a chat is about to lose. The model that serves the chat writes the summary, after an answer
and before the turn that needs it.

    answer ─▶ would one more turn be cut? ─▶ where ─▶ known? ─no─▶ ask the model ─▶ kept under the messages' hash

A summary stands for the messages before a position, and its key is their hash: an edit before the position invalidates
the summary and deletes it; the same chat finds it again. A stored session's summary is kept with the session, all
others in memory. Where no summary is ready, or it failed, the policy works as `window`, and the receipt says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import structlog

from service.context.budget import Budget, ContextOptions
from service.context.composition import SUMMARY_REQUEST, SUMMARY_TITLE, leading_systems, summary_messages
from service.context.policies import turn_starts
from service.context.prompt import Chat
from service.errors import ContextOverflow, DosirakError
from service.generation.answer import Answer, Delta
from service.generation.bounds import prompt_of, window_of
from service.generation.conversations import Conversations
from service.generation.recent_summaries import RecentSummaries
from service.generation.request import GenerationRequest
from service.generation.stored_turns import with_answer
from service.observability.metrics import Metrics
from service.tasks import BackgroundTasks
from service.text.messages import Message
from service.text.reasoning import ReasoningUse

log = structlog.get_logger(__name__)

SUMMARISE = "summarise"
SECONDS = 120.0
BEHIND_ALL = -1
"""The priority of a summary's request: below every client's."""
MOST_WAITING = 64
Run = Callable[[GenerationRequest], AsyncGenerator[Delta, None]]
Summary = tuple[int, str]
"""The position of the first message that the summary does not stand for, and its text."""


class Summaries:
    """The event loop owns Summaries. It makes one summary at a time; at most MOST_WAITING chats wait for theirs."""

    def __init__(self, run: Run, conversations: Conversations, metrics: Metrics, tasks: BackgroundTasks) -> None:
        self._run = run
        self._conversations = conversations
        self._metrics = metrics
        self._in_memory = RecentSummaries()
        self._background = tasks
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()

    async def known(self, request: GenerationRequest, messages: Sequence[Message]) -> tuple[Summary, ...]:
        """Returns the summaries of this chat that exist."""
        keys = _keys(request.owner, messages)
        if request.turn is None:
            stored = self._in_memory.of(_chat(request, messages), keys, messages)
        else:
            store = await self._conversations.store()
            stored = await store.summaries.of(request.turn.owner, request.turn.session)
        return tuple((place, stored[key]) for place, key in enumerate(keys) if key in stored)

    def prepare(self, answer: Answer) -> None:
        """Starts the summary that the next turn may need, to be made later. Never waits."""
        request = answer.request
        if not isinstance(request.source, Chat) or request.context is None or request.context.chosen != "summarise":
            return
        messages = with_answer(answer, request.source.messages)
        chat = _chat(request, messages)
        if chat in self._tasks or len(self._tasks) >= MOST_WAITING:
            return
        task = self._background.run(SUMMARISE, partial(self._prepare, answer, messages))
        self._tasks[chat] = task
        task.add_done_callback(lambda _: self._tasks.pop(chat, None))

    async def settle(self) -> None:
        """Waits until no summary is being made."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _prepare(self, answer: Answer, messages: tuple[Message, ...]) -> None:
        try:
            async with self._turn, asyncio.timeout(SECONDS):
                place = await asyncio.to_thread(next_cut, answer, messages)
                made = bool(place) and await self._make(answer, messages, place)
        except (DosirakError, TimeoutError) as error:
            self._metrics.summaries.labels("failed").inc()
            log.info("summary_failed", model=answer.manifest.reference, reason=type(error).__name__)
        else:
            if made:
                self._metrics.summaries.labels("made").inc()

    async def _make(self, answer: Answer, messages: tuple[Message, ...], place: int) -> bool:
        """Makes a summary from the last summarised position on, in steps that fit the window. Returns whether there was
        anything to do: a summary for a later position serves as well, and leaves what is sent as it was."""
        known = await self.known(answer.request, messages)
        done, text = begun = known[-1] if known else (0, "")
        while done < place:
            target, request = await asyncio.to_thread(_request, answer, messages, (done, text), place)
            answer.deployment.require_ready()  # a version that was unloaded meanwhile is not loaded for a summary
            done, text = target, await self._answered(request)
            await self._keep(answer.request, messages, (done, text))
        return done > begun[0]

    async def _answered(self, request: GenerationRequest) -> str:
        async with aclosing(self._run(request)) as deltas:
            async for delta in deltas:
                if delta.last and (text := delta.answer.best[0].text.strip()):
                    return text
        raise ContextOverflow("The model wrote no summary")

    async def _keep(self, request: GenerationRequest, messages: Sequence[Message], summary: Summary) -> None:
        place, text = summary
        key = _keys(request.owner, messages)[place]
        if isinstance(request.source, Chat) and request.turn is not None:
            store = await self._conversations.store()
            before, revision = request.source.placed[place], request.turn.expected_revision or 0
            kept = store.summaries.keep(
                request.turn.owner, request.turn.session, key, text, before=before, revision=revision
            )
            await kept
            return
        self._in_memory.keep(_chat(request, messages), key, messages[:place], text)


def next_cut(answer: Answer, messages: Sequence[Message]) -> int:
    """Returns the position of the cut if the next question were as long as the longest before; 0 where all would
    fit."""
    request = answer.request
    if not isinstance(request.source, Chat):
        return 0
    rest = messages[_first(messages) :]
    longest = max((message.content for message in rest if message.role == "user"), key=len, default="")
    names = (*request.source.named[: len(messages) - 1], "reply", "ahead")
    past = replace(request.source.past, summaries=())
    ahead = Chat((*messages, Message("user", longest)), names, past)
    try:
        prompt = prompt_of(replace(request, source=ahead), answer.deployment)
    except ContextOverflow:
        return 0
    place = names.index(prompt.receipt.cut.at) if prompt.receipt.cut else 0
    return place if place < len(messages) else 0


def _request(answer: Answer, messages: tuple[Message, ...], last: Summary, place: int) -> tuple[int, GenerationRequest]:
    """Returns the request whose answer stands for the messages before a position behind the `last` summary's: `place`
    where that much fits the window. Without a last summary the prompt begins as the chat's own did, so the prefix cache
    has it. Raises ContextOverflow where nothing fits."""
    done, text = last
    systems = _first(messages) - 1
    before = [*messages[:systems], *(line.message for line in summary_messages(answer.tokenizer, text) if text)]
    first = leading_systems(messages)
    starts = turn_starts([message.role for message in messages[first:]])
    turns = [first + at for at in starts if max(done, first) < first + at <= place]
    while turns:
        said = messages[max(done, systems) : turns[-1]]
        request = _summary_request(answer, (*before, *said, Message("user", SUMMARY_REQUEST)))
        if _fits(answer, request):
            return turns[-1], request
        turns = turns[: len(turns) // 2]
    raise ContextOverflow("No turn of the chat fits beside the request for its summary")


def _summary_request(answer: Answer, messages: tuple[Message, ...]) -> GenerationRequest:
    """Returns the request for a summary, without reasoning where the template can do without: it would use up the room
    that a summary has."""
    tokenizer = answer.tokenizer
    return GenerationRequest(
        id=f"sum-{uuid.uuid4().hex}",
        source=Chat(messages),
        model=answer.manifest.reference,
        max_new_tokens=_summary_tokens(answer),
        reasoning=ReasoningUse.off(tokenizer.reasoning_form, tokenizer.template_variables),
        priority=BEHIND_ALL,
        owner=answer.request.owner,
    )


def _fits(answer: Answer, request: GenerationRequest) -> bool:
    try:
        prompt_of(request, answer.deployment)
    except ContextOverflow:
        return False
    return True


def _summary_tokens(answer: Answer) -> int:
    """Returns how long a summary may be, so that it and its title fit into the room set aside for it."""
    request = answer.request
    budget = Budget(window_of(request, answer.deployment), request.max_new_tokens, request.context or ContextOptions())
    return max(1, budget.aside - answer.tokenizer.text_tokens(SUMMARY_TITLE) - 1)


def _first(messages: Sequence[Message]) -> int:
    """Returns the position behind the system messages and the first other message: these tell chats apart."""
    return min(len(messages), leading_systems(messages) + 1)


def _chat(request: GenerationRequest, messages: Sequence[Message]) -> str:
    """Returns a key that is the same for all calls of a chat."""
    return _keys(request.owner, messages[: _first(messages)])[-1]


def _keys(owner: str, messages: Sequence[Message]) -> list[str]:
    """Returns one key for each position, made of all messages before it."""
    running = hashlib.sha256(repr(owner).encode())
    keys = [running.hexdigest()]
    for message in messages:
        running.update(repr(message).encode())
        keys.append(running.hexdigest())
    return keys
