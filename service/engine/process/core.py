"""The engine core runs one engine: `step()` is schedule, run, update. It is synchronous.

Only the clock and the runner are not deterministic. It knows no processes, sockets or text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import Final, Protocol

from service.engine.kv_cache.window import WindowPool
from service.engine.process.grammar_loading import CompiledGrammars
from service.engine.process.validation import check_request
from service.engine.process.work_done import WorkDone
from service.engine.protocol.messages import MAX_STEPS, EngineStats, FinishReason, Request, StepOutput, StepRecord
from service.engine.protocol.profiling import NamedPart, Recorder
from service.engine.protocol.work import ModelWork
from service.engine.scheduling.cost import StepWork
from service.engine.scheduling.draft_model import DraftModel
from service.engine.scheduling.scheduler import Scheduler
from service.engine.sequences.batch import Batch, BlockCopy, SampledToken
from service.engine.sequences.constraint import Grammars

_STANDSTILL: Final = 4.0  # times its forecast: what a step takes longer, the machine stood still, and no answer took
_FAR: Final = 4  # a step with over 4 times the tokens of the largest measured one is not forecast
Clock = Callable[[], float]
"""Returns the seconds of one monotonic clock."""


class ModelRunner(Protocol):
    """Computes a batch. It owns the weights and the KV tensors and changes no token of a sequence."""

    vocab_size: int
    """Token ids run from 0 to this, excluded: rows of the model's embedding."""
    no_states: str
    """Why it gives no hidden states; "" if it does."""
    verifies_drafts: bool
    """Whether a row's results are the same, bit for bit, with drafts behind it. If not, drafts could change tokens."""
    num_disk_blocks: int
    """The number of blocks that its offload file holds; 0 without one."""

    def windows(self) -> WindowPool | None:
        """Returns a new pool of the window blocks of its layers with a sliding window; None if all layers have the same
        blocks."""
        ...

    @property
    def draft_model(self) -> DraftModel | None:
        """The model that makes drafts for it, if any."""
        ...

    @property
    def grammars(self) -> Grammars | None:
        """What compiles grammars for its vocabulary; None where its tokenizer cannot follow any."""
        ...

    @property
    def adapters(self) -> Collection[str]:
        """Names of the loaded adapters."""
        ...

    def read_adapter(self, name: str, directory: str) -> Callable[[], None]:
        """Reads an adapter's files, in any thread, beside steps. Returns the call that makes it part of the model,
        between two steps. Both raise the error that stops them; then nothing has changed."""
        ...

    def unload_adapter(self, name: str) -> None:
        """Frees an adapter that no sequence uses."""
        ...

    def copy(self, copies: SequenceOf[BlockCopy]) -> SequenceOf[BlockCopy]:
        """Makes these copies between blocks and the offload file, one after the other. Returns the copies that failed;
        their targets hold no content and do no harm."""
        ...

    def recorder(self, kind: str) -> Recorder:
        """Returns a recorder of what this thread computes, for a profile of this kind. Nothing is recorded yet."""
        ...

    def run(self, batch: Batch) -> SequenceOf[SampledToken | None]:
        """Writes the KV of every scheduled token into its sequence's blocks. Returns one entry per item, in order.

        An item that samples gets a SampledToken; its `token_id` is None if the logits hold no usable number. Behind
        drafts it also gets the tokens that follow, as long as each draft is the token sampled before it. Another item
        gets None, or a SampledToken with prompt logprobs only. `batch` is never empty.
        """
        ...


