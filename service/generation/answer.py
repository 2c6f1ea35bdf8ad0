"""An answer holds what is known of one request in progress: version, prompt, sequences, timestamps and counts. One task
owns and changes it. An opening shows the answers that have begun."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from models.manifest import Manifest
from service.context.prompt import Chat, Prompt
from service.context.receipt import Receipt
from service.deployments.deployment import DeploymentState
from service.deployments.deployments import Choice
from service.engine.protocol.messages import FinishReason, StepOutput, TokenLogprobs
from service.errors import DeadlineExceeded, GenerationFailed
from service.generation.guard import Action, Finding, Guard
from service.generation.output_sequence import OutputSequence, SequenceDelta
from service.generation.readers import readers_of
from service.generation.request import Choices, GenerationRequest
from service.observability.metrics import Abort, Measured
from service.text.tokenizer import Tokenizer

_ENOUGH_TO_SHOW_A_TEXT: Final = 64


class Answer:
    """`usage`, `timings` and `receipt` are exact after the last delta; before it they cover what went out so far.

    Moments (`…_at`) are points of `time.monotonic()`. `replayed_at`: when other engine processes took its sequences
    over; `stored_at`: when its turn, or the response for its Idempotency-Key, was on disk."""

    def __init__(
        self,
        request: GenerationRequest,
        choice: Choice,
        prompt: Prompt,
        max_new_tokens: int,
        seed: int,
        guard: Guard | None = None,
    ) -> None:
        self.request = request
        self.deployment = deployment = choice.deployment
        self.rollout = choice.rollout
        self._notes = [note for note in (choice.note, *request.notes) if note]
        self.prompt = prompt
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        self.created = int(time.time())
        self.admitted_at = time.monotonic()
        stop_ids = request.stop_ids(deployment.tokenizer.stop_token_ids)
        self.sequences = [
            OutputSequence(
                number,
                seed + number,
                request,
                deployment.tokenizer,
                stop_ids,
                guard.text_filter() if guard else None,
                readers_of(request, deployment.tokenizer),
                self.is_inside,
            )
            for number in range(request.best_of)
        ]
        self.unfinished = len(self.sequences)
        """How many sequences have not yet given out their last delta."""
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.cached_tokens = 0
        self.queue_seconds: float | None = None
        self.prefill_seconds: float | None = None
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.replayed_at: list[float] = []
        self._replays = Counter[int]()
        self.stored_at: float | None = None
        self._batch_size_mean: float | None = None
        self._batch_sizes: list[int] = []

    @cached_property
    def is_inside(self) -> bool:
        """Whether the answer goes on from a text, of a raw prompt or of a chat's last message: a blank that its first
        token begins with stands between two words then. A decoder whose prompt an encoder reads begins a text of its
        own."""
        if isinstance(self.request.source, Chat):
            return self.request.begun is not None and bool(self.request.begun.content.strip())
        is_raw = self.deployment.answer_window is None
        return is_raw and bool(self.tokenizer.decode(self.prompt.token_ids[-_ENOUGH_TO_SHOW_A_TEXT:]))

    @property
    def manifest(self) -> Manifest:
        return self.deployment.manifest

    @property
    def tokenizer(self) -> Tokenizer:
        return self.deployment.tokenizer.of(self.request.owner)

    @property
    def receipt(self) -> Receipt:
        return self.prompt.receipt.with_cached(self.cached_tokens, self._notes)

    def context(self) -> dict[str, object]:
        """Returns the receipt in the wire's form, with the inspection where the request wants one."""
        return self.prompt.shown(self.receipt)

    @property
    def completion_tokens(self) -> int:
        return sum(len(sequence.sampled) for sequence in self.sequences)

    @property
    def is_parted(self) -> bool:
        """Whether what a token adds to the content may differ from its text."""
        return self.sequences[0].is_parted

    @property
    def reads_reasoning(self) -> bool:
        """Whether the answer may have a reasoning part before its content."""
        return self.sequences[0].reads_reasoning

    @property
    def reasoning_tokens(self) -> int:
        """Returns how many of `completion_tokens` belong to reasoning parts, their marks included."""
        return sum(sequence.reasoning_tokens for sequence in self.sequences)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Returns what the guard found in all sequences, also in sequences that are not returned to the client."""
        counts = Counter[tuple[str, Action]]()
        for sequence in self.sequences:
            counts.update({(each.rule, each.action): each.count for each in sequence.findings})
        return tuple(Finding(rule, action, count) for (rule, action), count in counts.items())

    @property
    def best(self) -> list[OutputSequence]:
        """Returns the `n` sequences of the response: the likeliest of `best_of`, or all sequences in their order. One
        that a failure cut comes behind all others."""
        if self.request.best_of == self.request.n:
            return self.sequences
        return sorted(self.sequences, key=_likelihood, reverse=True)[: self.request.n]

    @property
    def vector(self) -> array[float]:
        """Returns the embedding of the prompt; empty where the request wants none."""
        embedding = self.request.embedding
        return embedding.vector(self.sequences[0].pooled, self.deployment.pooling) if embedding else array("f")

    @property
    def finish_reason(self) -> FinishReason:
        """Returns the finish reason of the first sequence of the response; `abort` while it is unfinished."""
        return self.best[0].finish_reason or FinishReason.ABORT

    def note(self, number: int, output: StepOutput) -> None:
        """Records what a step's output says about times and caches. The first sequence stands for all, but in
        replays."""
        if output.replayed_at is not None:
            self.replayed_at.append(output.replayed_at)
            self._replays[number] += 1
            return
        if number:
            return
        self.cached_tokens = max(self.cached_tokens, output.num_cached_tokens)
        self.prompt_logprobs.extend(output.prompt_logprobs)
        if output.queue_seconds is not None:
            self.queue_seconds, self.prefill_seconds = output.queue_seconds, output.prefill_seconds
        self._batch_sizes.append(self.deployment.engine.stats.step_sequences)
        self._batch_size_mean = output.batch_size_mean

    def usage(self) -> dict[str, int]:
        """Returns exact counts. `completion_tokens` counts every sampled token of every sequence, also of sequences
        that are not returned to the client. An answer without a reasoning part has no such count."""
        prompt, completion = len(self.prompt.token_ids), self.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "cached_tokens": self.cached_tokens,
            "prompt_tokens_before_truncation": self.prompt.tokens_before_truncation,
            **({"reasoning_tokens": self.reasoning_tokens} if self.reads_reasoning else {}),
        }

    def measured(self) -> Measured:
        """Returns what the metrics record of this answer."""
        return Measured(
            prompt_tokens=len(self.prompt.token_ids),
            dropped_tokens=self.prompt.receipt.dropped_tokens,
            cached_tokens=self.cached_tokens,
            generation_tokens=self.completion_tokens,
            queue_seconds=self.queue_seconds,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.last_at - self.first_at if self.first_at and self.last_at else None,
            total_seconds=time.monotonic() - self.request.arrival,
            window=self.deployment.window,
            guard_matches=tuple((each.rule, each.action.value, each.count) for each in self.findings),
        )

    def abort_cause(self, reason: FinishReason, failure: Exception | None) -> Abort | None:
        """Returns why the answer did not come to its end: `reason` is how it ended, `failure` its error. Returns None
        for an answer that did."""
        if reason is FinishReason.DEADLINE or isinstance(failure, DeadlineExceeded):
            return "deadline"
        if failure is not None or reason is FinishReason.ERROR:
            return "drain" if self.deployment.state is DeploymentState.DRAINING else "engine"
        return "client" if reason is FinishReason.ABORT else None

    def timings(self) -> dict[str, float | None]:
        """Returns milliseconds since arrival. `tokens_per_second` is the decode rate: the tokens after the first,
        divided by their time; for a single token, one divided by the whole time. `batch_size_mean` is the engine's own
        figure where it gives one, else the mean over the steps that this answer saw. `replayed` is there where an
        engine process died: how often another one took the answer over."""
        first, last = self.first_at, self.last_at
        replayed = {"replayed": max(self._replays.values())} if self._replays else {}
        if first is None or last is None:
            return dict.fromkeys(_TIMINGS) | replayed
        total, decode, tokens = last - self.request.arrival, last - first, self.completion_tokens
        rate = (tokens - 1) / decode if tokens > 1 and decode > 0 else tokens / max(total, 1e-9)
        seen = [size for size in self._batch_sizes if size]
        mean = self._batch_size_mean or (sum(seen) / len(seen) if seen else 1.0)
        values = (
            _ms(self.queue_seconds),
            _ms(self.prefill_seconds),
            _ms(first - self.request.arrival),
            _ms(decode),
            _ms(total),
            round(rate, 3),
            round(mean, 3),
        )
        return dict(zip(_TIMINGS, values, strict=True)) | replayed


_TIMINGS = ("queue_ms", "prefill_ms", "ttft_ms", "decode_ms", "total_ms", "tokens_per_second", "batch_size_mean")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


Delta = SequenceDelta[Answer]
"""What one token, or an end without a token, adds to an answer."""


class Opening:
    """One response has one opening, however many requests it has: the request that gets this far first sets it for
    all."""

    def __init__(self) -> None:
        self.is_loaded = False
        """The version that answers is in memory: the prompt will be ready soon."""
        self.answers: list[Answer] = []
        """The answers that have begun, in the order in which they did: their versions and prompts are known."""
        self._begun = asyncio.Event()

    def begin(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._begun.set()

    @property
    def answer(self) -> Answer | None:
        """Returns the answer that began first."""
        return self.answers[0] if self.answers else None

    async def begun(self) -> None:
        await self._begun.wait()


def _likelihood(sequence: OutputSequence) -> tuple[bool, float]:
    return sequence.finish_reason is not FinishReason.ERROR, sequence.mean_logprob


@dataclass(frozen=True, slots=True)
class ScoredChoice:
    """`logprobs` are those of its tokens, in nats; `logprob` is their sum."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    logprob: float
    probability: float


def scored(answer: Answer) -> list[ScoredChoice]:
    """Returns the choices of a finished answer, in the request's order. Raises GenerationFailed if the model gave no
    usable number."""
    choices = answer.request.choices or Choices(())
    measured = [tuple(each.logprob for each in sequence.prompt_logprobs) for sequence in answer.sequences]
    sums = [math.fsum(logprobs) for logprobs in measured]
    if not all(map(math.isfinite, sums)):
        raise GenerationFailed("The model gave no usable probabilities for this prompt; change the prompt or the model")
    highest = max(sums)
    weights = [math.exp(each - highest) for each in sums]
    total = math.fsum(weights)
    return [
        ScoredChoice(text, ids, logprobs, logprob, weight / total)
        for text, ids, logprobs, logprob, weight in zip(
            choices.texts, choices.token_ids, measured, sums, weights, strict=True
        )
    ]
