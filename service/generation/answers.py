"""`Answers` turns a request into its deltas. Every dialect gets its text here, in this order:

admission  places of running sequences; a turn first waits for the other turns of its session
turn       the session's history becomes the prompt's chat
prompt     reference → version, loaded where it is not → token ids and receipt; what does not fit is refused
run        one engine request a sequence, one delta a token
stamp      each delta gets its answer, and its time is measured
store      a turn is stored before its last delta goes out
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, aclosing, contextmanager, nullcontext
from functools import partial
from typing import Final, TypeVar

from service.context.prompt import Prompt
from service.deployments.deployment import Deployment
from service.deployments.deployments import Choice, Deployments
from service.engine.protocol.messages import FinishReason
from service.errors import ContextOverflow, GenerationFailed, InvalidRequest, UnsupportedField
from service.generation.admission import TOKENS, Admission
from service.generation.answer import Answer, Delta, Opening
from service.generation.bounds import bounded_max_tokens, build, input_budget
from service.generation.conversations import Conversations, OpenTurn
from service.generation.features import at_version, messages_of, refuse_described, refuse_text_stops
from service.generation.guard import Guard
from service.generation.own_sampling import with_own_sampling
from service.generation.quotas import Quotas
from service.generation.recollection import Recollection
from service.generation.refusals import in_time, refusals, refuse_failed_end
from service.generation.rendering import rendered
from service.generation.request import SEED_MASK, GenerationRequest, SessionTurn, conversation_of
from service.generation.sequences import deltas_of, merged
from service.generation.shadows import Shadows
from service.generation.summaries import Summaries
from service.generation.usage import Usage
from service.observability.metrics import Metrics
from service.storage.sessions import Done
from service.tasks import BackgroundTasks
from service.text.grammars import GrammarChecker

T = TypeVar("T")
Deltas = AsyncGenerator[Delta, None]
MOST_READERS: Final = 4
"""Of asyncio's threads, which are at least five and do other work too."""
TURNS_GO_ON: Final = (
    "Other turns of this session have run for minutes and go on: wait for their answers, then send this one again"
)
NOT_READ: Final = "The version was not loaded, or the text not read, within minutes: send the request again"
MOST_VECTORS: Final = 32
"""How many embeddings of one body run at once. More would take the places of other clients, and fill a step no
better."""
Record = Callable[[Delta], Done]
"""Makes the response to keep for an Idempotency-Key from an answer's last delta."""


