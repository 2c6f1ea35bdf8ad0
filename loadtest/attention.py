"""This test measures attention of one layer beside its limits: `python -m loadtest.attention [--dtype int8]`.

Sequences of random blocks, as an engine leaves them; the layers' caches take turns, so that they come from memory. The
limits are the bytes of keys and values by the measured memory rate, and the products by the measured rate of fp32.
`--libraries` compares builds of the kernels, which take turns, and says whether their results are equal.
"""

from __future__ import annotations

import argparse
from ctypes import CDLL
from dataclasses import dataclass
from functools import partial

import torch

from models.weights.loading import DTYPES
from service.engine.kv_cache.kv_size import LayerShape
from service.engine.runner.forwards.attention import AttentionSpec
from service.engine.runner.kv_cache import KVCache, bytes_per_block
from service.engine.runner.limits import DEPTH, memory_read, seconds, ways_of, weight_memory
from service.engine.runner.native.attention import heads_struct
from service.engine.runner.native.library import Library, library
from service.engine.scheduling.cost import chunk_attention
from service.host import usable_cores

WORK = ((1, 200, 1), (8, 200, 1), (32, 200, 1), (8, 1024, 1), (1, 4096, 1), (1, 0, 1024), (8, 0, 128), (1, 700, 16))
"""Sequences, their positions so far, and new rows of each."""
BLOCK_SIZE = 16
CACHE_BYTES = 1 << 28
"""The layers' caches of one work together, at least two of them: more than the processor's caches hold."""


@dataclass(frozen=True)
class Layers:
    """Layers with the same heads, and what their caches keep."""

    heads: int
    shape: LayerShape
    dtype: torch.dtype

    def token_bytes(self) -> int:
        return bytes_per_block([self.shape], BLOCK_SIZE, self.dtype) // BLOCK_SIZE

    def cache(self, layers: int, blocks: int) -> KVCache:
        cache = KVCache([self.shape] * layers, blocks, BLOCK_SIZE, self.dtype, torch.device("cpu"))
        slots = torch.arange(blocks * BLOCK_SIZE)
        rows = cache.slot_rows(slots, self.shape.kv_heads)
        for layer in range(layers):
            key, value = (torch.randn(len(slots), self.shape.kv_heads, dim) for dim in self.shape.dims)
            cache.write(layer, key, value, rows)
        return cache


def measure(layers: Layers, kernels: dict[str, Library], work: tuple[int, int, int], rates: tuple[float, float]) -> str:
    """Returns the line of one work. `rates` are bytes and fp32 operations a second."""
    count, past, new = work
    blocks = -(-(past + new) // BLOCK_SIZE)
    pairs = count * chunk_attention(past, new)
    read = count * (past + new) * layers.token_bytes()
    cache = layers.cache(min(22, max(2, CACHE_BYTES // read)), count * blocks)
    spec = AttentionSpec(layers.shape.key_dim**-0.5)
    structs = [heads_struct(cache, layer, layers.heads, spec) for layer in range(len(cache.shapes))]
    tables = torch.randperm(count * blocks)
    sequences = torch.tensor([[i * new, new, past, i * blocks] for i in range(count)])
    query = torch.randn(count * new, layers.heads, layers.shape.key_dim)
    results = [each.attend(structs[0], sequences, tables, query) for each in kernels.values()]

    def run(each: Library) -> None:
        for struct in structs:
            each.attend(struct, sequences, tables, query)

    taken = [each / len(structs) for each in seconds([partial(run, each) for each in kernels.values()], 5)]
    limits = read / rates[0], 2 * pairs * layers.heads * sum(layers.shape.dims) / rates[1]
    shown = " | ".join(f"{1e6 * each:.0f}" for each in (*limits, *taken))
    return f"{count} x {past} + {new} | {shown} | {all(result.equal(results[0]) for result in results)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", default="32/4/64", help="query heads / heads of keys and values / their dimension")
    parser.add_argument("--dtype", default="bf16", choices=[*DTYPES, "int8"], help="of the cache")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--libraries", nargs="*", default=[], help="builds to compare; default: the one that serves")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kernels = {path: Library(path, CDLL(path)) for path in options.libraries}
    if not kernels and (own := library()) is not None:
        kernels[own.level] = own
    if not kernels:
        parser.error("no native kernels; run make install")
    memory = weight_memory()
    fp32, *_ = ways_of("fp32", memory)
    rows = torch.randn(128, DEPTH)
    rates = 1e9 * memory_read(memory, 3), fp32.operations(128) / seconds([partial(fp32.run, rows)], 3)[0]
    heads, kv_heads, dim = map(int, options.heads.split("/"))
    layers = Layers(heads, LayerShape(kv_heads, dim, dim), {**DTYPES, "int8": torch.int8}[options.dtype])
    print(f"{options.threads} threads; {options.dtype} cache, heads {options.heads}; microseconds a layer")
    print(f"sequences x positions + rows | memory's limit | fp32's limit | {' | '.join(kernels)} | equal")
    for work in WORK:
        print(measure(layers, kernels, work, rates), flush=True)


if __name__ == "__main__":
    main()
