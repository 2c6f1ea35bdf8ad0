"""Work is what a model's shape says a token costs, what a phase has done, and what this host can do at most.

The numbers travel in the frames of `messages`. This module holds them and counts nothing.
"""

from __future__ import annotations

from operator import add
from typing import Final

import msgspec


class ModelWork(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's shape says a token costs. All zeros: the shape is not known, and no work is counted.

    Weights are elements of linear layers that one token multiplies with; of a mixture of experts, those of the experts
    that one token uses. `pair_flops` is 4 · layers · heads · head_dim, for one query-key pair in every layer. The
    encoder's numbers are 0 without an encoder; its weights include the decoder's products over the encoder's output.
    `hidden` is the width of a hidden state. Bytes are those of a forward: `layer_bytes` in any, `head_bytes` where
    tokens are sampled, `encoder_bytes` where the encoder runs, `expert_bytes` of all experts and `active_expert_bytes`
    of those of one token."""

    hidden: int = 0
    weights: int = 0
    pair_flops: int = 0
    head_weights: int = 0
    encoder_weights: int = 0
    encoder_pair_flops: int = 0
    layer_bytes: int = 0
    head_bytes: int = 0
    encoder_bytes: int = 0
    expert_bytes: int = 0
    active_expert_bytes: int = 0
    kv_bytes: int = 0
    """Keys and values of one position in all layers."""


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """The most that this host was measured to do with an engine's threads. `dtype` is that of the model's products."""

    dtype: str
    flops: float
    """Floating-point operations a second; for int8, integer operations."""
    bytes_per_second: float
    """Read from memory."""


class SlowPath(msgspec.Struct, frozen=True, kw_only=True):
    """That an engine computes by a slower way than its fastest one, and why the faster ways were refused at load. A
    decode step of one sequence took `step_seconds`; memory gives the weights of one in `weights_seconds`, which is
    close to what the fastest way takes. 0 where that is not known."""

    reasons: tuple[str, ...]
    step_seconds: float
    weights_seconds: float

    @property
    def slowdown(self) -> float:
        """How many times the fastest way's time a step takes, at most; 0 where that is not known."""
        return self.step_seconds / self.weights_seconds if self.weights_seconds else 0.0

    @property
    def sentence(self) -> str:
        """The cost and the reasons."""
        took = f"a decode step takes {self.step_seconds * 1e3:.3g} ms"
        if self.weights_seconds:
            took += f", up to {self.slowdown:.2g} times what memory allows ({self.weights_seconds * 1e3:.3g} ms)"
        return f"{took}, because a faster way was refused: {'; '.join(self.reasons)}"


class PhaseWork(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an engine process did in one phase, prefill or decode: since its start, and in the phase's last
    `work_done.WINDOW_STEPS` steps (`recent_`). Floating point, because a fast device passes 2⁶⁴ operations."""

    flops: float = 0.0
    """Useful floating-point operations of the forward pass (see `work_done`)."""
    bytes: float = 0.0
    """Weights, keys and values that moved between memory and processor."""
    seconds: float = 0.0
    """The phase's share of the steps' time."""
    recent_flops: float = 0.0
    recent_bytes: float = 0.0
    recent_seconds: float = 0.0

    def __add__(self, other: PhaseWork) -> PhaseWork:
        return PhaseWork(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


NO_WORK: Final = PhaseWork()
