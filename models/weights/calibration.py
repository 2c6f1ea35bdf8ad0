"""Calibration runs a checkpoint on given text and notes the inputs of its linear layers, for the quantizer.

Outlier columns: in large models a few columns of the hidden state are many times larger than the rest, always the same
ones. With one scale per row they leave little precision for the others (Dettmers et al. 2022, LLM.int8).
Mean squares: the error of a weight counts as much as the square of what it is multiplied with.
Second moments: errors of weights compensate each other as far as their inputs go together (`models.weights.gptq`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from models.errors import InvalidSource
from models.weights.gptq import Moments, moments_of
from models.weights.hadamard import transformed
from models.weights.skeleton import Linear

THRESHOLD = 6.0
"""The magnitude from which a column is an outlier, as in the paper."""
MOST_SHARE = 0.125
"""The greatest share of a layer's columns that become outliers: the largest ones if more pass the threshold."""

TokenIds = Sequence[Sequence[int]]
Calibrate = Callable[[Path, int], TokenIds]
"""(directory of a version, its window) → texts as its token ids."""


def outlier_columns(
    directory: Path, linears: dict[str, Linear], texts: TokenIds, threshold: float
) -> dict[str, torch.Tensor]:
    """Returns for each linear layer, by its module's name, the columns (ascending int32) whose input reaches
    `threshold` anywhere in `texts`. Raises InvalidSource for a checkpoint that cannot be run."""
    largest = _largest(directory, [linear.module for linear in linears.values()], texts)
    by_module = {}
    for module, magnitudes in largest.items():
        most = max(1, int(len(magnitudes) * MOST_SHARE))
        columns = (magnitudes >= threshold).nonzero()[:, 0]
        if len(columns) > most:
            columns = magnitudes.topk(most).indices
        by_module[module] = columns.sort().values.to(torch.int32)
    return by_module


def mean_squares(directory: Path, modules: Sequence[str], texts: TokenIds) -> dict[str, torch.Tensor]:
    """Returns for each of the library's modules, by its name, the mean square of each column of its first input over
    `texts`, fp32 [in]. Raises InvalidSource for a checkpoint that cannot be run."""
    sums: dict[str, torch.Tensor] = {}

    def note(name: str, rows: torch.Tensor) -> None:
        seen = rows.float().square().sum(dim=0)
        sums[name] = sums[name] + seen if name in sums else seen

    _run(directory, modules, texts, note)
    positions = sum(len(text) for text in texts)
    return {name: squares / positions for name, squares in sums.items()}


def second_moments(directory: Path, modules: Sequence[str], texts: TokenIds, block: int) -> dict[str, Moments]:
    """Returns for each linear module, by its name, the second moments of its inputs over `texts`, behind a Hadamard
    transform of this block; of no module whose inputs are not finite. Raises InvalidSource for a checkpoint
    that cannot be run."""
    moments: dict[str, Moments] = {}
    last, seen = torch.empty(0), Moments()

    def note(name: str, rows: torch.Tensor) -> None:
        nonlocal last, seen
        if (
            rows.data_ptr() != last.data_ptr() or rows.shape != last.shape
        ):  # queries, keys and values read the same rows
            last, seen = rows, moments_of(transformed(rows, block), block)
        moments[name] = [old + new for old, new in zip(moments[name], seen, strict=True)] if name in moments else seen

    _run(directory, modules, texts, note)
    return {name: runs for name, runs in moments.items() if all(bool(each.isfinite().all()) for each in runs)}


def _largest(directory: Path, modules: list[str], texts: TokenIds) -> dict[str, torch.Tensor]:
    """Returns the largest magnitude of each input column, fp32 [in], by module."""
    largest: dict[str, torch.Tensor] = {}

    def note(name: str, rows: torch.Tensor) -> None:
        seen = rows.abs().amax(dim=0).float()
        largest[name] = torch.maximum(largest[name], seen) if name in largest else seen

    _run(directory, modules, texts, note)
    return largest


@torch.inference_mode()
def _run(directory: Path, modules: Sequence[str], texts: TokenIds, note: Callable[[str, torch.Tensor], None]) -> None:
    """Runs the library's model over the texts. `note` gets the name of each module and its rows [n, in]."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(directory), local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise InvalidSource(f"the checkpoint cannot be run for its calibration: {type(error).__name__}") from error
    for name in modules:
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs, name=name: note(name, inputs[0].detach().reshape(-1, inputs[0].shape[-1]))
        )
    for token_ids in texts:
        model(input_ids=torch.tensor([list(token_ids)]), use_cache=False)
