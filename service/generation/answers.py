"""`Answers` turns a request into its deltas: it picks the version, builds the prompt, checks the bounds and runs the
sequences. Every dialect gets its text here."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from typing import Any, Final, TypeVar

from service.context.prompt import Prompt
from service.deployments.deployment import Deployment
from service.deployments.deployments import Choice, Deployments
from service.engine.protocol.messages import FinishReason
from service.errors import ContextOverflow, GenerationFailed, Unavailable, UnsupportedField
from service.generation import batch
from service.generation.admission import Admission, refusals, refuse_failed_end, refuse_late, too_late
from service.generation.answer import Answer, Delta
from service.generation.bounds import bounded_max_tokens, build
from service.generation.choices import with_choices
from service.generation.conversations import Conversations, OpenTurn
from service.generation.guard import Guard
from service.generation.merging import merged
from service.generation.opening import Opening
from service.generation.output_sequence import OutputSequence
from service.generation.reasoning import with_free_reasoning, with_reasoning
from service.generation.recollection import Recollection
from service.generation.request import SEED_MASK, GenerationRequest, SessionTurn, conversation_of
from service.generation.sequences import token_deltas
from service.generation.shadows import Shadows
from service.generation.summaries import Summaries
from service.generation.tools import with_forced_calls
from service.observability.metrics import Metrics
from service.storage.sessions import Done
from service.tasks import BackgroundTasks
from service.text.grammars import GrammarChecker

T = TypeVar("T")
LONGEST_WAIT_SECONDS: Final = 300.0
"""How long a turn without a deadline waits for its session, in seconds."""
Record = Callable[[Delta], Done]
"""Makes the response to keep for an Idempotency-Key from an answer's last delta."""