class Answers:
    """The event loop owns `Answers`. `max_in_progress` bounds the sequences that wait or run, `max_tokens_in_progress`
    the tokens of their prompts, and `max_queue_seconds` how long they wait for a place in a full batch; as many
    requests more may wait for an answer or a load (`waiting`), and as many be counted or previewed (`reading`). `guard`
    filters text. With `own_sampling` a version's own values stand where a request leaves parameters open."""

    def __init__(
        self,
        deployments: Deployments,
        metrics: Metrics,
        conversations: Conversations,
        *,
        max_in_progress: int,
        max_tokens_in_progress: int,
        max_queue_seconds: float,
        guard: Guard | None,
        tasks: BackgroundTasks,
        own_sampling: bool,
        generic_tools: bool,
    ) -> None:
        self.deployments = deployments
        self.conversations = conversations
        self.metrics = metrics
        self.admission = Admission(max_in_progress, refused=metrics.rejected, longest_queue_seconds=max_queue_seconds)
        self.tokens = Admission(max_tokens_in_progress, refused=metrics.rejected, bound=TOKENS)
        self.waiting = Admission(max_in_progress, refused=metrics.rejected)
        self.reading = Admission(max_in_progress, refused=metrics.rejected)
        self._readers = asyncio.Semaphore(MOST_READERS)
        self.usage = Usage(conversations.store)
        self.quotas = Quotas(self.usage)
        self.grammars = GrammarChecker()
        self._guard = guard
        self._own_sampling = own_sampling
        self._generic_tools = generic_tools
        self._shadows = Shadows(deployments, tasks)
        self.summaries = Summaries(self._answer, conversations, metrics, tasks)
        self._recollection = Recollection(conversations, self.summaries)

    def stream(
        self, requests: Sequence[GenerationRequest], record: Record | None = None, opening: Opening | None = None
    ) -> Deltas:
        """Yields one delta for each token, as soon as it is sampled; several requests run side by side. Closing the
        stream aborts them. A session turn is stored before its last delta goes out, together with what `record` makes
        of that delta. `opening` gets what is known before the first delta.

        Raises, before the first delta: NotFound, InvalidRequest, ContextOverflow, Overloaded, Unavailable,
        DeadlineExceeded; at any time GenerationFailed and Unavailable. One request's error ends all.
        """
        opening = opening or Opening()
        self.refuse_more_than_all(requests)
        if requests[0].embedding is not None:
            return self._vectors(requests, opening)
        if len(requests) == 1:
            return self._answer(requests[0], opening, record)
        return merged([self._answer(request, opening) for request in requests])

    def refuse_more_than_all(self, requests: Sequence[GenerationRequest]) -> None:
        """Raises InvalidRequest for more sequences than may ever be in progress. Embeddings come in turns."""
        if requests[0].embedding is None and not requests[0].is_background:
            self.admission.refuse_more_than_all(sum(request.best_of for request in requests))

    async def read(self, model: str | None, owner: str, work: Callable[[Deployment], T]) -> T:
        """Returns what `work` reads in a thread for `owner`, with the deployment of `model`. Raises what loading does,
        Overloaded where too many are read, and Unavailable where it takes too long."""
        async with self.reading.waiting(NOT_READ, owner):
            deployment = await self.deployments.ensure_loaded(model)
            async with self._readers:
                return await asyncio.to_thread(work, deployment)

    async def preview(self, request: GenerationRequest) -> tuple[Deployment, Prompt | ContextOverflow]:
        """Returns the deployment that would answer, and the prompt that it would get, or the ContextOverflow that it
        would raise. Raises every other error that `stream` raises."""
        async with self.reading.waiting(NOT_READ, request.owner):
            return await in_time(request, self._preview(request))

    async def _preview(self, request: GenerationRequest) -> tuple[Deployment, Prompt | ContextOverflow]:
        if request.turn is not None:
            request = await self.conversations.request_of(request, request.turn)
        choice = await self._chosen(request)

        async def prompt(by: Choice) -> tuple[Deployment, Prompt]:
            with by.deployment.occupied():
                async with self._readers:
                    return by.deployment, (await self._prompt(request, by.deployment))[1]

        try:
            return await self._taken(choice, prompt)
        except ContextOverflow as refused:
            return (choice.base or choice).deployment, refused

    async def _answer(
        self, request: GenerationRequest, opening: Opening | None = None, record: Record | None = None
    ) -> Deltas:
        """Answers one request. Without an `opening` no client has made it: then its refusal is no client's."""
        async with AsyncExitStack() as held:
            turn = None if request.turn is None else await self._opened(request, request.turn, held)
            rejected = self.metrics.rejected if opening else _unobserved
            request = turn.request if turn else request
            [answer] = await self._begun([request], request.best_of, opening or Opening(), held, rejected)
            with self._measured(answer):
                async with aclosing(deltas_of(answer)) as deltas:
                    async for delta in deltas:
                        self._stamp(answer, delta)
                        if delta.last and turn is not None:
                            await turn.keep(answer, record(delta) if record else None)
                            answer.stored_at = time.monotonic()
                        yield delta
        self.summaries.prepare(answer)

    async def _vectors(self, requests: Sequence[GenerationRequest], opening: Opening) -> Deltas:
        """Answers embedding requests that came together, MOST_VECTORS at once. Vectors of two versions cannot be
        compared, so one version answers all of them, also while an alias moves."""
        at_once = min(len(requests), MOST_VECTORS, self.admission.places)
        turns = asyncio.Semaphore(at_once)

        async def vector(answer: Answer) -> Deltas:
            async with turns:
                with self._measured(answer):
                    async with aclosing(deltas_of(answer)) as deltas:
                        async for delta in deltas:
                            self._stamp(answer, delta)
                            yield delta

        async with AsyncExitStack() as held:
            answers = await self._begun(requests, at_once, opening, held, self.metrics.rejected)
            async with aclosing(merged(list(map(vector, answers)))) as deltas:
                async for delta in deltas:
                    yield delta

    async def _opened(self, request: GenerationRequest, turn: SessionTurn, held: AsyncExitStack) -> OpenTurn:
        """Waits for the session's other turns, until the deadline at the latest. The wait takes no place of running
        sequences."""
        if not request.is_background:
            self.admission.require(request.best_of, request.owner)
        with refusals(self.metrics.rejected), self.metrics.turns_waiting.track_inprogress():
            async with self.admission.patience(TURNS_GO_ON):
                return await in_time(request, held.enter_async_context(self.conversations.turn(request, turn)))

    def _places(self, request: GenerationRequest, count: int) -> AbstractContextManager[None]:
        """Takes places of running sequences. Background work takes none: it waits behind every client."""
        return nullcontext() if request.is_background else self.admission.entered(count, request.owner)

    def _prompts(self, answers: Sequence[Answer], count: int) -> AbstractContextManager[None]:
        """Takes the tokens of the `count` longest prompts, or of one prompt `count` times."""
        if answers[0].request.is_background:
            return nullcontext()
        lengths = sorted(len(each.prompt.token_ids) for each in answers)
        tokens = lengths[0] * count if len(lengths) == 1 else sum(lengths[-count:])
        return self.tokens.entered(tokens, answers[0].request.owner)

    async def _begun(
        self,
        requests: Sequence[GenerationRequest],
        count: int,
        opening: Opening,
        held: AsyncExitStack,
        rejected: Callable[[str], None],
    ) -> list[Answer]:
        """Returns the answers of requests that came together, with their prompts: all of one version, which `held`
        keeps loaded, and of which `count` sequences run at once. Each is refused before any runs; `rejected` gets the
        code of such an error."""
        first = requests[0]
        with refusals(rejected):
            choice = await in_time(first, self._chosen(first))
            if first.keep_alive is not None:
                self.deployments.keep_alive(choice.deployment, first.keep_alive)
        opening.is_loaded = True
        held.enter_context(self._places(first, count))

        async def begin(by: Choice) -> list[Answer]:
            deployment = by.deployment
            with ExitStack() as occupied:
                occupied.enter_context(deployment.occupied())
                if not first.is_background:
                    queue, stats = deployment.manifest.base_digest, deployment.engine.stats
                    occupied.enter_context(self.admission.queued(queue, first, count, stats))
                answers = await self._prepared(requests, by)
                held.enter_context(occupied.pop_all())
            return answers

        with refusals(rejected):
            answers = await self._taken(choice, begin)
        held.enter_context(self._prompts(answers, count))
        for answer in answers:
            opening.begin(answer)
        return answers

    async def _taken(self, choice: Choice, work: Callable[[Choice], Awaitable[T]]) -> T:
        """Returns what `work` makes with the version that was chosen. Where a rollout's candidate refuses what the
        version before it takes, that one does the work, and the candidate has failed. What both refuse is the client's
        mistake: raises what the version before says of it."""
        try:
            return await work(choice)
        except InvalidRequest:
            if choice.rollout is None or choice.base is None:
                raise
        made = await work(choice.base)
        self.deployments.rollouts.observe(choice.rollout, choice.deployment.manifest.version, failed=True, ttft=None)
        return made

    async def _prepared(self, requests: Sequence[GenerationRequest], choice: Choice) -> list[Answer]:
        """Returns the answers of requests that came together, with their prompts."""
        answers = list[Answer]()
        for number, request in enumerate(requests):
            try:
                answers.append(await in_time(request, self._begin(request, choice)))
            except InvalidRequest as error:
                if len(requests) > 1:
                    error.message = f"Input {number}: {error.message}"
                raise
            if len(requests) > 1:
                await asyncio.sleep(0)  # tokenizing thousands of texts must not hold the event loop
        return answers

    async def _chosen(self, request: GenerationRequest) -> Choice:
        """Returns the version that answers, loaded. Raises NotFound for one that does not answer this owner. Who waits
        for a load takes no place of running sequences: the versions that are loaded answer meanwhile."""
        model = self.deployments.allowed(request.models, request.model)
        with nullcontext() if self.deployments.is_loaded(model) else self.waiting.entered(1, request.owner):
            return await self.deployments.choose_loaded(model, conversation_of(request))

    async def _begin(self, request: GenerationRequest, choice: Choice) -> Answer:
        request, prompt, max_tokens = await self._prompt(request, choice.deployment)
        seed = secrets.randbits(63) if request.seed is None else request.seed & SEED_MASK
        return Answer(request, choice, prompt, max_tokens, seed, self._guard)

    async def _prompt(
        self, request: GenerationRequest, deployment: Deployment
    ) -> tuple[GenerationRequest, Prompt, int]:
        """Returns the request as this version answers it, its prompt, and how many tokens may follow."""
        request = await rendered(request, deployment, partial(self._at_version, request, deployment))
        request = with_own_sampling(request, deployment) if self._own_sampling else request
        await self._check_grammar(request, deployment)
        if request.turn is not None:
            budget = input_budget(request, deployment)
            request = await self.conversations.counted_by(request, deployment.manifest.digest, budget)
        request = await self._recollection.of(request, deployment)
        prompt = await build(request, deployment)
        return request, prompt, bounded_max_tokens(request, deployment, prompt)

    def _at_version(self, request: GenerationRequest, deployment: Deployment) -> GenerationRequest:
        if not self._generic_tools:
            refuse_described(deployment, messages_of(request), has_tools=request.tools is not None)
        return at_version(request, deployment)

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
        refuse_text_stops(request, deployment.tokenizer)
        await self.grammars.check(request.grammar, request.owner)

    @contextmanager
    def _measured(self, answer: Answer) -> Iterator[None]:
        """Records one observation of the whole answer, however it ends. What fails behind its last delta is no failure
        of the answer. Raises GenerationFailed where the deltas end too early."""
        failure: Exception | None = None
        try:
            yield
            if answer.unfinished:
                raise GenerationFailed("The engine ended the answer early; send the request again")
        except Exception as error:
            failure = error if answer.unfinished else None
            raise
        finally:
            ended = FinishReason.ABORT if answer.unfinished else answer.finish_reason
            reason = FinishReason.ERROR if failure else ended
            is_timed = not answer.request.is_background  # the latencies are those of clients
            metrics = self.metrics.model(answer.manifest.name, answer.manifest.version)
            metrics.answered(reason, answer.measured(), answer.abort_cause(reason, failure), is_timed=is_timed)
            self.usage.answered(answer.request.owner, answer.manifest.reference, answer.usage())
            self._observe(answer, reason)

    def _observe(self, answer: Answer, reason: FinishReason) -> None:
        """Reports the result to the rollout. An answer that the client aborted is not counted, nor is the time that
        background work took."""
        rollout = answer.rollout
        if rollout is None or reason is FinishReason.ABORT:
            return
        first_at = None if answer.request.is_background else answer.first_at
        ttft = None if first_at is None else first_at - answer.request.arrival
        self.deployments.rollouts.observe(rollout, answer.manifest.version, reason is FinishReason.ERROR, ttft)
        if reason is not FinishReason.ERROR and rollout.shadow and answer.manifest.version == rollout.base:
            self._shadows.offer(answer, rollout)

    def _stamp(self, answer: Answer, delta: Delta) -> None:
        """Measures the time at which a delta goes out, and sets its `last` once no sequence is unfinished. Only deltas
        with a token have a time to the first token, or between tokens. Raises for an end that leaves no text."""
        refuse_failed_end(answer, delta)
        if delta.finish_reason is not None:
            answer.unfinished -= 1
        delta.last = answer.unfinished == 0
        sequence, now = delta.sequence, time.monotonic()
        first = gap = None
        if delta.token is not None:
            gap = None if sequence.last_at is None else now - sequence.last_at
            if answer.first_at is None:
                first, answer.first_at = now - answer.request.arrival, now
            sequence.last_at = now
        if answer.request.is_background:
            first = gap = None  # the latencies are those of clients
        metrics = self.metrics.model(answer.manifest.name, answer.manifest.version)
        metrics.handed_out(now, int(delta.token is not None), first, gap)
        answer.last_at = now


def _unobserved(reason: str) -> None:
    """Takes the refusals of requests that no client has made."""
