"""One engine: `step()` is schedule, run, update. Synchronous, and deterministic but for the clock and the runner.

Nothing here knows processes, sockets or text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import Final, Protocol

from service.engine.batch import Batch, BlockCopy, SampledToken
from service.engine.cost import Work
from service.engine.messages import EngineStats, FinishReason, Request, StepOutput
from service.engine.scheduler import Scheduler
from service.engine.validation import check_request

_FAR: Final = 4  # a step of more tokens than so many times the largest one measured is not forecast
Clock = Callable[[], float]
"""Seconds of one monotonic clock."""


class ModelRunner(Protocol):
    """Computes a batch. Owns weights and the KV tensors, changes no token of a sequence."""

    vocab_size: int
    """Token ids run from 0 to this, excluded: rows of the model's embedding."""
    verifies_drafts: bool
    """Whether a row's results are the same, bit for bit, with drafts behind it: else drafts could change tokens."""
    num_disk_blocks: int
    """Blocks that its offload file holds; 0 without one."""

    @property
    def adapters(self) -> Collection[str]:
        """Names of those that are loaded."""
        ...

    def read_adapter(self, name: str, directory: str) -> Callable[[], None]:
        """Read an adapter's files, in any thread, beside steps; the result makes it part of the model, between two
        steps. Either raises what stops it; then nothing has changed."""
        ...

    def unload_adapter(self, name: str) -> None:
        """Free an adapter, which no sequence uses."""
        ...

    def copy(self, copies: SequenceOf[BlockCopy]) -> SequenceOf[BlockCopy]:
        """Make these between blocks and the offload file, one after the other. Those that could not be made: what they
        would have written is no content, and harmless."""
        ...

    def run(self, batch: Batch) -> SequenceOf[SampledToken | None]:
        """Write the KV of every scheduled token into its sequence's blocks; an entry for each item, in order.

        An item that samples gets a SampledToken (`token_id` None where the logits hold no usable number), and behind
        drafts, as long as each is the token sampled before it, those that follow; another gets None, or a SampledToken
        with nothing but its prompt logprobs. `batch` is never empty.
        """
        ...


