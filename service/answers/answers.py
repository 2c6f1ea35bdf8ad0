"""From an ask to its deltas: version, prompt, bounds, sequences. The only way to text for every dialect."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, Final, TypeVar

from service.answers.admission import Admission, refuse_late, too_late
from service.answers.answer import Answer, Delta
from service.answers.ask import SEED_MASK, Ask, InSession, conversation_of
from service.answers.bounds import bounded_max_tokens, build
from service.answers.conversations import Conversations, OpenTurn
from service.answers.decoding import Decoding
from service.answers.merging import merged
from service.answers.piece import Piece
from service.answers.recollection import Recollection
from service.answers.sequences import pieces
from service.answers.shadows import Shadows
from service.answers.summaries import Summaries
from service.context.prompt import Prompt
from service.deployments.deployment import Deployment
from service.deployments.deployments import Choice, Deployments
from service.engine.request import FinishReason
from service.errors import ContextOverflow, GenerationFailed, Unavailable
from service.guard import Guard
from service.metrics import Metrics
from service.sessions import Done

T = TypeVar("T")
LONGEST_WAIT_SECONDS: Final = 300.0
"""Of a turn for its session, where it has no deadline."""
Record = Callable[[Delta], Done]
"""Makes of an answer's last delta what is kept for its Idempotency-Key."""


