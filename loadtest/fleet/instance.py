"""A simulated instance: the real engine core on a clock of its own, which a cost line moves, and an API process.

Scheduler, blocks, eviction and batching policy are the product's. What is simulated is the time that a step takes, and
that the API process, one core, hands out one token event after the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from service.engine.process.core import EngineCore
from service.engine.process.worker import build_scheduler
from service.engine.protocol.config import EngineConfig
from service.engine.protocol.messages import Request, StepOutput
from service.engine.scheduling.cost import StepWork
from service.engine.sequences.batch import Batch, BlockCopy, SampledToken

Line = tuple[float, float, float, float]
"""Seconds of a step: constant, per token, per token of context, per query-key pair."""
VOCABULARY: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """What one instance is: how long its steps take, and what its API process spends, in seconds."""

    line: Line
    loop: tuple[float, float]
    """Seconds of a step that the line does not know: constant, per sequence."""
    turn_seconds: float
    event_seconds: float
    blocks: int
    block_size: int = 16
    window: int = 2048
    max_num_seqs: int = 64
    way_seconds: float = 0.0
    """Of a turn outside of the engine and the API process: its client, and the way there and back."""

    lines: Sequence[tuple[float, Line]] = ()
    """Lines that follow `line`, each from its second of the day on, earliest first: a host is not always as fast."""

    def predict(self, work: StepWork, now: float = 0.0) -> float:
        """Returns the seconds of a step that begins at `now`."""
        past = bisect_right(self.lines, now, key=itemgetter(0))
        a, b, c, d = self.lines[past - 1][1] if past else self.line
        return a + b * work.tokens + c * work.kv_tokens + d * work.attention


@dataclass
class TimedRunner:
    """A model without weights, of which every step takes what the line says. Its tokens depend on their place only."""

    shape: Shape
    now: float = 0.0
    busy: float = 0.0
    vocab_size: int = VOCABULARY
    no_states: str = ""
    verifies_drafts: bool = False
    num_disk_blocks: int = 0
    draft_model: None = None
    grammars: None = None
    adapters: frozenset[str] = field(default_factory=frozenset)

    def run(self, batch: Batch) -> Sequence[SampledToken | None]:
        seconds = self.shape.predict(StepWork.of(batch), self.now)
        self.now += seconds
        self.busy += seconds
        return [SampledToken(1 + len(item.sequence.token_ids)) if item.samples else None for item in batch.scheduled]

    def copy(self, copies: Sequence[BlockCopy]) -> Sequence[BlockCopy]:
        return []

    def read_adapter(self, name: str, directory: str) -> Callable[[], None]:
        raise ValueError("a simulated model has no adapters")

    def unload_adapter(self, name: str) -> None:
        """There is none."""

    def windows(self) -> None:
        """All layers have the same blocks."""

    def recorder(self, kind: str) -> Any:
        raise ValueError("a simulated model is not profiled")


class Instance:
    """One of a fleet. `in_flight` counts requests, as a balancer does."""

    def __init__(self, name: int, shape: Shape) -> None:
        self.name, self.shape, self.in_flight = name, shape, 0
        self.is_stepping = False
        self._api_free = 0.0
        self.api_seconds = 0.0
        self.runner = TimedRunner(shape)
        config = EngineConfig(
            model_dir="",
            precision="bf16",
            max_model_len=shape.window,
            block_size=shape.block_size,
            max_num_seqs=shape.max_num_seqs,
        )
        self.core = EngineCore(self.runner, build_scheduler(config, self.runner, shape.blocks), lambda: self.runner.now)

    def accept(self, now: float) -> float:
        """Returns when the API process has a request's prompt ready, which is asked now."""
        self.in_flight += 1
        return self._api(now + self.shape.way_seconds, self.shape.turn_seconds)

    def add(self, request: Request) -> None:
        self.core.add(request)

    def step(self, now: float) -> tuple[float, list[StepOutput]]:
        """Computes one batch from `now` on. Returns when it is done, and its news."""
        self.runner.now = now
        outputs = self.core.step()
        constant, each = self.shape.loop
        return self.runner.now + constant + each * len(outputs), outputs

    def hand_out(self, done: float, tokens: int) -> float:
        """Returns when the API process has handed out `tokens` of a step that was done then."""
        return self._api(done, tokens * self.shape.event_seconds)

    @property
    def hit_ratio(self) -> float:
        """The share of prompt tokens that the cache had."""
        prefill = self.core.scheduler.prefill
        return prefill.num_hit_tokens / max(1, prefill.num_queried_tokens)

    def _api(self, now: float, seconds: float) -> float:
        self._api_free = max(self._api_free, now) + seconds
        self.api_seconds += seconds
        return self._api_free
