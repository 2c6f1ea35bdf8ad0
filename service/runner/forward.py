"""The forward is the interface of every way to compute a step. It knows packed rows; no architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from models.loading import LowRankWeights
from service.runner.step import Step


class Forward(Protocol):
    """A way to compute a step. `kind` is EngineInfo.forward, `invariant` whether rows are independent of the batch."""

    kind: str
    invariant: bool

    @property
    def model(self) -> nn.Module:
        """The weights that this way uses."""

    def load_adapter(self, name: str, weights: Mapping[str, LowRankWeights]) -> None:
        """From now on steps may have rows with this adapter; `weights` by the base's linear module. Raises CannotServe
        where that is no module of the model."""

    def unload_adapter(self, name: str) -> None:
        """No step has rows with this adapter any more."""

    def __call__(self, step: Step) -> Tensor:
        """Logits [len(step.logit_rows), vocabulary]; writes the step's keys and values."""


class CannotServe(Exception):
    """This way does not fit the architecture; the message says why. Another way may."""