class Answers:
    """The event loop owns `Answers`. `max_in_progress` bounds the sequences that wait or run; `guard` filters their
    text."""

    def __init__(
        self,
        deployments: Deployments,
        metrics: Metrics,
        conversations: Conversations,
        *,
        max_in_progress: int,
        guard: Guard | None = None,
        tasks: BackgroundTasks | None = None,
    ) -> None:
        tasks = tasks or BackgroundTasks()
        self.deployments = deployments
        self.conversations = conversations
        self.metrics = metrics
        self.admission = Admission(max_in_progress, refused=metrics.rejected)
        self.grammars = GrammarChecker()
        self._guard = guard
        self._shadows = Shadows(deployments, tasks)
        self.summaries = Summaries(self._unstored, conversations, metrics, tasks)
        self._recollection = Recollection(conversations, self.summaries)

    def stream(
        self, requests: Sequence[GenerationRequest], record: Record | None = None, opening: Opening | None = None
    ) -> AsyncGenerator[Delta, None]:
        """Yields one delta for each token, as soon as it is sampled; several requests run side by side. Closing the
        stream aborts them. A session turn is stored before its last delta goes out, together with what `record` makes
        of that delta. `opening` gets what is known before the first delta.

        Raises, before the first delta: NotFound, InvalidRequest, ContextOverflow, Overloaded, Unavailable,
        DeadlineExceeded; at any time GenerationFailed and Unavailable. One request's error ends all.
        """
        opening = opening or Opening()
        if requests[0].embedding is not None:
            return self._embedded(requests, opening)
        if len(requests) == 1:
            return self._stream(requests[0], opening, record)
        return merged([self._stream(request, opening) for request in requests])

    async def preview(self, request: GenerationRequest) -> tuple[Deployment, Prompt | ContextOverflow]:
        """Returns the deployment that would answer, and the prompt that it would get, or the ContextOverflow that it
        would raise. Raises every other error that `stream` raises."""
        if request.turn is not None:
            request = await self._in_time(request, self.conversations.asked(request, request.turn))
        deployment = (
            await self._in_time(request, self.deployments.choose_loaded(request.model, conversation_of(request)))
        ).deployment
        with deployment.occupied():
            request = _at_version(request, deployment)
            await self._in_time(request, self._check_grammar(request, deployment))
            try:
                request = await self._in_time(
                    request, self.conversations.counted_by(request, deployment.manifest.digest)
                )
                request = await self._in_time(request, self._recollection.of(request, deployment))
                prompt = await self._in_time(request, build(request, deployment))
                bounded_max_tokens(request, deployment, prompt)
            except ContextOverflow as refused:
                return deployment, refused
            return deployment, prompt

    async def _stream(
        self, request: GenerationRequest, opening: Opening, record: Record | None = None
    ) -> AsyncGenerator[Delta, None]:
        if request.turn is None:
            with self._entered(request, request.best_of):
                async with aclosing(self._unstored(request, opening)) as deltas:
                    async for delta in deltas:
                        yield delta
            return
        async with self._turn(request, request.turn) as turn:
            with self._entered(request, request.best_of):
                async with aclosing(self._unstored(turn.request, opening)) as deltas:
                    async for delta in deltas:
                        if delta.last:
                            await turn.keep(delta.answer, record(delta) if record else None)
                            delta.answer.stored_at = time.monotonic()
                        yield delta

    def _entered(self, request: GenerationRequest, places: int) -> AbstractContextManager[None]:
        """Takes the request's places. What waits behind every client takes none."""
        return nullcontext() if request.is_behind_clients else self.admission.entered(places)

    @asynccontextmanager
    async def _turn(self, request: GenerationRequest, turn: SessionTurn) -> AsyncIterator[OpenTurn]:
        """Waits for the session's other turns. The wait takes no place of running sequences; it ends at the deadline,
        at the latest after LONGEST_WAIT_SECONDS."""
        if not request.is_behind_clients:
            self.admission.require(request.best_of)
        async with AsyncExitStack() as stack:
            with refusals(self.metrics.rejected):
                opened = await self._opened(request, stack.enter_async_context(self.conversations.turn(request, turn)))
            yield opened

    async def _opened(self, request: GenerationRequest, opening: Coroutine[Any, Any, OpenTurn]) -> OpenTurn:
        try:
            async with asyncio.timeout(LONGEST_WAIT_SECONDS):
                return await self._in_time(request, opening)
        except TimeoutError:
            raise Unavailable(
                f"Other turns of this session have run for {LONGEST_WAIT_SECONDS:.0f} s and go on: wait for their "
                "answers, then send this one again",
                retry_after=self.admission.retry_after(request.best_of),
            ) from None

    async def _embedded(self, requests: Sequence[GenerationRequest], opening: Opening) -> AsyncGenerator[Delta, None]:
        with self._entered(requests[0], min(len(requests), batch.MOST_AT_ONCE)):
            with refusals(self.metrics.rejected):
                choice = await self._chosen(requests[0])
            opening.is_loaded = True
            with choice.deployment.occupied():
                with refusals(self.metrics.rejected):
                    answers = await batch.begun(
                        requests, lambda request: self._in_time(request, self._begin(request, choice))
                    )
                for answer in answers:
                    opening.begin(answer)
                async with aclosing(batch.run(answers, self._measured)) as deltas:
                    async for delta in deltas:
                        yield delta

    async def _chosen(self, request: GenerationRequest) -> Choice:
        choice = await self._in_time(request, self.deployments.choose_loaded(request.model, conversation_of(request)))
        if request.keep_alive is not None:
            self.deployments.keep_alive(choice.deployment, request.keep_alive)
        return choice

    async def _unstored(
        self, request: GenerationRequest, opening: Opening | None = None
    ) -> AsyncGenerator[Delta, None]:
        rejected = self.metrics.rejected if opening else _unobserved
        with refusals(rejected):
            choice = await self._chosen(request)
        opening = opening or Opening()
        opening.is_loaded = True
        with choice.deployment.occupied():
            with refusals(rejected):
                answer = await self._in_time(request, self._begin(request, choice))
            opening.begin(answer)
            async with aclosing(self._measured(answer)) as deltas:
                async for delta in deltas:
                    yield delta
        self.summaries.prepare(answer)

    async def _in_time(self, request: GenerationRequest, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(_seconds_left(request)):
                return await work
        except TimeoutError:
            raise too_late(request, 0.0) from None

    async def _begin(self, request: GenerationRequest, choice: Choice) -> Answer:
        deployment = choice.deployment
        refuse_late(request, deployment.engine.stats, time.monotonic())
        request = _at_version(request, deployment)
        await self._check_grammar(request, deployment)
        request = await self.conversations.counted_by(request, deployment.manifest.digest)
        request = await self._recollection.of(request, deployment)
        prompt = await build(request, deployment)
        seed = secrets.randbits(63) if request.seed is None else request.seed & SEED_MASK
        return Answer(request, choice, prompt, bounded_max_tokens(request, deployment, prompt), seed, self._guard)

    async def _check_grammar(self, request: GenerationRequest, deployment: Deployment) -> None:
        """Raises UnsupportedField if the version cannot follow grammars, InvalidRequest if nobody can follow this
        one."""
        if request.grammar is None:
            return
        info = deployment.engine.info
        if info is not None and info.no_grammars:
            raise UnsupportedField(
                f"`{request.grammar.field}` cannot act: {deployment.manifest.reference} follows no grammar. "
                f"{info.no_grammars}",
                param=request.grammar.field,
            )
        await self.grammars.check(request.grammar)

    async def _measured(self, answer: Answer) -> AsyncGenerator[Delta, None]:
        """Yields the deltas. However they end, records one observation of the whole answer."""
        metrics = self.metrics.model(answer.manifest.name, answer.manifest.version)
        reason, failure = FinishReason.ABORT, None
        try:
            async with aclosing(self._deltas(answer)) as deltas:
                async for delta in deltas:
                    if delta.last:
                        reason = answer.finish_reason
                    yield delta
        except Exception as error:
            reason, failure = FinishReason.ERROR, error
            raise
        finally:
            is_timed = not answer.request.is_behind_clients  # the latencies are those of clients
            metrics.answered(reason, answer.measured(), answer.abort_cause(reason, failure), is_timed=is_timed)
            self._observe(answer, reason)

    def _observe(self, answer: Answer, reason: FinishReason) -> None:
        """Reports the result to the rollout. An answer that the client aborted is not counted, nor is the time that one
        behind the clients took."""
        rollout = answer.rollout
        if rollout is None or reason is FinishReason.ABORT:
            return
        first_at = None if answer.request.is_behind_clients else answer.first_at
        ttft = None if first_at is None else first_at - answer.request.arrival
        self.deployments.rollouts.observe(rollout, answer.manifest.version, reason is FinishReason.ERROR, ttft)
        if reason is not FinishReason.ERROR and rollout.shadow and answer.manifest.version == rollout.base:
            self._shadows.offer(answer, rollout)

    async def _deltas(self, answer: Answer) -> AsyncGenerator[Delta, None]:
        """Yields the deltas of all sequences, stamped with the time at which they go out. `last` is set once no
        sequence is unfinished."""
        unfinished = len(answer.sequences)
        async with aclosing(token_deltas(answer)) as added:
            async for sequence, delta in added:
                unfinished -= delta.finish_reason is not None
                refuse_failed_end(answer, delta)
                self._stamp(answer, sequence, int(delta.token is not None))
                yield Delta(
                    answer,
                    sequence,
                    delta.index,
                    delta.token,
                    delta.text,
                    delta.finish_reason,
                    unfinished == 0,
                    delta.calls,
                    delta.reasoning,
                )
        if unfinished:
            raise GenerationFailed("The engine ended the answer early; send the request again")

    def _stamp(self, answer: Answer, sequence: OutputSequence, tokens: int) -> None:
        metrics = self.metrics.model(answer.manifest.name, answer.manifest.version)
        now, first = time.monotonic(), None
        gap = None if sequence.last_at is None else now - sequence.last_at
        if answer.first_at is None:
            first, answer.first_at = now - answer.request.arrival, now
        if answer.request.is_behind_clients:
            first = gap = None  # the latencies are those of clients
        metrics.handed_out(now, tokens, first, gap)
        sequence.last_at = answer.last_at = now


def _at_version(request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
    """Returns the request with what its reasoning, its tools and its grammar need at this version."""
    request = with_choices(with_forced_calls(with_reasoning(request, deployment), deployment), deployment)
    return with_free_reasoning(request, deployment)


def _unobserved(reason: str) -> None:
    """Takes the refusals of requests that no client has made."""


def _seconds_left(request: GenerationRequest) -> float | None:
    return None if request.deadline is None else max(0.0, request.deadline - time.monotonic())