class EngineCore:
    """The synchronous heart of an engine process; one thread calls it."""

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, clock: Clock) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._refused: list[StepOutput] = []
        self._leaving: set[str] = set()
        self._in_progress: Batch | None = None
        self._most_tokens = 0
        self._steps = 0
        self._last = Work(0)
        self._last_sequences = 0
        self._last_seconds = 0.0
        self._ended = 0

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.has_work or self._refused)

    def add(self, request: Request) -> None:
        """Queue a request. One with numbers or token ids that cannot be computed, that the scheduler refuses, or whose
        adapter is not there, ends with ERROR in the next step's outputs."""
        try:
            check_request(request, self._runner.vocab_size)
            if request.adapter and (request.adapter not in self._runner.adapters or request.adapter in self._leaving):
                raise ValueError(f"no adapter {request.adapter}")
            self.scheduler.add(request)
        except ValueError:
            self._refused.append(StepOutput(request.id, finish_reason=FinishReason.ERROR))

    def keep_adapter(self, name: str) -> bool:
        """Whether an adapter is there. If so, it stays: an `unload_adapter` that waits for sequences is void."""
        self._leaving.discard(name)
        return name in self._runner.adapters

    def read_adapter(self, name: str, directory: str) -> Callable[[], None]:
        """As ModelRunner.read_adapter."""
        return self._runner.read_adapter(name, directory)

    def load_adapter(self, name: str, directory: str) -> None:
        """From now on requests may name this adapter. Raises what the runner raises."""
        if not self.keep_adapter(name):
            self.read_adapter(name, directory)()

    def forecast_seconds(self) -> float | None:
        """What the cost line says of the step in progress; None where none is, or where no step of that size was
        measured yet. Any thread may ask."""
        batch, cost = self._in_progress, self.scheduler.policy.cost
        if batch is None or not cost.is_measured or batch.num_tokens > _FAR * self._most_tokens:
            return None
        return cost.predict(Work.of(batch))

    def unload_adapter(self, name: str) -> None:
        """Free the adapter once no live sequence uses it; no-op for one that is not there."""
        if name in self._runner.adapters:
            self._leaving.add(name)
            self._unload_unused()

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these now: their blocks are free at return, the next step's outputs tell it."""
        self.scheduler.abort(request_ids)

    def step(self) -> list[StepOutput]:
        """Compute one batch and return the news. Exceptions of the runner pass through; the core is broken then."""
        started = self._clock()
        batch = self.scheduler.schedule(started)
        copied = started
        if batch.copies:
            batch = self._copy(batch)
            copied = self._clock()
        self._in_progress = batch
        sampled = [each and self._checked(each) for each in self._runner.run(batch)] if batch.scheduled else ()
        self._in_progress = None
        ended = self._clock()
        self._observe(batch, ended - copied, ended - started)
        outputs = self._refusals() + self.scheduler.update(batch, sampled, ended)
        if self._leaving:
            self._unload_unused()
        return outputs

    @property
    def stats(self) -> EngineStats:
        """A snapshot, exact between steps."""
        scheduler, blocks = self.scheduler, self.scheduler.blocks
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks_total=blocks.num_blocks,
            blocks_free=blocks.num_free,
            blocks_cached=blocks.num_cached,
            preemptions_total=scheduler.num_preemptions,
            steps_total=self._steps,
            prefix_queried_tokens_total=scheduler.prefill.num_queried_tokens,
            prefix_hit_tokens_total=scheduler.prefill.num_hit_tokens,
            step_seconds=self._last_seconds,
            step_tokens=self._last.tokens,
            step_sequences=self._last_sequences,
            token_budget=scheduler.token_budget,
            cost=scheduler.policy.cost.coefficients,
            cost_error=scheduler.policy.cost.error,
            backlog_seconds=scheduler.policy.first_token_seconds(scheduler.backlog()),
            hopeless_total=scheduler.num_hopeless,
            draft_tokens_total=scheduler.speculation.num_draft_tokens,
            accepted_tokens_total=scheduler.outputs.num_accepted_tokens,
            blocks_offloaded=len(blocks.offload),
            restored_tokens_total=blocks.offload.num_restored * blocks.block_size,
        )

    def _copy(self, batch: Batch) -> Batch:
        """What is left of the batch."""
        started = self._clock()
        failed = self._runner.copy(batch.copies)
        self.scheduler.blocks.offload.observe(len(batch.copies), self._clock() - started, len(failed))
        return self.scheduler.without(batch, failed) if failed else batch

    def _checked(self, sampled: SampledToken) -> SampledToken:
        """Without a token that the model could not read back: its sequence ends with ERROR."""
        token_id = sampled.token_id
        if token_id is not None and not 0 <= token_id < self._runner.vocab_size:
            return SampledToken(None, prompt_logprobs=sampled.prompt_logprobs)
        if not sampled.following:
            return sampled
        return replace(sampled, following=tuple(map(self._checked, sampled.following)))

    def _observe(self, batch: Batch, seconds: float, in_all: float) -> None:
        """`seconds` without the copies, which the cost line does not know."""
        if not batch.scheduled:
            return
        self._steps += 1
        self._last, self._last_sequences, self._last_seconds = Work.of(batch), len(batch.scheduled), in_all
        self._most_tokens = max(self._most_tokens, self._last.tokens)
        ended, self._ended = self.scheduler.num_ended - self._ended, self.scheduler.num_ended
        self.scheduler.policy.observe(self._last, seconds, ended)

    def _unload_unused(self) -> None:
        for name in self._leaving - self.scheduler.adapters_in_use:
            self._leaving.discard(name)
            self._runner.unload_adapter(name)

    def _refusals(self) -> list[StepOutput]:
        refused, self._refused = self._refused, []
        return refused
