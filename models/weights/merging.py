"""An adapter that cannot run beside its base is merged into the base's weights, one tensor at a time, in fp32.

    LoRA   W' = W + scale * B A
    DoRA   W' = m * D / |D| with D = W + scale * B A, for each output       (Liu et al. 2024)

An embedding [tokens, width] is the transposed weight of a linear layer with `width` outputs. A weight that was trained
whole takes the place of the base's. Where head and embedding are one weight and were not trained as one, the result has
two, as the adapter's own model has.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from models.checkpoint.config_policy import as_text, read_json
from models.checkpoint.safetensors_file import Tensor, read_header
from models.errors import InvalidSource
from models.progress import Progress
from models.weights.conversion import DTYPES, PLAIN_FORMAT, bytes_of, finite, read, write_shards
from models.weights.fit import require_tied
from models.weights.peft_adapters import MAGNITUDE, Checked

if TYPE_CHECKING:
    import torch

    from models.weights.skeleton import Skeleton


def merge(
    base: Path, adapter: Path, checked: Checked, model: Skeleton, target: Path, progress: Progress
) -> dict[str, str]:
    """Writes into `target` the weights of `base` with PEFT's file `adapter` merged, and `config.json` where it changes.
    Returns the sha256 of the weights' files by name. Raises InvalidSource for a weight that the base's files have under
    another name than the model, and for a result that is not finite."""
    merged = _Merged(base, adapter, checked, model)
    if merged.untied:
        config = read_json(base / "config.json") | {"tie_word_embeddings": False}
        (target / "config.json").write_text(as_text(config))
    return write_shards(target, merged.tensors, merged.content, progress, PLAIN_FORMAT)


class _Merged:
    """The tensors of a base by the names in its files, each read and changed when its content is asked for."""

    def __init__(self, base: Path, adapter: Path, checked: Checked, model: Skeleton) -> None:
        self._adapter, self._checked, self._model = adapter, checked, model
        require_tied(base, model)
        self._low_rank = {f"{each.module}.weight": each for each in checked.modules}
        self._stored = {
            model.canonical(tensor.name): (tensor, path)
            for path in sorted(base.glob("*.safetensors"))
            for tensor in read_header(path)
        }
        changed = self._low_rank.keys() | checked.trained.keys()
        tied = {} if checked.stays_tied else model.tied
        self.untied = {head: weight for head, weight in tied.items() if {head, weight} & changed}
        if self.untied and model.is_encoder_decoder:  # whose config says by `tie_word_embeddings` more than that
            raise InvalidSource("Head and embedding are one weight in an encoder-decoder model: train without both")
        for weight in sorted(changed):
            if model.tied.get(weight, weight) not in self._stored:
                raise InvalidSource(
                    f"{weight} lies under another name in the base's files: merge the adapter with PEFT and import the "
                    "whole model"
                )

    @property
    def tensors(self) -> list[Tensor]:
        """What is written: all tensors of the base, and a head of its own where it was the embedding's."""
        found = {name: tensor for name, (tensor, _) in self._stored.items()}
        heads = {head: Tensor(head, found[weight].dtype, found[weight].shape) for head, weight in self.untied.items()}
        return list((heads | found).values())

    def content(self, name: str) -> memoryview:
        weight = self._model.canonical(name)
        stored, path = self._stored[self._model.tied.get(weight, weight)]
        if weight in self._checked.trained:
            value = read(self._adapter, self._checked.trained[weight])
        else:
            value = read(path, stored.name)
        if weight in self._low_rank:
            value = self._adapted(weight, value.float())
        return bytes_of(finite(name, value.to(DTYPES[stored.dtype])) if stored.dtype in DTYPES else value)

    def _adapted(self, weight: str, value: torch.Tensor) -> torch.Tensor:
        each, linear = self._low_rank[weight], self._model.linears.get(weight)
        sides = {side: read(self._adapter, name).float() for side, name in self._checked.sides[each.module].items()}
        is_transposed = linear is None or linear.transposed
        changed = (value.T if is_transposed else value) + each.scale * (sides["lora_B"] @ sides["lora_A"])
        if MAGNITUDE in sides:
            changed *= (sides[MAGNITUDE] / changed.norm(dim=1))[:, None]
        return changed.T if is_transposed else changed