class Answers:
    """Owned by the event loop. `max_in_progress` bounds the sequences that wait or run; `guard` watches their text."""

    def __init__(
        self,
        deployments: Deployments,
        metrics: Metrics,
        conversations: Conversations,
        *,
        max_in_progress: int,
        guard: Guard | None = None,
    ) -> None:
        self.deployments = deployments
        self.conversations = conversations
        self.metrics = metrics
        self.admission = Admission(max_in_progress)
        self._guard = guard
        self._shadows = Shadows(deployments)
        self.summaries = Summaries(self._unstored, conversations, metrics)
        self._recollection = Recollection(conversations, self.summaries)

    def stream(self, asks: Sequence[Ask], record: Record | None = None) -> AsyncGenerator[Delta, None]:
        """One delta a token, as soon as it is sampled; several asks run side by side. Closing it aborts in the engine.
        A turn of a session is stored before its last delta is told, and what `record` makes of that with it.

        Raises, before the first delta: NotFound, InvalidRequest, ContextOverflow, Overloaded, Unavailable,
        DeadlineExceeded; at any time GenerationFailed and Unavailable. One ask's error ends all.
        """
        return self._stream(asks[0], record) if len(asks) == 1 else merged([self._stream(ask) for ask in asks])

    async def complete(self, asks: Sequence[Ask]) -> list[Answer]:
        """The whole answers, in the order of `asks`; raises as `stream`."""
        done: dict[str, Answer] = {}
        async with aclosing(self.stream(asks)) as deltas:
            async for delta in deltas:
                if delta.last:
                    done[delta.answer.ask.id] = delta.answer
        return [done[ask.id] for ask in asks]

    async def preview(self, ask: Ask) -> tuple[Deployment, Prompt | ContextOverflow]:
        """Who would answer, and the prompt that they would get, or why there would be none for want of room. Raises as
        `stream` for everything else."""
        if ask.place is not None:
            ask = await self._in_time(ask, self.conversations.asked(ask, ask.place))
        deployment = (await self._in_time(ask, self.deployments.choose(ask.model, conversation_of(ask)))).deployment
        with deployment.occupied():
            try:
                ask = await self._in_time(ask, self.conversations.counted_by(ask, deployment.manifest.digest))
                ask = await self._in_time(ask, self._recollection.of(ask, deployment))
                prompt = await self._in_time(ask, build(ask, deployment))
                bounded_max_tokens(ask, deployment, prompt)
            except ContextOverflow as refused:
                return deployment, refused
            return deployment, prompt

    async def _stream(self, ask: Ask, record: Record | None = None) -> AsyncGenerator[Delta, None]:
        if ask.place is None:
            with self.admission.entered(ask.best_of):
                async with aclosing(self._unstored(ask)) as deltas:
                    async for delta in deltas:
                        yield delta
            return
        async with self._turn(ask, ask.place) as turn:
            with self.admission.entered(ask.best_of):
                async with aclosing(self._unstored(turn.ask)) as deltas:
                    async for delta in deltas:
                        if delta.last:
                            await turn.keep(delta.answer, record(delta) if record else None)
                        yield delta

    @asynccontextmanager
    async def _turn(self, ask: Ask, place: InSession) -> AsyncIterator[OpenTurn]:
        """The wait for the session's other turns takes none of the places of those that run, and ends at the deadline,
        at the latest after LONGEST_WAIT_SECONDS."""
        self.admission.require(ask.best_of)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(LONGEST_WAIT_SECONDS):
                    turn = await self._in_time(ask, stack.enter_async_context(self.conversations.turn(ask, place)))
            except TimeoutError:
                raise Unavailable(
                    f"Other turns of this session have run for {LONGEST_WAIT_SECONDS:.0f} s and go on: wait for their "
                    "answers, then send this one again",
                    retry_after=self.admission.retry_after(ask.best_of),
                ) from None
            yield turn

    async def _unstored(self, ask: Ask) -> AsyncGenerator[Delta, None]:
        choice = await self._in_time(ask, self.deployments.choose(ask.model, conversation_of(ask)))
        with choice.deployment.occupied():
            answer = await self._in_time(ask, self._begin(ask, choice))
            async with aclosing(self._measured(answer)) as deltas:
                async for delta in deltas:
                    yield delta
        self.summaries.prepare(answer)

    async def _in_time(self, ask: Ask, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(_seconds_left(ask)):
                return await work
        except TimeoutError:
            raise too_late(ask, 0.0) from None

    async def _begin(self, ask: Ask, choice: Choice) -> Answer:
        deployment = choice.deployment
        refuse_late(ask, deployment.engine.stats, time.monotonic())
        ask = await self.conversations.counted_by(ask, deployment.manifest.digest)
        ask = await self._recollection.of(ask, deployment)
        prompt = await build(ask, deployment)
        seed = secrets.randbits(63) if ask.sampling.seed is None else ask.sampling.seed & SEED_MASK
        return Answer(ask, choice, prompt, bounded_max_tokens(ask, deployment, prompt), seed, self._guard)

    async def _measured(self, answer: Answer) -> AsyncGenerator[Delta, None]:
        """The deltas, and whatever way they end, one observation of the whole answer."""
        metrics = self.metrics.model(answer.manifest.name, answer.manifest.version)
        reason = FinishReason.ABORT
        try:
            async with aclosing(self._deltas(answer)) as deltas:
                async for delta in deltas:
                    if delta.last:
                        reason = answer.finish_reason
                    yield delta
        except Exception:
            reason = FinishReason.ERROR
            raise
        finally:
            metrics.answered(reason, answer.measured())
            self._observe(answer, reason)

    def _observe(self, answer: Answer, reason: FinishReason) -> None:
        """Tell a rollout how it went; an answer that the client left says nothing."""
        rollout = answer.rollout
        if rollout is None or reason is FinishReason.ABORT:
            return
        ttft = None if answer.first_at is None else answer.first_at - answer.ask.arrival
        self.deployments.rollouts.observe(rollout, answer.manifest.version, reason is FinishReason.ERROR, ttft)
        if reason is not FinishReason.ERROR and rollout.shadow and answer.manifest.version == rollout.base:
            self._shadows.offer(answer, rollout)

    async def _deltas(self, answer: Answer) -> AsyncGenerator[Delta, None]:
        """The deltas of all sequences, stamped as they are handed on. `last` is told when none is unfinished."""
        unfinished = len(answer.decodings)
        async with aclosing(pieces(answer)) as news:
            async for decoding, piece in news:
                unfinished -= piece.finish_reason is not None
                _refuse_failed_end(answer, piece)
                self._stamp(answer, decoding)
                yield Delta(
                    answer, decoding, piece.index, piece.token, piece.text, piece.finish_reason, unfinished == 0
                )
        if unfinished:
            raise GenerationFailed("The engine ended the answer early; send the request again")

    def _stamp(self, answer: Answer, decoding: Decoding) -> None:
        metrics = self.metrics.model(answer.manifest.name, answer.manifest.version)
        now = time.monotonic()
        if decoding.last_at is not None:
            metrics.inter_token.observe(now - decoding.last_at)
        elif answer.first_at is None:
            metrics.time_to_first_token.observe(now - answer.ask.arrival)
            answer.first_at = now
        decoding.last_at = answer.last_at = now


def _seconds_left(ask: Ask) -> float | None:
    return None if ask.deadline is None else max(0.0, ask.deadline - time.monotonic())


def _refuse_failed_end(answer: Answer, piece: Piece) -> None:
    """An end that leaves nothing to answer with is an error; with some text it is that text's finish reason."""
    if piece.finish_reason is FinishReason.ABORT:
        raise Unavailable("The answer was cut because the server is stopping; send the request again", retry_after=1)
    if answer.completion_tokens:
        return
    if piece.finish_reason is FinishReason.DEADLINE:
        raise too_late(answer.ask, answer.deployment.engine.stats.backlog_seconds)
    if piece.finish_reason is FinishReason.ERROR:
        raise GenerationFailed("The model gave no usable probabilities for this prompt; change the prompt or the model")
