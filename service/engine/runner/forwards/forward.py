"""The forward is the interface of every way to compute a step. It knows packed rows, but no architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from models.weights.loading import LowRankWeights
from service.engine.runner.forwards.step import Step

if TYPE_CHECKING:
    import transformers


class Forward(Protocol):
    """A way to compute a step. `kind` is EngineInfo.forward. `attends` says whether our attention computes over packed
    rows, `invariant` whether rows are independent of the batch, `no_states` why it gives no final states ("" if it
    does)."""

    kind: str
    attends: bool
    invariant: bool
    no_states: str

    @property
    def vocab_size(self) -> int:
        """Token ids that it can both read and give run from 0 to this, excluded."""

    @property
    def model(self) -> nn.Module:
        """The weights that this way uses."""

    def load_adapter(self, name: str, weights: Mapping[str, LowRankWeights]) -> None:
        """Loads an adapter, so that steps may have rows with it. `weights` are by the base's linear module. Raises
        CannotServe for a module that the model does not have."""

    def unload_adapter(self, name: str) -> None:
        """Unloads an adapter that no step uses any more."""

    def __call__(self, step: Step) -> Tensor:
        """Writes the step's keys and values and returns logits [len(step.logit_rows), vocabulary]. Gives `step.final`,
        if there is one, its states."""


def vocab_size_of(model: transformers.PreTrainedModel) -> int:
    """Rows of the embedding, or of the output layer where it has fewer."""
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return min(len(layer.weight) for layer in (embedding, head) if getattr(layer, "weight", None) is not None)


class CannotServe(Exception):
    """This way does not fit the architecture; the message says why. Another way may."""
