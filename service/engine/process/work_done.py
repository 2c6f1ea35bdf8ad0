"""Work done is what an engine process did since its start, by phase: useful FLOPs, bytes and seconds, counted by
arithmetic on every step. It knows a model's shape as numbers; no tensors and no sequences.

    flops = 2 · weights · tokens + pair_flops · pairs + 2 · hidden · vocabulary · sampled        (`tally`, `ModelWork`)
    bytes = weights read once by the step + kv_bytes · (positions read + positions written)

A step with both phases reads the weights once and takes one time: both are divided by the phases' rows, because every
row passes through the same products.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from service.engine.protocol.work import ModelWork, PhaseWork
from service.engine.sequences.tally import PhaseTally

WINDOW_STEPS: Final = 256
_NANO: Final = 1_000_000_000


class WorkDone:
    """One thread adds each step after it has ended."""

    def __init__(self, model: ModelWork) -> None:
        self._model = model
        self._prefill = _Phase()
        self._decode = _Phase()

    @property
    def prefill(self) -> PhaseWork:
        return self._prefill.snapshot()

    @property
    def decode(self) -> PhaseWork:
        return self._decode.snapshot()

    def add(self, prefill: PhaseTally, decode: PhaseTally, seconds: float) -> None:
        """Adds a step of these counts that took so many seconds."""
        rows, nanos = prefill.rows + decode.rows, round(seconds * _NANO)
        weights = self._weight_bytes(prefill, decode, rows)
        for phase, tally in ((self._prefill, prefill), (self._decode, decode)):
            if tally.rows:
                moved = weights * tally.rows // rows + self._model.kv_bytes * tally.kv_positions
                phase.add(self._flops(tally), moved, nanos * tally.rows // rows)

    def _flops(self, tally: PhaseTally) -> int:
        model = self._model
        flops = 2 * model.weights * tally.tokens + model.pair_flops * tally.pairs
        flops += 2 * model.head_weights * tally.sampled
        if tally.encoder_tokens:
            flops += 2 * model.encoder_weights * tally.encoder_tokens + model.encoder_pair_flops * tally.encoder_pairs
        return flops

    def _weight_bytes(self, prefill: PhaseTally, decode: PhaseTally, rows: int) -> int:
        model = self._model
        read = model.layer_bytes + min(model.expert_bytes, model.active_expert_bytes * rows)
        if prefill.sampled or decode.sampled:
            read += model.head_bytes
        return read + model.encoder_bytes if prefill.encoder_tokens else read


class _Phase:
    """Totals of one phase, and sums over its last steps. Integers: sums that grow and shrink stay exact."""

    def __init__(self) -> None:
        self._flops = self._bytes = self._nanos = 0
        self._recent_flops = self._recent_bytes = self._recent_nanos = 0
        self._window = deque[tuple[int, int, int]]()

    def add(self, flops: int, moved: int, nanos: int) -> None:
        self._flops += flops
        self._bytes += moved
        self._nanos += nanos
        self._recent_flops += flops
        self._recent_bytes += moved
        self._recent_nanos += nanos
        self._window.append((flops, moved, nanos))
        if len(self._window) > WINDOW_STEPS:
            flops, moved, nanos = self._window.popleft()
            self._recent_flops -= flops
            self._recent_bytes -= moved
            self._recent_nanos -= nanos

    def snapshot(self) -> PhaseWork:
        return PhaseWork(
            float(self._flops),
            float(self._bytes),
            self._nanos / _NANO,
            float(self._recent_flops),
            float(self._recent_bytes),
            self._recent_nanos / _NANO,
        )
