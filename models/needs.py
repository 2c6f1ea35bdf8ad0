"""The needs of a checkpoint are the disk and memory to convert it and to serve it, from its shapes. It measures none.
Imports torch only inside functions.

disk        the download, its copy or its bf16 version, and the 8-bit version made from that
converting  tensors are read and written one at a time: the largest one several times over, beside the libraries
serving     the weights, the processes, and the KV cache, whose pages come as chats fill it
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from models.checkpoint.config_policy import accept, as_text, read_json
from models.manifest import QUANTIZED, Precision

if TYPE_CHECKING:
    from models.skeleton import Skeleton

LIBRARIES_BYTES: Final = 450 << 20
"""A process that has imported torch and transformers."""
ENGINE_BYTES: Final = 256 << 20
"""An engine process without its weights, as `service.deployments` reckons it, and the API process beside it."""
API_BYTES: Final = 150 << 20
LEAST_TOKENS: Final = 2048
"""The tokens that the KV cache holds at least."""
_DTYPE_BYTES: Final = {"fp32": 4, "bf16": 2}
_QUANTIZING_BYTES: Final = 14
"""Of one weight while its row is quantized: the stored bf16, and in fp32 the weight, its quotient and its rounding."""
_CONVERTING_BYTES: Final = 6
"""Of one weight while its dtype changes: fp32 beside bf16."""
_KV_BYTES: Final = {"auto": 2.0, "int8": 1.05}
"""Of one kept number; 8-bit rows have a scale besides."""


@dataclass(frozen=True, slots=True)
class Needs:
    """All in bytes but `parameters` and `context_window`. `disk` is what is taken at most while the version is made,
    the download included, and `kept` what stays. `serving` holds the least KV cache; `kv_cache` is what it may grow
    to besides."""

    parameters: int
    context_window: int
    disk: int
    kept: int
    converting: int
    serving: int
    kv_cache: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a checkpoint is to become: its precision, and the settings of the KV cache. `tokens` is how many the
    scheduler could hold at once, and `cache_share` the part of free memory that the cache may take; `cache_bytes` > 0
    decides alone."""

    precision: Precision
    kv_dtype: str
    cache_bytes: int
    sequences: int
    cache_share: float


def needs_of(config: Path, weight_bytes: int, largest_file: int, wanted: Wanted, free_memory: int) -> Needs:
    """The needs of a checkpoint with the file `config` whose safetensors files are `weight_bytes` in all, the largest
    of them `largest_file`. Raises InvalidSource for an architecture that is not served."""
    from models.skeleton import build

    with TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(as_text(accept(read_json(config)).config))
        model = build(Path(directory))
    disk, kept = _disk(model, weight_bytes, largest_file, wanted.precision)
    cache_bytes = _kv_bytes(model, wanted)
    loaded = _version_bytes(model, wanted.precision) + ENGINE_BYTES + API_BYTES
    least = min(model.context_window, LEAST_TOKENS) * cache_bytes
    most = model.context_window * wanted.sequences * cache_bytes
    grown = wanted.cache_bytes or min(most, int(max(0, free_memory - loaded) * wanted.cache_share))
    return Needs(
        parameters=model.parameters,
        context_window=model.context_window,
        disk=disk,
        kept=kept,
        converting=_converting(model, wanted.precision),
        serving=loaded + (wanted.cache_bytes or int(least)),
        kv_cache=0 if wanted.cache_bytes else max(0, int(grown - least)),
    )


def _disk(model: Skeleton, weight_bytes: int, largest_file: int, precision: Precision) -> tuple[int, int]:
    dense = _version_bytes(model, "bf16" if precision in QUANTIZED else precision)
    kept = dense + (_version_bytes(model, precision) if precision in QUANTIZED else 0)
    converted = largest_file if dense != weight_bytes else 0  # the old and the new file beside one another
    return weight_bytes + max(weight_bytes + converted, kept), kept


def _version_bytes(model: Skeleton, precision: Precision) -> int:
    """Bytes of a version's weights. An 8-bit version has a tied head of its own beside the embedding."""
    if precision not in QUANTIZED:
        return model.parameters * _DTYPE_BYTES[precision]
    tied = set(model.tied)
    coded = sum(each.out_features * each.in_features for each in model.linears.values())
    scales = sum(each.out_features * 4 for each in model.linears.values())
    own = sum(each.out_features * each.in_features for name, each in model.linears.items() if name not in tied)
    return coded + scales + (model.parameters - own) * _DTYPE_BYTES["bf16"]


def _converting(model: Skeleton, precision: Precision) -> int:
    largest = max((each.out_features * each.in_features for each in model.linears.values()), default=0)
    return LIBRARIES_BYTES + largest * (_QUANTIZING_BYTES if precision in QUANTIZED else _CONVERTING_BYTES)


def _kv_bytes(model: Skeleton, wanted: Wanted) -> float:
    """Bytes of one token's keys and values."""
    own = 4.0 if wanted.precision == "fp32" else _KV_BYTES["auto"]
    return model.kv_values * (_KV_BYTES["int8"] if wanted.kv_dtype == "int8" else own)
