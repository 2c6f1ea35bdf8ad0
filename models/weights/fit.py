"""A checkpoint fits its configuration where its tensors are those of the model, none is missing, has another shape or
no place, and all of their numbers are finite. The library fills what is missing at random and says so in its log
alone."""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import Path

import torch
from safetensors import safe_open
from transformers.utils import logging

from models.checkpoint.safetensors_file import FLOATS, Tensor, read_header
from models.errors import InvalidSource
from models.progress import Progress, silent
from models.weights.conversion import finite
from models.weights.skeleton import Skeleton, config_of, family_of

Stored = dict[str, tuple[Tensor, Path]]
"""The tensors of a version that the model reads, by its own names, and their files."""
_SHOWN = 3
_ROWS = 4096
"""Rows of a matrix that are compared at once."""


def check_tensors(directory: Path, model: Skeleton) -> None:
    """Raises InvalidSource, which names tensors, where the weights in `directory` are not the model's that
    `config.json` describes, or are whole numbers. The library loads them to the meta device, so that names are
    converted and tied as in a load; no weight is read."""
    config = config_of(directory)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        loaded, info = family_of(config).from_pretrained(
            str(directory),
            config=config,
            device_map={"": "meta"},
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidSource(
            f"The weights do not fit the model of config.json ({type(error).__name__}): save the model again"
        ) from error
    finally:
        logging.set_verbosity(level)
    if info["missing_keys"]:
        raise InvalidSource(lacking(info["missing_keys"]))
    if info["mismatched_keys"]:
        name, stored, expected = min(info["mismatched_keys"])
        raise InvalidSource(
            f"The tensor {name} has the shape {list(stored)}, and the model of config.json {list(expected)}: take the "
            "config.json that belongs to these weights"
        )
    if unread := [name for name in info["unexpected_keys"] if model.reads(name)]:
        raise InvalidSource(
            f"The weights hold {_names(unread)}, which the model of config.json does not have: take the config.json "
            "that belongs to these weights, or save the model again with transformers' save_pretrained"
        )
    whole = {name for name, buffer in loaded.named_buffers() if not buffer.is_floating_point()}
    _refuse_codes(directory, model, whole)


def own_heads(directory: Path, model: Skeleton) -> list[str]:
    """Returns the output heads that `config.json` ties to the embedding though the files hold other numbers for them,
    as after a training of the head alone. transformers ties no such head; nothing else may either."""
    stored = stored_in(directory, model)
    both = ((head, embedding) for head, embedding in model.tied.items() if stored.keys() >= {head, embedding})
    return [head for head, embedding in both if not _are_equal(stored[head], stored[embedding])]


def require_tied(directory: Path, model: Skeleton) -> None:
    """Raises InvalidSource for a version that was imported before such heads were known."""
    if heads := own_heads(directory, model):
        raise InvalidSource(
            f"{_names(heads)} differs from the embedding that config.json ties it to: import the checkpoint again, "
            "which unties them"
        )


def stored_in(source: Path, model: Skeleton) -> Stored:
    """Reads the headers of a version's files."""
    return {
        model.canonical(tensor.name): (tensor, path)
        for path in _weights_in(source)
        for tensor in read_header(path)
        if model.reads(tensor.name)
    }


def _are_equal(one: tuple[Tensor, Path], other: tuple[Tensor, Path]) -> bool:
    with safe_open(one[1], framework="pt") as first, safe_open(other[1], framework="pt") as second:
        mine, theirs = first.get_slice(one[0].name), second.get_slice(other[0].name)
        count = mine.get_shape()[0]
        return bool(mine.get_shape() == theirs.get_shape()) and all(
            torch.equal(mine[at : at + _ROWS].float(), theirs[at : at + _ROWS].float()) for at in range(0, count, _ROWS)
        )


def _refuse_codes(directory: Path, model: Skeleton, whole: Set[str]) -> None:
    """Raises InvalidSource for whole numbers that the model would read as weights: codes of a quantized form that no
    import knows, whose scales are not applied. `whole` names the model's own tables of whole numbers."""
    for path in _weights_in(directory):
        for tensor in read_header(path):
            if tensor.dtype not in FLOATS and model.reads(tensor.name) and model.canonical(tensor.name) not in whole:
                raise InvalidSource(
                    f"{tensor.name} holds whole numbers, {tensor.dtype}, where the model has weights: import the "
                    "unquantized checkpoint, then quantize it here"
                )


def lacking(names: Iterable[str]) -> str:
    """Returns the sentence about tensors that the model has and no file."""
    return (
        f"The weights lack {_names(names)}, which the model of config.json has: give the whole checkpoint, or the "
        "config.json that belongs to these weights"
    )


def check_finite(directory: Path, progress: Progress = silent) -> None:
    """Raises InvalidSource, which names the tensor, for a weight in `directory` that is NaN or infinite."""
    paths = _weights_in(directory)
    for number, path in enumerate(paths):
        progress(number / len(paths), f"checking {path.name}")
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118  # the file is no dictionary
                finite(name, weights.get_tensor(name))


def _weights_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


def _names(names: Iterable[str]) -> str:
    each = sorted(names)
    more = f" and {len(each) - _SHOWN:,} more" if len(each) > _SHOWN else ""
    return ", ".join(each[:_SHOWN]) + more