class EngineCore:
    """The synchronous core of an engine process. One thread calls it."""

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, clock: Clock, work: ModelWork | None = None) -> None:
        """`work` says what a token costs by the model's shape; None counts no FLOPs and no bytes."""
        self.scheduler = scheduler
        self.grammars = CompiledGrammars(runner.grammars)
        self._work = WorkDone(work or ModelWork())
        self._runner = runner
        self._clock = clock
        self._refused: list[StepOutput] = []
        self._leaving: set[str] = set()
        self._in_progress: Batch | None = None
        self._most_tokens = 0
        self._steps = 0
        self._last = StepWork(0)
        self._last_sequences = 0
        self._last_seconds = 0.0
        self._untold = deque[StepRecord](maxlen=MAX_STEPS)

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.has_work or self._refused)

    def add(self, request: Request) -> None:
        """Queues a request. A request ends with ERROR in the next step's outputs if its numbers or token ids cannot be
        computed, if the scheduler refuses it, if its adapter is not loaded, if the model gives no hidden states to
        pool, or if its grammar cannot be compiled. It compiles a grammar that `grammars` does not have."""
        try:
            check_request(request, self._runner.vocab_size)
            if request.adapter and (request.adapter not in self._runner.adapters or request.adapter in self._leaving):
                raise ValueError(f"no adapter {request.adapter}")
            if request.params.pooling is not None and self._runner.no_states:
                raise ValueError(self._runner.no_states)
            self.scheduler.add(request, self.grammars.constraint(request.params))
        except ValueError:
            self._refused.append(StepOutput(request.id, finish_reason=FinishReason.ERROR))

    def keep_adapter(self, name: str) -> bool:
        """Returns whether an adapter is loaded. If so, it stays: an `unload_adapter` that waits for sequences is
        void."""
        self._leaving.discard(name)
        return name in self._runner.adapters

    def read_adapter(self, name: str, directory: str) -> Callable[[], None]:
        """Reads an adapter as ModelRunner.read_adapter does."""
        return self._runner.read_adapter(name, directory)

    def load_adapter(self, name: str, directory: str) -> None:
        """Loads an adapter, so that requests may name it. Raises the runner's errors."""
        if not self.keep_adapter(name):
            self.read_adapter(name, directory)()

    @property
    def parts(self) -> SequenceOf[NamedPart]:
        """Returns the parts of a step that a profile names, but for the runner's."""
        scheduler = self.scheduler
        return (
            NamedPart(scheduler, "schedule", "dosirak::schedule"),
            NamedPart(self, "_copy", "dosirak::copy"),
            NamedPart(scheduler, "update", "dosirak::update"),
        )

    def recorder(self, kind: str) -> Recorder:
        """Returns a recorder as ModelRunner.recorder does."""
        return self._runner.recorder(kind)

    def forecast_seconds(self) -> float | None:
        """Returns the cost line's forecast of the step in progress. Returns None if no step runs, or if no step of that
        size was measured yet. Any thread may call it."""
        batch, cost = self._in_progress, self.scheduler.policy.cost
        if batch is None or not cost.is_measured or batch.num_tokens > _FAR * self._most_tokens:
            return None
        return cost.predict(StepWork.of(batch))

    def unload_adapter(self, name: str) -> None:
        """Frees the adapter once no live sequence uses it. No-op for an adapter that is not loaded."""
        if name in self._runner.adapters:
            self._leaving.add(name)
            self._unload_unused()

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends these requests now. Their blocks are free at return; the next step's outputs report the ends."""
        self.scheduler.abort(request_ids)

    def step(self) -> list[StepOutput]:
        """Computes one batch and returns the news. Exceptions of the runner pass through; the core is broken then."""
        started = self._clock()
        batch, copying = self.scheduler.schedule(started), 0.0
        self._in_progress = batch
        if batch.copies:
            batch, copying = self._copy(batch)
            self._in_progress = batch
        sampled = [each and self._checked(each) for each in self._runner.run(batch)] if batch.scheduled else ()
        self._in_progress = None
        ended = self._clock()
        self._observe(batch, copying, ended - started)
        outputs = self._refusals() + self.scheduler.update(batch, sampled, ended)
        if batch.scheduled:
            self._work.add(*self.scheduler.outputs.tally.take(), ended - started)
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
            seats=scheduler.num_seats,
            seat_seconds=scheduler.seat_seconds,
            hopeless_total=scheduler.num_hopeless,
            draft_tokens_total=scheduler.speculation.num_draft_tokens,
            accepted_tokens_total=scheduler.outputs.num_accepted_tokens,
            certain_tokens_total=scheduler.outputs.num_certain_tokens,
            blocks_offloaded=len(blocks.offload),
            restored_tokens_total=blocks.offload.num_restored * blocks.block_size,
            prefill_tokens_total=scheduler.prefill.num_prefill_tokens,
            prefill=self._work.prefill,
            decode=self._work.decode,
        )

    def take_steps(self) -> tuple[StepRecord, ...]:
        """Returns the computed steps since the last call, oldest first, the newest MAX_STEPS at most."""
        untold = tuple(self._untold)
        self._untold.clear()
        return untold

    def _copy(self, batch: Batch) -> tuple[Batch, float]:
        """Makes the batch's copies. Returns the batch, or its rest if copies failed, and the seconds of the copies."""
        started = self._clock()
        failed = self._runner.copy(batch.copies)
        seconds = self._clock() - started
        self.scheduler.blocks.offload.observe(len(batch.copies), seconds, len(failed))
        return self.scheduler.without(batch, failed) if failed else batch, seconds

    def _checked(self, sampled: SampledToken) -> SampledToken:
        """Replaces a token that the model could not read back, so that its sequence ends with ERROR."""
        token_id = sampled.token_id
        if token_id is not None and not 0 <= token_id < self._runner.vocab_size:
            return SampledToken(None, prompt_logprobs=sampled.prompt_logprobs)
        if not sampled.following:
            return sampled
        return replace(sampled, following=tuple(map(self._checked, sampled.following)))

    def _observe(self, batch: Batch, copying: float, in_all: float) -> None:
        """Learns from one step of `in_all` seconds. The cost line knows neither the copies, which took `copying`
        seconds, nor the draft model, which has a cost line of its own: both are taken off."""
        drafting = self.scheduler.speculation.take_model_seconds()
        if not batch.scheduled:
            return
        seconds = max(0.0, in_all - copying - drafting)
        self._steps += 1
        self._last, self._last_sequences, self._last_seconds = StepWork.of(batch), len(batch.scheduled), in_all
        self._most_tokens = max(self._most_tokens, self._last.tokens)
        cost = self.scheduler.policy.cost
        constant = cost.coefficients[0]
        self.scheduler.policy.observe(self._last, seconds)
        predicted = cost.last_prediction + drafting
        most = _STANDSTILL * (predicted + copying) if cost.is_measured else in_all
        self.scheduler.turnover.charge(batch.scheduled, min(in_all, most), constant)
        self._untold.append(StepRecord(self._last.tokens, self._last_sequences, predicted, in_all))

    def _unload_unused(self) -> None:
        for name in self._leaving - self.scheduler.adapters_in_use:
            self._leaving.discard(name)
            self._runner.unload_adapter(name)

    def _refusals(self) -> list[StepOutput]:
        refused, self._refused = self._refused, []
        return refused
