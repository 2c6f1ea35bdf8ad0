"""The selection is the part of a listing that a version needs: safetensors, configuration, tokenizer, card.

    config.json and others by name      `checkpoint.file_names`
    tokenizer.json                      else the files of a slow tokenizer
    weights                             the shards that the index names, else the one safetensors file, else one of the
                                        GGUF files, which needs nothing beside it (`gguf_choice`)

Everything else stays on the hub: pickled weights, other formats, copies of the weights in one file, code.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from models.checkpoint import tokenizer_files
from models.checkpoint.config_policy import MAX_JSON_BYTES, parse_json
from models.checkpoint.file_names import CARDS, COPIED, PICKLED
from models.checkpoint.pooling import MODULES, POOLING_CONFIG
from models.checkpoint.safetensors_file import INDEX, WEIGHTS
from models.errors import InvalidSource
from models.imports.hub import gguf_choice
from models.imports.hub.source import HubSource
from models.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS

SAFETENSORS: Final = ".safetensors"
_OUT: Final = "choose a repository with safetensors, or write them with transformers' save_pretrained and serve that"


def is_gguf(source: HubSource, names: Collection[str]) -> bool:
    """Whether a GGUF file is wanted, or the repository has its weights in nothing else that is read."""
    has_other = any(name.endswith(SAFETENSORS) for name in names)
    return bool(source.file) or (not has_other and bool(gguf_choice.models(names)))


def texts(names: Collection[str]) -> list[str]:
    """Returns the small files to have, the weights' index among them. Adapter files are included."""
    chosen = COPIED | CARDS | {INDEX, ADAPTER_CONFIG, MODULES, POOLING_CONFIG}
    if tokenizer_files.TOKENIZER not in names:
        chosen = chosen | set(tokenizer_files.TO_CONVERT)
    return sorted(chosen & set(names))


def weights(source: HubSource, names: Collection[str], index: bytes | None) -> list[str]:
    """Returns the weights' files. `index` is the content of the weights' index, where the repository has one. Raises
    InvalidSource that names what is there instead."""
    if is_gguf(source, names):
        return gguf_choice.choose(source, names)
    if ADAPTER_WEIGHTS in names:
        return [ADAPTER_WEIGHTS]
    files = sorted(name for name in names if name.endswith(SAFETENSORS))
    if not files:
        raise InvalidSource(_without(source, names))
    if index is not None:
        return _shards(source, index, files)
    if len(files) == 1 or WEIGHTS in files:
        return files if len(files) == 1 else [WEIGHTS]
    raise InvalidSource(f"{source.id} has {len(files)} safetensors files and no {INDEX}: its weights are not one model")


def refuse_without_config(source: HubSource, names: Collection[str]) -> None:
    """Raises InvalidSource for a repository that is no checkpoint."""
    if "config.json" not in names and ADAPTER_CONFIG not in names:
        raise InvalidSource(f"{source.id} has no config.json, so it is no checkpoint of a model: check the name")


def _shards(source: HubSource, index: bytes, files: list[str]) -> list[str]:
    weight_map = parse_json(index[: MAX_JSON_BYTES + 1], INDEX).get("weight_map")
    named = weight_map.values() if isinstance(weight_map, dict) else ()
    shards = {name if isinstance(name, str) else "" for name in named}
    missing = sorted(shards - set(files))
    if not shards or missing:
        raise InvalidSource(f"{source.id}: {INDEX} names no weights that are there{_first(missing)}; tell its author")
    return sorted(shards)


def _first(missing: list[str]) -> str:
    return f" ({missing[0][:80]!r} is missing)" if missing else ""


def _without(source: HubSource, names: Collection[str]) -> str:
    pickled = sorted(name for name in names if Path(name).suffix.lower() in PICKLED)
    if pickled:
        return f"{source.id} has its weights only as {pickled[0]}, which can run code when it is read: {_OUT}"
    other = sorted(name for name in names if Path(name).suffix.lower() == ".onnx")
    if other:
        return f"{source.id} has its weights only as {other[0]}, which is not served: {_OUT}"
    return f"{source.id} holds no weights: check the name"
